//! Timers of Patroni, synchronous mode, etcd's election time-out → how long writes stop, or why the timers are unsafe.
//!
//! Every bound is a sum of what has to happen one after the other. Measured cases lie below them: see the tests.

use serde::Serialize;

use super::postgres::{PostgresCluster, SyncMode, WatchdogMode};
use super::units::Duration;

/// etcd expires leases twice a second.
const LEASE_EXPIRY: u64 = 500;
/// Before a promotion a standby asks the other nodes for their position, each for 2 s at most (Patroni's
/// `fetch_node_status`). A machine that is gone costs all of it.
const ASK_NODES: u64 = 2_000;
/// A promotion, measured at 2.4 s.
const PROMOTION: u64 = 3_000;
/// What a standby waits before it connects to the new primary: `wal_retrieve_retry_interval`, which raftsman sets.
const RECONNECT: u64 = 500;
/// A checkpoint of an idle system. It takes longer under load.
const CHECKPOINT: u64 = 1_000;
/// `pg_rewind` without the data that it copies.
const REWIND: u64 = 3_000;
/// What `pg_rewind` copies in a second.
const REWIND_BYTES_PER_SECOND: u64 = 50_000_000;
/// When a peer whose machine is gone is noticed: `tcp_user_timeout`, which raftsman sets.
const DEAD_PEER: u64 = 5_000;
/// The rest of a round of Patroni that takes a lost standby out of the synchronous set.
const SYNC_ROUND: u64 = 1_500;
/// With a quorum the other standbys acknowledge; measured at up to 2.1 s until they do.
const QUORUM_SETTLES: u64 = 2_500;
/// The answers of all nodes in failsafe mode; measured at up to 0.16 s.
const FAILSAFE: u64 = 500;
/// A switchover, measured at 4.3 to 5.4 s with any timers.
const SWITCHOVER: u64 = 5_000;
/// A leader election of etcd takes up to so many election time-outs.
const ELECTIONS: u64 = 3;
/// etcd's election time-out where the file does not say it.
const USUAL_ELECTION: Duration = Duration::from_millis(1_000);

/// What stops writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// The primary is lost, with its Patroni.
    PrimaryLost,
    /// The same, and a standby had received more than the promoted one: it is rewound before it counts again.
    PrimaryLostStandbyAhead,
    /// PostgreSQL crashes on the primary, whose Patroni still runs.
    PrimaryCrashed,
    /// PostgreSQL ends on the synchronous standby.
    StandbyLost,
    /// The machine of the synchronous standby is lost.
    StandbyMachineLost,
    /// etcd loses its majority.
    EtcdLost,
    /// etcd loses its majority while a node does not answer.
    EtcdAndNodeLost,
    /// A switchover.
    Switchover,
    /// Not a pause: until when a primary that cannot reach etcd is demoted.
    Demotion,
}

/// What must be back before a bound begins to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// etcd's majority.
    Etcd,
    /// The standby.
    Standby,
}

/// How long writes stop in one case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct WritePause {
    /// What stops them.
    pub case: Case,
    /// They stop until this is back, and then for the bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// What is usual, where it is far below the bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// The longest; nothing where there is no limit.
    pub bound_ms: Option<u64>,
}

/// How long writes stop, for each case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// Seconds after which the leader key expires.
    pub ttl: u32,
    /// Seconds between two rounds of Patroni.
    pub loop_wait: u32,
    /// Seconds for which requests are repeated.
    pub retry_timeout: u32,
    /// etcd's election time-out that the bounds were computed with.
    pub election_ms: u64,
    /// Whether that time-out is assumed: it is measured later, or the etcd is not raftsman's.
    pub election_assumed: bool,
    /// Each case.
    pub pauses: Vec<WritePause>,
}

/// Why timers are unsafe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsafe {
    /// Less than Patroni allows.
    BelowMinimum {
        /// The key.
        key: &'static str,
        /// What the file says.
        given: u32,
        /// The least.
        least: u32,
    },
    /// A primary that lost etcd may still write while another is elected.
    TtlTooShort {
        /// The least `ttl` with the other two timers.
        least: u64,
    },
    /// The safety margin is neither -1 nor a number of seconds.
    MarginNegative,
    /// The watchdog would reset a healthy primary between two rounds.
    WatchdogTooEarly {
        /// Seconds after which the watchdog resets the machine.
        timeout: i64,
    },
}

