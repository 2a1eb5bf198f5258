//! A command that is interrupted at any moment → no member is down that was up, and the command says what it left.

use std::process::{Child, Stdio};
use std::time::Duration;

use raftsman_tests::dice::Dice;
use raftsman_tests::lab::{Lab, Output, eventually, kill, soak, text};
use rustix::process::Signal;

const APPLY: [&str; 4] = ["apply", "--yes", "--timeout", "30s"];

fn start(lab: &Lab) -> Child {
    lab.command(&APPLY).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("raftsman starts")
}

fn output(child: Child) -> Output {
    text(child.wait_with_output().expect("it was ours"))
}

/// Writes another quota into the file: every member has to be restarted.
fn change(lab: &Lab, megabytes: u32) {
    let lines = lab.file().lines().filter(|line| !line.contains("quota:")).collect::<Vec<_>>().join("\n");
    lab.write_file(&format!("{lines}\n    quota: {megabytes}MiB\n"));
}

/// Every member's etcd runs, without another command, and takes writes.
#[track_caller]
fn all_up(lab: &Lab, case: &str) {
    eventually(&format!("{case}: all members run"), || (lab.etcds().len() == 3).then_some(()));
    eventually(&format!("{case}: all members answer"), || {
        (lab.etcdctl(&["endpoint", "health", "--cluster"]).code == 0).then_some(())
    });
}

#[test]
fn a_rolling_restart_interrupted_at_any_moment_leaves_no_member_down() {
    let lab = Lab::cluster(3, "3.6.15", &["quota: 1000MiB"]);
    lab.apply();
    let mut dice = Dice::new(12);
    let (cases, signals) = (if soak() { 90 } else { 9 }, [Signal::INT, Signal::TERM, Signal::KILL]);
    let mut unfinished = 0;
    for case in 0..cases {
        change(&lab, 1001 + case);
        let signal = signals[case as usize % 3];
        let run = start(&lab);
        // A whole rolling restart takes about two seconds here.
        let moment =
            Duration::from_millis(u64::from(case / 3) * 200 + dice.below(if soak() { 2500 } else { 400 }) as u64);
        std::thread::sleep(moment);
        kill(run.id(), signal);
        let done = output(run);
        let case = format!("case {case}, {signal:?} after {moment:?}");
        all_up(&lab, &case);
        let code = match signal {
            Signal::INT => 130,
            Signal::TERM => 143,
            _ => -1,
        };
        if done.code == code {
            unfinished += 1;
        } else {
            // Before the first step the signal ends the command as any other; after the last one nothing is left to end.
            assert!(matches!(done.code, 0 | -1), "{case}: {done:?}");
        }
    }
    assert!(unfinished > 0, "no run was interrupted");
    lab.run(&APPLY).ok();
    lab.nothing_to_do();
}

#[test]
fn the_first_signal_ends_after_the_steps_under_way_and_the_second_at_once() {
    let lab = Lab::cluster(3, "3.6.15", &["quota: 1000MiB"]);
    lab.apply();
    let journal = || std::fs::read_to_string(lab.path().join(".raftsman/journal.jsonl")).expect("a journal");
    let begun = |before: usize| -> String {
        eventually("a restart begins", || {
            let text = journal();
            let line =
                text.lines().skip(before).find(|line| line.contains("\"begun\"") && line.contains("restart_etcd"))?;
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            Some(line["event"]["step"]["machine"].as_str()?.to_owned())
        })
    };

    // The first: the step under way is finished, no other is begun.
    change(&lab, 1001);
    let before = journal().lines().count();
    let run = start(&lab);
    let first = begun(before);
    kill(run.id(), Signal::INT);
    let done = output(run);
    assert_eq!(done.code, 130, "{done:?}");
    let last = done.stdout.lines().last().expect("it says how it ended").to_owned();
    assert!(done.stderr.contains("interrupted: ends after the steps under way"), "{done:?}");
    assert!(last.contains("interrupted after ") && last.contains(&format!("{first} restart etcd")), "{last}");
    assert!(last.ends_with("the next `raftsman apply` continues from here"), "{last}");
    let restarts = |text: &str| text.lines().filter(|line| line.contains("restart_etcd")).count();
    let all = journal();
    let since: String = all.lines().skip(before).map(|line| format!("{line}\n")).collect();
    assert_eq!(restarts(&since), 2, "begun and done, once: {since}");
    all_up(&lab, "after the first signal");

    // The second: the agent does not answer, and the command does not wait for it.
    let before = journal().lines().count();
    let run = start(&lab);
    let second = begun(before);
    let agent = lab.agents().into_iter().find(|(name, _)| *name == second).expect("its agent").1;
    kill(agent, Signal::STOP);
    // The journal is written before the wave is shown.
    std::thread::sleep(Duration::from_millis(300));
    kill(run.id(), Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    kill(run.id(), Signal::TERM);
    let done = output(run);
    kill(agent, Signal::CONT);
    assert_eq!(done.code, 143, "{done:?}");
    all_up(&lab, "after the second signal");
    lab.run(&APPLY).ok();
    lab.nothing_to_do();
    insta::with_settings!({ filters => vec![(r"main-\d", "main-N"), (r"\d+ steps", "N steps")] }, {
        insta::assert_snapshot!("interrupted_twice", done.stderr);
    });
}
