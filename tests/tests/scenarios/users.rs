//! Scripted changes of roles and users → what the planner does about them, in which order, and what it leaves alone.
//!
//! The notation is that of the other scenarios: a line with `*` begins a wave.

use insta::assert_snapshot;
use raftsman_core::action::{Account, Action, UserAction};
use raftsman_core::observed::{Alarm, Granted, Password, Role, User, View};
use raftsman_core::plan::{drift, safety};
use raftsman_core::spec::{KeyRange, Keys, Level};
use raftsman_tests::fixtures::{Scene, cluster, describe};

const FILE: [&str; 3] = [
    "roles: { reader: [{ read: { prefix: /app/ } }], writer: [{ readwrite: { prefix: /app/ } }, { write: { key: /n } }] }",
    "users: { app: { roles: [writer] }, metrics: { roles: [reader] } }",
    "log_level: info",
];

const PASSWORDS: [&str; 3] = [
    "auth: { mode: password }",
    "roles: { writer: [{ readwrite: { prefix: /app/ } }] }",
    "users: { app: { roles: [writer], password: { file: app.password } } }",
];

/// A cluster with the roles and users of this file.
fn settled(further: &[&str]) -> Scene {
    let mut scene = Scene::empty(3, further);
    let output = scene.to_the_end();
    assert!(output.ends_with("done\n"), "{output}");
    scene
}

fn granted(level: Level, keys: Keys) -> Granted {
    Granted { level, keys: keys.span() }
}

fn prefix(text: &str) -> Keys {
    Keys::Prefix(text.to_owned())
}

fn role(granted: impl IntoIterator<Item = Granted>) -> Role {
    granted.into_iter().collect()
}

fn user(roles: &[&str], password: Password) -> User {
    User { roles: roles.iter().map(|r| (*r).to_owned()).collect(), password }
}

// ---- From nothing.

