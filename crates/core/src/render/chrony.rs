//! time servers → chrony's configuration file.

use std::fmt::Write as _;

use crate::spec::{MakeStep, Time, TimeSource};

/// Where Debian and Ubuntu have it.
pub const PATH: &str = "/etc/chrony/chrony.conf";

/// A clock that is far off after a boot is set at once; later it is led, so that time does not jump under etcd.
const USUAL_STEP: MakeStep = MakeStep { threshold: 1.0, limit: 3 };

/// The whole file: these servers and no others.
pub fn config(time: &Time) -> String {
    let mut out = String::from("# Written by raftsman.\n");
    for (kind, list) in [("server", &time.servers), ("pool", &time.pools)] {
        for TimeSource { url, options } in list {
            let options: String = options.iter().map(|option| format!(" {option}")).collect();
            let _ = writeln!(out, "{kind} {url}{options}");
        }
    }
    let step = time.makestep.unwrap_or(USUAL_STEP);
    let _ = writeln!(out, "makestep {} {}", step.threshold, step.limit);
    out.push_str("driftfile /var/lib/chrony/chrony.drift\nntsdumpdir /var/lib/chrony\n");
    out.push_str("logdir /var/log/chrony\nmaxupdateskew 100.0\nrtcsync\nleapsectz right/UTC\n");
    out
}
