//! the report → metrics for Prometheus, in a file that the node exporter serves beside its own.
//!
//! No port of raftsman's: clients that may read the machine's metrics may read these.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use raftsman_api::v1;
use raftsman_core::backup::{Drill, FullName};
use raftsman_core::render::systemd::METRICS;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::Agent;
use crate::files;
use crate::report;
use crate::status::describe;

const FILE: &str = "raftsman.prom";
const EVERY: Duration = Duration::from_secs(15);

/// Where they are.
pub fn path() -> PathBuf {
    Path::new(METRICS).join(FILE)
}

/// Writes them as long as the agent runs, where the node exporter's directory exists.
pub async fn keep_writing(agent: Arc<Agent>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let agent = Arc::clone(&agent);
        let written = spawn_blocking(move || {
            // There is no node exporter, or the agent is about to leave.
            if !Path::new(METRICS).is_dir() || !agent.root.boot().exists() {
                return Ok(());
            }
            let report = report::report(&agent, false).map_err(|error| describe(&error))?;
            files::write(&path(), text(&report).as_bytes(), 0o644).map_err(|error| describe(&error))
        });
        if let Ok(Err(error)) = written.await {
            tracing::warn!(error, "metrics for Prometheus could not be written");
        }
    }
}

/// A machine's metrics.
pub fn text(report: &v1::ReportReply) -> String {
    let mut out = String::new();
    let mut gauge = |name: &str, help: &str, samples: &[(&[(&str, &str)], i64)]| figure(&mut out, name, help, samples);
    let agent = [("version", &*report.agent_version), ("fleet", &*report.fleet_id), ("machine", &*report.machine)];
    gauge("agent_info", "The agent of this machine.", &[(&agent, 1)]);
    gauge("generation", "The newest run that changed something here.", &[(&[], count(report.generation))]);
    if let Some(disk) = &report.disk {
        gauge("disk_free_bytes", "Room where etcd's data is.", &[(&[], count(disk.free_bytes))]);
        gauge("disk_total_bytes", "Size of the disk where etcd's data is.", &[(&[], count(disk.total_bytes))]);
    }
    let etcd = report.etcd.clone().unwrap_or_default();
    let service = etcd.service.unwrap_or_default();
    let runs = service.state() == v1::ServiceState::Running;
    gauge("etcd_running", "Whether etcd runs.", &[(&[], i64::from(runs))]);
    gauge("etcd_restarts", "How often etcd ended by itself since it was started.", &[(&[], service.restarts.into())]);
    if runs {
        gauge("etcd_info", "The version of etcd that runs.", &[(&[("version", &etcd.running_version)], 1)]);
    }
    gauge("etcd_data_bytes", "Size of etcd's data.", &[(&[], count(etcd.data.unwrap_or_default().bytes))]);
    if let Some(backups) = &report.backups {
        let second = |at: &Option<prost_types::Timestamp>| at.as_ref().map_or(0, |at| at.seconds);
        let full = backups.full.parse().map_or(0, |full: FullName| full.taken().as_second());
        gauge("backup_scheduler", "Whether this machine makes the backups.", &[(&[], i64::from(backups.keeps))]);
        gauge("backup_failing", "Whether it cannot do its part.", &[(&[], i64::from(!backups.problem.is_empty()))]);
        if backups.keeps {
            gauge("backup_full_seconds", "When the newest full backup was taken, since the epoch.", &[(&[], full)]);
            let covered = second(&backups.covered);
            gauge(
                "backup_covered_seconds",
                "All written until then is in the store, since the epoch.",
                &[(&[], covered)],
            );
            if let Ok(drill) = serde_json::from_str::<Drill>(&backups.drill) {
                gauge(
                    "backup_drill_seconds",
                    "When the newest backup was last restored to see whether it can be, since the epoch.",
                    &[(&[], drill.at.as_second())],
                );
            }
            gauge(
                "backup_drill_failing",
                "Whether the newest backup could not be restored.",
                &[(&[], i64::from(!backups.drill_problem.is_empty()))],
            );
        }
    }
    let certificates = report.agent_certificate.iter().chain(&etcd.certificates);
    let certificates = certificates.chain(report.postgres.iter().flat_map(|node| &node.certificates));
    let certificates = certificates.chain(report.balancer.iter().filter_map(|balancer| balancer.certificate.as_ref()));
    let ends = certificates.filter_map(|it| Some(([("purpose", purpose(it.purpose()))], it.not_after?.seconds)));
    let ends: Vec<([(&str, &str); 1], i64)> = ends.collect();
    let ends: Vec<(&[(&str, &str)], i64)> = ends.iter().map(|(label, at)| (label.as_slice(), *at)).collect();
    gauge("certificate_not_after_seconds", "When a certificate ends, since the epoch.", &ends);
    out
}

/// One metric in Prometheus' text format; none without samples.
fn figure(out: &mut String, name: &str, help: &str, samples: &[(&[(&str, &str)], i64)]) {
    if samples.is_empty() {
        return;
    }
    let _ = writeln!(out, "# HELP raftsman_{name} {help}\n# TYPE raftsman_{name} gauge");
    for (labels, value) in samples {
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(out, "raftsman_{name}{labels} {value}");
    }
}

fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn purpose(purpose: v1::Purpose) -> &'static str {
    match purpose {
        v1::Purpose::Agent => "agent",
        v1::Purpose::EtcdPeer => "etcd-peer",
        v1::Purpose::EtcdServer => "etcd-server",
        v1::Purpose::EtcdClient => "etcd-client",
        v1::Purpose::Postgres => "postgres",
        v1::Purpose::Patroni => "patroni",
        v1::Purpose::Balancer => "balancer",
        v1::Purpose::Unspecified => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use raftsman_core::spec::{EtcdVersion, Name};

    use super::*;

    #[test]
    fn what_prometheus_reads() {
        let certificate = |purpose: v1::Purpose, seconds| v1::Certificate {
            purpose: purpose.into(),
            not_after: Some(prost_types::Timestamp { seconds, nanos: 0 }),
            ..v1::Certificate::default()
        };
        let service = v1::Service { state: v1::ServiceState::Running.into(), restarts: 2, ..v1::Service::default() };
        let drill = Drill {
            format: Drill::FORMAT,
            backup: "20261115T230000Z-0000000000012345678".parse().expect("a name"),
            at: jiff::Timestamp::from_second(1_794_783_700).expect("a moment"),
            machine: Name::fixed("main-1"),
            version: EtcdVersion::default(),
            batches: 1,
            revision: 2,
            keys: 3,
            took_ms: 4,
            behind: None,
            behind_ms: None,
        };
        let report = v1::ReportReply {
            fleet_id: "f1ee7".to_owned(),
            machine: "main-1".to_owned(),
            agent_version: "0.1.0".to_owned(),
            generation: 7,
            agent_certificate: Some(certificate(v1::Purpose::Agent, 1_800_000_000)),
            backups: Some(v1::BackupsReport {
                keeps: true,
                full: "20261115T230000Z-0000000000012345678".to_owned(),
                covered: Some(prost_types::Timestamp { seconds: 1_794_783_661, nanos: 5 }),
                drill: serde_json::to_string(&drill).expect("a text"),
                ..v1::BackupsReport::default()
            }),
            disk: Some(v1::Disk { free_bytes: 10, total_bytes: 20 }),
            etcd: Some(v1::EtcdReport {
                running_version: "3.6.15".to_owned(),
                certificates: vec![certificate(v1::Purpose::EtcdPeer, 1_800_000_001)],
                service: Some(service),
                data: Some(v1::Data { bytes: 4096, ..v1::Data::default() }),
                ..v1::EtcdReport::default()
            }),
            ..v1::ReportReply::default()
        };
        assert_eq!(
            text(&report),
            "# HELP raftsman_agent_info The agent of this machine.
# TYPE raftsman_agent_info gauge
raftsman_agent_info{version=\"0.1.0\",fleet=\"f1ee7\",machine=\"main-1\"} 1
# HELP raftsman_generation The newest run that changed something here.
# TYPE raftsman_generation gauge
raftsman_generation 7
# HELP raftsman_disk_free_bytes Room where etcd's data is.
# TYPE raftsman_disk_free_bytes gauge
raftsman_disk_free_bytes 10
# HELP raftsman_disk_total_bytes Size of the disk where etcd's data is.
# TYPE raftsman_disk_total_bytes gauge
raftsman_disk_total_bytes 20
# HELP raftsman_etcd_running Whether etcd runs.
# TYPE raftsman_etcd_running gauge
raftsman_etcd_running 1
# HELP raftsman_etcd_restarts How often etcd ended by itself since it was started.
# TYPE raftsman_etcd_restarts gauge
raftsman_etcd_restarts 2
# HELP raftsman_etcd_info The version of etcd that runs.
# TYPE raftsman_etcd_info gauge
raftsman_etcd_info{version=\"3.6.15\"} 1
# HELP raftsman_etcd_data_bytes Size of etcd's data.
# TYPE raftsman_etcd_data_bytes gauge
raftsman_etcd_data_bytes 4096
# HELP raftsman_backup_scheduler Whether this machine makes the backups.
# TYPE raftsman_backup_scheduler gauge
raftsman_backup_scheduler 1
# HELP raftsman_backup_failing Whether it cannot do its part.
# TYPE raftsman_backup_failing gauge
raftsman_backup_failing 0
# HELP raftsman_backup_full_seconds When the newest full backup was taken, since the epoch.
# TYPE raftsman_backup_full_seconds gauge
raftsman_backup_full_seconds 1794783600
# HELP raftsman_backup_covered_seconds All written until then is in the store, since the epoch.
# TYPE raftsman_backup_covered_seconds gauge
raftsman_backup_covered_seconds 1794783661
# HELP raftsman_backup_drill_seconds When the newest backup was last restored to see whether it can be, since the epoch.
# TYPE raftsman_backup_drill_seconds gauge
raftsman_backup_drill_seconds 1794783700
# HELP raftsman_backup_drill_failing Whether the newest backup could not be restored.
# TYPE raftsman_backup_drill_failing gauge
raftsman_backup_drill_failing 0
# HELP raftsman_certificate_not_after_seconds When a certificate ends, since the epoch.
# TYPE raftsman_certificate_not_after_seconds gauge
raftsman_certificate_not_after_seconds{purpose=\"agent\"} 1800000000
raftsman_certificate_not_after_seconds{purpose=\"etcd-peer\"} 1800000001
"
        );
    }
}
