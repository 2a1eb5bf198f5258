//! A state that is not ours, not whole or not to be read → a refusal.

use std::process::{Command, Stdio};

use raftsman_tests::lab::{Lab, Output, binary, eventually, kill};
use raftsman_tests::story::{Story, Window};
use rustix::process::Signal;

use super::{APPLY, chmod, run_unprivileged, with_file, write};

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
        Some(&fleet.replace("\"format\": 3", "\"format\": 4")),
        &["format 4", "newer raftsman"],
    );
    let ledger = "clusters/main.json";
    with_state(&mut story, "a lost ledger", ledger, None, &["is missing, though there is a history", "state repair"]);
    with_state(&mut story, "a damaged ledger", ledger, Some("{}"), &["`main` is damaged", "state repair"]);
    let edited = std::fs::read_to_string(state(ledger)).expect("a ledger").replace("main-3", "main-4");
    with_state(&mut story, "a ledger that was edited", ledger, Some(&edited), &["its digest does not match"]);
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
    story.refuse(
        "an identity that every user can read",
        &lab,
        window,
        &APPLY,
        &["is open to other users", "chmod 600"],
    );
    chmod(&state("identity.txt"), 0o600);
    chmod(&state(""), 0o777);
    story.refuse("a state that every user can write", &lab, window, &APPLY, &["chmod 700"]);
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
        "another user's state",
        &lab,
        window,
        || run_unprivileged(&lab, &APPLY),
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

    // A second operator: the first one's command is stopped in the middle.
    lab.write_file(&format!("{}    log_level: warn\n", lab.file()));
    let mut first = lab.spawn(&APPLY);
    eventually("the lock is taken", || {
        std::fs::read_to_string(state("locks/main.lock")).is_ok_and(|t| t.contains("apply")).then_some(())
    });
    kill(first.id(), Signal::STOP);
    for verb in [&APPLY[..], &["destroy", "--yes"]] {
        let output = lab.run(verb).failed();
        story.describe(
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
