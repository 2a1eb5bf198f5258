//! What people and programs read: help, plans, status, errors, colours and JSON, from the real command.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use raftsman_tests::lab::{Lab, Output, binary, eventually, kill};
use rustix::process::Signal;
use serde_json::Value;

const APPLY: [&str; 5] = ["apply", "--yes", "--json", "--timeout", "30s"];

/// Every verb, as written on the command line.
const VERBS: [&str; 45] = [
    "init",
    "adopt",
    "check",
    "schema",
    "explain",
    "plan",
    "apply",
    "status",
    "preflight",
    "versions",
    "version",
    "destroy",
    "state",
    "state check",
    "state repair",
    "join",
    "replace",
    "recover",
    "restore",
    "drill",
    "verify",
    "defrag",
    "compact",
    "move-leader",
    "switchover",
    "rotate-user",
    "journal",
    "env",
    "psql",
    "cert",
    "cert list",
    "cert rotate",
    "cert revoke",
    "cert issue",
    "backup",
    "backup now",
    "backup list",
    "backup show",
    "backup verify",
    "backup prune",
    "backup key",
    "logs",
    "completions",
    "names",
    "man",
];
/// Those that `--help` does not list.
const HIDDEN: [&str; 2] = ["names", "man"];

/// What differs from run to run, and what stands for it in snapshots.
const FILTERS: [(&str, &str); 14] = [
    (r"/[^ \n`']*/raftsman-lab-[A-Za-z0-9]+", "<lab>"),
    // The address decides how wide its column is.
    (r"\b127\.0\.\d+\.(\d+) +", "127.0.N.$1  "),
    (r"\b127\.0\.\d+\.(\d+):", "127.0.N.$1:"),
    (r"ADDRESS +", "ADDRESS     "),
    (r"\bid [0-9a-f]{1,16}\b", "id <cluster>"),
    (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "<time>"),
    (r"leader  |follower", "<role>  "),
    (r"\d+\.\d [KM]iB +\d+ ", "<size>  <rev> "),
    (r"main-\d( +)(restart etcd|move leader to)", "<name>${1}${2}"),
    (r"main-\d restarts next", "<name> restarts next"),
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
    assert_eq!(listed(&run(&["cert", "--help"]).ok().stdout), ["list", "rotate", "revoke", "issue"]);
    snapshot("help_short", &top);
    snapshot("help_long", &run(&["--help"]).ok().stdout);
    for verb in VERBS {
        let mut words: Vec<&str> = verb.split(' ').collect();
        words.push("--help");
        snapshot(&format!("help_{}", verb.replace(' ', "_")), &run(&words).ok().stdout);
    }
    let bare = run(&[]);
    assert_eq!((bare.code, bare.stdout.as_str()), (64, ""), "no verb: help on standard error");
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

/// The names of the file are completed: asked of the command, in a real shell.
#[test]
fn completions_have_the_names_of_the_file() {
    let lab = Lab::new(
        "fleet: lab\netcd:\n  main: { members: 3 }\n  other: { members: [{ name: a }, { name: b }, { name: c }] }\n",
    );
    assert_eq!(lab.run(&["names", "plan"]).ok().stdout, "main\nother\n");
    assert_eq!(lab.run(&["names", "logs"]).ok().stdout, "main-1\nmain-2\nmain-3\na\nb\nc\n");
    assert_eq!(lab.run(&["names", "init"]).ok().stdout, "");
    assert_eq!(run(&["names", "plan"]).ok().stdout, "", "no file, no names");
    let stack = Lab::new(
        "fleet: lab\netcd:\n  main: { members: 3, auth: { mode: password } }\npostgres:\n  app: { etcd: main, nodes: 3 }\n",
    );
    for (verb, names) in [("psql", "app\n"), ("status", "main\napp\n"), ("destroy", "main\n")] {
        assert_eq!(stack.run(&["names", verb]).ok().stdout, names, "{verb}");
    }
    let dir = binary("raftsman").parent().expect("a directory").display().to_string();
    let complete = |words: &str| {
        let script = format!(
            "PATH={dir}:$PATH\neval \"$(raftsman completions bash)\"\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _raftsman_with_names raftsman \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\necho \"${{COMPREPLY[@]}}\""
        );
        finish(Command::new("bash").args(["-c", &script]).current_dir(lab.path())).ok().stdout
    };
    assert!(complete("raftsman plan ''").contains("main other"), "{}", complete("raftsman plan ''"));
    assert_eq!(complete("raftsman logs main-"), "main-1 main-2 main-3\n");
    assert!(!complete("raftsman pl").contains("main"));
    for (shell, call) in [("zsh", "_raftsman_names'"), ("fish", "(raftsman names logs 2>/dev/null)")] {
        assert!(run(&["completions", shell]).ok().stdout.contains(call), "{shell}");
    }
}

#[test]
fn keys_are_explained() {
    let mut text = String::new();
    for key in ["", "etcd.main.quota", "etcd.main.auth", "etcd.main.auth.mode", "etcd.main.quotta"] {
        let output = run(&["explain", key]);
        text.push_str(&format!("$ raftsman explain {key}\n{}{}[{}]\n\n", output.stdout, output.stderr, output.code));
    }
    snapshot("explain", &text);
    has_documented_keys("explain", &run(&["explain", "etcd.main.quota", "--json"]).ok().json());
}

/// Warnings come from verbs that judge the file, once, unless they are accepted or `--quiet` is given.
#[test]
fn warnings_are_shown_once() {
    let source = format!("source: {{ directory: {:?} }}", raftsman_tests::lab::etcd_dir());
    let file = |accepted: &str| format!("fleet: lab\n{accepted}etcd:\n  main:\n    members: 4\n    {source}\n");
    let lab = Lab::new(&file(""));
    let warnings = |arguments: &[&str]| lab.run(arguments).all().matches("warning[").count();
    assert_eq!((warnings(&["check"]), warnings(&["plan"]), warnings(&["apply"])), (1, 1, 1));
    assert_eq!((warnings(&["check", "-q"]), warnings(&["plan", "--quiet"]), warnings(&["-q", "apply"])), (0, 0, 0));
    assert_eq!(lab.run(&["check", "--strict", "--quiet"]).code, 1, "what is not shown still counts");
    for verb in
        ["status", "env", "journal", "cert list", "cert rotate peers", "preflight", "logs main-1", "destroy --yes"]
    {
        assert_eq!(warnings(&verb.split(' ').collect::<Vec<_>>()), 0, "{verb}");
    }
    lab.write_file(&file("accept_warnings: [members-even]\n"));
    assert_eq!((warnings(&["check"]), lab.run(&["check", "--strict"]).code), (0, 0));
}

/// A cluster that is to be kept is named with its line; others may go.
#[test]
fn prevent_destroy() {
    let lab = Lab::cluster(1, "3.6.15", &["prevent_destroy: true"]);
    let file = lab.file();
    std::fs::remove_file(lab.path().join("raftsman.yaml")).expect("removed");
    lab.run(&["init"]).ok();
    lab.write_file(&file);
    let line = 1 + file.lines().position(|line| line.contains("prevent_destroy")).expect("the line");
    let kept = format!(
        "error: `prevent_destroy: true` in raftsman.yaml:{line} keeps cluster `main`: nothing was destroyed; remove that \
         line if it is to go\n"
    );
    for arguments in [&["destroy", "--yes"][..], &["destroy", "main", "--yes"]] {
        let output = lab.run(arguments);
        assert_eq!((output.code, output.stderr.as_str(), output.stdout.as_str()), (1, kept.as_str(), ""));
    }
    assert!(lab.path().join(".raftsman/fleet.json").exists());
    lab.write_file(&file.replace("prevent_destroy: true", "prevent_destroy: false"));
    let output = lab.run(&["destroy"]);
    assert_eq!(output.stderr, "error: nothing was destroyed: type the fleet's name, or give --yes\n");
    let output = lab.run(&["destroy", "main"]);
    assert_eq!(output.stderr, "error: nothing was destroyed: type the cluster's name, or give --yes\n");
    // On a terminal: the wrong name, then the right one.
    assert_eq!(typed(&lab, "destroy", "main").code, 1, "the fleet's name is `lab`");
    assert!(lab.path().join(".raftsman/fleet.json").exists());
    let destroyed = typed(&lab, "destroy", "lab");
    assert_eq!(destroyed.code, 0, "{}", destroyed.all());
    assert!(!lab.path().join(".raftsman/fleet.json").exists());
}

/// Runs a verb on a terminal of its own, at which this is typed.
fn typed(lab: &Lab, verb: &str, name: &str) -> Output {
    let command = format!("{} {verb}", binary("raftsman").display());
    let line = format!("printf '{name}\\n' | script -qec {command:?} /dev/null");
    finish(Command::new("sh").args(["-c", &line]).current_dir(lab.path()))
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

/// PostgreSQL clusters are checked, with the table of their write pauses, and refused by every verb that would act.
#[test]
fn a_file_with_postgresql_clusters() {
    let lab = Lab::new(
        "fleet: lab\netcd:\n  main: { members: 3, version: 3.6.15, auth: { mode: password } }\n\
         postgres:\n  app: { etcd: main, nodes: 3, superuser: { password: { file: p } } }\n",
    );
    let check = lab.run(&["check"]);
    assert_eq!(check.code, 1);
    snapshot_run("check_postgres", &check);
    let json = lab.run(&["check", "--json"]).json();
    assert_eq!((&json["valid"], &json["diagnostics"][0]["code"]), (&false.into(), &"postgres-later".into()));
    let timing = &json["postgres"]["app"];
    has_documented_keys("check: a PostgreSQL cluster", timing);
    let documented = documented("check: a write pause");
    for pause in timing["pauses"].as_array().expect("a list") {
        let keys = keys(pause);
        let left_out = |name: &String| name == "until" || name == "expected_ms";
        assert!(keys.is_subset(&documented) && documented.difference(&keys).all(left_out), "{pause}");
    }
    for verb in ["plan", "apply", "destroy", "status"] {
        let refused = lab.run(&[verb]);
        assert!(refused.code == 1 && refused.stderr.contains("postgres-later"), "{verb}: {}", refused.stderr);
    }
    assert!(!lab.path().join(".raftsman").exists(), "nothing was done");
}

/// What `raftsman` says when its output does not fit.
const FULL: &str =
    "error: cannot write to standard output: No space left on device (os error 28): the output is incomplete\n";

/// All verbs write alike: a failed write is an error, a closed pipe is none.
#[track_caller]
fn checks_its_output(lab: &Lab, verb: &str) {
    let full = shell(lab, &format!("raftsman {verb} > /dev/full"));
    assert_eq!((full.code, full.stderr.as_str()), (1, FULL), "{verb}");
    let closed = shell(lab, &format!("{{ raftsman {verb}; echo $? > code; }} | true"));
    assert_eq!((closed.code, closed.stderr.as_str()), (0, ""), "{verb}");
    let code = std::fs::read_to_string(lab.path().join("code")).expect("its exit code");
    assert!(["0\n", "2\n"].contains(&code.as_str()), "{verb}: {code}");
}

#[test]
fn output_that_is_lost_is_an_error() {
    let lab = Lab::cluster(3, "3.6.15", &[]);
    for verb in ["--help", "--version", "plan --help", "schema", "check", "check --json", "completions bash", "plan"] {
        checks_its_output(&lab, verb);
    }
    // The command's own error is the one that is printed.
    let both = shell(&lab, "raftsman plan nosuch > /dev/full");
    assert_eq!((both.code, both.stderr.as_str()), (1, "error: the file has no cluster `nosuch`; it has: main\n"));
}

/// A script can tell a wrong command line (64) from changes (2) and failures (1).
#[test]
fn a_wrong_command_line_is_64() {
    for line in ["", "aply", "plan --nosuch", "apply --timeout soon", "restore --revision 0", "init --members 12"] {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = run(&arguments);
        assert_eq!((output.code, output.stdout.as_str()), (64, ""), "{line}: {}", output.all());
    }
    assert_eq!(run(&["plan"]).code, 1, "no file");
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

/// One fleet from apply to destroy, and all output about it.
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
    watching(&lab);
    compacting(&lab);
    waiting_for_the_lock(&lab);
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
    assert_eq!(shell(lab, "raftsman plan >&-").code, 0, "standard output is closed");

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

    for verb in ["status", "status --json", "plan --json", "env", "env --json", "cert list", "journal", "logs main-1"] {
        checks_its_output(lab, verb);
    }

    let journal = lab.run(&["journal", "--json"]).ok().json_lines();
    journal.iter().for_each(|entry| has_documented_keys("journal", entry));
    let kinds: BTreeSet<&str> = journal.iter().filter_map(|e| e["kind"].as_str()).collect();
    let known = documented("journal: kinds");
    assert!(kinds.iter().all(|k| known.contains(*k)) && kinds.contains("converged"), "{kinds:?}");
    assert_eq!(lab.run(&["journal", "--json", "-n", "2"]).ok().json_lines().len(), 2);
    assert_eq!(lab.run(&["logs", "main-1", "-n", "3"]).ok().stdout.lines().count(), 3);
}

#[track_caller]
pub(crate) fn status_is_documented(status: &Value) {
    has_documented_keys("status", status);
    for cluster in status["clusters"].as_array().expect("clusters") {
        has_documented_keys("status: a cluster", cluster);
        cluster["members"].as_array().expect("members").iter().for_each(|m| has_documented_keys("status: a member", m));
        for balancer in cluster["balancers"].as_array().expect("balancers") {
            has_documented_keys("status: a balancer", balancer);
            let instances = balancer["instances"].as_array().expect("instances").iter();
            instances.for_each(|instance| has_documented_keys("status: an instance of a balancer", instance));
        }
        for postgres in cluster["postgres"].as_array().expect("PostgreSQL clusters") {
            has_documented_keys("status: a PostgreSQL cluster", postgres);
            let nodes = postgres["nodes"].as_array().expect("nodes").iter();
            nodes.for_each(|node| has_documented_keys("status: a node of PostgreSQL", node));
        }
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
    snapshot_run("plan_explain", &lab.run(&["plan", "--explain"]));
    let planned = lab.run(&["plan", "--json"]).ok().json();
    let steps = |wave: &Value| wave["steps"].as_array().map_or(0, Vec::len);
    let steps: usize = planned["clusters"][0]["waves"].as_array().expect("waves").iter().map(steps).sum();
    assert_eq!(lab.cluster_status()["pending"], steps, "status and plan count alike");
    snapshot_run("plan_diff", &lab.run(&["plan", "--diff"]));
    assert_eq!(lab.run(&["plan", "--diff", "--json"]).ok().json()["clusters"][0]["diffs"][0]["machines"][2], "main-3");
    assert_eq!(lab.run(&["plan", "--detailed-exitcode"]).code, 2);
    let leader = lab.cluster_status()["leader"].clone();
    let lines = lab.run(&APPLY).ok().json_lines();
    apply_is_documented(&lines);
    let restarted = |line: &&Value| line["event"] == "done" && line["action"]["do"] == "restart_etcd";
    let restarts: Vec<&Value> = lines.iter().filter(restarted).map(|l| &l["action"]["machine"]).collect();
    assert_eq!((restarts.len(), restarts[2]), (3, &leader), "the leader goes last");
    assert_eq!(lines.last().map(|l| &l["event"]), Some(&"converged".into()));
}

/// `status --watch` and `logs -f` go on until they are interrupted, or until their reader goes away.
fn watching(lab: &Lab) {
    let interrupted = |arguments: &[&str], until: &dyn Fn(&str) -> bool| {
        let out = lab.path().join("watched");
        let mut command = lab.command(arguments);
        let file = std::fs::File::create(&out).expect("a file");
        let mut child = command.stdin(Stdio::null()).stdout(file).spawn().expect("it runs");
        eventually(&format!("{arguments:?}"), || {
            until(&std::fs::read_to_string(&out).unwrap_or_default()).then_some(())
        });
        kill(child.id(), Signal::INT);
        (child.wait().expect("it ends").code(), std::fs::read_to_string(&out).expect("its output"))
    };
    let (code, text) = interrupted(&["status", "--watch=100ms"], &|text| text.matches("etcd main").count() > 2);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains('\u{1b}'), "no cursor movements in a pipe");
    let (_, lines) = interrupted(&["status", "--watch=100ms", "--json"], &|text| text.lines().count() > 2);
    lines.lines().for_each(|line| status_is_documented(&serde_json::from_str(line).expect("JSON")));
    let head = shell(lab, "raftsman status --watch=100ms | head -1");
    assert_eq!((head.code, head.stderr.as_str()), (0, ""), "a reader that goes away ends it");

    let follows = |text: &str| text.lines().count() > 3;
    let (code, text) = interrupted(&["logs", "main-1", "-n", "1", "-f"], &|text| {
        // Something to log: a client without TLS.
        let _ = std::net::TcpStream::connect((lab.address("main-1"), 2379)).map(|mut to| {
            use std::io::Write as _;
            let _ = to.write_all(b"hello\n\n");
        });
        follows(text)
    });
    assert!(code == Some(0) && follows(&text), "{code:?}: {text}");
    let distinct: BTreeSet<&str> = text.lines().collect();
    assert_eq!(distinct.len(), text.lines().count(), "no line comes twice:\n{text}");
}

/// History goes for good: the operator types the cluster's name.
fn compacting(lab: &Lab) {
    lab.etcdctl(&["put", "history", "before"]).ok();
    let put = lab.etcdctl(&["get", "history", "-w", "json"]).ok().json();
    let revision = format!("--rev={}", put["kvs"][0]["mod_revision"]);
    lab.etcdctl(&["put", "history", "after"]).ok();
    let before = || lab.etcdctl(&["get", "history", "--print-value-only", &revision]);
    for verb in [&["compact"][..], &["compact", "main", "--keep", "0"], &["compact", "--json"]] {
        let refused = lab.run(verb);
        let words = "error: nothing was done: type the cluster's name, or give --yes\n";
        assert_eq!((refused.code, refused.stdout.as_str(), refused.stderr.as_str()), (1, "", words), "{verb:?}");
    }
    assert_eq!(typed(lab, "compact", "lab").code, 1, "the cluster's name is `main`");
    assert_eq!(before().ok().stdout, "before\n");
    let compacted = typed(lab, "compact", "main");
    assert_eq!(compacted.code, 0, "{}", compacted.all());
    let gone = before().failed();
    assert!(gone.stderr.contains("has been compacted"), "{}", gone.all());
}

/// `--lock-timeout` waits for the command that holds the lock, and names it.
fn waiting_for_the_lock(lab: &Lab) {
    lab.write_file(&format!("{}    log_level: warn\n", lab.file()));
    let mut first = lab.spawn(&["apply", "--yes", "--timeout", "60s"]);
    let lock = lab.path().join(".raftsman/locks/main.lock");
    eventually("the lock is taken", || std::fs::read_to_string(&lock).is_ok_and(|t| t.contains("apply")).then_some(()));
    kill(first.id(), Signal::STOP);
    let at_once = lab.run(&["compact", "--yes"]);
    assert!(at_once.code == 1 && at_once.stderr.contains("is running `raftsman apply`"), "{}", at_once.all());
    let given_up = lab.run(&["compact", "--yes", "--lock-timeout", "300ms"]);
    assert!(
        given_up.code == 1 && given_up.stderr.starts_with("waits up to 300ms for the lock: "),
        "{}",
        given_up.all()
    );
    assert!(given_up.stderr.contains("\nerror: "), "{}", given_up.all());
    let second = lab.spawn(&["compact", "--yes", "--lock-timeout", "60s"]);
    kill(first.id(), Signal::CONT);
    assert!(first.wait().expect("it ends").success());
    let done = second.wait_with_output().expect("it ends");
    assert!(done.status.success(), "{done:?}");
    lab.settled();
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
