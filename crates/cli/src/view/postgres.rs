//! The status of a PostgreSQL cluster → its lines in `raftsman status`.

use jiff::Timestamp;
use raftsman_core::observed::{Copies, PendingSetting};
use raftsman_core::spec::SyncMode;
use raftsman_engine::ops::status::{NodeStatus, PostgresStatus};
use raftsman_engine::ops::switchover::Switchover;

use super::status::left;
use super::{Paint, Table, bytes, plan, span};

/// Whether it is settled, its nodes, and what is wrong with them.
pub(super) fn render(cluster: &PostgresStatus, now: Timestamp, paint: Paint) -> String {
    let name = paint.bold(&format!("postgresql {}", cluster.name));
    let mut out = format!("  {name}   {}\n", summary(cluster, paint));
    let mut table = Table::indented(4);
    let heads = ["NODE", "ADDRESS", "STATE", "POSTGRESQL", "PATRONI", "TIMELINE", "LAG", "RESTARTS"];
    table.row(heads.map(|head| paint.dim(head)));
    for node in &cluster.nodes {
        table.row(row(node, paint));
    }
    out.push_str(&table.render());
    if let Some(problem) = &cluster.problem {
        out.push_str(&format!("    {} {problem}\n", paint.yellow(&format!("{}:", words(cluster.state)))));
    }
    if let Some(record) = &cluster.switchover {
        let ago = span(now.duration_since(record.begun).as_secs().max(0));
        out.push_str(&format!("    switchover from {} to {}, begun {ago} ago\n", record.from, record.to));
    }
    for node in &cluster.nodes {
        for line in lines(node) {
            out.push_str(&format!("    {}: {line}\n", node.name));
        }
    }
    if let Some(first) = &cluster.first_expiry {
        let whose = first.member.as_ref().map(|node| format!(" of {node}")).unwrap_or_default();
        out.push_str(&format!("    first certificate ends in {}: {}{whose}\n", left(first, now, paint), first.what));
    }
    if let Some(authority) = &cluster.ca_expiry {
        out.push_str(&format!("    CA ends in {}\n", left(authority, now, paint)));
    }
    out
}

/// What `raftsman switchover` prints before it asks.
pub(crate) fn switchover(of: &Switchover, paint: Paint) -> String {
    let Switchover { cluster, from, to, pause_ms, copies } = of;
    let name = paint.bold(&format!("postgresql {cluster}"));
    let pause = paint.yellow(&format!("writes stop for about {} s", pause_ms.div_ceil(1000)));
    let copies = copies.map(|copies| format!(", {}", plan::copies(copies))).unwrap_or_default();
    format!("{name}   {to} takes the place of {from}, {pause}{copies}\n")
}

