//! What is left of a cluster → the text of `raftsman recover`.

use raftsman_core::plan::recovery::{Proposal, Remnant, State};
use raftsman_engine::ops::recover::Survey;

use super::{Paint, Table, plan};

/// What `raftsman recover` prints before it asks.
pub(crate) fn survey(found: &Survey, paint: Paint) -> String {
    let lost = found.remains.members.iter().filter(|m| matches!(m.state, State::Lost { .. })).count();
    let of = found.remains.members.len();
    let name = paint.bold(&format!("etcd {}", found.cluster));
    let mut out = format!("{name}   {lost} of {of} members are lost\n");
    let mut table = Table::indented(2);
    table.row(["MEMBER", "REVISION", "TERM", "INDEX", ""].map(|h| paint.dim(h)));
    for member in &found.remains.members {
        table.row(row(member, found, paint));
    }
    out.push_str(&table.render());
    if found.under_way {
        out.push_str("\nRecovery is under way already: it continues from where it is.\n");
    } else if let Ok(proposal) = &found.remains.outcome {
        out.push_str(&proposed(proposal, paint));
    }
    if let Some(steps) = &found.plan {
        out.push('\n');
        out.push_str(&plan::render(steps, paint));
    }
    out
}

fn row(member: &Remnant, found: &Survey, paint: Paint) -> [String; 5] {
    let chosen = found.remains.outcome.as_ref().is_ok_and(|p| p.survivor == member.name);
    let dash = || "-".to_owned();
    let (revision, term, index, word) = match &member.state {
        State::Survivor { revision, exact, term, index, beyond } => {
            let word = match (chosen, beyond) {
                (true, _) => paint.green("recovered from it"),
                (false, Some(beyond @ 1..)) => format!("{beyond} entries beyond its last commit"),
                (false, _) => String::new(),
            };
            let least = if *exact { "" } else { "≥ " };
            (revision.map_or_else(dash, |r| format!("{least}{r}")), term.to_string(), index.to_string(), word)
        }
        State::Lost { how } => (dash(), dash(), dash(), paint.red(&format!("lost: {how}"))),
        State::Unknown { why } => (dash(), dash(), dash(), paint.yellow(&format!("unknown: {why}"))),
    };
    [member.name.to_string(), revision, term, index, word]
}

fn proposed(proposal: &Proposal, paint: Paint) -> String {
    let Proposal { survivor, revision, exact, behind, at_least_lost, .. } = proposal;
    let kept = match revision.filter(|_| *exact) {
        Some(revision) => format!("everything up to revision {revision} stays; whatever was written after it is lost"),
        None => format!("what is committed on {survivor} stays; whatever was written after it is lost"),
    };
    let mut out = format!("\n{} {kept}\n", paint.yellow("loss:"));
    if *at_least_lost > 0 {
        out.push_str(&format!("      at least {at_least_lost} revisions: a later one was seen before\n"));
    }
    if let Some(other) = behind {
        out.push_str(&format!("      {} {other} has newer data than {survivor}\n", paint.red("careful:")));
    }
    out
}
