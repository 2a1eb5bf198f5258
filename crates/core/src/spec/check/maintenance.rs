//! A cluster's `maintenance:` → rules that would defragment at every apply, and windows without effect.

use super::super::diagnostic::Path;
use super::super::types::EtcdCluster;
use super::super::units::{ByteSize, Name};
use super::{Finding, Findings};

/// A file that was just defragmented has some free pages again after a few writes: below these bounds it would be
/// defragmented at every apply.
const LEAST_PERCENT: u8 = 10;
const LEAST_BYTES: ByteSize = ByteSize::mib(1);

pub(super) fn check(findings: &mut Findings<'_>, name: &Name, cluster: &EtcdCluster) {
    let at = |keys: &[&str]| {
        let section = Path::of(&["etcd", name.as_str(), "maintenance"]);
        keys.iter().fold(section, |path, key| path.key(key))
    };
    let maintenance = &cluster.maintenance;
    if let Some(rule) = &maintenance.defragment {
        const WHY: &str = "a database that was just defragmented has some free pages again after a few writes";
        if rule.free.number() < LEAST_PERCENT {
            let what = format!("at {} free, members would be defragmented at every apply", rule.free);
            findings.add(
                Finding::error("defragment-often", at(&["defragment", "free"]), what)
                    .why(WHY)
                    .help(format!("at least `{LEAST_PERCENT}%`; the default is `50%`")),
            );
        }
        if rule.at_least < LEAST_BYTES {
            let what = format!("for {} members would be defragmented at every apply", rule.at_least);
            findings.add(
                Finding::error("defragment-often", at(&["defragment", "at_least"]), what)
                    .why(WHY)
                    .help(format!("at least `{LEAST_BYTES}`; the default is `100MiB`")),
            );
        }
    } else if maintenance.window.is_some() {
        findings.add(
            Finding::warning("window-without-work", at(&["window"]), "there is nothing to do in this window")
                .on_key()
                .uses(at(&["defragment"]))
                .why("without `defragment` beside it no maintenance is done by itself")
                .help("add `defragment: {}` for the defaults, or remove the window"),
        );
    }
}