/// `settled, primary pg-1, timeline 2, copies 1 of 1, strict`
fn summary(cluster: &PostgresStatus, paint: Paint) -> String {
    let state = match cluster.state {
        "settled" => paint.green("settled"),
        "new" => paint.yellow("new"),
        "unknown" => paint.yellow("unknown"),
        other => paint.red(other),
    };
    let primary = match (&cluster.primary, cluster.timeline) {
        (Some(primary), Some(timeline)) => Some(format!("primary {primary}, timeline {timeline}")),
        (Some(primary), None) => Some(format!("primary {primary}")),
        (None, _) if cluster.state == "unsettled" => Some(paint.red("no primary")),
        (None, _) => None,
    };
    let wanted = cluster.copies_wanted;
    let copies = cluster.copies.filter(|_| cluster.primary.is_some()).map(|copies| match copies {
        Copies::NotWritable => paint.red("takes no writes"),
        Copies::Synchronous(now) if now < wanted => paint.red(&format!("copies {now} of {wanted}")),
        Copies::Synchronous(now) => format!("copies {now} of {wanted}"),
    });
    let mode = cluster.synchronous_mode.map(|mode| match mode {
        SyncMode::Strict => "strict".to_owned(),
        SyncMode::Quorum => "quorum".to_owned(),
        SyncMode::Preferred => paint.yellow("preferred"),
        SyncMode::Off => paint.yellow("not synchronous"),
    });
    let paused = cluster.paused.filter(|paused| *paused).map(|_| paint.yellow("paused"));
    let pending = cluster.failover_pending.filter(|pending| *pending);
    let pending = pending.map(|_| paint.yellow("switchover or failover under way"));
    let parts = [Some(state), primary, copies, mode, paused, pending];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn words(state: &str) -> String {
    state.replace('_', " ")
}

fn row(node: &NodeStatus, paint: Paint) -> [String; 8] {
    let dash = || "-".to_owned();
    let word = words(node.state);
    let state = match node.state {
        "primary" | "sync_standby" => paint.green(&word),
        "standby" if node.problem.is_none() => paint.green(&word),
        "standby" | "standby_leader" | "copying" | "initializing" | "starting" | "restarting" | "stopping" | "new" => {
            paint.yellow(&word)
        }
        _ => paint.red(&word),
    };
    [
        node.name.to_string(),
        node.address.map_or_else(dash, |address| address.to_string()),
        state,
        node.version.map_or_else(dash, |version| version.to_string()),
        node.patroni.map_or_else(dash, |version| version.to_string()),
        node.timeline.map_or_else(dash, |timeline| timeline.to_string()),
        node.lag.map_or_else(dash, |lag| bytes(i64::try_from(lag).unwrap_or(i64::MAX))),
        node.restarts.map_or_else(dash, |restarts| restarts.to_string()),
    ]
}

/// What the row of a node has no room for.
fn lines(node: &NodeStatus) -> Vec<String> {
    let mut lines: Vec<String> = node.problem.iter().cloned().collect();
    if !node.in_file {
        lines.push("it is not in the file, and still to go".to_owned());
    }
    if node.pending_restart == Some(true) {
        let change = |(key, PendingSetting { from, to }): (&String, &PendingSetting)| format!("{key} {from} → {to}");
        let settings: Vec<String> = node.pending.iter().map(change).collect();
        lines.push(match settings.is_empty() {
            true => "a setting waits for a restart of PostgreSQL".to_owned(),
            false => format!("waits for a restart of PostgreSQL: {}", settings.join(", ")),
        });
    }
    if let (Some(runs), Some(installed)) = (node.version, node.installed)
        && runs != installed
        && runs.minor.is_some()
        && installed.minor.is_some()
    {
        lines.push(format!("PostgreSQL {installed} is installed, and {runs} runs until PostgreSQL is restarted"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use raftsman_core::plan::CopiesLeft;
    use raftsman_core::spec::{Name, PatroniVersion, PostgresVersion};
    use raftsman_engine::ops::status::{Expiry, SwitchoverStatus};

    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).expect("a name")
    }

    fn postgres(text: &str) -> PostgresVersion {
        PostgresVersion::parse(text).expect("a version")
    }

    fn now() -> Timestamp {
        "2026-11-16T03:05:00Z".parse().expect("a timestamp")
    }

    fn node(number: u8, state: &'static str) -> NodeStatus {
        let runs = ["primary", "sync_standby", "standby"].contains(&state);
        NodeStatus {
            name: name(&format!("app-{number}")),
            patroni_name: format!("app-{number}"),
            address: Some([10, 0, 0, number].into()),
            in_file: true,
            state,
            problem: None,
            version: runs.then(|| postgres("17.11")),
            installed: Some(postgres("17.11")),
            patroni: runs.then(|| PatroniVersion::parse("4.1.5").expect("a version")),
            timeline: runs.then_some(2),
            position: runs.then_some(100),
            lag: (runs && state != "primary").then_some(u64::from(number.saturating_sub(2)) * 3_000_000),
            streaming: (runs && state != "primary").then_some(true),
            pending_restart: runs.then_some(false),
            pending: BTreeMap::new(),
            dcs_seen: None,
            pid: Some(7),
            restarts: Some(0),
            certificates: BTreeMap::new(),
            agent: None,
        }
    }

    fn settled() -> PostgresStatus {
        let expiry = |at: &str, what, member: Option<&str>, due| {
            let at = at.parse().expect("a timestamp");
            Some(Expiry { at, what, member: member.map(name), due })
        };
        PostgresStatus {
            name: name("app"),
            state: "settled",
            problem: None,
            unsettled: None,
            primary: Some(name("app-1")),
            timeline: Some(2),
            copies: Some(Copies::Synchronous(1)),
            copies_wanted: 1,
            synchronous_mode: Some(SyncMode::Strict),
            paused: Some(false),
            failover_pending: Some(false),
            switchover: None,
            nodes: vec![node(1, "primary"), node(2, "sync_standby"), node(3, "standby")],
            first_expiry: expiry("2027-02-14T03:05:00Z", "rest", Some("app-1"), false),
            ca_expiry: expiry("2036-11-16T03:05:00Z", "postgres", None, false),
        }
    }

    #[test]
    fn a_settled_cluster() {
        let expected = "  postgresql app   settled, primary app-1, timeline 2, copies 1 of 1, strict
    NODE   ADDRESS   STATE         POSTGRESQL  PATRONI  TIMELINE  LAG      RESTARTS
    app-1  10.0.0.1  primary       17.11       4.1.5    2         -        0
    app-2  10.0.0.2  sync standby  17.11       4.1.5    2         0 B      0
    app-3  10.0.0.3  standby       17.11       4.1.5    2         2.9 MiB  0
    first certificate ends in 90 d: rest of app-1
    CA ends in 3653 d
";
        assert_eq!(render(&settled(), now(), Paint::plain()), expected);
    }

    #[test]
    fn what_is_wrong_has_a_line_each() {
        let mut cluster = settled();
        (cluster.state, cluster.problem) = ("unsettled", Some("Patroni is paused".to_owned()));
        (cluster.paused, cluster.failover_pending) = (Some(true), Some(true));
        (cluster.copies, cluster.first_expiry, cluster.ca_expiry) = (Some(Copies::Synchronous(0)), None, None);
        let begun = "2026-11-16T03:04:40Z".parse().expect("a timestamp");
        cluster.switchover = Some(SwitchoverStatus { from: name("app-1"), to: name("app-2"), begun });
        let setting = PendingSetting { from: "100".to_owned(), to: "200".to_owned() };
        cluster.nodes[0].pending_restart = Some(true);
        cluster.nodes[0].pending.insert("max_connections".to_owned(), setting);
        cluster.nodes[1].pending_restart = Some(true);
        cluster.nodes[1].installed = Some(postgres("17.12"));
        cluster.nodes[2] = node(3, "unreachable");
        (cluster.nodes[2].problem, cluster.nodes[2].in_file) = (Some("timed out".to_owned()), false);
        let expected = "  postgresql app   unsettled, primary app-1, timeline 2, copies 0 of 1, strict, paused, \
                        switchover or failover under way
    NODE   ADDRESS   STATE         POSTGRESQL  PATRONI  TIMELINE  LAG  RESTARTS
    app-1  10.0.0.1  primary       17.11       4.1.5    2         -    0
    app-2  10.0.0.2  sync standby  17.11       4.1.5    2         0 B  0
    app-3  10.0.0.3  unreachable   -           -        -         -    0
    unsettled: Patroni is paused
    switchover from app-1 to app-2, begun 20 s ago
    app-1: waits for a restart of PostgreSQL: max_connections 100 → 200
    app-2: a setting waits for a restart of PostgreSQL
    app-2: PostgreSQL 17.12 is installed, and 17.11 runs until PostgreSQL is restarted
    app-3: timed out
    app-3: it is not in the file, and still to go
";
        assert_eq!(render(&cluster, now(), Paint::plain()), expected);
    }

    #[test]
    fn a_switchover_says_what_it_costs() {
        let copies =
            CopiesLeft { before: Copies::Synchronous(1), during: Copies::NotWritable, after: Copies::Synchronous(1) };
        let (cluster, from, to) = (name("app"), name("app-1"), name("app-2"));
        let of = Switchover { cluster, from, to, pause_ms: 5_000, copies: Some(copies) };
        let expected = "postgresql app   app-2 takes the place of app-1, writes stop for about 5 s, \
                        copies 1 → no writes → 1\n";
        assert_eq!(switchover(&of, Paint::plain()), expected);
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let mut cluster = settled();
        (cluster.state, cluster.primary, cluster.timeline) = ("unknown", None, None);
        cluster.problem = Some("Patroni's keys cannot be read: no leader".to_owned());
        (cluster.copies, cluster.synchronous_mode, cluster.failover_pending) = (None, None, None);
        (cluster.first_expiry, cluster.ca_expiry, cluster.paused) = (None, None, None);
        cluster.nodes = vec![node(1, "new")];
        let expected = "  postgresql app   unknown
    NODE   ADDRESS   STATE  POSTGRESQL  PATRONI  TIMELINE  LAG  RESTARTS
    app-1  10.0.0.1  new    -           -        -         -    0
    unknown: Patroni's keys cannot be read: no leader
";
        assert_eq!(render(&cluster, now(), Paint::plain()), expected);
    }
}
