//! An action, why it is done, and what it costs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::backup::FullName;
use crate::observed::{Copies, Tolerance, size};
use crate::render::changes::Change;
use crate::spec::{EtcdVersion, Name, PostgresVersion};
use crate::versions::Line;

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// Why.
    pub reason: Reason,
    /// What the cluster can lose before the wave.
    pub before: Tolerance,
    /// What it can lose while the step is carried out.
    pub during: Tolerance,
    /// What it can lose once the wave is done.
    pub after: Tolerance,
    /// For how long clients should expect no acknowledged write.
    pub pause: Pause,
    /// What it costs the PostgreSQL cluster that it is done to; nothing elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopiesLeft>,
}

/// On how many standbys every acknowledged commit of a PostgreSQL cluster is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesLeft {
    /// Before the step.
    pub before: Copies,
    /// While it is carried out.
    pub during: Copies,
    /// Once it is done.
    pub after: Copies,
}

/// Why a step is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Reason {
    /// It is in the file and does not exist.
    Missing,
    /// It exists and does not run.
    NotRunning,
    /// A new machine awaits its certificate.
    Unclaimed,
    /// The first start: a majority together.
    FirstStart {
        /// How many start in this wave.
        starting: usize,
        /// Of how many members.
        of: usize,
    },
    /// The file says something else than the machine.
    Changed,
    /// Auth is on: clients may connect from now on.
    Secured,
    /// These settings of the file are others than those of the machine.
    Settings {
        /// Which, and how.
        changes: Vec<Change>,
    },
    /// What the file refers to is not what the machine was given.
    OtherSecrets,
    /// The machine makes backups by other settings than those of the file.
    BackupsDiffer,
    /// The machine makes backups, and the file has no schedule.
    BackupsRemoved,
    /// The agent runs another program than the one that this raftsman ships.
    OtherAgent {
        /// The version that runs.
        from: String,
        /// The version that is shipped.
        to: String,
    },
    /// Heartbeat and election time-outs rest on it.
    NotMeasured,
    /// The version changes.
    Version {
        /// What runs.
        from: EtcdVersion,
        /// The version that follows.
        to: EtcdVersion,
    },
    /// The package of PostgreSQL was upgraded.
    PostgresVersion {
        /// What runs.
        from: PostgresVersion,
        /// What is installed.
        to: PostgresVersion,
    },
    /// The members' logs may hold requests of this line, which the next version does not read.
    OldRequests {
        /// The line.
        line: Line,
    },
    /// A downgrade to this version is enabled, and the file wants another version.
    Unwanted {
        /// The target of the downgrade.
        version: EtcdVersion,
    },
    /// The file wants no auth.
    AuthOn,
    /// The certificate expires soon.
    Expires {
        /// In so many hours.
        hours: i64,
    },
    /// The certificate has other names than it should.
    OtherNames,
    /// The certificate was signed by another authority.
    OtherAuthority,
    /// Other authorities are to be trusted than those that are.
    OtherTrust,
    /// What runs presents other certificates than those that are there.
    Renewed,
    /// Every member trusts it.
    TrustedByAll,
    /// Nothing that it signed is in use any more.
    NotNeeded,
    /// No member accepts its certificates any more.
    RefusedByAll,
    /// The authority that all of them trust has expired.
    LockedOut,
    /// The file refers to another password than the one that is in force.
    OtherPassword,
    /// No client may connect without credentials.
    NoAuth,
    /// It exists and is not in the file.
    NotInFile,
    /// The member is lost, or an operator wants it replaced.
    Replaced,
    /// The learner has caught up with the leader.
    CaughtUp,
    /// The learner makes no progress.
    Stalled,
    /// The file has another address for it.
    Moved,
    /// The file has machines made otherwise.
    OtherShape {
        /// What changes, in words.
        change: String,
    },
    /// The quota is used up.
    QuotaUsedUp {
        /// What fills the database most.
        filled_by: Vec<String>,
    },
    /// Much of the file is free.
    RoomInFile {
        /// So many bytes.
        free: i64,
        /// Of so many.
        of: i64,
    },
    /// There is room in every member's database again.
    RoomAgain,
    /// All members hold the same.
    MembersAgree,
    /// An operator asked for it.
    Asked,
    /// The majority is lost, and the cluster is built anew around this member.
    Recovery {
        /// Which.
        survivor: Name,
    },
    /// The file says that a new cluster is bootstrapped from a backup.
    BootstrappedFrom,
    /// A backup takes the place of all data.
    Restored {
        /// Which.
        backup: FullName,
    },
    /// The leader is about to be removed.
    LeaderGoes {
        /// The leader.
        from: Name,
    },
    /// The leader is restarted next.
    LeaderRestarts {
        /// The leader.
        from: Name,
    },
    /// The balancer passes connections to other members than those that should get them.
    OtherMembers,
    /// The member stops serving by the next step.
    StopsServing {
        /// Which.
        member: Name,
    },
    /// The member serves again.
    ServesAgain {
        /// Which.
        member: Name,
    },
    /// The etcd beneath is built anew.
    EtcdRebuilt,
    /// The primary is restarted next.
    PrimaryRestarts {
        /// The primary.
        from: Name,
    },
    /// The leader is left behind by a change of the peers' authority: others could not follow it any more.
    LeaderLeftBehind {
        /// The leader.
        from: Name,
    },
    /// A role may do, or a user has, something else than the file says.
    Access {
        /// Whether it is not there at all.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        missing: bool,
        /// What it lacks.
        lacks: Vec<String>,
        /// What it has and should not.
        has: Vec<String>,
    },
}

