//! What people and programs read: help, plans, status, errors, colours and JSON, from the real command.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use raftsman_tests::lab::{Lab, Output, binary, eventually, kill};
use rustix::process::Signal;
use serde_json::Value;

const APPLY: [&str; 5] = ["apply", "--yes", "--json", "--timeout", "30s"];

/// Every verb, as written on the command line.
const VERBS: [&str; 33] = [
    "init",
    "adopt",
    "check",
    "schema",
    "plan",
    "apply",
    "status",
    "preflight",
    "versions",
    "destroy",
    "join",
    "replace",
    "recover",
    "restore",
    "drill",
    "verify",
    "defrag",
    "compact",
    "move-leader",
    "journal",
    "env",
    "cert",
    "cert list",
    "cert rotate",
    "cert issue",
    "backup",
    "backup now",
    "backup list",
    "backup show",
    "backup verify",
    "logs",
    "completions",
    "man",
];
/// Those that `--help` does not list.
const HIDDEN: [&str; 1] = ["man"];

/// What differs from run to run, and what stands for it in snapshots.
const FILTERS: [(&str, &str); 13] = [
    (r"/[^ \n`']*/raftsman-lab-[A-Za-z0-9]+", "<lab>"),
    // The address decides how wide its column is.
    (r"\b127\.0\.\d+\.(\d+) +", "127.0.N.$1  "),
    (r"\b127\.0\.\d+\.(\d+):", "127.0.N.$1:"),
    (r"ADDRESS +", "ADDRESS     "),
    (r"\bid [0-9a-f]{1,16}\b", "id <cluster>"),
    (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "<time>"),
    (r"leader  |follower", "<role>  "),
    (r"\d+\.\d [KM]iB +\d+ ", "<size>  <rev> "),
    (r"main-\d( +)restart etcd", "<name>${1}restart etcd"),
    (r"ends in \d+ [dh]", "ends in <time>"),
    // All are of the same minute: which of them is first is chance.
    (r"(first certificate ends in <time>: )(peer|server) of main-\d", "${1}<whose>"),
    (r"(first CA ends in <time>: )(peers|clients)", "${1}<whose>"),
    (r"(?m)^Usage: \S*raftsman", "Usage: raftsman"),
];

#[track_caller]
fn snapshot(name: &str, text: &str) {
    assert!(!text.contains('\u{1b}'), "{name}: escape codes in a pipe:\n{text}");
    assert!(!text.contains("panicked"), "{name}:\n{text}");
    insta::with_settings!({ filters => FILTERS, omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}

/// An output as a snapshot: the code, and which text came out where.
#[track_caller]
fn snapshot_run(name: &str, output: &Output) {
    let mut text = format!("exit code {}\n", output.code);
    for (what, part) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if !part.is_empty() {
            text.push_str(&format!("--- {what}\n{part}"));
        }
    }
    snapshot(name, &text);
}

/// Runs a command where it finds no file, no state and no variable of ours.
fn run(arguments: &[&str]) -> Output {
    let empty = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(binary("raftsman"));
    for variable in ["RAFTSMAN_FILE", "RAFTSMAN_IDENTITY", "RAFTSMAN_PASSPHRASE_FILE", "RAFTSMAN_AGENT"] {
        command.env_remove(variable);
    }
    finish(command.args(arguments).current_dir(empty.path()))
}

fn finish(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Verbs that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let commands = help.split("Commands:\n").nth(1).expect("a list of commands");
    let lines = commands.lines().take_while(|l| !l.is_empty());
    // A line that begins further in goes on with the description above it.
    let names = lines.filter_map(|l| l.strip_prefix("  ").filter(|l| !l.starts_with(' '))?.split_whitespace().next());
    names.filter(|n| *n != "help").map(str::to_owned).collect()
}

fn visible() -> impl Iterator<Item = &'static str> {
    VERBS.into_iter().filter(|v| !HIDDEN.contains(v))
}

#[test]
fn help() {
    let top = run(&["-h"]).ok().stdout;
    let expected: Vec<&str> = visible().filter(|v| !v.contains(' ')).collect();
    assert_eq!(listed(&top), expected, "a verb is missing in this test's table");
    assert_eq!(listed(&run(&["cert", "--help"]).ok().stdout), ["list", "rotate", "issue"]);
    snapshot("help_short", &top);
    snapshot("help_long", &run(&["--help"]).ok().stdout);
    for verb in VERBS {
        let mut words: Vec<&str> = verb.split(' ').collect();
        words.push("--help");
        snapshot(&format!("help_{}", verb.replace(' ', "_")), &run(&words).ok().stdout);
    }
    let bare = run(&[]);
    assert_eq!((bare.code, bare.stdout.as_str()), (2, ""), "no verb: help on standard error");
    assert!(bare.stderr.contains("Usage:"), "{}", bare.stderr);
    let version = run(&["--version"]).ok().stdout;
    assert!(version.starts_with("raftsman 0."), "{version}");
}

