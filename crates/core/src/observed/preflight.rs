//! What disks and network were measured to take → the heartbeat and election time-outs that suit it, and whether others do.
//!
//! etcd's own advice is behind the rule: a heartbeat of about one round trip between members, an election time-out of at
//! least ten round trips and at most 50 s, and durable writes that take less than 10 ms and less than a heartbeat.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::spec::{Duration, Name, RaftTimers};

/// Heartbeats that the rule gives out, in milliseconds. Each is about twice the one before, so that no noise tells two
/// of them apart; the first is etcd's default, the last the longest with an election time-out that etcd allows.
const STEPS: [u64; 7] = [100, 200, 400, 800, 1600, 3200, 5000];
/// So many heartbeats until a follower starts an election.
const HEARTBEATS: u64 = 10;
/// So many round trips at least must fit into an election time-out.
const ROUND_TRIPS: u64 = 10;
/// A durable write should take less.
const SLOW_WRITE_US: u32 = 10_000;
/// From here on timers are too long, or fall behind what is measured.
const FAR: u64 = 4;

/// What one machine was measured to take.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// Half of the durable writes took no longer, in microseconds.
    pub fsync_p50_us: u32,
    /// Ninety-nine in a hundred took no longer.
    pub fsync_p99_us: u32,
    /// So many were made.
    pub samples: u32,
    /// The median of the round trips to each other machine, in microseconds.
    pub round_trips: BTreeMap<Name, u32>,
    /// The machines that did not answer, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unreached: BTreeMap<Name, String>,
}

/// What was measured at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measurement {
    /// When.
    pub at: Timestamp,
    /// Every machine that could be asked.
    pub members: BTreeMap<Name, Measured>,
}

/// What matters of a measurement: all members have the same timers, so that the slowest decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Worst {
    /// The machine with the slowest disk, and its ninety-ninth write in a hundred, in microseconds.
    pub write: Option<(Name, u32)>,
    /// The two machines that are furthest from each other, and their round trip, in microseconds.
    pub round_trip: Option<(Name, Name, u32)>,
}

/// A measurement that is kept, and what follows from it. Plans use this, never a new measurement: its noise would
/// restart members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preflight {
    /// What was measured.
    #[serde(flatten)]
    pub measurement: Measurement,
    /// The rule that the timers were found by: [`Preflight::RULE`] of its time.
    pub rule: u32,
    /// The timers.
    #[serde(rename = "pace")]
    pub timers: RaftTimers,
}

impl Measurement {
    /// What matters of it.
    pub fn worst(&self) -> Worst {
        let write = self.members.iter().map(|(name, m)| (name.clone(), m.fsync_p99_us)).max_by_key(|(_, us)| *us);
        let round_trips = self.members.iter().flat_map(|(from, measured)| {
            measured.round_trips.iter().map(move |(to, us)| (from.clone(), to.clone(), *us))
        });
        Worst { write, round_trip: round_trips.max_by_key(|(_, _, us)| *us) }
    }
}

