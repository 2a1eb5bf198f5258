//! The versions that run, the wanted one, the available ones → the next hop for all members, or why there is none.
//!
//! The rules are etcd's own, and each was tried on real servers: a cluster goes up one line at a time, and down one
//! line at a time after a downgrade was enabled; an upgrade that is half done may go back.

pub mod patroni;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spec::{EtcdVersion, Name};

/// A line of versions, such as 3.6: within one, any version can follow any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Line(pub u64, pub u64);

impl Line {
    /// The line of a version.
    pub fn of(version: EtcdVersion) -> Self {
        Self(version.major, version.minor)
    }

    /// The one after it.
    pub fn above(self) -> Self {
        Self(self.0, self.1 + 1)
    }

    /// The one before it.
    pub fn below(self) -> Self {
        Self(self.0, self.1.saturating_sub(1))
    }

    /// Its first version, which is how etcd writes a line.
    pub fn first(self) -> EtcdVersion {
        EtcdVersion::new(self.0, self.1, 0)
    }

    /// Whether a member of this line starts in a cluster that has agreed on that one: older ones exit at once, and ones
    /// that are two lines ahead cannot read the data.
    pub fn fits(self, cluster: Self) -> bool {
        cluster == self || cluster == self.below()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The oldest line that can be gone down to: 3.5 answers the call for 3.4, and does not carry it out.
const LOWEST: Line = Line(3, 5);
/// The line whose auth the next one does not read in its log.
pub(crate) const AUTH_CHANGED_AFTER: Line = Line(3, 4);

/// The first line that writes all its requests to the log in the form of today. The next one reads no other: it panics
/// on the first request of an older line that is still in a member's log.
pub const REQUESTS_OF_TODAY: Line = Line(3, 6);

/// The least version of a line that may meet the next line. Earlier ones bring removed members back and turn voters
/// into learners again (etcd issues 19557, 20793 and 20967).
pub fn least_before(next: Line) -> Option<EtcdVersion> {
    match next {
        Line(3, 6) => Some(EtcdVersion::new(3, 5, 32)),
        Line(3, 7) => Some(EtcdVersion::new(3, 6, 11)),
        _ => None,
    }
}

/// What is known of a cluster's versions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    /// What each member runs, or ran last.
    pub running: BTreeMap<Name, EtcdVersion>,
    /// The lines that the members' data is written for, as far as they say: one, when all have settled.
    pub written_for: BTreeSet<Line>,
    /// The line that a downgrade is enabled to.
    pub downgrade: Option<Line>,
    /// Whether auth is on, or is to be.
    pub auth: bool,
    /// Whether some member's log may hold requests from before [`REQUESTS_OF_TODAY`].
    pub old_requests: bool,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hop {
    /// Every member runs this version, or is brought to it now.
    To(EtcdVersion),
    /// A downgrade to this line must be enabled first.
    Enable(Line),
    /// The members' logs must begin anew first. Nothing else makes all members of 3.6 write a snapshot of their log
    /// than a cluster that agrees on this older line: a downgrade is enabled, and cancelled when the snapshots are
    /// written.
    Renew(Line),
    /// The downgrade that is enabled is not wanted any more: it is cancelled first.
    Cancel(Line),
    /// etcd is about to settle on this line: no member changes its version before.
    Settle(Line),
}

/// Why a version cannot be reached from those that run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refused", rename_all = "snake_case")]
pub enum VersionRefusal {
    /// A line lies in between, and no version of it can be had.
    SkipsLine {
        /// The line.
        line: Line,
    },
    /// The line in between can be had, in versions that must not meet the one after it.
    StepTooOld {
        /// The newest of them.
        newest: EtcdVersion,
        /// It must be this one at least.
        least: EtcdVersion,
    },
    /// A version that runs must not meet the next line.
    RunsTooOld {
        /// The oldest that runs.
        running: EtcdVersion,
        /// It must be this one at least.
        least: EtcdVersion,
    },
    /// Between these two lines the log is read differently while auth is on.
    AuthOn {
        /// The older one.
        line: Line,
    },
    /// There is no way down to this line.
    NoWayDown {
        /// The line.
        line: Line,
    },
    /// Members are more than one line apart, which no upgrade leaves behind.
    FarApart {
        /// The oldest.
        lowest: EtcdVersion,
        /// The newest.
        highest: EtcdVersion,
    },
    /// A version on the way ignores a setting of the file.
    UnknownFlag {
        /// The setting.
        flag: String,
        /// The version.
        version: EtcdVersion,
    },
}

impl VersionRefusal {
    /// What an operator can do about it; `running` is the oldest that runs.
    pub fn next(&self, running: EtcdVersion) -> String {
        match self {
            Self::SkipsLine { line } => format!(
                "make a version of {line} available with `source: {{ directory: … }}`, or write one as `version:` first"
            ),
            Self::StepTooOld { least, .. } | Self::RunsTooOld { least, .. } => format!(
                "make {least} or later of its line available with `source: {{ directory: … }}`, or write it as \
                 `version:` first"
            ),
            Self::AuthOn { line } => format!(
                "write `auth: {{ mode: none }}` and apply; once all members run {}, write the old mode again",
                line.above()
            ),
            Self::NoWayDown { .. } => {
                format!("write `version: {running}`; to go back all the same, restore a snapshot into a new cluster")
            }
            Self::FarApart { lowest, .. } => {
                format!("bring the members to one line manually, starting with those of {lowest}")
            }
            Self::UnknownFlag { flag, .. } => {
                format!("remove `{flag}` from `flags:` during the upgrade, or write `version: {running}`")
            }
        }
    }
}

impl fmt::Display for VersionRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SkipsLine { line } => {
                write!(f, "etcd is upgraded one minor version at a time, and no version of {line} is available")
            }
            Self::StepTooOld { newest, least } => {
                write!(f, "the upgrade path includes {newest}, and only {least} or later can be upgraded further")
            }
            Self::RunsTooOld { running, least } => write!(
                f,
                "only {least} or later may run beside the next minor version: {running} brings removed members back, \
                 and demotes members"
            ),
            Self::AuthOn { line } => {
                write!(f, "members of {line} and {} are not compatible while auth is on", line.above())
            }
            Self::NoWayDown { line } => write!(f, "etcd cannot be downgraded to {line}"),
            Self::FarApart { lowest, highest } => write!(f, "members of {lowest} and {highest} are too far apart"),
            Self::UnknownFlag { flag, version } => write!(f, "{version} on the upgrade path would ignore `{flag}`"),
        }
    }
}