/// What is safe and unwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unwise {
    /// In failsafe mode, a node that does not answer takes up to 4 s, which is more than `retry_timeout`.
    FailsafeSlow,
    /// Without failsafe mode the loss of etcd demotes the primary.
    FailsafeOff,
    /// An election of etcd alone may take longer than `retry_timeout`.
    ElectionSlow {
        /// How long an election may take.
        election: Duration,
    },
    /// Between zones, requests take longer.
    RetryShortForZones,
}

/// Computes how long writes stop, with etcd's election time-out where it is known.
pub fn solve(cluster: &PostgresCluster, election: Option<Duration>) -> Result<Timing, Vec<Unsafe>> {
    let reasons = unsafe_timers(cluster);
    if !reasons.is_empty() {
        return Err(reasons);
    }
    let patroni = &cluster.patroni;
    let seconds = |seconds: u32| u64::from(seconds) * 1_000;
    let [ttl, round, retry] = [patroni.ttl, patroni.loop_wait, patroni.retry_timeout].map(seconds);
    let elected = ELECTIONS.saturating_mul(election.unwrap_or(USUAL_ELECTION).as_millis());
    // Until another standby streams from the new primary and counts as synchronous.
    let takes_over = ASK_NODES + PROMOTION + RECONNECT + round;
    let primary = ttl + LEASE_EXPIRY + takes_over;
    let in_place = match seconds(patroni.primary_start_timeout) {
        0 => round,
        start => round + start + round,
    };
    let demoted = elected.saturating_add(round + takes_over);
    let within = |case, bound| WritePause { case, until: None, expected_ms: None, bound_ms: Some(bound) };
    let until = |case, what, bound| WritePause { until: Some(what), ..within(case, bound) };

    let mut pauses = vec![
        within(Case::PrimaryLost, primary),
        within(Case::PrimaryLostStandbyAhead, primary + CHECKPOINT + 2 * round + REWIND),
        within(Case::PrimaryCrashed, in_place + takes_over),
    ];
    let standbys = cluster.synchronous_candidates().saturating_sub(1);
    for (case, noticed) in [(Case::StandbyLost, 0), (Case::StandbyMachineLost, DEAD_PEER)] {
        pauses.push(match cluster.synchronous.mode {
            SyncMode::Off => within(case, 0),
            // Nothing else could acknowledge.
            SyncMode::Strict | SyncMode::Quorum if standbys < 2 => until(case, Until::Standby, round + SYNC_ROUND),
            SyncMode::Quorum if standbys > u64::from(cluster.synchronous.nodes) => {
                within(case, noticed + QUORUM_SETTLES)
            }
            SyncMode::Strict | SyncMode::Quorum | SyncMode::Preferred => within(case, noticed + round + SYNC_ROUND),
        });
    }
    if cluster.failsafe {
        pauses.push(within(Case::EtcdLost, FAILSAFE));
        pauses.push(until(Case::EtcdAndNodeLost, Until::Etcd, demoted));
    } else {
        pauses.push(until(Case::EtcdLost, Until::Etcd, demoted));
    }
    // Patroni kills a PostgreSQL that does not stop only in synchronous mode.
    let stops = Some(seconds(patroni.primary_stop_timeout))
        .filter(|limit| *limit > 0 && cluster.synchronous.mode != SyncMode::Off);
    pauses.push(WritePause {
        case: Case::Switchover,
        until: None,
        expected_ms: Some(SWITCHOVER),
        bound_ms: stops.map(|limit| limit + takes_over),
    });
    pauses.push(within(Case::Demotion, round + retry));
    Ok(Timing {
        ttl: patroni.ttl,
        loop_wait: patroni.loop_wait,
        retry_timeout: patroni.retry_timeout,
        election_ms: election.unwrap_or(USUAL_ELECTION).as_millis(),
        election_assumed: election.is_none(),
        pauses,
    })
}