impl fmt::Display for Worst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = self.write.as_ref().map(|(name, us)| format!("fsync p99 {} ({name})", time(*us)));
        let trip = self.round_trip.as_ref().map(|(from, to, us)| format!("round trip {} ({from} ↔ {to})", time(*us)));
        let parts: Vec<String> = write.into_iter().chain(trip).collect();
        f.write_str(if parts.is_empty() { "nothing" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

impl Preflight {
    /// The rule of today: the heartbeat is the least of the steps into which one round trip and one durable write fit; ten
    /// of them are the election time-out.
    pub const RULE: u32 = 1;

    /// What follows from a measurement. Longer timers follow at once, because shorter ones would not be safe; shorter ones
    /// only where two steps lie between, because they cost a restart of every member.
    pub fn after(before: Option<&Self>, measurement: Measurement) -> Self {
        let found = recommend(&measurement);
        let kept = before.map(|before| before.timers).filter(|timers| {
            let (old, new) = (timers.heartbeat.as_millis(), found.heartbeat.as_millis());
            (old / FAR + 1..=old).contains(&new)
        });
        Self { measurement, rule: Self::RULE, timers: kept.unwrap_or(found) }
    }
}

/// The timers that suit what was measured; the longest that etcd allows where none do.
pub fn recommend(measurement: &Measurement) -> RaftTimers {
    let worst = measurement.worst();
    let needed = needed_us(&worst);
    let step = STEPS.into_iter().find(|ms| ms * 1000 >= needed).unwrap_or(STEPS[STEPS.len() - 1]);
    RaftTimers { heartbeat: Duration::from_millis(step), election: Duration::from_millis(step * HEARTBEATS) }
}

/// One round trip and one durable write: what lies between a heartbeat that is sent and one that is answered.
fn needed_us(worst: &Worst) -> u64 {
    let write = worst.write.as_ref().map_or(0, |(_, us)| u64::from(*us));
    let trip = worst.round_trip.as_ref().map_or(0, |(_, _, us)| u64::from(*us));
    write + trip
}

/// Something about timers or disks that does not suit what was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "concern", rename_all = "snake_case")]
pub enum Concern {
    /// A durable write takes longer than a heartbeat: the leader's heartbeats are late, and followers start elections.
    WriteOutlastsHeartbeat {
        /// Where.
        machine: Name,
        /// How long ninety-nine writes in a hundred take at most.
        write_us: u32,
        /// The timers.
        timers: RaftTimers,
        /// Those that suit.
        better: RaftTimers,
    },
    /// A heartbeat comes more than twice in a round trip.
    RoundTripOutlastsHeartbeat {
        /// From here.
        from: Name,
        /// To there.
        to: Name,
        /// How long it takes.
        round_trip_us: u32,
        /// The timers.
        timers: RaftTimers,
        /// Those that suit.
        better: RaftTimers,
    },
    /// Fewer than ten round trips fit into the election time-out: members start elections without need.
    ElectionTooShort {
        /// From here.
        from: Name,
        /// To there.
        to: Name,
        /// How long a round trip takes.
        round_trip_us: u32,
        /// The timers.
        timers: RaftTimers,
        /// Those that suit.
        better: RaftTimers,
    },
    /// One round trip and one durable write do not fit into a heartbeat.
    Tight {
        /// What both take.
        needed_us: u64,
        /// The timers.
        timers: RaftTimers,
        /// Those that suit.
        better: RaftTimers,
    },
    /// A lost leader goes unnoticed for much longer than it has to.
    TooLong {
        /// The timers.
        timers: RaftTimers,
        /// Those that suit.
        better: RaftTimers,
    },
    /// A disk is slower than etcd wants it.
    SlowDisk {
        /// Where.
        machine: Name,
        /// How long ninety-nine writes in a hundred take at most.
        write_us: u32,
    },
}

/// What is to be said about timers after a measurement, the worst first.
pub fn judge(timers: RaftTimers, measurement: &Measurement) -> Vec<Concern> {
    let worst = measurement.worst();
    let better = recommend(measurement);
    let [heartbeat, election] = [timers.heartbeat, timers.election].map(|time| time.as_millis().saturating_mul(1000));
    let mut concerns = Vec::new();
    if let Some((from, to, round_trip_us)) = worst.round_trip.clone() {
        let trip = u64::from(round_trip_us);
        if election < trip * ROUND_TRIPS {
            let (from, to) = (from.clone(), to.clone());
            concerns.push(Concern::ElectionTooShort { from, to, round_trip_us, timers, better });
        }
        if heartbeat * 2 < trip {
            concerns.push(Concern::RoundTripOutlastsHeartbeat { from, to, round_trip_us, timers, better });
        }
    }
    if let Some((machine, write_us)) = worst.write.clone().filter(|(_, us)| heartbeat <= u64::from(*us)) {
        concerns.push(Concern::WriteOutlastsHeartbeat { machine, write_us, timers, better });
    }
    let needed_us = needed_us(&worst);
    if concerns.is_empty() && heartbeat < needed_us {
        concerns.push(Concern::Tight { needed_us, timers, better });
    }
    if better.election.as_millis().saturating_mul(FAR) <= timers.election.as_millis() {
        concerns.push(Concern::TooLong { timers, better });
    }
    concerns.extend(
        worst
            .write
            .filter(|(_, us)| *us >= SLOW_WRITE_US)
            .map(|(machine, write_us)| Concern::SlowDisk { machine, write_us }),
    );
    concerns
}

impl Concern {
    /// Whether the cluster is in danger of losing its leader for no other reason.
    pub fn is_unsafe(&self) -> bool {
        match self {
            Self::WriteOutlastsHeartbeat { .. }
            | Self::RoundTripOutlastsHeartbeat { .. }
            | Self::ElectionTooShort { .. } => true,
            Self::Tight { .. } | Self::TooLong { .. } | Self::SlowDisk { .. } => false,
        }
    }

    /// The machine that it is about.
    pub fn machine(&self) -> Option<&Name> {
        match self {
            Self::WriteOutlastsHeartbeat { machine, .. } | Self::SlowDisk { machine, .. } => Some(machine),
            Self::RoundTripOutlastsHeartbeat { .. }
            | Self::ElectionTooShort { .. }
            | Self::Tight { .. }
            | Self::TooLong { .. } => None,
        }
    }

    /// What an operator can do about it.
    pub fn next(&self) -> String {
        match self {
            Self::WriteOutlastsHeartbeat { timers, better, .. }
            | Self::RoundTripOutlastsHeartbeat { timers, better, .. }
            | Self::ElectionTooShort { timers, better, .. }
            | Self::Tight { timers, better, .. }
                if better.heartbeat <= timers.heartbeat && better.election <= timers.election =>
            {
                "etcd allows no longer timers: bring the members closer together, or give them faster disks".to_owned()
            }
            Self::WriteOutlastsHeartbeat { better, .. }
            | Self::RoundTripOutlastsHeartbeat { better, .. }
            | Self::ElectionTooShort { better, .. }
            | Self::Tight { better, .. }
            | Self::TooLong { better, .. } => format!(
                "write `timers: {{ heartbeat: {}, election: {} }}`, or `timers: measured`",
                better.heartbeat, better.election
            ),
            Self::SlowDisk { .. } => {
                "give etcd a faster disk, or one that no other process writes to; `raftsman preflight` measures again"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for Concern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteOutlastsHeartbeat { machine, write_us, timers, .. } => {
                let (write, heartbeat) = (time(*write_us), timers.heartbeat);
                write!(f, "{machine}: a durable write takes up to {write}, a heartbeat comes every {heartbeat}")
            }
            Self::RoundTripOutlastsHeartbeat { from, to, round_trip_us, timers, .. } => {
                let (trip, heartbeat) = (time(*round_trip_us), timers.heartbeat);
                write!(f, "{from} ↔ {to}: a round trip takes {trip}, a heartbeat comes every {heartbeat}")
            }
            Self::ElectionTooShort { from, to, round_trip_us, timers, .. } => {
                let (trip, election) = (time(*round_trip_us), timers.election);
                write!(f, "{from} ↔ {to}: ten round trips of {trip} do not fit into an election time-out of {election}")
            }
            Self::Tight { needed_us, timers, .. } => {
                let needed = time(u32::try_from(*needed_us).unwrap_or(u32::MAX));
                write!(
                    f,
                    "a round trip and a durable write take {needed}, a heartbeat comes every {}",
                    timers.heartbeat
                )
            }
            Self::TooLong { timers, better } => {
                let (found, enough) = (timers.election, better.election);
                write!(f, "a lost leader is noticed after {found}; by what was measured, {enough} would do")
            }
            Self::SlowDisk { machine, write_us } => {
                write!(f, "{machine}: a durable write takes up to {}, etcd wants less than 10 ms", time(*write_us))
            }
        }
    }
}

/// A short time, with a unit that suits its size.
pub fn time(us: u32) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{}.{} ms", us / 1_000, us % 1_000 / 100),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        _ => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u32 = 1_000;

    fn name(text: &str) -> Name {
        Name::parse(text).expect("a name")
    }

    /// Three members: every write takes this long, every round trip this long but the one between `a` and `c`.
    fn measurement(write_us: u32, near_us: u32, far_us: u32) -> Measurement {
        let trips = |list: &[(&str, u32)]| list.iter().map(|(to, us)| (name(to), *us)).collect();
        let measured = |list: &[(&str, u32)]| Measured {
            fsync_p50_us: write_us / 2,
            fsync_p99_us: write_us,
            samples: 100,
            round_trips: trips(list),
            unreached: BTreeMap::new(),
        };
        let members = BTreeMap::from([
            (name("a"), measured(&[("b", near_us), ("c", far_us)])),
            (name("b"), measured(&[("a", near_us), ("c", near_us)])),
            (name("c"), measured(&[("a", near_us), ("b", near_us)])),
        ]);
        Measurement { at: Timestamp::UNIX_EPOCH, members }
    }

    fn timers(heartbeat: u64, election: u64) -> RaftTimers {
        RaftTimers { heartbeat: Duration::from_millis(heartbeat), election: Duration::from_millis(election) }
    }

    fn recommended(write_us: u32, far_us: u32) -> u64 {
        let found = recommend(&measurement(write_us, 1, far_us));
        assert_eq!(found.election.as_millis(), found.heartbeat.as_millis() * 10);
        found.heartbeat.as_millis()
    }

    fn described(timers: RaftTimers, measurement: &Measurement) -> Vec<String> {
        judge(timers, measurement).iter().map(|c| format!("{}{c}", if c.is_unsafe() { "! " } else { "" })).collect()
    }

    #[test]
    fn the_slowest_decides_in_steps() {
        assert_eq!(recommended(2 * MS, 500), 100);
        assert_eq!(recommended(2 * MS, 98 * MS), 100);
        assert_eq!(recommended(2 * MS, 98 * MS + 1), 200);
        assert_eq!(recommended(150 * MS, 500), 200);
        assert_eq!(recommended(10 * MS, 300 * MS), 400);
        assert_eq!(recommended(10 * MS, 4_000 * MS), 5_000);
        assert_eq!(recommended(u32::MAX, u32::MAX), 5_000, "etcd allows no more");
        let none = Measurement { at: Timestamp::UNIX_EPOCH, members: BTreeMap::new() };
        assert_eq!(recommend(&none), RaftTimers::default());
        assert_eq!(judge(RaftTimers::default(), &none), []);
    }

    #[test]
    fn what_the_rule_finds_is_safe_as_long_as_etcd_allows_it() {
        for trip in (0..2_400).map(|ms| ms * MS) {
            for write in [MS, 9 * MS, 200 * MS, 2_400 * MS] {
                let measurement = measurement(write, MS, trip);
                let found = recommend(&measurement);
                let concerns = judge(found, &measurement);
                assert!(concerns.iter().all(|c| matches!(c, Concern::SlowDisk { .. })), "{trip} {write}: {concerns:?}");
            }
        }
    }

    #[test]
    fn timers_of_the_file_are_held_against_it() {
        let near = measurement(2 * MS, 300, 300);
        assert_eq!(described(timers(100, 1_000), &near), Vec::<String>::new());
        assert_eq!(described(timers(300, 3_000), &near), Vec::<String>::new());
        assert_eq!(
            described(timers(500, 5_000), &near),
            ["a lost leader is noticed after 5s; by what was measured, 1s would do"]
        );
        let far = measurement(2 * MS, 20 * MS, 120 * MS);
        assert_eq!(
            described(timers(100, 1_000), &far),
            ["! a ↔ c: ten round trips of 120 ms do not fit into an election time-out of 1s"]
        );
        assert_eq!(
            described(timers(100, 1_500), &far),
            ["a round trip and a durable write take 122 ms, a heartbeat comes every 100ms"]
        );
        assert_eq!(
            described(timers(50, 1_500), &far),
            ["! a ↔ c: a round trip takes 120 ms, a heartbeat comes every 50ms"]
        );
        let slow = measurement(130 * MS, 300, 300);
        assert_eq!(
            described(timers(100, 1_000), &slow),
            [
                "! c: a durable write takes up to 130 ms, a heartbeat comes every 100ms",
                "c: a durable write takes up to 130 ms, etcd wants less than 10 ms"
            ]
        );
        let beyond = judge(timers(5_000, 50_000), &measurement(MS, MS, 6_000 * MS));
        assert!(beyond[0].is_unsafe() && beyond[0].next().contains("etcd allows no longer timers"), "{beyond:?}");
    }

    #[test]
    fn noise_changes_nothing() {
        let first = Preflight::after(None, measurement(2 * MS, MS, 197 * MS));
        assert_eq!(first.timers, timers(200, 2_000));
        let after = |before: &Preflight, far_us| Preflight::after(Some(before), measurement(2 * MS, MS, far_us));
        assert_eq!(after(&first, 99 * MS).timers, timers(200, 2_000), "one step down is not worth a restart");
        assert_eq!(after(&first, 100).timers, timers(200, 2_000));
        let longer = after(&first, 199 * MS);
        assert_eq!(longer.timers, timers(400, 4_000), "what would not be safe is left at once");
        assert_eq!(after(&longer, 197 * MS).timers, timers(400, 4_000));
        assert_eq!(after(&longer, 97 * MS).timers, timers(100, 1_000), "two steps down are worth it");
        assert_eq!(longer.rule, Preflight::RULE);
    }

    #[test]
    fn times_are_short() {
        assert_eq!(
            [1, 999, 1_000, 9_999, 10_000, 999_999, 1_000_000, 12_340_000].map(time),
            ["1 µs", "999 µs", "1.0 ms", "9.9 ms", "10 ms", "999 ms", "1.0 s", "12.3 s"]
        );
    }
}
