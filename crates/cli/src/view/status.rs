//! A status → the text of `raftsman status`.

use jiff::Timestamp;
use raftsman_core::backup::Health;
use raftsman_core::observed::{Alarm, ProbeOutcome, Tolerance};
use raftsman_core::spec::Name;
use raftsman_engine::ops::status::{AgentStatus, ClusterStatus, Expiry, FleetStatus, MemberStatus};

use super::{Paint, Table, bytes, span, tolerances};

/// The whole text.
pub(crate) fn render(status: &FleetStatus, now: Timestamp, paint: Paint) -> String {
    let mut out = String::new();
    for cluster in &status.clusters {
        out.push_str(&one(cluster, now, paint));
        out.push('\n');
    }
    for silent in &status.provider_unreachable {
        out.push_str(&format!("{} {silent}\n", paint.yellow("provider:")));
    }
    if !status.unnamed_machines.is_empty() {
        let names = status.unnamed_machines.join(", ");
        out.push_str(&format!("{} machines that the file does not name: {names}\n", paint.yellow("note:")));
    }
    out
}

fn one(cluster: &ClusterStatus, now: Timestamp, paint: Paint) -> String {
    let state = match (cluster.settled, cluster.tolerance) {
        (true, _) => paint.green("healthy"),
        (false, Tolerance::NoQuorum) => paint.red("no quorum"),
        (false, Tolerance::CanLose(_)) => paint.yellow("needs attention"),
    };
    let auth = match cluster.auth {
        Some(true) => "auth on",
        Some(false) => "auth off",
        None => "auth unknown",
    };
    let id = cluster.id.map(|id| format!(", id {id}")).unwrap_or_default();
    let zones = cluster.zones.as_ref();
    let tolerance = match cluster.tolerance {
        Tolerance::NoQuorum => String::new(),
        can_lose => format!(", {}", tolerances(can_lose, zones)),
    };
    let name = paint.bold(&format!("etcd {}", cluster.cluster));
    let mut out = format!("{name}   {state}{tolerance}, {auth}{id}\n");
    let mut table = Table::indented(2);
    let heads = ["ADDRESS", "STATE", "VERSION", "DB", "REVISION", "RESTARTS", "UNAUTHENTICATED"];
    let zone = zones.map(|_| "ZONE");
    table.row(["MEMBER"].into_iter().chain(zone).chain(heads).map(|head| paint.dim(head)));
    for member in &cluster.members {
        let zone = zones.map(|zones| zones.zone_of(&member.name).map_or("-", |zone| zone.as_str()).to_owned());
        table.row([member.name.to_string()].into_iter().chain(zone).chain(row(member, paint)));
    }
    out.push_str(&table.render());
    for balancer in &cluster.balancers {
        out.push_str(&super::balancer::render(balancer, paint));
    }
    for postgres in &cluster.postgres {
        out.push_str(&super::postgres::render(postgres, now, paint));
    }
    for zone in zones.iter().flat_map(|zones| &zones.down) {
        out.push_str(&format!("  {} zone {zone}: none of its members is healthy\n", paint.red("down:")));
    }
    for member in &cluster.members {
        if let Some(problem) = &member.problem {
            out.push_str(&format!("  {}: {problem}\n", member.name));
        }
    }
    if !cluster.without_address.is_empty() {
        let names: Vec<&str> = cluster.without_address.iter().map(|name| name.as_str()).collect();
        out.push_str(&format!("  no address yet: {}\n", names.join(", ")));
    }
    for (machine, agent) in agents(cluster) {
        if let Some(agent) = agent.filter(|agent| agent.shipped == Some(false)) {
            let digest: String = agent.sha256.iter().flat_map(|sha256| sha256.chars()).take(12).collect();
            let text = format!("its agent is {} ({digest}), not the one that this raftsman ships", agent.version);
            out.push_str(&format!("  {machine}: {text}\n"));
        }
    }
    for alarm in &cluster.alarms {
        out.push_str(&format!("  {} {}\n", paint.red("alarm:"), words(*alarm)));
    }
    for prefix in cluster.filling.iter().flat_map(|f| &f.prefixes) {
        out.push_str(&format!("    filled by {prefix}\n"));
    }
    for waiting in &cluster.waiting {
        let label = paint.kind(waiting.waiting.kind());
        out.push_str(&format!("  {label} {}\n    → {}\n", waiting.message, waiting.next));
    }
    if let Some(backups) = &cluster.backups {
        out.push_str(&backed_up(backups, now, paint));
    }
    if let Some(drill) = &cluster.drill {
        let ago = span(now.duration_since(drill.at).as_secs().max(0));
        out.push_str(&format!("  last drill: {ago} ago, {} restored\n", drill.backup));
    }
    for drift in &cluster.drift {
        out.push_str(&format!("  {} {drift}\n", paint.yellow("differs:")));
    }
    match cluster.pending {
        0 => {}
        1 => out.push_str("  1 step to do: see `raftsman plan`\n"),
        n => out.push_str(&format!("  {n} steps to do: see `raftsman plan`\n")),
    }
    if !cluster.old_ca_trusted.is_empty() {
        out.push_str(&format!(
            "  {} the old clients CA is still trusted, until clients have new certificates\n    → once they have: \
             `raftsman cert rotate clients --finish`\n",
            paint.yellow("note:")
        ));
    }
    if let Some(first) = &cluster.first_expiry {
        let whose = first.member.as_ref().map(|m| format!(" of {m}")).unwrap_or_default();
        out.push_str(&format!("  first certificate ends in {}: {}{whose}\n", left(first, now, paint), first.what));
    }
    if let Some(first) = &cluster.first_ca_expiry {
        out.push_str(&format!("  first CA ends in {}: {}\n", left(first, now, paint), first.what));
    }
    out
}

