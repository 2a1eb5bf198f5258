//! Roles and users on real etcd, in both auth modes: each user has its permissions and no others, drift is shown
//! and repaired, and no password is seen anywhere.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use raftsman_api::tls::Identity;
use raftsman_etcd::{Credentials, dial};
use raftsman_tests::files::write_private;
use raftsman_tests::lab::{Lab, Output, etcdctl, processes};

const ROLES: &str = "roles: { reader: [{ read: { prefix: /app/ } }], writer: [{ readwrite: { prefix: /app/ } }, { write: { key: /n } }, { read: { range: [/r/a, /r/c] } }] }";
const USERS: &str = "users: { app: { roles: [writer] }, metrics: { roles: [reader] } }";

/// `etcdctl` as a user with a certificate that raftsman issues.
fn by_certificate(lab: &Lab, user: &str, arguments: &[&str]) -> Output {
    let dir = lab.path().join("certs");
    let (out, file) = (dir.display().to_string(), |name: String| dir.join(name).display().to_string());
    lab.run(&["cert", "issue", user, "--out", &out, "--force"]).ok();
    let flags = [
        format!("--cacert={}", file("ca.crt".to_owned())),
        format!("--cert={}", file(format!("{user}.crt"))),
        format!("--key={}", file(format!("{user}.key"))),
    ];
    run(lab, &flags, &[], arguments)
}

/// `etcdctl` as a user with a password.
fn by_password(lab: &Lab, user: &str, password: &str, arguments: &[&str]) -> Output {
    let env = lab.run(&["env", "--json"]).ok().json();
    let flags = [format!("--cacert={}", env["ca"].as_str().expect("a CA"))];
    run(lab, &flags, &[("ETCDCTL_USER", format!("{user}:{password}"))], arguments)
}

