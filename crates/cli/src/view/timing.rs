//! How long writes of PostgreSQL clusters stop → the table that `check` prints.

use raftsman_core::spec::timing::{NOT_COUNTED, Timing};

use super::Table;

/// The table of each cluster, by name; nothing where there is none.
pub(crate) fn timings<'a>(clusters: impl Iterator<Item = (&'a str, &'a Timing)>) -> String {
    let mut out = String::new();
    for (name, timing) in clusters {
        out.push_str(&format!(
            "postgres {name}: how long writes stop at most, with ttl {} s, loop_wait {} s, retry_timeout {} s\n",
            timing.ttl, timing.loop_wait, timing.retry_timeout
        ));
        let mut table = Table::indented(2);
        for pause in &timing.pauses {
            table.row([pause.case.describe().to_owned(), pause.describe()]);
        }
        out.push_str(&table.render());
        if timing.election_assumed {
            out.push_str(&format!("  Assumed: etcd's election time-out is {} ms.\n", timing.election_ms));
        }
    }
    if !out.is_empty() {
        out.push_str(NOT_COUNTED);
        out.push_str("\n\n");
    }
    out
}
