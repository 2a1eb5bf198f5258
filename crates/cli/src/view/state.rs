//! Ledgers as they were found and repaired → the text of `raftsman state`.

use raftsman_engine::ops::state::{LedgerState, Remedy, Repaired};

use super::Paint;

/// What was found.
pub(crate) fn check(found: &[LedgerState], paint: Paint) -> String {
    let mut out = String::new();
    for one in found {
        let version = one.version.map_or_else(|| "none yet".to_owned(), |version| format!("version {version}"));
        match &one.problem {
            None => {
                let copies = format!("{} earlier versions kept", one.history.saturating_sub(1));
                out.push_str(&format!("{}: ledger {version}, sound; {copies}\n", one.cluster));
            }
            Some(problem) => {
                let remedy = match one.remedy {
                    Remedy::History { version } => {
                        format!(
                            "`raftsman state repair` brings version {version} back from its history, the last written"
                        )
                    }
                    Remedy::World | Remedy::None => {
                        "its history is gone too: `raftsman state repair` rebuilds it from the machines".to_owned()
                    }
                };
                out.push_str(&format!("{}: {} {problem}\n  → {remedy}\n", one.cluster, paint.red("ledger:")));
            }
        }
        if !one.damaged_copies.is_empty() {
            let numbers: Vec<String> = one.damaged_copies.iter().map(ToString::to_string).collect();
            out.push_str(&format!("  damaged copies in the history: {}\n", numbers.join(", ")));
        }
    }
    out
}

/// What was repaired.
pub(crate) fn repaired(done: &[Repaired]) -> String {
    let mut out = String::new();
    for one in done {
        let from = match one.from {
            Remedy::History { version } => format!("from version {version} of its history"),
            Remedy::World | Remedy::None => "from the machines and members".to_owned(),
        };
        out.push_str(&format!("{}: the ledger is back {from}, as version {}\n", one.cluster, one.version));
        for lost in &one.lost {
            out.push_str(&format!("  not brought back: {lost}\n"));
        }
    }
    out.push_str("next: raftsman status, raftsman plan\n");
    out
}