/// So many changed settings are named in a line.
const SHOWN: usize = 3;

impl Reason {
    /// The file has changed, in these settings where they are known.
    pub(super) fn settings(changes: Vec<Change>) -> Self {
        if changes.is_empty() { Self::Changed } else { Self::Settings { changes } }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("not there yet"),
            Self::NotRunning => f.write_str("not running"),
            Self::Unclaimed => f.write_str("new machine"),
            Self::FirstStart { starting, of } => write!(f, "first start, {starting} of {of} together"),
            Self::Changed => f.write_str("the file has changed"),
            Self::Secured => f.write_str("auth is on: open to clients"),
            // A line has room for a few; `plan --diff` shows all.
            Self::Settings { changes } => {
                let shown: Vec<String> = changes.iter().take(SHOWN).map(ToString::to_string).collect();
                f.write_str(&shown.join(", "))?;
                match changes.len().saturating_sub(SHOWN) {
                    0 => Ok(()),
                    more => write!(f, ", and {more} more"),
                }
            }
            Self::BackupsDiffer => f.write_str("its backup settings are not those of the file"),
            Self::BackupsRemoved => f.write_str("the file has no schedule for backups"),
            Self::OtherSecrets => f.write_str("secrets of the file are not on the machine"),
            Self::OtherAgent { from, to } if from == to => write!(f, "another build of {to}"),
            Self::OtherAgent { from, to } => write!(f, "{from} → {to}"),
            Self::NotMeasured => f.write_str("heartbeat and election are derived from it"),
            Self::Version { from, to } => write!(f, "{from} → {to}"),
            Self::PostgresVersion { from, to } => write!(f, "{from} → {to}"),
            Self::OldRequests { line } => write!(f, "temporarily: the log holds requests of {line}"),
            Self::Unwanted { version } => write!(f, "to {version}, which is not in the file"),
            Self::AuthOn => f.write_str("auth is on"),
            Self::Expires { hours } if *hours < 0 => f.write_str("expired"),
            Self::Expires { hours } if *hours < 48 => write!(f, "expires in {hours} h"),
            Self::Expires { hours } => write!(f, "expires in {} days", hours / 24),
            Self::OtherNames => f.write_str("names have changed"),
            Self::OtherAuthority => f.write_str("signed by another authority"),
            Self::OtherTrust => f.write_str("trusted CAs have changed"),
            Self::Renewed => f.write_str("its certificates were renewed"),
            Self::TrustedByAll => f.write_str("trusted by every member"),
            Self::NotNeeded => f.write_str("not needed any more"),
            Self::RefusedByAll => f.write_str("refused by every member"),
            Self::LockedOut => f.write_str("the CA that they trust has expired"),
            Self::OtherPassword => f.write_str("the file has another password"),
            Self::NoAuth => f.write_str("auth is off"),
            Self::NotInFile => f.write_str("not in the file"),
            Self::Replaced => f.write_str("replaced"),
            Self::CaughtUp => f.write_str("caught up"),
            Self::Stalled => f.write_str("is not making progress"),
            Self::Moved => f.write_str("another address"),
            Self::OtherShape { change } => f.write_str(change),
            Self::QuotaUsedUp { filled_by } if filled_by.is_empty() => f.write_str("the quota is used up"),
            // One is enough for a line; `status` shows more.
            Self::QuotaUsedUp { filled_by } => write!(f, "the quota is used up, most by {}", filled_by[0]),
            Self::RoomInFile { free, of } => {
                write!(f, "{} of {} are free", size(free.unsigned_abs()), size(of.unsigned_abs()))
            }
            Self::RoomAgain => f.write_str("there is free space again"),
            Self::MembersAgree => f.write_str("all members hold the same data"),
            Self::Asked => f.write_str("requested"),
            Self::Recovery { survivor } => write!(f, "recovered from {survivor}"),
            Self::BootstrappedFrom => f.write_str("bootstrapped from a backup"),
            Self::Restored { backup } => write!(f, "restored from {}", backup.taken()),
            Self::LeaderGoes { from } => write!(f, "{from} stops serving next"),
            Self::LeaderRestarts { from } => write!(f, "{from} restarts next"),
            Self::OtherMembers => f.write_str("the members behind it have changed"),
            Self::StopsServing { member } => write!(f, "{member} stops serving next"),
            Self::ServesAgain { member } => write!(f, "{member} serves again"),
            Self::EtcdRebuilt => f.write_str("the etcd beneath is built anew"),
            Self::PrimaryRestarts { from } => write!(f, "{from} restarts next"),
            Self::LeaderLeftBehind { from } => write!(f, "{from} may not trust the new CA"),
            Self::Access { missing: true, lacks, .. } if lacks.is_empty() => f.write_str("not there yet"),
            Self::Access { missing: true, lacks, .. } => write!(f, "not there yet: {}", lacks.join(", ")),
            Self::Access { lacks, has, .. } => {
                let part = |word: &str, what: &[String]| format!("{word} {}", what.join(", "));
                let parts = [part("lacks", lacks), part("has", has)];
                let parts = parts.iter().zip([lacks, has]).filter(|(_, what)| !what.is_empty());
                f.write_str(&parts.map(|(part, _)| part.as_str()).collect::<Vec<_>>().join("; "))
            }
        }
    }
}

