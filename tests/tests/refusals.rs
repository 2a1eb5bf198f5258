//! What is unsafe or impossible → refused with a reason and a next step, and nothing is changed.
//!
//! Every message that a person reads is in a snapshot.

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use raftsman_tests::lab::{Lab, Output, binary, etcd_dir, eventually, kill};
use raftsman_tests::story::{Story, Window};
use rustix::process::Signal;

const APPLY: [&str; 4] = ["apply", "--yes", "--timeout", "20s"];
const NOBODY: u32 = 65534;

fn write(lab: &Lab, name: &str, text: &str, mode: u32) {
    let path = lab.path().join(name);
    std::fs::write(&path, text).expect("a file");
    chmod(&path, mode);
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
}

/// Ends what runs on a machine, as a power cut does: the agent first, which would start etcd again.
fn cut_power(lab: &Lab, machine: &str) {
    for list in [Lab::agents, Lab::etcds] {
        for (_, pid) in list(lab).into_iter().filter(|(name, _)| name == machine) {
            kill(pid, Signal::KILL);
        }
        eventually("it ends", || list(lab).iter().all(|(name, _)| name != machine).then_some(()));
    }
}

/// Takes a port; whoever was killed lets go of it a moment later.
fn listen(address: Ipv4Addr, port: u16) -> TcpListener {
    eventually("the port is free", || TcpListener::bind((address, port)).ok())
}

