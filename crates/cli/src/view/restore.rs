//! What a restore would change → the text of `raftsman restore`.

use raftsman_engine::ops::restore::Survey;
use raftsman_engine::restore_test::RestoreTestResult;

use super::{Paint, plan};

/// What is restored, what is lost, and the steps.
pub(crate) fn survey(found: &Survey, paint: Paint) -> String {
    let mut out = format!("{}   from {}\n", paint.bold(&format!("etcd {}", found.cluster)), found.place);
    let changes = match found.batches {
        0 => String::new(),
        1 => ", and 1 batch of changes since".to_owned(),
        n => format!(", and {n} batches of changes since"),
    };
    out.push_str(&format!("  backup: {}{changes}\n", found.backup));
    out.push_str(&format!("  back:   everything up to revision {}, of {}\n", found.revision, found.at));
    let lost = match found.lost() {
        0 => "no revision that was observed".to_owned(),
        n => format!("{n} revisions, up to {}, the last one that was seen", found.seen),
    };
    out.push_str(&format!("  {}   {lost}\n\n", paint.yellow("loss:")));
    out.push_str(&plan::render(&found.plan, paint));
    out
}

/// It can be restored.
pub(crate) fn tried(tried: &RestoreTestResult) -> String {
    format!(
        "tested in a temporary etcd in {:.1} s: revision {}, {} keys\nprepares the data of every member, while they \
         still serve\n",
        tried.took.as_secs_f64(),
        tried.revision,
        tried.keys
    )
}