fn run(lab: &Lab, flags: &[String], environment: &[(&str, String)], arguments: &[&str]) -> Output {
    let env = lab.run(&["env", "--json"]).ok().json();
    let endpoints: Vec<&str> =
        env["endpoints"].as_array().expect("endpoints").iter().filter_map(|e| e.as_str()).collect();
    let output = Command::new(etcdctl())
        .arg(format!("--endpoints={}", endpoints.join(",")))
        .args(flags)
        .args(arguments)
        .env("ETCDCTL_API", "3")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .output()
        .expect("etcdctl runs");
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Changes the password of `root` behind raftsman's back.
fn change_by_hand(lab: &Lab, word: &str) {
    let env = lab.run(&["env"]).ok().stdout;
    let script = format!("{env}\necho {word} | \"$ETCDCTL\" user passwd root --interactive=false");
    let output = Command::new("sh").args(["-c", &script]).env("ETCDCTL", etcdctl()).output().expect("a shell");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_root_password_that_the_file_changes_is_changed() {
    let lab = Lab::cluster(3, "3.6.15", &["auth: { mode: password, root_password: { file: root.password } }"]);
    let file = lab.path().join("root.password");
    write_private(&file, "first-password");
    lab.apply();
    write_private(&file, "second-password");
    let plan = lab.run(&["plan"]).ok().stdout;
    assert!(plan.contains("change root password"), "{plan}");
    lab.apply();
    lab.nothing_to_do();
    by_password(&lab, "root", "second-password", &["get", "a"]).ok();
    let old = by_password(&lab, "root", "first-password", &["get", "a"]).failed().all();
    assert!(old.contains("authentication failed"), "{old}");
    // An old backup brings one back that was in force before, and the file has another one by now: it is known still.
    write_private(&file, "third-password");
    lab.apply();
    change_by_hand(&lab, "first-password");
    lab.apply();
    lab.nothing_to_do();
    by_password(&lab, "root", "third-password", &["get", "a"]).ok();
    // An operator changed it by hand, to one that neither the file nor the state knows: apply says so, at once.
    change_by_hand(&lab, "by-hand");
    let begun = std::time::Instant::now();
    let refused = lab.run(&["apply", "--yes"]).failed().all();
    assert!(refused.contains("authentication failed") && refused.contains("root_password"), "{refused}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it waited: {refused}");
    let status = lab.run(&["status"]).stdout;
    assert!(status.contains("denied") && !status.contains("starting"), "{status}");
    write_private(&file, "by-hand");
    lab.nothing_to_do();
    lab.destroy();
}

#[test]
fn a_superuser_that_the_file_does_not_know_is_named() {
    let lab = Lab::cluster(1, "3.6.15", &[]);
    lab.apply();
    lab.etcdctl(&["user", "add", "mallory", "--no-password"]).ok();
    lab.etcdctl(&["user", "grant-role", "mallory", "root"]).ok();
    let refused = lab.run(&["apply", "--yes"]).failed().all();
    assert!(refused.contains("user `mallory` has the role `root`"), "{refused}");
    lab.etcdctl(&["user", "delete", "mallory"]).ok();
    lab.nothing_to_do();
    lab.destroy();
}

#[track_caller]
fn denied(output: Output) {
    let output = output.failed();
    assert!(output.stderr.contains("permission denied"), "{}", output.stderr);
}

fn differences(lab: &Lab) -> Vec<String> {
    let status = lab.cluster_status();
    let drift = status["drift"].as_array().expect("a list").iter();
    drift.map(|d| format!("{} {}", d["kind"].as_str().expect("a kind"), d["name"].as_str().expect("a name"))).collect()
}

#[track_caller]
fn nothing_to_do(lab: &Lab) {
    let plan = lab.run(&["plan", "--detailed-exitcode"]).ok();
    assert!(plan.stdout.contains("Nothing to do"), "{}", plan.stdout);
}

#[test]
fn users_by_certificate() {
    let lab = Lab::cluster(3, "3.6.15", &[ROLES, USERS]);
    lab.apply();
    nothing_to_do(&lab);

    // What they may, and nothing else.
    by_certificate(&lab, "app", &["put", "/app/x", "1"]).ok();
    assert!(by_certificate(&lab, "app", &["get", "/app/x"]).ok().stdout.contains("/app/x"));
    by_certificate(&lab, "app", &["put", "/n", "1"]).ok();
    denied(by_certificate(&lab, "app", &["get", "/n"]));
    denied(by_certificate(&lab, "app", &["put", "/other", "1"]));
    by_certificate(&lab, "app", &["get", "/r/a", "/r/c"]).ok();
    denied(by_certificate(&lab, "app", &["get", "/r/a", "/r/d"]));
    denied(by_certificate(&lab, "app", &["put", "/r/a", "1"]));
    by_certificate(&lab, "metrics", &["get", "--prefix", "/app/"]).ok();
    denied(by_certificate(&lab, "metrics", &["put", "/app/x", "2"]));
    denied(by_certificate(&lab, "metrics", &["get", "--prefix", ""]));
    denied(by_certificate(&lab, "unlisted", &["get", "/app/x"]));

    // An operator changes roles and users with etcdctl.
    for arguments in [
        &["role", "add", "everything"][..],
        &["role", "grant-permission", "everything", "--prefix=true", "readwrite", ""],
        &["user", "add", "mallory", "--no-password"],
        &["user", "grant-role", "mallory", "everything"],
        &["user", "grant-role", "metrics", "writer"],
        &["user", "revoke-role", "app", "writer"],
        &["role", "revoke-permission", "reader", "--prefix=true", "/app/"],
        &["role", "grant-permission", "writer", "--from-key=true", "read", "/z"],
    ] {
        lab.etcdctl(arguments).ok();
    }
    by_certificate(&lab, "mallory", &["get", "--prefix", ""]).ok();
    denied(by_certificate(&lab, "app", &["put", "/app/x", "3"]));
    let expected = ["role reader", "role writer", "role everything", "user app", "user metrics", "user mallory"];
    assert_eq!(differences(&lab), expected);
    let status = lab.run(&["status"]);
    assert_eq!(status.code, 2);
    assert!(status.stdout.contains("differs: user `mallory`: not in the file"), "{}", status.stdout);
    assert!(status.stdout.contains("differs: role `writer`: has read all keys from /z"), "{}", status.stdout);
    let plan = lab.run(&["plan", "--detailed-exitcode"]);
    assert_eq!(plan.code, 2);
    assert!(plan.stdout.contains("lacks read prefix /app/"), "{}", plan.stdout);

    lab.apply();
    nothing_to_do(&lab);
    assert_eq!(differences(&lab), [""; 0]);
    denied(by_certificate(&lab, "mallory", &["get", "/app/x"]));
    by_certificate(&lab, "app", &["put", "/app/x", "4"]).ok();
    denied(by_certificate(&lab, "app", &["get", "/z"]));
    by_certificate(&lab, "metrics", &["get", "/app/x"]).ok();
    denied(by_certificate(&lab, "metrics", &["put", "/app/x", "5"]));

    // A file without roles and users leaves them alone.
    let file = lab.file();
    lab.write_file(&file.lines().filter(|l| !l.contains("roles:")).collect::<Vec<_>>().join("\n"));
    lab.etcdctl(&["user", "add", "mallory", "--no-password"]).ok();
    nothing_to_do(&lab);
    by_certificate(&lab, "app", &["put", "/app/x", "6"]).ok();
    lab.destroy();
}

/// Writes as `app` again and again, through a member of its own, until it is stopped.
fn persistent(lab: &Lab) -> impl FnOnce() -> (u64, Vec<String>) + use<> {
    let dir = lab.path().join("persistent");
    lab.run(&["cert", "issue", "app", "--out", &dir.display().to_string()]).ok();
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).expect("a file");
    let identity = Identity::from_pem(&read("app.crt"), &read("app.key")).expect("an identity");
    let credentials = Credentials::new(&read("ca.crt"), Some(&identity), None).expect("credentials");
    let address: std::net::IpAddr = lab.addresses()[0].into();
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (stopped, count) = (Arc::clone(&stop), Arc::clone(&written));
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut failures = Vec::new();
            let mut client = dial(address, &credentials).await.expect("a connection");
            while !stopped.load(Ordering::Relaxed) {
                match client.put("/app/persistent", "x", None).await {
                    Ok(_) => drop(count.fetch_add(1, Ordering::Relaxed)),
                    // etcd rejects a write that was under way while users changed, to be tried again (auth revision).
                    Err(error) if error.to_string().contains("revision of auth store is old") => {}
                    Err(error) => failures.push(error.to_string()),
                }
            }
            failures
        })
    });
    move || {
        stop.store(true, Ordering::Relaxed);
        (written.load(Ordering::Relaxed), thread.join().expect("it ends"))
    }
}

