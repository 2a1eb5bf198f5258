//! Roles and databases of PostgreSQL that are missing, differ or are to go → the steps, and what is waited for.

use insta::assert_snapshot;
use raftsman_core::action::{Account, PostgresAction};
use raftsman_core::observed::{Catalog, CatalogRole, Password, RoleAttribute};
use raftsman_core::plan::safety;
use raftsman_core::spec::postgres::PgRole;
use raftsman_tests::fixtures::{Scene, standing};

use super::postgres::{pg, settled, to_the_end};

const WANTED: &[&str] = &[
    "nodes: 3",
    "roles:",
    "  app: { password: { file: app }, member_of: [readers, pg_monitor], settings: { search_path: \"app, public\" } }",
    "  readers: { login: false, connection_limit: 5 }",
    "databases: { shop: { owner: app, extensions: [pg_trgm] }, stock: { owner: readers } }",
];

fn catalog(scene: &mut Scene) -> &mut Catalog {
    &mut scene.world.postgres.get_mut(&pg()).expect("a cluster").catalog
}

fn role<'a>(scene: &'a mut Scene, name: &str) -> &'a mut CatalogRole {
    catalog(scene).roles.get_mut(name).expect("a role")
}

fn judged(scene: &Scene, action: PostgresAction) -> String {
    let action = action.into();
    match safety::judge(&scene.desired, &scene.look(), &[&action], &action) {
        Ok(_) => "allowed".to_owned(),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn roles_come_before_what_they_own() {
    let mut scene = settled(standing(&[], &["nodes: 3"]));
    scene.desired = standing(&[], WANTED);
    assert_snapshot!(to_the_end(&mut scene), @"
    * set postgresql role readers: not there yet; 1 1 1
    * set postgresql role app: not there yet; 1 1 1
    * set database shop stock: not there yet; 1 1 1
    done
    ");
}

#[test]
fn what_was_changed_by_hand_is_changed_back() {
    let mut scene = settled(standing(&[], WANTED));
    let app = role(&mut scene, "app");
    app.attributes.extend([RoleAttribute::Superuser, RoleAttribute::Expiring]);
    app.member_of.remove("readers");
    app.settings.insert("search_path".to_owned(), "app,public".to_owned());
    app.settings.insert("work_mem".to_owned(), "1GB".to_owned());
    let readers = role(&mut scene, "readers");
    readers.attributes.insert(RoleAttribute::Login);
    (readers.password, readers.connection_limit) = (Password::Other, None);
    let shop = catalog(&mut scene).databases.get_mut("shop").expect("a database");
    (shop.owner, shop.extensions) = ("readers".to_owned(), Default::default());
    assert_snapshot!(to_the_end(&mut scene), @"
    * set postgresql role app: lacks member of readers; has superuser, a password that ends, work_mem; 1 1 1
      set postgresql role readers: lacks connection_limit 5; has login, a password; 1 1 1
    * set database shop: lacks pg_trgm, owner app; has owner readers; 1 1 1
    done
    ");
}

#[test]
fn a_password_is_changed_and_nothing_else() {
    let mut scene = settled(standing(&[], WANTED));
    role(&mut scene, "app").password = Password::Other;
    assert_snapshot!(to_the_end(&mut scene), @"
    * set postgresql role app: lacks its password; 1 1 1
    done
    ");
    // A reader is not told what passwords are checked by.
    role(&mut scene, "app").password = Password::Untried;
    assert_snapshot!(to_the_end(&mut scene), @"done");
    role(&mut scene, "app").password = Password::Unknown("the secret file app is empty".to_owned());
    assert_snapshot!(to_the_end(&mut scene), @"
    ~ the password of `app` could not be tested: the secret file app is empty
    waits: the password of `app` could not be tested: the secret file app is empty
    ");
}

#[test]
fn roles_that_the_file_does_not_list_go_once_nothing_depends_on_them() {
    let mut scene = settled(standing(&[], WANTED));
    let spare = role(&mut scene, "app").clone();
    for (name, needed) in [("guest", false), ("old", true), ("replicator", false)] {
        let role = CatalogRole { needed, ..spare.clone() };
        catalog(&mut scene).roles.insert(name.to_owned(), role);
    }
    assert_snapshot!(to_the_end(&mut scene), @"
    * drop postgresql role guest old: not in the file; 1 1 1
    blocked: pg: the role `old` cannot log in any more, and is kept for what it has
    ");
    role(&mut scene, "old").needed = false;
    assert_snapshot!(to_the_end(&mut scene), @"
    * drop postgresql role old: not in the file; 1 1 1
    done
    ");
    // Without `roles` they are left alone.
    catalog(&mut scene).roles.insert("guest".to_owned(), spare);
    scene.desired = standing(&[], &["nodes: 3", "databases: { shop: { owner: app } }"]);
    assert_snapshot!(to_the_end(&mut scene), @"done");
}

#[test]
fn what_no_step_can_correct_is_said() {
    let mut scene = settled(standing(&[], WANTED));
    catalog(&mut scene).databases.get_mut("shop").expect("a database").locale = "en_US.UTF-8".to_owned();
    assert_snapshot!(to_the_end(&mut scene), @"blocked: pg: the database `shop` is another than in the file: its locale is en_US.UTF-8, not C.UTF-8");
    scene.desired = standing(&[], &["nodes: 3", "databases: { other: { owner: nobody } }"]);
    assert_snapshot!(to_the_end(&mut scene), @"blocked: pg: the database `other` is to belong to `nobody`, and there is no such role");
}

/// Taken out of the file, roles and databases are left as they are.
#[test]
fn a_file_without_them_changes_nothing() {
    let mut scene = settled(standing(&[], WANTED));
    scene.desired = standing(&[], &["nodes: 3"]);
    assert_snapshot!(to_the_end(&mut scene), @"done");
}

/// Before all else of PostgreSQL, and without its standbys: they may not be let in before.
#[test]
fn nodes_log_in_with_another_password() {
    let given = ["nodes: 3", "replicator: { password: { file: p } }"];
    let mut scene = settled(standing(&[], &given));
    let role = CatalogRole::from(&PgRole::default());
    catalog(&mut scene).roles.insert("replicator".to_owned(), CatalogRole { password: Password::Other, ..role });
    scene.desired = standing(&[], &[&given[..], &["parameters: { work_mem: 8MB }"]].concat());
    assert_snapshot!(to_the_end(&mut scene), @"
    * set node password replicator: the file has another password; 1 1 1
    * set patroni pg: the file has changed; 1 1 1
    ~ pg-1: Patroni has not been seen at etcd since the last step, at 2026-11-15T12:01:30Z
    done
    ");
    for machine in scene.world.machines.values_mut().filter(|machine| machine.postgres.streams()) {
        machine.postgres.server = None;
    }
    let change = |role: &str| PostgresAction::SetNodePassword { cluster: pg(), role: role.to_owned() };
    assert_eq!(judged(&scene, change("replicator")), "allowed");
    assert_eq!(judged(&scene, change("rewind")), "the file has no password of this role");
}

#[test]
fn what_the_judge_refuses() {
    let mut scene = settled(standing(&[], WANTED));
    let cluster = pg();
    let set = |role: &str| PostgresAction::SetPostgresRole {
        cluster: cluster.clone(),
        role: role.to_owned(),
        account: Account::Keep,
    };
    let drop = |role: &str| PostgresAction::DropPostgresRole { cluster: cluster.clone(), role: role.to_owned() };
    let make = |database: &str| PostgresAction::SetDatabase { cluster: cluster.clone(), database: database.to_owned() };
    let mut lines = Vec::new();
    for (what, action) in [
        ("a role of the file", set("app")),
        ("another one", set("guest")),
        ("one of the file goes", drop("app")),
        ("one of raftsman's goes", drop("replicator")),
        ("one that is not there goes", drop("guest")),
        ("a database of the file", make("shop")),
        ("another database", make("postgres")),
    ] {
        lines.push(format!("{what}: {}", judged(&scene, action)));
    }
    catalog(&mut scene).roles.remove("readers");
    lines.push(format!("a member of what is not there: {}", judged(&scene, set("app"))));
    lines.push(format!("owned by what is not there: {}", judged(&scene, make("stock"))));
    // A commit would wait for the standby that is missing.
    for machine in scene.world.machines.values_mut().filter(|machine| machine.postgres.streams()) {
        machine.postgres.server = None;
    }
    lines.push(format!("no standby: {}", judged(&scene, set("app"))));
    assert_snapshot!(lines.join("\n"), @"
    a role of the file: allowed
    another one: the file has no such role
    one of the file goes: the role is to stay
    one of raftsman's goes: the role is to stay
    one that is not there goes: there is no such role
    a database of the file: allowed
    another database: the file has no such database
    a member of what is not there: there is no role readers yet
    owned by what is not there: its owner is not there yet
    no standby: pg: PostgreSQL does not run on pg-2
    ");
}