/// The next hop from what runs to what is wanted.
pub fn next(
    now: &Versions,
    wanted: EtcdVersion,
    available: &BTreeSet<EtcdVersion>,
) -> Result<Option<Hop>, VersionRefusal> {
    let (Some(lowest), Some(highest)) = (now.running.values().min(), now.running.values().max()) else {
        return Ok(None);
    };
    let (low, high, want) = (Line::of(*lowest), Line::of(*highest), Line::of(wanted));
    if high != low && high != low.above() {
        return Err(VersionRefusal::FarApart { lowest: *lowest, highest: *highest });
    }
    let half_way = low != high;
    if half_way && low == AUTH_CHANGED_AFTER && now.auth {
        return Err(VersionRefusal::AuthOn { line: low });
    }
    let hop = match (half_way, want) {
        // An upgrade or downgrade that is half done is completed or reverted first, whichever is nearer to the wanted
        // version.
        (true, want) if want >= high => finish(now, low, step(want, high, wanted, available)?, available)?,
        (true, want) => go_back(now, low, step(want, low, wanted, available)?),
        (false, want) if want > low => go_up(now, low, wanted, available)?,
        (false, want) if want < low => go_down(now, low, wanted, available)?,
        (false, _) => match now.downgrade {
            Some(target) if target != low => Hop::Cancel(target),
            // etcd ends it by itself when it sees that all members are down.
            Some(_) => Hop::Settle(low),
            // While etcd has yet to write its data for this line, hops within the line need not wait for it; only hops
            // to another line do.
            None => Hop::To(wanted),
        },
    };
    Ok(Some(hop))
}

impl Versions {
    /// Whether some member says that its data is written for another line.
    fn unsettled(&self, line: Line) -> bool {
        self.written_for.iter().any(|written| *written != line)
    }

    /// Whether members say so, and none says otherwise.
    fn settled(&self, line: Line) -> bool {
        !self.written_for.is_empty() && !self.unsettled(line)
    }

    /// The oldest version that runs on this line and must not meet the next one.
    fn too_old(&self, line: Line) -> Option<VersionRefusal> {
        let least = least_before(line.above())?;
        let running = *self.running.values().filter(|v| Line::of(**v) == line).min()?;
        (running < least).then_some(VersionRefusal::RunsTooOld { running, least })
    }
}

/// The version to take on a line: the wanted one, or the newest that can be had of a line on the way.
fn step(
    want: Line,
    line: Line,
    wanted: EtcdVersion,
    available: &BTreeSet<EtcdVersion>,
) -> Result<EtcdVersion, VersionRefusal> {
    if want == line {
        return Ok(wanted);
    }
    let newest = available.iter().filter(|v| Line::of(**v) == line).max();
    let newest = *newest.ok_or(VersionRefusal::SkipsLine { line })?;
    match least_before(line.above()).filter(|least| want > line && newest < *least) {
        Some(least) => Err(VersionRefusal::StepTooOld { newest, least }),
        None => Ok(newest),
    }
}