/// For how long clients should expect no acknowledged write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pause {
    /// No pause.
    None,
    /// The leader transfers leadership when it is stopped: about so many milliseconds.
    HandOver(u32),
    /// Patroni has another node take the primary's place, or PostgreSQL restarts: about so many milliseconds.
    Patroni(u32),
    /// The cluster takes no writes before or during this step anyway.
    NotServing,
}

impl Pause {
    /// What a stopped leader costs: measured on 3.6 with three members under load, a transfer of leadership took 55 to
    /// 290 ms.
    pub const LEADER_STOPPED: Self = Self::HandOver(200);
    /// The cost of a requested transfer of leadership.
    pub const LEADER_MOVED: Self = Self::HandOver(150);

    /// What rewriting the only database costs: a disk writes 100 MB a second at least.
    pub fn while_defragmenting(bytes: i64) -> Self {
        Self::HandOver(100 + u32::try_from(bytes.max(0) / 100_000).unwrap_or(u32::MAX - 100))
    }
}

impl Step {
    /// A step whose cost is not judged yet.
    pub(super) fn new(action: impl Into<Action>, reason: Reason) -> Self {
        let unknown = Tolerance::NoQuorum;
        let (action, pause) = (action.into(), Pause::None);
        Self { action, reason, before: unknown, during: unknown, after: unknown, pause, copies: None }
    }
}