fn unsafe_timers(cluster: &PostgresCluster) -> Vec<Unsafe> {
    let patroni = &cluster.patroni;
    let (ttl, round, retry) = (patroni.ttl, patroni.loop_wait, patroni.retry_timeout);
    // Patroni's own minimums: it would silently take these instead.
    let mut reasons: Vec<Unsafe> = [("ttl", ttl, 20), ("loop_wait", round, 1), ("retry_timeout", retry, 3)]
        .into_iter()
        .filter(|(_, given, least)| given < least)
        .map(|(key, given, least)| Unsafe::BelowMinimum { key, given, least })
        .collect();
    let least = u64::from(round) + 2 * u64::from(retry);
    if reasons.is_empty() && u64::from(ttl) < least {
        reasons.push(Unsafe::TtlTooShort { least });
    }
    if cluster.watchdog.mode != WatchdogMode::Off {
        let margin = cluster.watchdog.safety_margin;
        let timeout = match margin {
            -1 => i64::from(ttl / 2),
            _ => i64::from(ttl) - i64::from(margin),
        };
        if margin < -1 {
            reasons.push(Unsafe::MarginNegative);
        } else if timeout <= i64::from(round) {
            reasons.push(Unsafe::WatchdogTooEarly { timeout });
        }
    }
    reasons
}

/// What is safe and unwise; `zones` says whether nodes are in more than one.
pub fn unwise(cluster: &PostgresCluster, election: Option<Duration>, zones: bool) -> Vec<Unwise> {
    let retry = u64::from(cluster.patroni.retry_timeout) * 1_000;
    let mut reasons = Vec::new();
    match cluster.failsafe {
        true if retry < 4_000 => reasons.push(Unwise::FailsafeSlow),
        true => {}
        false => reasons.push(Unwise::FailsafeOff),
    }
    if let Some(election) = election {
        let election = Duration::from_millis(ELECTIONS.saturating_mul(election.as_millis()).saturating_add(1_000));
        if election.as_millis() > retry {
            reasons.push(Unwise::ElectionSlow { election });
        }
    }
    if zones && retry < 5_000 {
        reasons.push(Unwise::RetryShortForZones);
    }
    reasons
}

impl Timing {
    /// What the table says of a case; nothing where it has none.
    pub fn pause(&self, case: Case) -> Option<WritePause> {
        self.pauses.iter().copied().find(|pause| pause.case == case)
    }
}

impl Case {
    /// What happens, as the table says it.
    pub fn describe(self) -> &'static str {
        match self {
            Self::PrimaryLost => "the primary is lost",
            Self::PrimaryLostStandbyAhead => "the primary is lost, a standby was ahead and is rewound",
            Self::PrimaryCrashed => "PostgreSQL crashes on the primary",
            Self::StandbyLost => "the synchronous standby is lost",
            Self::StandbyMachineLost => "the synchronous standby's machine is lost",
            Self::EtcdLost => "etcd's majority is lost",
            Self::EtcdAndNodeLost => "etcd's majority is lost while a node does not answer",
            Self::Switchover => "switchover",
            Self::Demotion => "a primary that cannot reach etcd is demoted within",
        }
    }
}

impl WritePause {
    /// How long, as the table says it: `46 s`, `until etcd is back, then 28.5 s`.
    pub fn describe(&self) -> String {
        let seconds = |millis: u64| match millis % 1_000 {
            0 => format!("{} s", millis / 1_000),
            rest => format!("{}.{} s", millis / 1_000, rest / 100),
        };
        let bound = match self.bound_ms {
            Some(bound) => seconds(bound),
            None => "no limit".to_owned(),
        };
        let bound = match self.until {
            Some(Until::Etcd) => format!("until etcd is back, then {bound}"),
            Some(Until::Standby) => format!("until it is back, then {bound}"),
            None => bound,
        };
        let rewound = self.case == Case::PrimaryLostStandbyAhead;
        let bytes =
            if rewound { format!(" + 1 s for each {} MB", REWIND_BYTES_PER_SECOND / 1_000_000) } else { String::new() };
        let expected = self.expected_ms.map(|expected| format!(", expected {}", seconds(expected))).unwrap_or_default();
        format!("{bound}{bytes}{expected}")
    }
}