#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&["completions", shell]).ok().stdout;
        for word in visible().flat_map(|v| v.split(' ')) {
            assert!(text.contains(word), "{shell}: no `{word}`");
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    run(&["man", &dir.path().join("man").to_string_lossy()]).ok();
    for verb in visible() {
        let page = dir.path().join(format!("man/raftsman-{}.1", verb.replace(' ', "-")));
        let text = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{verb}:\n{text}");
    }
    assert!(dir.path().join("man/raftsman.1").is_file());
}

#[test]
fn a_bad_file() {
    let lab = Lab::new("fleet: lab\netcd:\n  main:\n    members: 4\n    version: 3.6.15\n    quotta: 1GiB\n");
    snapshot_run("check_bad_file", &lab.run(&["check"]));
    let json = lab.run(&["check", "--json"]);
    assert_eq!(json.code, 1);
    let json = json.json();
    has_documented_keys("check", &json);
    let documented = documented("check: a diagnostic");
    for diagnostic in json["diagnostics"].as_array().expect("a list") {
        let keys = keys(diagnostic);
        let left_out = |name: &String| name == "why" || name == "help";
        assert!(keys.is_subset(&documented) && documented.difference(&keys).all(left_out), "{diagnostic}");
    }
    assert_eq!((&json["valid"], &json["errors"], &json["warnings"]), (&false.into(), &1.into(), &1.into()));
    assert_eq!(lab.run(&["plan", "--detailed-exitcode"]).code, 1, "an error is 1, not 2");

    lab.write_file("fleet: lab\netcd:\n  main:\n    members: 4\n    version: 3.6.15\n");
    assert_eq!((lab.run(&["check"]).code, lab.run(&["check", "--strict"]).code), (0, 1));
}

/// Fields in the first table below this heading of `docs/reference/json.md`.
#[track_caller]
fn documented(heading: &str) -> BTreeSet<String> {
    documented_rows(heading).into_iter().map(|(name, _)| name).collect()
}

/// Each row's first word in code, and those of its second column.
#[track_caller]
fn documented_rows(heading: &str) -> Vec<(String, BTreeSet<String>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/json.md");
    let text = std::fs::read_to_string(path).expect("the document");
    let is_heading = |line: &&str| line.starts_with('#') && line.trim_start_matches('#').trim() == heading;
    let lines = text.lines().skip_while(|l| !is_heading(l)).skip(1).take_while(|l| !l.starts_with('#'));
    let in_code = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let row = |line: &str| {
        let mut cells = line.strip_prefix('|')?.split('|');
        let name = in_code(cells.next()?).into_iter().next()?;
        Some((name, in_code(cells.next()?).into_iter().collect()))
    };
    let rows: Vec<_> = lines.filter_map(row).collect();
    assert!(!rows.is_empty(), "docs/reference/json.md says nothing below `{heading}`");
    rows
}

#[track_caller]
fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap_or_else(|| panic!("not an object: {value}")).keys().cloned().collect()
}

#[track_caller]
fn has_documented_keys(heading: &str, value: &Value) {
    assert_eq!(keys(value), documented(heading), "left: what is printed; right: docs/reference/json.md, {heading}");
}

#[track_caller]
fn plan_is_documented(plan: &Value) {
    has_documented_keys("plan", plan);
    for cluster in plan["clusters"].as_array().expect("clusters") {
        has_documented_keys("plan: a cluster", cluster);
        for wave in cluster["waves"].as_array().expect("waves") {
            assert_eq!(keys(wave), ["steps".to_owned()].into());
            wave["steps"].as_array().expect("steps").iter().for_each(|s| has_documented_keys("plan: a step", s));
        }
    }
}

/// Each line of an apply has the fields that are documented for its event, `event`, and `cluster` but for the plan.
#[track_caller]
fn apply_is_documented(lines: &[Value]) {
    let events = documented_rows("apply");
    for line in lines {
        let name = line["event"].as_str().expect("an event");
        let (_, fields) = events.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("not documented: {name}"));
        let mut expected = fields.clone();
        expected.insert("event".to_owned());
        if name != "plan" {
            expected.insert("cluster".to_owned());
        }
        assert_eq!(keys(line), expected, "{line}");
    }
    plan_is_documented(&lines[0]["plan"]);
}