#[test]
fn roles_and_users_of_a_new_cluster() {
    let output = Scene::empty(3, &FILE).to_the_end();
    let (_, after) = output.split_once("* enable auth").expect("auth");
    assert_snapshot!(format!("* enable auth{after}"), @"
    * enable auth cluster: auth is off; 1 1 1
    * set role reader: not there yet: read prefix /app/; 1 1 1
      set role writer: not there yet: readwrite prefix /app/, write key /n; 1 1 1
    * set user app: not there yet: role writer; 1 1 1
      set user metrics: not there yet: role reader; 1 1 1
    done
    ");
}

#[test]
fn users_with_passwords_of_a_new_cluster() {
    let output = Scene::empty(3, &PASSWORDS).to_the_end();
    let (_, after) = output.split_once("* enable auth").expect("auth");
    assert_snapshot!(format!("* enable auth{after}"), @"
    * enable auth cluster: auth is off; 1 1 1
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
      set role writer: not there yet: readwrite prefix /app/; 1 1 1
    * restart all etcd cluster: auth is on: open to clients; - - 1
    * set user app: not there yet: role writer; 1 1 1
    done
    ");
}

#[test]
fn a_file_without_roles_and_users_leaves_them_alone() {
    let mut scene = settled(&FILE);
    scene.desired = cluster(3, &[]);
    scene.agreed().access.users.insert("mallory".to_owned(), user(&["reader"], Password::Untried));
    assert_snapshot!(scene.to_the_end(), @"done");
    // A superuser is left alone, too, but the cluster is not settled until the file names it.
    scene.agreed().access.users.insert("mallory".to_owned(), user(&["root"], Password::Untried));
    assert_snapshot!(scene.to_the_end(), @"blocked: user `mallory` has the role `root`, and the file does not name it");
    assert!(scene.agreed().access.users.contains_key("mallory"));
}

#[test]
fn roles_alone_leave_users_alone() {
    let mut scene = settled(&FILE);
    scene.desired = cluster(3, &[FILE[0]]);
    scene.agreed().access.users.insert("mallory".to_owned(), user(&["reader"], Password::Untried));
    scene.agreed().access.roles.insert("old".to_owned(), Role::default());
    assert_snapshot!(scene.to_the_end(), @"
    * delete role old: not in the file; 1 1 1
    done
    ");
}

#[test]
fn empty_sections_remove_everything_but_root() {
    let mut scene = settled(&FILE);
    scene.desired = cluster(3, &["roles: {}", "users: {}"]);
    assert_snapshot!(scene.to_the_end(), @"
    * delete user app metrics: not in the file; 1 1 1
    * delete role reader writer: not in the file; 1 1 1
    done
    ");
    let access = &scene.agreed().access;
    assert_eq!(access.users.keys().collect::<Vec<_>>(), ["root"]);
    assert_eq!(access.roles.keys().collect::<Vec<_>>(), ["root"]);
}

// ---- Drift: changes that an operator made by hand.

#[test]
fn drift_an_added_user_and_role() {
    let mut scene = settled(&FILE);
    let everything = role([granted(Level::Readwrite, prefix(""))]);
    scene.agreed().access.roles.insert("everything".to_owned(), everything);
    scene.agreed().access.users.insert("mallory".to_owned(), user(&["everything"], Password::Untried));
    assert_snapshot!(scene.to_the_end(), @"
    * delete user mallory: not in the file; 1 1 1
    * delete role everything: not in the file; 1 1 1
    done
    ");
}

#[test]
fn drift_a_user_with_another_role() {
    let mut scene = settled(&FILE);
    scene.agreed().access.users.insert("metrics".to_owned(), user(&["writer"], Password::None));
    assert_snapshot!(scene.to_the_end(), @"
    * set user metrics: lacks role reader; has role writer; 1 1 1
    done
    ");
}

#[test]
fn drift_a_removed_user_and_role() {
    let mut scene = settled(&FILE);
    scene.agreed().access.users.remove("metrics");
    scene.agreed().access.roles.remove("reader");
    assert_snapshot!(scene.to_the_end(), @"
    * set role reader: not there yet: read prefix /app/; 1 1 1
    * set user metrics: not there yet: role reader; 1 1 1
    done
    ");
}

#[test]
fn drift_widened_and_narrowed_roles() {
    let mut scene = settled(&FILE);
    let range = Keys::Range(KeyRange { from: "/a".to_owned(), to: "/m".to_owned() });
    let reader = role([granted(Level::Readwrite, prefix("/app/")), granted(Level::Read, range)]);
    let writer = role([granted(Level::Read, prefix("/app/"))]);
    scene.agreed().access.roles.insert("reader".to_owned(), reader);
    scene.agreed().access.roles.insert("writer".to_owned(), writer);
    assert_snapshot!(scene.to_the_end(), @"
    * set role writer: lacks readwrite prefix /app/, write key /n; 1 1 1
    * set role reader: has read range /a to /m, readwrite prefix /app/, not read; 1 1 1
    done
    ");
}

#[test]
fn drift_a_read_permission_that_became_write() {
    let mut scene = settled(&FILE);
    scene.agreed().access.roles.insert("reader".to_owned(), role([granted(Level::Write, prefix("/app/"))]));
    assert_snapshot!(scene.to_the_end(), @"
    * set role reader: lacks read prefix /app/; 1 1 1
    * set role reader: has readwrite prefix /app/, not read; 1 1 1
    done
    ");
}

#[test]
fn keys_that_are_no_text_are_revoked_too() {
    let mut scene = settled(&FILE);
    let mut reader = role([granted(Level::Read, prefix("/app/"))]);
    reader.permissions.insert(raftsman_core::spec::KeySpan { key: vec![0xfe], end: vec![0xff, 0x01] }, Level::Read);
    scene.agreed().access.roles.insert("reader".to_owned(), reader);
    assert_snapshot!(scene.to_the_end(), @r#"
    * set role reader: has read range \xfe to \xff\x01; 1 1 1
    done
    "#);
}

// ---- The file changes.

#[test]
fn a_permission_moves_from_one_role_to_another() {
    let mut scene = settled(&FILE);
    // What `app` may do comes by `owner` from now on; `writer` is gone.
    scene.desired = cluster(
        3,
        &[
            "roles: { reader: [{ read: { prefix: /app/ } }], owner: [{ readwrite: { prefix: /app/ } }, { write: { key: /n } }] }",
            "users: { app: { roles: [owner] }, metrics: { roles: [reader] } }",
        ],
    );
    assert_snapshot!(scene.to_the_end(), @"
    * set role owner: not there yet: readwrite prefix /app/, write key /n; 1 1 1
    * set user app: lacks role owner; has role writer; 1 1 1
    * delete role writer: not in the file; 1 1 1
    done
    ");
}

#[test]
fn a_permission_moves_between_roles_that_stay() {
    let mut scene = settled(&FILE);
    scene.desired = cluster(
        3,
        &[
            "roles: { reader: [{ read: { prefix: /app/ } }, { write: { key: /n } }], writer: [{ readwrite: { prefix: /app/ } }] }",
            "users: { app: { roles: [reader, writer] }, metrics: { roles: [reader] } }",
        ],
    );
    assert_snapshot!(scene.to_the_end(), @"
    * set role reader: lacks write key /n; 1 1 1
    * set user app: lacks role reader; 1 1 1
    * set role writer: has write key /n; 1 1 1
    done
    ");
}

// ---- Passwords.

#[test]
fn another_password() {
    let mut scene = settled(&PASSWORDS);
    scene.agreed().access.users.insert("app".to_owned(), user(&["writer"], Password::Other));
    assert_snapshot!(scene.to_the_end(), @"
    * set user app: lacks the password of the file; 1 1 1
    done
    ");
}

#[test]
fn a_user_without_a_password_gets_one() {
    let mut scene = settled(&PASSWORDS);
    scene.agreed().access.users.insert("app".to_owned(), user(&["writer"], Password::None));
    assert_snapshot!(scene.to_the_end(), @"
    * set user app: lacks a password (recreated); 1 1 1
    done
    ");
}

#[test]
fn a_user_with_a_password_should_have_none() {
    let mut scene = settled(&FILE);
    scene.agreed().access.users.insert("app".to_owned(), user(&["writer"], Password::Other));
    assert_snapshot!(scene.to_the_end(), @"
    * set user app: has a password (recreated); 1 1 1
    done
    ");
}

#[test]
fn a_password_that_cannot_be_tried_holds_up_nothing_else() {
    let mut scene = settled(&PASSWORDS);
    let unknown = Password::Unknown("the secret file app.password does not exist".to_owned());
    scene.agreed().access.users.insert("app".to_owned(), user(&[], unknown));
    assert_snapshot!(scene.to_the_end(), @"
    * set user app: lacks role writer; 1 1 1
    waits: the password of `app` could not be tested: the secret file app.password does not exist
    ");
}

// ---- When it is not the time.

#[test]
fn users_are_changed_beside_no_restart() {
    let mut scene = settled(&FILE);
    scene.agreed().access.users.remove("metrics");
    scene.desired = cluster(3, &[FILE[0], FILE[1], "log_level: warn"]);
    assert_snapshot!(scene.to_the_end(), @"
    * configure etcd main-1 main-2 main-3: the file has changed; 1 1 1
      set user metrics: not there yet: role reader; 1 1 1
    * restart etcd main-2: the file has changed; 1 0 1
    * restart etcd main-3: the file has changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: the file has changed; 1 0 1
    done
    ");
}

#[test]
fn nothing_is_changed_while_data_is_corrupt() {
    let mut scene = settled(&FILE);
    scene.agreed().access.users.remove("metrics");
    scene.agreed().alarms.push(Alarm::Corrupt);
    assert_snapshot!(describe(&scene.plan()), @"* disarm CORRUPT cluster: all members hold the same data; 1 1 1");
}

#[test]
fn users_that_could_not_be_asked_for_are_waited_for() {
    let scene = settled(&FILE);
    let mut observed = scene.look();
    for member in observed.etcd.members.values_mut() {
        if let raftsman_core::observed::Fact::Seen { value, .. } = &mut member.etcd {
            value.access = Some(Err("no answer from etcd within 3 s".to_owned()));
        }
    }
    let plan = raftsman_core::plan::plan(&scene.desired, &observed, scene.world.now);
    assert_snapshot!(describe(&plan), @"waits: users and roles could not be listed: no answer from etcd within 3 s");
}

// ---- What differs, in words.

#[test]
fn drift_messages() {
    let mut scene = settled(&FILE);
    scene.agreed().access.users.insert("mallory".to_owned(), user(&["root"], Password::Untried));
    scene.agreed().access.users.insert("metrics".to_owned(), user(&["writer"], Password::Other));
    scene.agreed().access.roles.remove("reader");
    scene.agreed().access.roles.insert("writer".to_owned(), role([granted(Level::Read, prefix("/app/"))]));
    let (wanted, seen) = (&scene.desired.etcd.access, &scene.world.agreed.values().next().expect("a cluster").access);
    let words: Vec<String> = drift(wanted, seen).iter().map(ToString::to_string).collect();
    assert_snapshot!(words.join("\n"), @"
    role `reader`: not there yet: read prefix /app/
    role `writer`: lacks readwrite prefix /app/, write key /n
    user `metrics`: lacks role reader; has role writer, a password (recreated)
    user `mallory`: not in the file
    ");
}

// ---- Safety, for actions of any planner.

#[test]
fn what_safety_refuses() {
    let mut scene = settled(&FILE);
    scene.agreed().access.users.insert("metrics".to_owned(), user(&["writer"], Password::None));
    scene.agreed().access.roles.insert("old".to_owned(), Role::default());
    let observed = scene.look();
    assert!(View::of(&observed).has_quorum());
    let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let set_user = |user: &str, account, grant: &[&str], revoke: &[&str]| {
        Action::User(UserAction::SetUser { user: user.to_owned(), account, grant: names(grant), revoke: names(revoke) })
    };
    let mut output = String::new();
    for action in [
        Action::User(UserAction::DeleteUser { user: "root".to_owned() }),
        Action::User(UserAction::DeleteRole { role: "root".to_owned() }),
        set_user("root", Account::Password, &[], &[]),
        Action::User(UserAction::DeleteUser { user: "app".to_owned() }),
        Action::User(UserAction::DeleteRole { role: "reader".to_owned() }),
        Action::User(UserAction::DeleteRole { role: "old".to_owned() }),
        set_user("app", Account::Keep, &["reader"], &[]),
        set_user("app", Account::Keep, &[], &["writer"]),
        set_user("app", Account::Remake, &["writer"], &[]),
        set_user("mallory", Account::Make, &[], &[]),
        Action::User(UserAction::SetRole { role: "old".to_owned(), set: vec![], revoke: vec![] }),
        Action::User(UserAction::SetRole {
            role: "reader".to_owned(),
            set: vec![granted(Level::Read, prefix("/x"))],
            revoke: vec![],
        }),
        Action::User(UserAction::SetRole {
            role: "reader".to_owned(),
            set: vec![],
            revoke: vec![prefix("/app/").span()],
        }),
    ] {
        let verdict = safety::judge(&scene.desired, &observed, &[&action], &action);
        let verdict = verdict.map_or_else(|refusal| refusal.to_string(), |_| "fine".to_owned());
        output.push_str(&format!("{} {}: {verdict}\n", action.verb(), action.subject()));
    }
    assert_snapshot!(output, @"
    delete user root: `root` is left alone
    delete role root: `root` is left alone
    set user root: `root` is left alone
    delete user app: it is in the file
    delete role reader: it is in the file
    delete role old: user `metrics` still lacks a role
    set user app: the file does not give what it would get
    set user app: the file gives what it would take
    set user app: it would be recreated without need, or without its roles
    set user mallory: it is not in the file
    set role old: it is not in the file
    set role reader: it would not be what the file says
    set role reader: the file gives what it would take
    ");
}