/// Runs raftsman as somebody else.
fn run_as_nobody(lab: &Lab, arguments: &[&str]) -> Output {
    let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
    let mut command = Command::new("setpriv");
    command.args(ids).arg("--").arg(binary("raftsman")).args(arguments).current_dir(lab.path()).stdin(Stdio::null());
    let output = command.env("HOME", "/nonexistent").output().expect("setpriv");
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A fleet of one cluster `main` with these lines in its section.
fn file(lines: &[&str]) -> String {
    let mut file = String::from("fleet: lab\netcd:\n  main:\n");
    for line in lines {
        file.push_str(&format!("    {line}\n"));
    }
    file
}

fn source() -> String {
    format!("source: {{ directory: {:?} }}", etcd_dir())
}

/// The same lab with another file for one command, which must be refused.
#[track_caller]
fn with_file(story: &mut Story, what: &str, lab: &Lab, window: Option<&Window>, text: &str, says: &[&str]) {
    let before = lab.file();
    lab.write_file(text);
    story.refuse(what, lab, window, &APPLY, says);
    lab.write_file(&before);
}

#[test]
fn the_file_and_the_command_line() {
    let mut story = Story::default();
    let lab = Lab::cluster(3, "3.6.15", &[]);
    let good = lab.file();

    story.refuse("apply in a pipe without --yes", &lab, None, &["apply"], &["nothing was done", "--yes"]);
    story.refuse(
        "an unknown cluster",
        &lab,
        None,
        &["apply", "nosuch", "--yes"],
        &["no cluster `nosuch`", "it has: main"],
    );
    story.refuse("no state yet", &lab, None, &["status"], &["there is no state", "raftsman apply"]);
    story.refuse("init over a file", &lab, None, &["init"], &["raftsman.yaml is there already"]);
    story.refuse("init without members", &lab, None, &["init", "-f", "x", "--members", "0"], &["1 to 9"]);
    let no_agent = ["apply", "--yes", "--agent-binary", "/nonexistent/raftsman-agent"];
    story.refuse(
        "the agent's program is missing",
        &lab,
        None,
        &no_agent,
        &["/nonexistent/raftsman-agent", "--agent-binary"],
    );

    std::fs::remove_file(lab.path().join("raftsman.yaml")).expect("removed");
    story.refuse("no file", &lab, None, &APPLY, &["there is no raftsman.yaml here", "raftsman init"]);
    std::fs::write(lab.path().join("raftsman.yaml"), b"fleet: lab\netcd:\n  main: \xff\n").expect("written");
    story.refuse("not UTF-8", &lab, None, &APPLY, &["raftsman.yaml:3", "save the file as UTF-8"]);

    lab.write_file(&good);
    chmod(lab.path(), 0o755);
    chmod(&lab.path().join("raftsman.yaml"), 0o600);
    story.refuse_run(
        "a file that may not be read",
        &lab,
        None,
        || run_as_nobody(&lab, &["check"]),
        &["cannot read raftsman.yaml", "chmod"],
    );
    chmod(&lab.path().join("raftsman.yaml"), 0o644);
    story.refuse_run(
        "a directory that may not be written",
        &lab,
        None,
        || run_as_nobody(&lab, &APPLY),
        &["cannot make the directory", "run raftsman as the user"],
    );

    lab.write_file("fleet: lab\netcd:\n  main:\n    members: 0\n");
    story.refuse("an invalid file", &lab, None, &APPLY, &["raftsman.yaml:4", "help:"]);
    for verb in [
        &["check"][..],
        &["plan"],
        &["status"],
        &["destroy", "--yes"],
        &["journal"],
        &["env"],
        &["cert", "list"],
        &["cert", "issue", "alice"],
        &["logs", "main-1"],
    ] {
        let output = lab.run(verb).failed();
        assert!(output.all().contains("raftsman.yaml:4"), "{verb:?}: {}", output.all());
    }
    assert!(!lab.path().join(".raftsman").exists());

    with_file(
        &mut story,
        "an address that is not this computer's",
        &lab,
        None,
        &file(&["members: [{ name: a, address: 10.1.2.3 }]", &source()]),
        &["10.1.2.3", "help:"],
    );
    lab.write_file("fleet: lab\netcd:\n  one: { members: 1 }\n  two: { members: 1 }\n");
    lab.run(&["init", "-f", "other.yaml"]).ok();
    lab.run(&["plan"]).ok();
    story.refuse("several clusters and none named", &lab, None, &["env"], &["name one of one, two"]);
    story.snapshot("file", 13);
}

#[test]
fn binaries_and_references() {
    let mut story = Story::default();
    let lab = Lab::cluster(1, "3.6.15", &[]);
    let with = |story: &mut Story, what: &str, lines: &[&str], says: &[&str]| {
        let mut all = vec!["members: 3"];
        all.extend(lines);
        with_file(story, what, &lab, None, &file(&all), says);
        assert!(!lab.path().join(".raftsman").exists(), "{what}: a state was left");
    };
    let path = |name: &str| lab.path().join(name).display().to_string();
    write(&lab, "plain", "no program", 0o644);
    write(&lab, "script", "#!/bin/sh\necho hello\n", 0o755);
    std::fs::create_dir(lab.path().join("empty")).expect("a directory");
    let tar = |name: &str, content: &str| {
        let status =
            Command::new("tar").args(["-C", &lab.path().to_string_lossy(), "-czf", &path(name), content]).status();
        assert!(status.expect("tar").success());
        let sum = Command::new("sha256sum").arg(path(name)).output().expect("sha256sum").stdout;
        String::from_utf8_lossy(&sum[..64]).into_owned()
    };
    let sum = tar("etcd.tar.gz", "plain");
    let old = etcd_dir().join("3.5.34/etcd").display().to_string();

    with(
        &mut story,
        "no such binary",
        &["source: { file: nosuch/etcd }"],
        &["nosuch/etcd does not exist", "correct `source:`"],
    );
    with(
        &mut story,
        "a directory without the version",
        &["source: { directory: empty }"],
        &["empty has no 3.6.15/etcd", "put the binary there"],
    );
    with(
        &mut story,
        "a binary of another version",
        &[&format!("source: {{ file: {old:?} }}")],
        &["is etcd 3.5.34", "write `version: 3.5.34`"],
    );
    with(
        &mut story,
        "a binary that may not be run",
        &["source: { file: plain }"],
        &["not an executable file", "chmod +x"],
    );
    with(
        &mut story,
        "a program that is not etcd",
        &["source: { file: script }"],
        &["does not answer `--version` as etcd does", "is it etcd?"],
    );
    with(
        &mut story,
        "an archive with another hash",
        &[&format!("source: {{ archive: {{ file: etcd.tar.gz, sha256: {} }} }}", "0".repeat(64))],
        &["has the SHA-256", "download the archive again"],
    );
    with(
        &mut story,
        "an archive without etcd",
        &[&format!("source: {{ archive: {{ file: etcd.tar.gz, sha256: {sum} }} }}")],
        &["holds no etcd", "a release archive"],
    );

    let source = source();
    let password = |reference: &str| format!("auth: {{ mode: password, root_password: {reference} }}");
    write(&lab, "open", "sesame", 0o644);
    write(&lab, "void", "", 0o600);
    with(
        &mut story,
        "a password that everybody can read",
        &[&source, &password("{ file: open }")],
        &["can be read by every user", "chmod 600"],
    );
    with(
        &mut story,
        "an empty password",
        &[&source, &password("{ file: void }")],
        &["is empty", "write the secret into it"],
    );
    with(&mut story, "no password file", &[&source, &password("{ file: nosuch }")], &["does not exist", "umask 077"]);
    with(
        &mut story,
        "a variable that is not set",
        &[&source, &password("{ env: NO_SUCH_SECRET }")],
        &["NO_SUCH_SECRET is not set", "read -rs"],
    );

    let brought = |certificate: &str, key: &str| {
        format!("ca: {{ clients: {{ brought: {{ certificate: {certificate}, key: {{ file: {key} }} }} }} }}")
    };
    authority(&lab, "good", (2020, 2050), true);
    authority(&lab, "other", (2020, 2050), true);
    authority(&lab, "past", (2010, 2020), true);
    authority(&lab, "future", (2060, 2070), true);
    authority(&lab, "leaf", (2020, 2050), false);
    with(
        &mut story,
        "a CA with another's key",
        &[&source, &brought("good.crt", "other.key")],
        &["the key does not belong to the certificate", "openssl"],
    );
    with(
        &mut story,
        "a CA that is none",
        &[&source, &brought("leaf.crt", "leaf.key")],
        &["is not a CA certificate", "bring the"],
    );
    with(
        &mut story,
        "a CA that has ended",
        &[&source, &brought("past.crt", "past.key")],
        &["ended at 2020", "bring a new certificate"],
    );
    with(
        &mut story,
        "a CA of the future",
        &[&source, &brought("future.crt", "future.key")],
        &["begins only at 2060", "check this computer's clock"],
    );
    with(
        &mut story,
        "no CA certificate",
        &[&source, &brought("nosuch.crt", "good.key")],
        &["nosuch.crt", "cannot be read", "put it there"],
    );
    chmod(&lab.path().join("good.key"), 0o644);
    with(
        &mut story,
        "a CA key that everybody can read",
        &[&source, &brought("good.crt", "good.key")],
        &["can be read by every user", "chmod 600"],
    );
    story.snapshot("references", 17);
}

/// A self-signed certificate and its key, as a person would bring them.
fn authority(lab: &Lab, name: &str, years: (i32, i32), is_ca: bool) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
    parameters.not_before = rcgen::date_time_ymd(years.0, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(years.1, 1, 1);
    if is_ca {
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    }
    let certificate = parameters.self_signed(&key).expect("a certificate");
    write(lab, &format!("{name}.crt"), &certificate.pem(), 0o644);
    write(lab, &format!("{name}.key"), &key.serialize_pem(), 0o600);
}

#[test]
fn the_state() {
    let mut story = Story::default();
    let lab = Lab::cluster(3, "3.6.15", &[]);
    lab.apply();
    let window = Window::of(&lab);
    let window = Some(&window);
    let state = |name: &str| lab.path().join(".raftsman").join(name);
    let with_state = |story: &mut Story, what: &str, name: &str, text: Option<&str>, says: &[&str]| {
        let aside = lab.path().join("aside");
        std::fs::rename(state(name), &aside).expect("moved");
        if let Some(text) = text {
            write(&lab, &format!(".raftsman/{name}"), text, 0o600);
        }
        for verb in [&APPLY[..], &["destroy", "--yes"]] {
            story.refuse(&format!("{what}: {}", verb[0]), &lab, window, verb, says);
        }
        std::fs::rename(&aside, state(name)).expect("moved back");
    };
    let fleet = std::fs::read_to_string(state("fleet.json")).expect("fleet.json");
    with_state(
        &mut story,
        "a state of a newer format",
        "fleet.json",
        Some(&fleet.replace("\"format\": 1", "\"format\": 2")),
        &["format 2", "newer raftsman"],
    );
    // cut at a fixed place: the length of the file changes from run to run, and the refusal names line and column
    let cut = fleet.find("\"format\"").expect("a format");
    with_state(
        &mut story,
        "a damaged fleet.json",
        "fleet.json",
        Some(&fleet[..cut]),
        &["fleet.json is damaged", "backup"],
    );
    with_state(
        &mut story,
        "a lost fleet.json",
        "fleet.json",
        None,
        &["it is missing, though there is state beside it", "backup"],
    );
    with_state(&mut story, "a lost identity", "identity.txt", None, &["holds no identity", "RAFTSMAN_IDENTITY"]);
    with_state(&mut story, "an identity that is none", "identity.txt", Some("hello"), &["holds no age identity"]);
    let other = Lab::cluster(1, "3.6.15", &[]);
    assert_eq!(other.run(&["init", "-f", "x.yaml", "--fleet", "x"]).code, 0);
    let wrong = std::fs::read_to_string(other.path().join(".raftsman/identity.txt")).expect("identity");
    with_state(&mut story, "another's identity", "identity.txt", Some(&wrong), &["is not the one of this state"]);
    std::fs::rename(state("generation"), lab.path().join("aside")).expect("moved");
    write(&lab, ".raftsman/generation", "many\n", 0o600);
    story.refuse("a damaged generation", &lab, window, &["destroy", "--yes"], &["generation is damaged", "backup"]);
    std::fs::rename(lab.path().join("aside"), state("generation")).expect("moved back");

    chmod(&state("identity.txt"), 0o644);
    story.refuse("an identity that everybody can read", &lab, window, &APPLY, &["is open to other users", "chmod 600"]);
    chmod(&state("identity.txt"), 0o600);
    chmod(&state(""), 0o777);
    story.refuse("a state that everybody can write", &lab, window, &APPLY, &["chmod 700"]);
    chmod(&state(""), 0o700);
    with_file(
        &mut story,
        "the state of another fleet",
        &lab,
        window,
        &lab.file().replace("fleet: lab", "fleet: other"),
        &["belongs to the fleet `lab`", "correct the name"],
    );
    chmod(lab.path(), 0o755);
    story.refuse_run(
        "somebody else's state",
        &lab,
        window,
        || run_as_nobody(&lab, &APPLY),
        &["cannot read", "run raftsman as the user that owns"],
    );
    story.refuse("destroy in a pipe without --yes", &lab, window, &["destroy"], &["nothing was destroyed", "--yes"]);
    story.refuse(
        "an unknown machine",
        &lab,
        window,
        &["logs", "nosuch"],
        &["no machine `nosuch`", "it has: main-1, main-2, main-3"],
    );
    story.refuse(
        "a user's name that leads out of the directory",
        &lab,
        window,
        &["cert", "issue", "../alice"],
        &["`../alice` cannot be", "use letters"],
    );

    // A second operator: the first one stands still in the middle of its work.
    lab.write_file(&format!("{}    log_level: warn\n", lab.file()));
    let mut first = lab.spawn(&APPLY);
    eventually("the lock is taken", || {
        std::fs::read_to_string(state("lock")).is_ok_and(|t| t.contains("apply")).then_some(())
    });
    kill(first.id(), Signal::STOP);
    for verb in [&APPLY[..], &["destroy", "--yes"]] {
        let output = lab.run(verb).failed();
        story.tell(
            &format!("a second operator: {}", verb[0]),
            &output.all(),
            &["is running `raftsman apply`", "wait until it is done"],
        );
    }
    kill(first.id(), Signal::CONT);
    assert!(first.wait().expect("it ends").success(), "the first operator was not disturbed");
    assert_eq!(lab.cluster_status()["settled"], true);

    // A state out of an old backup.
    lab.write_file(&lab.file().replace("warn", "info"));
    std::fs::write(state("generation"), "0\n").expect("written");
    story.refuse("an older generation", &lab, window, &APPLY, &["is older than", "run the command again"]);

    story.snapshot("state", 22);
}

#[test]
fn passphrases() {
    let mut story = Story::default();
    let lab = Lab::cluster(1, "3.6.15", &[]);
    write(&lab, "right", "open sesame\n", 0o600);
    write(&lab, "wrong", "open barley\n", 0o600);
    let file = lab.file();
    std::fs::remove_file(lab.path().join("raftsman.yaml")).expect("removed");
    lab.run(&["init", "--passphrase", "--passphrase-file", "right"]).ok();
    lab.write_file(&file);
    let apply = |file| ["apply", "--yes", "--passphrase-file", file];
    story.refuse("a wrong passphrase", &lab, None, &apply("wrong"), &["wrong passphrase", "try again"]);
    story.refuse("no passphrase file", &lab, None, &apply("nosuch"), &["cannot read nosuch"]);
    let without_terminal = || {
        let output = Command::new("setsid")
            .arg("--wait")
            .arg(binary("raftsman"))
            .args(APPLY)
            .current_dir(lab.path())
            .stdin(Stdio::null())
            .output()
            .expect("setsid");
        Output {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    };
    story.refuse_run(
        "no terminal to ask for the passphrase",
        &lab,
        None,
        without_terminal,
        &["no terminal", "--passphrase-file"],
    );
    lab.run(&["plan", "--passphrase-file", "right"]).ok();
    story.snapshot("passphrases", 3);
}

#[test]
fn a_running_cluster_keeps_what_it_is() {
    let mut story = Story::default();
    let lab =
        Lab::cluster(3, "3.6.15", &["ca: { peers: { brought: { certificate: good.crt, key: { file: good.key } } } }"]);
    authority(&lab, "good", (2020, 2050), true);
    authority(&lab, "other", (2020, 2050), true);
    lab.apply();
    let window = Window::of(&lab);
    let file = lab.file();
    let net = lab.address("main-1").octets()[2];
    let mut change = |what: &str, from: &str, to: &str, says: &[&str]| {
        assert!(file.contains(from), "{what}: {file}");
        with_file(&mut story, what, &lab, Some(&window), &file.replace(from, to), says);
        // Reading verbs say the same, and change nothing either.
        assert_eq!(lab.run(&["status"]).code, 0, "{what}");
        assert!(lab.run(&["plan"]).ok().stdout.contains("Nothing to do"), "{what}");
    };
    change(
        "another version",
        "version: 3.6.15",
        "version: 3.4.45",
        &["no way from 3.6.15 to 3.4.45: etcd has no way down to 3.4", "write `version: 3.6.15`"],
    );
    change(
        "another way to log in",
        "version: 3.6.15",
        "version: 3.6.15\n    auth: { mode: password }",
        &["log in by certificate", "write `auth: { mode: certificate }`"],
    );
    change(
        "another CA with the key of this one",
        "certificate: good.crt",
        "certificate: other.crt",
        &["does not belong to"],
    );
    change(
        "another CA without its key",
        "certificate: good.crt, key: { file: good.key }",
        "certificate: other.crt, key: { file: nosuch.key }",
        &["nosuch.key does not exist"],
    );
    change(
        "another network",
        "fleet: lab\n",
        "fleet: lab\nmachines: { network: 127.0.253.0/24 }\n",
        &["are in the network", "destroy the fleet"],
    );
    // What another operator of this computer must not do to it.
    let other =
        Lab::new(&format!("{}machines: {{ network: 127.0.{net}.0/24 }}\n", Lab::cluster(1, "3.6.15", &[]).file()));
    story.refuse("another fleet's network", &other, None, &APPLY, &["belongs to the fleet", "name another"]);
    assert!(!other.path().join(".raftsman").exists());
    let shared = lab.path().join(".raftsman/machines");
    other.write_file(&format!("{}machines: {{ directory: {shared:?} }}\n", Lab::cluster(1, "3.6.15", &[]).file()));
    for _ in 0..2 {
        // The first run makes the state; the second one must add nothing.
        other.run(&["plan"]);
    }
    story.refuse(
        "another fleet's machines in the directory",
        &other,
        None,
        &APPLY,
        &["is a machine of the fleet", "use another directory"],
    );
    assert_eq!(lab.run(&["status"]).code, 0);
    story.snapshot("running", 7);
}

#[test]
fn machines_and_their_data() {
    let mut story = Story::default();
    let (lab, other) = (Lab::cluster(3, "3.6.15", &[]), Lab::cluster(1, "3.6.15", &[]));
    lab.apply();
    other.apply();
    let window = Window::of(&lab);
    let window = Some(&window);
    let data = |lab: &Lab, machine: &str| lab.machine(machine).join("etcd/data");
    let aside = lab.path().join("aside");
    std::fs::create_dir(&aside).expect("a directory");
    let kept = aside.join("data");
    // The first apply starts the machine and goes no further; the second one must change nothing at all.
    let twice = |story: &mut Story, what: &str, says: &[&str]| {
        lab.run(&APPLY).failed();
        story.refuse(what, &lab, window, &APPLY, says);
        let status = lab.cluster_status();
        let state = status["members"][2]["state"].as_str().unwrap_or_default();
        assert!(!["leader", "follower"].contains(&state), "{what}: main-3 is a {state}");
    };
    let heal = || {
        // An agent that tried in vain for a while tries again after a pause, which apply does not wait for.
        eventually("the cluster is whole", || {
            (lab.run(&["apply", "--yes", "--timeout", "60s"]).code == 0).then_some(())
        });
    };

    cut_power(&lab, "main-3");
    std::fs::rename(data(&lab, "main-3"), &kept).expect("moved");
    twice(&mut story, "a member's data is gone", &["its data directory is empty", "bring the data of `main-3` back"]);
    cut_power(&lab, "main-3");
    let _ = std::fs::remove_dir(data(&lab, "main-3"));
    std::fs::create_dir_all(data(&lab, "main-3")).expect("a directory");
    std::fs::write(data(&lab, "main-3").join("holiday.jpg"), "!").expect("a file");
    twice(
        &mut story,
        "something else in the data directory",
        &["holds no member's data", "bring the data of `main-3` back"],
    );
    cut_power(&lab, "main-3");
    std::fs::remove_dir_all(data(&lab, "main-3")).expect("removed");
    cut_power(&other, "main-1");
    std::fs::rename(data(&other, "main-1"), data(&lab, "main-3")).expect("moved");
    twice(&mut story, "another cluster's data", &["belongs to cluster", "bring the right one back"]);
    cut_power(&lab, "main-3");
    std::fs::rename(data(&lab, "main-3"), data(&other, "main-1")).expect("moved");
    std::fs::rename(&kept, data(&lab, "main-3")).expect("moved");
    heal();

    // Ports.
    let here = lab.address("main-3");
    cut_power(&lab, "main-3");
    story.restless(Some("main-3"));
    for (port, what) in [(2379, "clients"), (2380, "peers")] {
        let listener = listen(here, port);
        twice(
            &mut story,
            &format!("somebody on the port of the {what}"),
            &[&format!("port {port} is held by"), "or give the member another address"],
        );
        cut_power(&lab, "main-3");
        drop(listener);
    }
    story.restless(None);
    let listener = listen(here, 2378);
    story.refuse(
        "somebody on the agent's port",
        &lab,
        window,
        &APPLY,
        &["cannot listen on", "free it, or give the machine another address"],
    );
    drop(listener);
    story.restless(Some("main-3"));
    let foreign = tempfile::tempdir().expect("a directory");
    let url = |port: u16| format!("http://{here}:{port}");
    let mut etcd = Command::new(etcd_dir().join("3.6.15/etcd"))
        .args(["--data-dir", &foreign.path().to_string_lossy(), "--name", "foreign"])
        .args(["--listen-client-urls", &url(2379), "--advertise-client-urls", &url(2379)])
        .args(["--listen-peer-urls", &url(2380), "--initial-advertise-peer-urls", &url(2380)])
        .args(["--initial-cluster", &format!("foreign={}", url(2380))])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd");
    eventually("it listens", || std::net::TcpStream::connect((here, 2379)).ok());
    twice(&mut story, "a foreign etcd on the member's ports", &["is held by etcd", "stop etcd"]);
    etcd.kill().expect("killed");
    etcd.wait().expect("reaped");
    story.restless(None);
    heal();

    // The machine.
    cut_power(&lab, "main-3");
    let machine = aside.join("main-3");
    std::fs::rename(lab.machine("main-3"), &machine).expect("moved");
    story.refuse(
        "a lost machine",
        &lab,
        window,
        &APPLY,
        &["the machine is gone", "bring the old machine `main-3` back"],
    );
    cut_power(&other, "main-1");
    std::fs::rename(other.machine("main-1"), lab.machine("main-3")).expect("moved");
    story.refuse(
        "another fleet's machine in its place",
        &lab,
        window,
        &APPLY,
        &["is a machine of the fleet", "use another directory"],
    );
    std::fs::rename(lab.machine("main-3"), other.machine("main-1")).expect("moved");
    std::fs::create_dir(lab.machine("main-3")).expect("a directory");
    std::fs::write(lab.machine("main-3").join("machine.json"), "{").expect("a file");
    story.refuse("a damaged tag", &lab, window, &APPLY, &["machine.json is malformed", "nothing was touched"]);
    std::fs::remove_dir_all(lab.machine("main-3")).expect("removed");
    std::fs::rename(&machine, lab.machine("main-3")).expect("moved");
    std::fs::rename(lab.machine("main-3").join("agent/incarnation"), &kept).expect("moved");
    std::fs::rename(lab.machine("main-3").join("etcd"), aside.join("etcd")).expect("moved");
    twice(
        &mut story,
        "a rebuilt machine",
        &["another machine than the one that etcd was started on", "bring the old machine"],
    );
    cut_power(&lab, "main-3");
    std::fs::rename(&kept, lab.machine("main-3").join("agent/incarnation")).expect("moved");
    std::fs::remove_dir_all(lab.machine("main-3").join("etcd")).expect("removed");
    std::fs::rename(aside.join("etcd"), lab.machine("main-3").join("etcd")).expect("moved");
    heal();

    // Everything.
    for name in ["main-1", "main-2", "main-3"] {
        cut_power(&lab, name);
        std::fs::rename(data(&lab, name), aside.join(name)).expect("moved");
    }
    lab.run(&APPLY).failed();
    story.refuse("all data is gone", &lab, None, &APPLY, &["no member has data any more", "raftsman destroy"]);
    assert_eq!(lab.etcds(), []);
    for name in ["main-1", "main-2", "main-3"] {
        cut_power(&lab, name);
        let _ = std::fs::remove_dir(data(&lab, name));
        std::fs::rename(aside.join(name), data(&lab, name)).expect("moved");
    }
    heal();
    story.snapshot("machines", 12);
}

#[test]
fn what_is_in_the_way_of_a_new_machine() {
    let mut story = Story::default();
    let lab = Lab::cluster(1, "3.6.15", &[]);
    std::fs::create_dir_all(lab.path().join("mine/main-1")).expect("a directory");
    write(&lab, "mine/main-1/thesis.txt", "!", 0o600);
    lab.write_file(&format!("{}machines: {{ directory: mine }}\n", lab.file()));
    lab.run(&APPLY).failed();
    story.refuse("somebody's directory", &lab, None, &APPLY, &["raftsman did not make it", "move it away"]);

    let busy = Lab::cluster(1, "3.6.15", &[]);
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 251, 1), 2380)).expect("the port is free");
    busy.write_file(&format!("{}machines: {{ network: 127.0.251.0/24 }}\n", busy.file()));
    story.refuse(
        "somebody in the network",
        &busy,
        None,
        &APPLY,
        &["something listens on 127.0.251.1:2380", "name another network"],
    );
    assert!(!busy.path().join(".raftsman").exists());
    drop(listener);
    story.snapshot("in-the-way", 2);
}