/// Runs this in a shell in the lab; `raftsman` is ours.
fn shell(lab: &Lab, script: &str) -> Output {
    let script = format!("raftsman() {{ {:?} \"$@\"; }}\n{script}", binary("raftsman"));
    finish(Command::new("sh").args(["-c", &script]).current_dir(lab.path()).env_remove("NO_COLOR"))
}

/// Runs a verb on a terminal of its own.
fn on_terminal(lab: &Lab, arguments: &str, no_color: bool) -> Output {
    let line = format!("{:?} {arguments}", binary("raftsman"));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).current_dir(lab.path()).env_remove("NO_COLOR").env("TERM", "xterm");
    if no_color {
        command.env("NO_COLOR", "1");
    }
    finish(&mut command)
}

/// Colours only, not the cursor movements of a live view.
fn has_colours(text: &str) -> bool {
    ["\u{1b}[1m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[2m"].iter().any(|code| text.contains(code))
}

/// One fleet's life, and all that is said about it.
#[test]
fn a_fleet() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    before_there_is_a_fleet(&lab);

    let live = on_terminal(&lab, "apply --yes --timeout 30s", false).ok().stdout;
    assert!(live.contains('✓') && live.contains("main-3 start etcd") && has_colours(&live), "{live}");
    let done = live.lines().find(|l| l.contains("done:")).unwrap_or_else(|| panic!("not done:\n{live}"));
    assert!(done.contains("main is as it should be: "), "{done}");

    eventually("it is settled", || (lab.run(&["status"]).code == 0).then_some(()));
    converged(&lab);
    changes(&lab);
    one_member_is_down(&lab);
    lab.run(&["destroy", "--yes"]).ok();
    assert_eq!(lab.run(&["destroy", "--yes"]).ok().stdout, "there is nothing to destroy\n");
}

fn before_there_is_a_fleet(lab: &Lab) {
    snapshot_run("plan_new", &lab.run(&["plan"]));
    assert_eq!(lab.run(&["plan", "--detailed-exitcode"]).code, 2);
    plan_is_documented(&lab.run(&["plan", "--json"]).ok().json());
    let head = shell(lab, "raftsman plan | head -1");
    assert_eq!((head.code, head.stdout.lines().count(), head.stderr.as_str()), (0, 1, ""), "{}", head.all());
    assert_eq!(shell(lab, "raftsman plan >&-").code, 0, "nobody listens");

    assert!(!lab.run(&["plan"]).all().contains('\u{1b}'));
    assert!(has_colours(&lab.run(&["plan", "--color", "always"]).stdout));
    assert!(has_colours(&on_terminal(lab, "plan", false).stdout));
    assert!(!on_terminal(lab, "plan", true).all().contains('\u{1b}'), "NO_COLOR");
    assert!(!on_terminal(lab, "plan --color never", false).all().contains('\u{1b}'));
    assert!(has_colours(&on_terminal(lab, "plan --color always", true).stdout), "the command line goes first");

    let json = lab.run(&["check", "--json"]).ok().json();
    assert_eq!((&json["valid"], &json["diagnostics"]), (&true.into(), &Value::Array(Vec::new())));
    has_documented_keys("check", &json);

    let errors: [&[&str]; 10] = [
        &["plan", "--file", "nosuch.yaml"],
        &["plan", "nosuch"],
        &["env"],
        &["status"],
        &["journal"],
        &["join", "main-1"],
        &["cert", "list"],
        &["apply"],
        &["apply", "--timeout", "soon"],
        &["aply"],
    ];
    let mut text = String::new();
    for arguments in errors {
        let output = lab.run(arguments).failed();
        // The plan that an apply shows first has a snapshot of its own.
        let stdout = if arguments == ["apply"] { "" } else { output.stdout.as_str() };
        text.push_str(&format!("$ raftsman {}\n{stdout}{}[{}]\n\n", arguments.join(" "), output.stderr, output.code));
    }
    snapshot("errors", &text);
    assert!(!lab.path().join(".raftsman").exists(), "asking makes nothing");
}

