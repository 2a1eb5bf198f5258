//! What was measured → the text of `raftsman preflight`, and the line of it in a plan.

use raftsman_core::observed::{Measured, Preflight, time};
use raftsman_core::spec::{Name, RaftTimers};
use raftsman_engine::ops::preflight::ClusterPreflight;

use super::{Paint, Table};

/// The whole text.
pub(crate) fn render(found: &[ClusterPreflight], paint: Paint) -> String {
    found.iter().map(|one| cluster(one, paint)).collect::<Vec<_>>().join("\n")
}

fn cluster(found: &ClusterPreflight, paint: Paint) -> String {
    let whence = if found.by_measurement { "by measurement" } else { "by the file" };
    let timers = found.timers.map_or_else(|| "not set yet".to_owned(), raft_timers);
    let name = paint.bold(&format!("etcd {}", found.cluster));
    let mut out = format!("{name}   {timers}, {whence}\n");
    let members = &found.measurement.members;
    let others: Vec<&Name> = members.keys().chain(found.silent.keys()).collect();
    let mut table = Table::indented(2);
    let heads = ["MEMBER", "FSYNC P50", "FSYNC P99"].map(ToOwned::to_owned).into_iter();
    let heads = heads.chain(others.iter().filter(|_| others.len() > 1).map(|name| format!("TO {name}")));
    table.row(heads.map(|head| paint.dim(&head)));
    for (name, measured) in members {
        table.row(row(name, measured, &others));
    }
    out.push_str(&table.render());
    for (name, error) in &found.silent {
        out.push_str(&format!("  {} {name} does not answer: {error}\n", paint.yellow("note:")));
    }
    for (from, measured) in members {
        for (to, error) in &measured.unreached {
            out.push_str(&format!("  {} {from} → {to}: {error}\n", paint.yellow("note:")));
        }
    }
    out.push_str(&format!("  slowest: {}\n", found.worst));
    out.push_str(&format!("  recommended: {}\n", raft_timers(found.recommended)));
    for concern in &found.concerns {
        let label = if concern.is_unsafe { paint.red("unsafe:") } else { paint.yellow("note:") };
        out.push_str(&format!("  {label} {}\n    → {}\n", concern.message, concern.next));
    }
    match (found.timers, found.saved, found.by_measurement) {
        (Some(_), _, _) if found.concerns.is_empty() => {
            out.push_str(&format!("  {}\n", paint.green("the timers suit what was measured")));
        }
        (None, false, true) => {
            out.push_str("  → save it for the timers: `raftsman preflight --save`, or let `raftsman apply` measure\n");
        }
        _ => {}
    }
    if found.saved {
        out.push_str("  saved: plans use it from now on\n");
    }
    out
}

fn row(name: &Name, measured: &Measured, others: &[&Name]) -> Vec<String> {
    let trip = |other: &&Name| measured.round_trips.get(*other).map_or_else(|| "-".to_owned(), |us| time(*us));
    let first = [name.to_string(), time(measured.fsync_p50_us), time(measured.fsync_p99_us)];
    first.into_iter().chain(others.iter().filter(|_| others.len() > 1).map(trip)).collect()
}

fn raft_timers(timers: RaftTimers) -> String {
    format!("heartbeat {}, election {}", timers.heartbeat, timers.election)
}

/// The line in a plan: the timers, where they follow from it, and what was measured.
pub(crate) fn line(kept: &Preflight, timers: Option<RaftTimers>, by_measurement: bool, paint: Paint) -> String {
    let at = kept.measurement.at.strftime("%Y-%m-%d %H:%M");
    let timers = timers.map_or_else(String::new, |timers| {
        format!("{}, {}; ", raft_timers(timers), if by_measurement { "by measurement" } else { "by the file" })
    });
    let label = paint.dim("timers:");
    format!("  {label} {timers}measured {at} UTC: {}\n", kept.measurement.worst())
}