#[test]
#[allow(clippy::print_stderr, reason = "whoever runs it must see what was left out")]
fn a_full_disk() {
    let mut story = Story::default();
    let lab = Lab::cluster(1, "3.6.15", &[]);
    let disk = lab.path().join("disk");
    std::fs::create_dir(&disk).expect("a directory");
    let Some(small) = Disk::mount(&disk, "20m") else {
        eprintln!("SKIPPED: a full disk: mounting a tmpfs is not permitted here");
        return;
    };
    lab.write_file(&format!("{}machines: {{ directory: disk }}\n", lab.file()));
    let output = lab.run(&APPLY).failed();
    let left = std::fs::read_dir(disk.join("main-1/artifacts")).into_iter().flatten().count();
    drop(small);
    story.tell("no room for the binary", &output.all(), &["No space left on device", "free some space"]);
    assert_eq!(left, 0, "half a binary was left");

    // Room for the binary, not for etcd's log.
    let larger = Disk::mount(&disk, "85m").expect("mounted once, mounted twice");
    lab.run(&APPLY).failed();
    let output = lab.run(&APPLY).failed();
    let processes = lab.processes();
    lab.run(&["destroy", "--yes"]).ok();
    drop(larger);
    assert!(processes.iter().any(|(_, line)| line.contains("raftsman-agent")), "{processes:?}");
    assert!(!processes.iter().any(|(_, line)| line.contains("--config-file=")), "etcd was started: {processes:?}");
    story.tell(
        "no room for etcd",
        &output.all(),
        &["MiB free, etcd needs at least 64", "make room on the disk of `main-1`"],
    );
    story.snapshot("disk", 2);
}

/// A small file system, gone when the test ends, however it ends.
struct Disk<'a>(&'a Path);

impl<'a> Disk<'a> {
    fn mount(at: &'a Path, size: &str) -> Option<Self> {
        let options = format!("size={size},mode=700");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "raftsman-test"]).arg(at).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then_some(Self(at))
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // Lazily: a failed test may have left a process on it, which the lab ends after this.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
