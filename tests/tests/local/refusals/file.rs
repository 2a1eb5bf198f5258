//! A wrong file, command line, program or reference → a refusal before anything is done.

use std::net::Ipv4Addr;
use std::process::Command;

use raftsman_tests::lab::{Lab, etcd_dir};
use raftsman_tests::story::Story;

use super::{APPLY, authority, chmod, file, listen, run_unprivileged, source, with_file, write};

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
        || run_unprivileged(&lab, &["check"]),
        &["cannot read raftsman.yaml", "chmod"],
    );
    chmod(&lab.path().join("raftsman.yaml"), 0o644);
    story.refuse_run(
        "a directory that may not be written",
        &lab,
        None,
        || run_unprivileged(&lab, &APPLY),
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
    let source = source();
    lab.write_file(&format!(
        "fleet: lab\netcd:\n  one: {{ members: 1, {source} }}\n  two: {{ members: 1, {source} }}\n"
    ));
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
        // What `apply` would not find, `plan` does not find either.
        let before = lab.file();
        lab.write_file(&file(&all));
        let plan = lab.run(&["plan"]);
        lab.write_file(&before);
        assert_eq!(plan.code, 1, "{what}: {}", plan.all());
        assert!(plan.stdout.contains("blocked: main: "), "{what}: {}", plan.all());
        assert!(
            says.iter().all(|word| plan.stdout.contains(word) && plan.stderr.contains(word)),
            "{what}: {}",
            plan.all()
        );
        assert!(!lab.path().join(".raftsman").exists(), "{what}: plan made a state");
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
        "a password that every user can read",
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
        "a CA key that every user can read",
        &[&source, &brought("good.crt", "good.key")],
        &["can be read by every user", "chmod 600"],
    );
    story.snapshot("references", 17);
}

/// What `apply` needs of this computer is looked for by `plan`, which changes nothing.
#[test]
fn plan_looks_for_what_apply_needs() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    let good = lab.file();
    let blocked = |arguments: &[&str], message: &str| {
        let output = lab.run(arguments);
        assert_eq!(
            (output.code, output.stderr.as_str()),
            (1, format!("error: {message}\n").as_str()),
            "{}",
            output.stdout
        );
        assert!(output.stdout.contains(&format!("{message}\n")), "{}", output.stdout);
        assert!(output.stdout.contains("none of which `apply` would begin: something that it needs is missing"));
        let mut arguments = arguments.to_vec();
        arguments.push("--json");
        let json = lab.run(&arguments);
        assert_eq!(json.code, 1, "{}", json.all());
        let json = json.json();
        assert_eq!(json["unmet"].as_array().map(Vec::len), Some(1), "{json}");
        (json["unmet"][0]["need"].clone(), json["unmet"][0]["cluster"].clone())
    };
    let agent = "/nonexistent/agent is not a program that can be run: install raftsman-agent beside raftsman, or give \
                 --agent-binary";
    let found = blocked(&["plan", "--agent-binary", "/nonexistent/agent"], agent);
    assert_eq!(found, ("agent_binary".into(), serde_json::Value::Null));

    lab.write_file(&format!("{good}machines: {{ network: 127.77.251.0/24 }}\n"));
    let taken = listen(Ipv4Addr::new(127, 77, 251, 2), 2379);
    let busy = "something listens on 127.77.251.2:2379: name another network, or stop it";
    assert_eq!(blocked(&["plan"], busy).0, "network");
    drop(taken);
    lab.run(&["plan"]).ok();
    assert!(!lab.path().join(".raftsman").exists(), "plan makes nothing");

    // The same for a fleet that has a state, and was never applied.
    lab.write_file(&good);
    lab.run(&["init", "-f", "x.yaml"]).ok();
    lab.run(&["plan"]).ok();
    let fleet = std::fs::read_to_string(lab.path().join(".raftsman/fleet.json")).expect("the state");
    let fleet: serde_json::Value = serde_json::from_str(&fleet).expect("JSON");
    let network: Ipv4Addr =
        fleet["network"].as_str().and_then(|n| n.split('/').next()?.parse().ok()).expect("a network");
    let address = Ipv4Addr::from(u32::from(network) + 2);
    let taken = listen(address, 2380);
    let busy = format!(
        "a process listens on {address}:2380 already, where machine `main-2` should: stop it, or give the member another \
         address"
    );
    assert_eq!(blocked(&["plan"], &busy), ("port".into(), "main".into()));
    drop(taken);
    lab.run(&["plan"]).ok();

    // HAProxy would fail at its start, after everything else was made.
    let long = format!("/nonexistent/{}", "d".repeat(64 - "/nonexistent/".len()));
    let fronted = |directory: &str| {
        format!("{good}machines: {{ directory: {directory} }}\nbalancers:\n  front: {{ etcd: main, instances: 2 }}\n")
    };
    lab.write_file(&fronted(&long));
    let json = lab.run(&["plan", "--json"]).json();
    assert_eq!(json["unmet"], serde_json::json!([]), "95 bytes are not too long");
    lab.write_file(&fronted(&format!("{long}d")));
    let socket = format!(
        "HAProxy's admin socket of machine `front-1` would be {long}d/front-1/haproxy/run/admin.sock: its path has 96 \
         bytes, a UNIX socket of HAProxy at most 95: name a shorter path in `machines: {{ directory: … }}`, or move the \
         file to one"
    );
    assert_eq!(blocked(&["plan"], &socket), ("directory".into(), "main".into()));
    let refused = lab.run(&["apply", "--yes"]).failed().all();
    assert!(refused.contains(&socket) && !std::path::Path::new("/nonexistent").exists(), "{refused}");

    lab.write_file(&good.replace("version: 3.6.15", "version: 3.6.13"));
    let versions = lab.run(&["versions"]);
    assert_eq!(versions.code, 2, "{}", versions.all());
    assert!(versions.stdout.contains("\nblocked: main: "), "{}", versions.stdout);
    assert!(versions.stdout.contains("has no 3.6.13/etcd"), "{}", versions.stdout);
}