/// The agents of members' machines, of nodes' and of those that balancers have to themselves.
fn agents(cluster: &ClusterStatus) -> impl Iterator<Item = (&Name, Option<&AgentStatus>)> {
    let is_member = |name: &Name| cluster.members.iter().any(|member| member.name == *name);
    let members = cluster.members.iter().map(|member| (&member.name, member.agent.as_ref()));
    let instances = cluster.balancers.iter().flat_map(|balancer| &balancer.instances);
    let instances = instances.map(|instance| (&instance.machine, instance.agent.as_ref()));
    let nodes = cluster.postgres.iter().flat_map(|postgres| &postgres.nodes);
    let nodes = nodes.map(|node| (&node.name, node.agent.as_ref()));
    members.chain(nodes).chain(instances.filter(move |(machine, _)| !is_member(machine)))
}

fn backed_up(backups: &Health, now: Timestamp, paint: Paint) -> String {
    let ago = |at: Timestamp| format!("{} ago", span(now.duration_since(at).as_secs().max(0)));
    let full = match backups.full {
        Some(full) => format!("the newest from {}", ago(full.taken())),
        None if backups.store_read => "none yet".to_owned(),
        None => "not known yet: no machine has read the store since it was configured".to_owned(),
    };
    let covered = backups.covered.map(|at| format!(", changes up to {}", ago(at))).unwrap_or_default();
    let scheduler = backups.scheduler.as_ref().map(|name| format!(", made by {name}")).unwrap_or_default();
    let mut out = format!("  backups: {full}{covered}{scheduler}\n");
    for problem in &backups.problems {
        out.push_str(&format!("    {} {problem}\n", paint.yellow("backups:")));
    }
    out
}

fn words(alarm: Alarm) -> &'static str {
    match alarm {
        Alarm::NoSpace => "NOSPACE: etcd takes no writes, its quota is used up",
        Alarm::Corrupt => "CORRUPT: a member's data is not that of the others",
    }
}

/// How long something is still valid; yellow when its renewal is due.
pub(super) fn left(expiry: &Expiry, now: Timestamp, paint: Paint) -> String {
    let left = span(expiry.at.duration_since(now).as_secs());
    if expiry.due { paint.yellow(&left) } else { left }
}

fn row(member: &MemberStatus, paint: Paint) -> [String; 7] {
    let dash = || "-".to_owned();
    let state = match member.state {
        "leader" | "follower" => paint.green(member.state),
        "starting" | "new" | "learner" => paint.yellow(member.state),
        other => paint.red(other),
    };
    let unauthenticated = member.probe.as_ref().map_or_else(dash, |probe| {
        if probe.not_denied().next().is_none() {
            "denied".to_owned()
        } else if probe.not_denied().any(|(_, outcome)| *outcome == ProbeOutcome::Accepted) {
            paint.red("ACCEPTED")
        } else {
            "untested".to_owned()
        }
    });
    [
        member.address.to_string(),
        state,
        member.version.map_or_else(dash, |v| v.to_string()),
        member.db_size.map_or_else(dash, bytes),
        member.revision.map_or_else(dash, |r| r.to_string()),
        member.restarts.map_or_else(dash, |r| r.to_string()),
        unauthenticated,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_backup_is_not_said_before_the_store_was_read() {
        let now: Timestamp = "2026-11-16T03:05:00Z".parse().unwrap();
        let health =
            |store_read, full| Health { scheduler: None, full, store_read, covered: None, problems: Vec::new() };
        let text = |health| backed_up(&health, now, Paint::plain());
        assert_eq!(
            text(health(false, None)),
            "  backups: not known yet: no machine has read the store since it was configured\n"
        );
        assert_eq!(text(health(true, None)), "  backups: none yet\n");
        let name = raftsman_core::backup::FullName::new("2026-11-16T03:00:00Z".parse().unwrap(), 7);
        assert_eq!(text(health(true, Some(name))), "  backups: the newest from 5 min ago\n");
    }
}