/// The rest of an upgrade that was begun, or of a downgrade that is not wanted any more.
fn finish(
    now: &Versions,
    low: Line,
    version: EtcdVersion,
    available: &BTreeSet<EtcdVersion>,
) -> Result<Hop, VersionRefusal> {
    if let Some(target) = now.downgrade {
        return Ok(Hop::Cancel(target));
    }
    match now.too_old(low) {
        // A member joined during the upgrade. All go back to the line where logs can begin anew.
        None if low == REQUESTS_OF_TODAY && now.old_requests => {
            let back = now.running.values().min().copied().unwrap_or(version);
            Ok(go_back(now, low, back))
        }
        None => Ok(Hop::To(version)),
        // All go back to the old line, to a version of it that may be upgraded.
        Some(refusal) => younger(low, available).map(|version| go_back(now, low, version)).ok_or(refusal),
    }
}

/// The newest version of a line that can be had, if it may meet the next line.
fn younger(line: Line, available: &BTreeSet<EtcdVersion>) -> Option<EtcdVersion> {
    let newest = available.iter().filter(|v| Line::of(**v) == line).max().copied()?;
    least_before(line.above()).is_none_or(|least| newest >= least).then_some(newest)
}

/// The way back of an upgrade that was begun, or the rest of a downgrade.
fn go_back(now: &Versions, low: Line, version: EtcdVersion) -> Hop {
    match now.downgrade {
        Some(target) if target != low => Hop::Cancel(target),
        // While one member runs the old line, the cluster cannot have agreed on the new one; what it is about to
        // change for a downgrade has to be done first.
        _ if now.unsettled(low) => Hop::Settle(low),
        _ => Hop::To(version),
    }
}

fn go_up(
    now: &Versions,
    low: Line,
    wanted: EtcdVersion,
    available: &BTreeSet<EtcdVersion>,
) -> Result<Hop, VersionRefusal> {
    let next = low.above();
    let version = step(Line::of(wanted), next, wanted, available)?;
    if low == AUTH_CHANGED_AFTER && now.auth {
        return Err(VersionRefusal::AuthOn { line: low });
    }
    if let Some(refusal) = now.too_old(low) {
        // A newer version of the same line comes first, where there is one.
        return younger(low, available).map(Hop::To).ok_or(refusal);
    }
    let renew = low == REQUESTS_OF_TODAY && now.old_requests;
    Ok(match now.downgrade {
        Some(target) if renew && target == low.below() => Hop::Settle(target),
        Some(target) if target != low => Hop::Cancel(target),
        Some(_) => Hop::Settle(low),
        None if !now.settled(low) => Hop::Settle(low),
        None if renew => Hop::Renew(low.below()),
        None => Hop::To(version),
    })
}

fn go_down(
    now: &Versions,
    high: Line,
    wanted: EtcdVersion,
    available: &BTreeSet<EtcdVersion>,
) -> Result<Hop, VersionRefusal> {
    let (want, next) = (Line::of(wanted), high.below());
    if want < LOWEST {
        return Err(VersionRefusal::NoWayDown { line: want });
    }
    let version = step(want, next, wanted, available)?;
    Ok(match now.downgrade {
        // The hop before this one: etcd ends it by itself.
        Some(target) if target == high => Hop::Settle(high),
        Some(target) if target != next => Hop::Cancel(target),
        Some(_) if now.settled(next) => Hop::To(version),
        Some(_) => Hop::Settle(next),
        None if now.settled(high) => Hop::Enable(next),
        None => Hop::Settle(high),
    })
}

/// Every version on the way from what runs to what is wanted, if etcd does as documented: the last one is the wanted
/// one.
pub fn path(
    now: &Versions,
    wanted: EtcdVersion,
    available: &BTreeSet<EtcdVersion>,
) -> Result<Vec<EtcdVersion>, VersionRefusal> {
    let mut now = now.clone();
    let mut path = Vec::new();
    // Each hop gets nearer to the wanted version; the bound protects against a bug here.
    for _ in 0..32 {
        let all_on = |version: EtcdVersion| now.running.values().all(|v| *v == version);
        match next(&now, wanted, available)? {
            None => return Ok(path),
            Some(Hop::To(version)) if version == wanted && all_on(wanted) => return Ok(path),
            Some(Hop::To(version)) => {
                now.running.values_mut().for_each(|v| *v = version);
                now.written_for = BTreeSet::from([Line::of(version)]);
                now.downgrade = None;
                path.push(version);
            }
            Some(Hop::Enable(line) | Hop::Renew(line)) => {
                now.downgrade = Some(line);
                now.written_for = BTreeSet::from([line]);
                now.old_requests = false;
            }
            Some(Hop::Cancel(_)) => {
                now.downgrade = None;
                now.written_for.clear();
            }
            Some(Hop::Settle(line)) => {
                now.written_for = BTreeSet::from([line]);
                now.downgrade = now.downgrade.filter(|target| *target != line || !now.on_one(line));
            }
        }
    }
    Ok(path)
}

impl Versions {
    fn on_one(&self, line: Line) -> bool {
        self.running.values().all(|v| Line::of(*v) == line)
    }
}
