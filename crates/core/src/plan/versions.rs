//! The version of the file, the versions that run → the version that each member should run now.

use super::{Draft, Waiting};
use crate::observed::ServiceState;
use crate::spec::EtcdVersion;

/// Which version is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Course {
    /// This one, for every member.
    To(EtcdVersion),
    /// Nobody changes; who comes in comes in with this one.
    Hold(EtcdVersion),
}

impl Course {
    /// The version for a member that runs this one now, or none.
    pub(super) fn target(self, running: Option<EtcdVersion>) -> EtcdVersion {
        match self {
            Self::To(version) => version,
            Self::Hold(version) => running.unwrap_or(version),
        }
    }
}

/// Sets the course.
pub(super) fn course(draft: &mut Draft<'_>) -> Course {
    let wanted = draft.desired.version;
    let running = draft.desired.members.iter().filter_map(|m| {
        let etcd = &draft.observed.members.get(&m.name)?.report()?.etcd;
        let version = etcd.running_version.filter(|_| etcd.service.state == ServiceState::Running)?;
        Some((m.name.clone(), version))
    });
    let other: Vec<_> = running.filter(|(_, version)| version.minor_line() != wanted.minor_line()).collect();
    let Some((_, lowest)) = other.iter().min_by_key(|(_, version)| *version).cloned() else {
        return Course::To(wanted);
    };
    for (machine, running) in other {
        draft.wait(Waiting::VersionDiffers { machine, running, wanted });
    }
    Course::Hold(lowest)
}