fn converged(lab: &Lab) {
    snapshot_run("plan_converged", &lab.run(&["plan"]));
    assert_eq!(lab.run(&["plan", "--detailed-exitcode"]).code, 0);
    snapshot_run("status_healthy", &lab.run(&["status"]));
    assert!(has_colours(&lab.run(&["status", "--color", "always"]).stdout));

    let again = lab.run(&APPLY).ok().json_lines();
    assert_eq!(again.len(), 1, "nothing to do: the plan only");
    apply_is_documented(&again);
    let status = lab.run(&["status", "--json"]).ok().json();
    status_is_documented(&status);
    let leaders = status["clusters"][0]["members"].as_array().expect("members");
    assert_eq!(leaders.iter().filter(|m| m["state"] == "leader").count(), 1);

    let certificates = lab.run(&["cert", "list", "--json"]).ok().json();
    has_documented_keys("cert list", &certificates);
    let list = certificates["certificates"].as_array().expect("a list");
    assert_eq!(list.len(), 3 + 3 * 3, "three authorities, and three certificates a member");
    list.iter().for_each(|c| has_documented_keys("cert list: a certificate", c));
    let issued = lab.run(&["cert", "issue", "alice", "--out", "certs", "--json"]).ok().json();
    has_documented_keys("cert issue", &issued);
    let env = lab.run(&["env", "--json"]).ok().json();
    has_documented_keys("env", &env);
    assert_eq!(env["endpoints"].as_array().map(Vec::len), Some(3));

    let journal = lab.run(&["journal", "--json"]).ok().json_lines();
    journal.iter().for_each(|entry| has_documented_keys("journal", entry));
    let kinds: BTreeSet<&str> = journal.iter().filter_map(|e| e["kind"].as_str()).collect();
    let known = documented("journal: kinds");
    assert!(kinds.iter().all(|k| known.contains(*k)) && kinds.contains("converged"), "{kinds:?}");
    assert_eq!(lab.run(&["journal", "--json", "-n", "2"]).ok().json_lines().len(), 2);
    assert_eq!(lab.run(&["logs", "main-1", "-n", "3"]).ok().stdout.lines().count(), 3);
}

#[track_caller]
fn status_is_documented(status: &Value) {
    has_documented_keys("status", status);
    for cluster in status["clusters"].as_array().expect("clusters") {
        has_documented_keys("status: a cluster", cluster);
        cluster["members"].as_array().expect("members").iter().for_each(|m| has_documented_keys("status: a member", m));
        for waiting in cluster["waiting"].as_array().expect("a list") {
            assert!(keys(waiting).is_superset(&documented("status: what is waited for")), "{waiting}");
        }
    }
}

fn changes(lab: &Lab) {
    let before = lab.file();
    lab.write_file(&before.replace("members: 3", "members: 5"));
    snapshot_run("plan_growing", &lab.run(&["plan"]));
    lab.write_file(&format!("{before}    auth: {{ mode: password }}\n"));
    snapshot_run("plan_blocked", &lab.run(&["plan"]));
    assert_eq!(lab.run(&["plan", "--detailed-exitcode"]).code, 1);

    lab.write_file(&format!("{before}    quota: 4GiB\n"));
    snapshot_run("plan_rolling", &lab.run(&["plan"]));
    assert_eq!(lab.run(&["plan", "--detailed-exitcode"]).code, 2);
    let leader = lab.cluster_status()["leader"].clone();
    let lines = lab.run(&APPLY).ok().json_lines();
    apply_is_documented(&lines);
    let restarted = |line: &&Value| line["event"] == "done" && line["action"]["do"] == "restart_etcd";
    let restarts: Vec<&Value> = lines.iter().filter(restarted).map(|l| &l["action"]["machine"]).collect();
    assert_eq!((restarts.len(), restarts[2]), (3, &leader), "the leader goes last");
    assert_eq!(lines.last().map(|l| &l["event"]), Some(&"converged".into()));
}

fn one_member_is_down(lab: &Lab) {
    // The agent first: it would start etcd again.
    for list in [Lab::agents, Lab::etcds] {
        for (_, pid) in list(lab).into_iter().filter(|(name, _)| name == "main-2") {
            kill(pid, Signal::KILL);
        }
        eventually("it ends", || list(lab).iter().all(|(name, _)| name != "main-2").then_some(()));
    }
    let others_serve = |cluster: &Value| {
        cluster["leader"].as_str().is_some_and(|l| l != "main-2") && cluster["tolerance"]["can_lose"] == 0
    };
    eventually("the others serve", || others_serve(&lab.cluster_status()).then_some(()));
    let output = lab.run(&["status"]);
    assert_eq!(output.code, 2);
    snapshot_run("status_one_down", &output);
    let json = lab.run(&["status", "--json"]);
    assert_eq!(json.code, 2);
    status_is_documented(&json.json());
    let silent = lab.run(&["cert", "list", "--json"]).ok().json();
    assert_eq!(silent["unreachable"], serde_json::json!(["main-2"]));
}
