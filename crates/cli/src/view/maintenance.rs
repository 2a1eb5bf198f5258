//! What maintenance did or found → the text of `raftsman defrag`, `verify` and `replace`.

use raftsman_engine::ops::maintenance::{Defragmented, Verification, Verified};
use raftsman_engine::ops::replace::Replacement;

use super::{Paint, Table, bytes, plan};

/// The text of `raftsman defrag`.
pub(crate) fn defragmented(members: &[Defragmented], paint: Paint) -> String {
    let mut table = Table::default();
    table.row(["MEMBER", "BEFORE", "NOW"].map(|h| paint.dim(h)));
    for member in members {
        table.row([member.member.to_string(), bytes(member.before), bytes(member.after)]);
    }
    table.render()
}

/// The text of `raftsman verify`.
pub(crate) fn verified(found: &[Verification], paint: Paint) -> String {
    let mut out = String::new();
    for one in found {
        let verdict = match one.verdict {
            "same" => paint.green("all members hold the same data"),
            "differ" => paint.red("members differ"),
            _ => paint.yellow("not known whether all members hold the same data"),
        };
        let name = paint.bold(&format!("etcd {}", one.cluster));
        out.push_str(&format!("{name}   {verdict}, at revision {}\n", one.revision));
        let mut table = Table::indented(2);
        table.row(["MEMBER", "HASH", "COMPACTED", ""].map(|h| paint.dim(h)));
        for member in &one.members {
            table.row(row(member, one, paint));
        }
        out.push_str(&table.render());
        for member in &one.differing {
            let next = format!("replace it, so that it gets all data from the others: `raftsman replace {member}`");
            out.push_str(&format!("  {} {member} differs from the majority\n    → {next}\n", paint.red("corrupt:")));
        }
    }
    out
}

fn row(member: &Verified, of: &Verification, paint: Paint) -> [String; 4] {
    let dash = || "-".to_owned();
    let problem = match &member.problem {
        Some(problem) => problem.clone(),
        None if of.differing.contains(&member.member) => paint.red("differs"),
        None => String::new(),
    };
    [
        member.member.to_string(),
        member.hash.map_or_else(dash, |hash| format!("{hash:08x}")),
        member.compacted.map_or_else(dash, |revision| revision.to_string()),
        problem,
    ]
}

/// What `raftsman replace` prints before it asks.
pub(crate) fn replacement(what: &Replacement, paint: Paint) -> String {
    let Replacement { cluster, member, id, plan: steps } = what;
    format!(
        "{} {member} of {cluster}, member {id}: it is removed from the cluster, its data is moved aside, and it joins \
         again as a new member that gets all data from the others\n\n{}",
        paint.yellow("to be replaced:"),
        plan::render(steps, paint)
    )
}