#[test]
fn permissions_move_and_no_user_is_locked_out_meanwhile() {
    let lab = Lab::cluster(3, "3.6.15", &[ROLES, USERS]);
    lab.apply();
    let file = lab.file();
    let moved = file
        .replace("writer: [{ readwrite: { prefix: /app/ } }, ", "writer: [")
        .replace("roles: { reader", "roles: { owner: [{ readwrite: { prefix: /app/ } }], reader")
        .replace("app: { roles: [writer] }", "app: { roles: [owner] }");
    assert_ne!(moved, file);
    let ended = persistent(&lab);
    for file in [&moved, &file, &moved] {
        lab.write_file(file);
        lab.apply();
        nothing_to_do(&lab);
    }
    let (written, failures) = ended();
    assert_eq!(failures, [""; 0], "of {written} writes");
    assert!(written > 20, "{written} writes");
    let roles = lab.etcdctl(&["user", "get", "app"]).ok().stdout;
    assert!(roles.contains("owner") && !roles.contains("writer"), "{roles}");
    lab.destroy();
}

const FIRST: &str = "canary-first-password-of-app-5d1e";
const SECOND: &str = "canary-second-password-of-app-90cb";
const FROM_ENV: &str = "canary-password-from-the-environment-77f0";

fn secret_file(lab: &Lab, name: &str, text: &str) {
    write_private(lab.path().join(name), &format!("{text}\n"));
}

/// Runs a verb with the password in its environment, watching every command line meanwhile.
fn watched(lab: &Lab, arguments: &[&str]) -> (Output, BTreeSet<String>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let lines = std::thread::spawn(move || {
        let mut lines = BTreeSet::new();
        while !stopped.load(Ordering::Relaxed) {
            lines.extend(processes().into_iter().map(|(_, line)| line));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        lines
    });
    let output = lab.command(arguments).env("BATCH_PASSWORD", FROM_ENV).output().expect("raftsman runs");
    stop.store(true, Ordering::Relaxed);
    let output = Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    (output, lines.join().expect("it ends"))
}

fn files(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path(), found),
            _ => found.push(entry.path()),
        }
    }
}

