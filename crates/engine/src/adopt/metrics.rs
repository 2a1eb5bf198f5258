//! A member's client port → what it measured of itself (`/metrics`).

use std::collections::BTreeMap;

use raftsman_etcd::{Credentials, Endpoint};

use crate::observe::http_get;

/// Plain values by name, and of two histograms the time that 99 of 100 take.
pub(super) async fn fetch(to: &Endpoint, credentials: &Credentials) -> Option<BTreeMap<String, f64>> {
    let body = http_get(to, credentials, "/metrics").await.ok()?;
    Some(read(&String::from_utf8_lossy(&body)))
}

fn read(body: &str) -> BTreeMap<String, f64> {
    const KEPT: [&str; 6] = [
        "etcd_server_quota_backend_bytes",
        "etcd_server_leader_changes_seen_total",
        "etcd_server_proposals_failed_total",
        "etcd_server_slow_apply_total",
        "etcd_server_slow_read_indexes_total",
        "process_start_time_seconds",
    ];
    let mut metrics = BTreeMap::new();
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        if let (true, Ok(value)) = (KEPT.contains(&name), value.parse::<f64>()) {
            metrics.insert(name.to_owned(), value);
        }
    }
    for (ours, theirs) in [
        ("wal_fsync_p99_ms", "etcd_disk_wal_fsync_duration_seconds_bucket"),
        ("backend_commit_p99_ms", "etcd_disk_backend_commit_duration_seconds_bucket"),
    ] {
        metrics.extend(p99(body, theirs).map(|seconds| (ours.to_owned(), seconds * 1000.0)));
    }
    metrics
}

/// The upper end of the bucket in which 99 of 100 are; nothing before there were a hundred.
fn p99(body: &str, name: &str) -> Option<f64> {
    let buckets: Vec<(f64, f64)> = body
        .lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?.split_once("le=\"")?.1;
            let (end, count) = rest.split_once("\"}")?;
            let end = if end == "+Inf" { f64::INFINITY } else { end.parse().ok()? };
            Some((end, count.trim().parse().ok()?))
        })
        .collect();
    let all = buckets.last().map(|(_, count)| *count).filter(|count| *count >= 100.0)?;
    buckets.iter().find(|(end, count)| *count >= all * 0.99 && end.is_finite()).map(|(end, _)| *end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_is_read() {
        let bucket =
            |end: &str, count: u32| format!("etcd_disk_wal_fsync_duration_seconds_bucket{{le=\"{end}\"}} {count}\n");
        let body = format!(
            "# HELP x\netcd_server_quota_backend_bytes 2.147483648e+09\nother 1\n{}{}{}",
            bucket("0.004", 500),
            bucket("0.016", 995),
            bucket("+Inf", 1000)
        );
        let metrics = read(&body);
        assert_eq!(metrics.get("etcd_server_quota_backend_bytes"), Some(&2_147_483_648.0));
        assert_eq!(metrics.get("wal_fsync_p99_ms"), Some(&16.0));
        assert_eq!(metrics.len(), 2);
    }
}
