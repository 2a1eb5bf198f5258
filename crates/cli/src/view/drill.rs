//! Results of drills → the text of `raftsman drill`.

use raftsman_core::backup::Drill;

use super::{Paint, Table};

/// One of them.
pub(crate) fn report(drill: &Drill, paint: Paint) -> String {
    let behind = match (drill.behind, drill.behind_ms) {
        (Some(0), _) => "nothing that was written is missing".to_owned(),
        (Some(n), Some(ms)) => format!("the last {n} revisions are missing, {} s of writes", seconds(ms)),
        _ => "not known: no member of the cluster reported its revision".to_owned(),
    };
    format!(
        "{} {} with {} batches of changes holds what it should\n  \
         recovery time:  {} s, into a temporary etcd {} on {}\n  \
         recovery point: {behind}\n  \
         revision {}, {} keys\n",
        paint.green("restored:"),
        drill.backup,
        drill.batches,
        seconds(drill.took_ms),
        drill.version,
        drill.machine,
        drill.revision,
        drill.keys
    )
}

/// All of them.
pub(crate) fn history(drills: &[Drill], paint: Paint) -> String {
    if drills.is_empty() {
        return "no drill yet: `raftsman drill` restores the newest backup into a temporary etcd\n".to_owned();
    }
    let mut table = Table::indented(0);
    table.row(["DRILL", "BACKUP", "REVISION", "KEYS", "TIME", "BEHIND"].map(|head| paint.dim(head)));
    for drill in drills {
        table.row([
            drill.at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            drill.backup.to_string(),
            drill.revision.to_string(),
            drill.keys.to_string(),
            format!("{} s", seconds(drill.took_ms)),
            drill.behind_ms.map_or_else(|| "-".to_owned(), |ms| format!("{} s", seconds(ms))),
        ]);
    }
    table.render()
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn seconds(ms: u64) -> String {
    format!("{:.1}", ms as f64 / 1000.0)
}