#[test]
fn users_by_password() {
    let lab = Lab::cluster(
        3,
        "3.6.15",
        &[
            "auth: { mode: password }",
            ROLES,
            "users: { app: { roles: [writer], password: { file: app.password } }, batch: { roles: [reader], password: { env: BATCH_PASSWORD } } }",
        ],
    );
    secret_file(&lab, "app.password", FIRST);
    let mut printed = Vec::new();
    let mut verb = |arguments: &[&str]| {
        let (output, lines) = watched(&lab, arguments);
        printed.push((arguments.join(" "), output.all()));
        printed.push(("command lines".to_owned(), lines.into_iter().collect::<Vec<_>>().join("\n")));
        output
    };
    let missing = lab.run(&["apply", "--yes"]).failed();
    assert!(missing.stderr.contains("BATCH_PASSWORD is not set"), "{}", missing.stderr);
    let lines = verb(&["apply", "--yes", "--json", "--timeout", "60s"]).ok().json_lines();
    raftsman_tests::lab::forecast_equals_fact(&lines);
    assert!(verb(&["plan", "--detailed-exitcode"]).ok().stdout.contains("Nothing to do"));

    by_password(&lab, "app", FIRST, &["put", "/app/x", "1"]).ok();
    denied(by_password(&lab, "app", FIRST, &["put", "/other", "1"]));
    by_password(&lab, "batch", FROM_ENV, &["get", "/app/x"]).ok();
    denied(by_password(&lab, "batch", FROM_ENV, &["put", "/app/x", "2"]));
    let wrong = by_password(&lab, "app", FROM_ENV, &["get", "/app/x"]).failed();
    assert!(wrong.stderr.contains("invalid user ID or password"), "{}", wrong.stderr);

    // Another password in the file.
    secret_file(&lab, "app.password", SECOND);
    let plan = verb(&["plan", "--json"]).ok().json();
    let step = &plan["clusters"][0]["waves"][0]["steps"][0];
    assert_eq!((&step["action"]["user"], &step["action"]["account"]), (&"app".into(), &"password".into()), "{plan}");
    let lines = verb(&["apply", "--yes", "--json", "--timeout", "60s"]).ok().json_lines();
    raftsman_tests::lab::forecast_equals_fact(&lines);
    by_password(&lab, "app", SECOND, &["put", "/app/x", "3"]).ok();
    by_password(&lab, "app", FIRST, &["put", "/app/x", "4"]).failed();

    // An operator made it anew without a password: etcd cannot set one later, so that it is made anew once more.
    lab.etcdctl(&["user", "delete", "app"]).ok();
    lab.etcdctl(&["user", "add", "app", "--no-password"]).ok();
    let status = verb(&["status"]);
    assert!(status.stdout.contains("user `app`: lacks role writer, a password (recreated)"), "{}", status.stdout);
    verb(&["apply", "--yes"]).ok();
    by_password(&lab, "app", SECOND, &["put", "/app/x", "5"]).ok();
    assert!(verb(&["status", "--json"]).ok().json()["clusters"][0]["settled"] == true);

    for arguments in [&["journal", "-n", "1000", "--json"][..], &["check", "--json"], &["logs", "main-1", "-n", "1000"]]
    {
        verb(arguments).ok();
    }
    // It is nowhere but where it was put.
    for canary in [FIRST, SECOND, FROM_ENV] {
        for (what, text) in &printed {
            assert!(!text.contains(canary), "{canary} was printed by {what}");
        }
        let mut all = Vec::new();
        files(lab.path(), &mut all);
        for path in all.iter().filter(|p| !p.ends_with("etcd") && !p.ends_with("app.password")) {
            let bytes = std::fs::read(path).unwrap_or_default();
            assert!(memchr::memmem::find(&bytes, canary.as_bytes()).is_none(), "{canary} is in {}", path.display());
        }
    }
    let (gone, _) = watched(&lab, &["destroy", "--yes"]);
    gone.ok();
    assert_eq!(lab.processes(), []);
}

#[test]
fn every_line_of_etcd_has_the_same_users() {
    for version in ["3.4.45", "3.5.34", "3.7.2"] {
        let lab = Lab::cluster(1, version, &[ROLES, USERS]);
        lab.apply();
        nothing_to_do(&lab);
        // etcd acknowledges it, and the user has no password all the same.
        lab.etcdctl(&["user", "delete", "metrics"]).ok();
        lab.etcdctl(&["user", "add", "metrics", "--new-user-password=by-hand"]).ok();
        lab.etcdctl(&["role", "grant-permission", "reader", "--prefix=true", "write", "/app/"]).ok();
        assert_eq!(differences(&lab), ["role reader", "user metrics"], "{version}");
        lab.apply();
        nothing_to_do(&lab);
        denied(by_certificate(&lab, "metrics", &["put", "/app/x", "1"]));
        by_certificate(&lab, "metrics", &["get", "/app/x"]).ok();
        lab.destroy();
    }
}