/// What no bound counts.
pub const NOT_COUNTED: &str = "Not counted: crash recovery and checkpoints of a busy primary, an archive command that \
    hangs at shutdown, sessions with synchronous_commit off or local, waits that clients cancel.";

#[cfg(test)]
mod tests {
    use super::super::postgres::{DcsOf, Nodes, Patroni, Synchronous, Watchdog};
    use super::super::units::Name;
    use super::*;

    const ELECTION: Option<Duration> = Some(USUAL_ELECTION);

    fn cluster(ttl: u32, loop_wait: u32, retry_timeout: u32) -> PostgresCluster {
        PostgresCluster {
            patroni: Patroni { ttl, loop_wait, retry_timeout, ..Patroni::default() },
            ..serde_json::from_str(r#"{ "etcd": "main", "nodes": 3 }"#).expect("a cluster")
        }
    }

    fn bounds(cluster: &PostgresCluster) -> String {
        let timing = solve(cluster, ELECTION).expect("safe");
        timing.pauses.iter().map(|pause| format!("{}: {}\n", pause.case.describe(), pause.describe())).collect()
    }

    #[test]
    fn the_shortest_cluster_has_the_defaults() {
        let cluster = cluster(30, 10, 10);
        assert_eq!((cluster.etcd, cluster.nodes), (DcsOf::Cluster(Name::fixed("main")), Nodes::Count(3)));
        assert_eq!((cluster.patroni, cluster.failsafe), (Patroni::default(), true));
    }

    #[test]
    fn bounds_of_the_usual_timers() {
        insta::assert_snapshot!(bounds(&cluster(30, 10, 10)), @"
        the primary is lost: 46 s
        the primary is lost, a standby was ahead and is rewound: 70 s + 1 s for each 50 MB
        PostgreSQL crashes on the primary: 335.5 s
        the synchronous standby is lost: 11.5 s
        the synchronous standby's machine is lost: 16.5 s
        etcd's majority is lost: 0.5 s
        etcd's majority is lost while a node does not answer: until etcd is back, then 28.5 s
        switchover: 315.5 s, expected 5 s
        a primary that cannot reach etcd is demoted within: 20 s
        ");
    }

    #[test]
    fn bounds_of_the_tightest_timers() {
        let mut tight = cluster(20, 1, 3);
        tight.failsafe = false;
        tight.patroni.primary_start_timeout = 0;
        insta::assert_snapshot!(bounds(&tight), @"
        the primary is lost: 27 s
        the primary is lost, a standby was ahead and is rewound: 33 s + 1 s for each 50 MB
        PostgreSQL crashes on the primary: 7.5 s
        the synchronous standby is lost: 2.5 s
        the synchronous standby's machine is lost: 7.5 s
        etcd's majority is lost: until etcd is back, then 10.5 s
        switchover: 306.5 s, expected 5 s
        a primary that cannot reach etcd is demoted within: 4 s
        ");
    }

    /// Longest gaps between acknowledged writes, in milliseconds: Patroni 4.1.5, PostgreSQL 15, three nodes, one
    /// synchronous, with other work on the computer.
    #[test]
    fn measured_cases_lie_below_the_bounds() {
        let usual = cluster(30, 10, 10);
        let quorum = PostgresCluster { synchronous: Synchronous { mode: SyncMode::Quorum, nodes: 1 }, ..usual.clone() };
        let tight = cluster(20, 1, 3);
        let demoted = PostgresCluster { failsafe: false, ..tight.clone() };
        let measured: [(&PostgresCluster, Case, &[u64]); 12] = [
            (&usual, Case::PrimaryLost, &[24_400, 24_700]),
            (&usual, Case::PrimaryLostStandbyAhead, &[45_500]),
            (&quorum, Case::PrimaryLost, &[26_100, 32_700, 40_200]),
            (&usual, Case::StandbyLost, &[3_700, 10_000]),
            (&quorum, Case::StandbyLost, &[1_200, 2_100]),
            (&usual, Case::Switchover, &[4_600, 5_000]),
            (&tight, Case::PrimaryLost, &[20_200, 21_000]),
            (&tight, Case::StandbyLost, &[1_000, 1_300]),
            (&tight, Case::Switchover, &[4_300, 4_600, 5_400]),
            (&tight, Case::EtcdLost, &[81, 162]),
            // etcd was back at once.
            (&demoted, Case::EtcdLost, &[4_400, 7_000]),
            (&usual, Case::EtcdLost, &[72, 161]),
        ];
        for (cluster, case, gaps) in measured {
            let pause = solve(cluster, ELECTION).expect("safe").pause(case).expect("a row");
            let bound = pause.bound_ms.expect("a bound");
            for gap in gaps {
                assert!(*gap < bound, "{case:?}: {gap} ms measured, {bound} ms computed");
            }
        }
    }

    #[test]
    fn a_case_without_a_bound_says_so() {
        let mut two = cluster(30, 10, 10);
        two.nodes = Nodes::Count(2);
        two.patroni.primary_stop_timeout = 0;
        let timing = solve(&two, None).expect("safe");
        assert!(timing.election_assumed);
        assert_eq!(timing.pause(Case::StandbyLost).and_then(|pause| pause.until), Some(Until::Standby));
        let switchover = timing.pause(Case::Switchover).expect("a row");
        assert_eq!((switchover.bound_ms, switchover.describe()), (None, "no limit, expected 5 s".to_owned()));
        two.synchronous.mode = SyncMode::Off;
        let bound = |case| solve(&two, None).ok()?.pause(case)?.bound_ms;
        assert_eq!((bound(Case::StandbyLost), bound(Case::Switchover)), (Some(0), None));
    }

    #[test]
    fn unsafe_timers_are_refused() {
        let refused = |ttl, round, retry, margin| {
            let watchdog = Watchdog { safety_margin: margin, ..Watchdog::default() };
            solve(&PostgresCluster { watchdog, ..cluster(ttl, round, retry) }, ELECTION).err().unwrap_or_default()
        };
        let below = |key, given, least| Unsafe::BelowMinimum { key, given, least };
        assert_eq!(
            refused(19, 0, 2, 5),
            [below("ttl", 19, 20), below("loop_wait", 0, 1), below("retry_timeout", 2, 3)]
        );
        assert_eq!(refused(29, 10, 10, 5), [Unsafe::TtlTooShort { least: 30 }]);
        assert_eq!(refused(30, 10, 10, 5), []);
        assert_eq!(refused(30, 10, 10, -2), [Unsafe::MarginNegative]);
        assert_eq!(refused(30, 10, 10, 20), [Unsafe::WatchdogTooEarly { timeout: 10 }]);
        assert_eq!(refused(30, 10, 10, 19), []);
        assert_eq!(refused(40, 20, 10, -1), [Unsafe::WatchdogTooEarly { timeout: 20 }]);
        assert_eq!(refused(u32::MAX, u32::MAX, u32::MAX, i32::MAX).len(), 2);
        // The module's own.
        assert_eq!(refused(60, 5, 10, -1), []);
        let off = Watchdog { mode: WatchdogMode::Off, safety_margin: 100, ..Watchdog::default() };
        assert!(solve(&PostgresCluster { watchdog: off, ..cluster(30, 10, 10) }, ELECTION).is_ok());
    }

    #[test]
    fn unwise_timers_are_said() {
        let seconds = |seconds: u64| Some(Duration::from_millis(seconds * 1_000));
        assert_eq!(unwise(&cluster(30, 10, 10), ELECTION, true), []);
        assert_eq!(unwise(&cluster(20, 1, 3), None, true), [Unwise::FailsafeSlow, Unwise::RetryShortForZones]);
        let slow = Unwise::ElectionSlow { election: Duration::from_millis(16_000) };
        assert_eq!(unwise(&cluster(30, 10, 10), seconds(5), false), [slow]);
        let off = PostgresCluster { failsafe: false, ..cluster(30, 10, 10) };
        assert_eq!(unwise(&off, ELECTION, false), [Unwise::FailsafeOff]);
        assert!(unwise(&off, Some(Duration::from_millis(u64::MAX)), false).len() == 2);
    }
}
