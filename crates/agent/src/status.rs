//! the agent's errors → gRPC status codes: the class of the error, and all causes in one line.

use tonic::{Code, Status};

use crate::access::AccessError;
use crate::access::certs::CertsError;
use crate::access::claim::ClaimError;
use crate::access::fence::FenceError;
use crate::backup::BackupError;
use crate::balancer::haproxy::AdminError;
use crate::etcd::data::DataError;
use crate::etcd::handshake::HandshakeError;
use crate::etcd::prestart::PrestartError;
use crate::etcd::restore::RestoreError;
use crate::etcd::restore_test::RestoreTestError;
use crate::files::FileError;
use crate::machine::boot::BootError;
use crate::machine::delivery::DeliveryError;
use crate::machine::firewall::FirewallError;
use crate::machine::measure::MeasureError;
use crate::machine::upgrade::UpgradeError;
use crate::postgres::catalog::CatalogError;
use crate::postgres::config::PatroniConfigError;
use crate::postgres::login::LoginError;
use crate::postgres::prestart::PostgresPrestartError;
use crate::postgres::rest::RestError;
use crate::report::ReportError;
use crate::supervisor::binaries::BinaryError;
use crate::supervisor::bundle::BundleError;
use crate::supervisor::config::ConfigError;
use crate::supervisor::launch::LaunchError;
use crate::supervisor::service::ServiceError;

/// An error with the status code that it means to the caller.
pub trait Coded: std::error::Error + Sized {
    /// The gRPC code.
    fn code(&self) -> Code;

    /// The status to answer with.
    fn status(&self) -> Status {
        Status::new(self.code(), describe(self))
    }
}

impl Coded for FileError {
    fn code(&self) -> Code {
        match self.source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
            _ => Code::Internal,
        }
    }
}

impl Coded for FirewallError {
    fn code(&self) -> Code {
        match self {
            Self::None => Code::FailedPrecondition,
            Self::OtherRules { .. } => Code::InvalidArgument,
            Self::Systemd(_) => Code::Internal,
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for DeliveryError {
    fn code(&self) -> Code {
        match self {
            Self::NotOurs | Self::NoReader { .. } => Code::FailedPrecondition,
            Self::Unknown(_) => Code::InvalidArgument,
            Self::Systemd(_) => Code::Internal,
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for CatalogError {
    fn code(&self) -> Code {
        match self {
            Self::Connect(_) => Code::Unavailable,
            Self::NotPrimary | Self::Refused(_) => Code::FailedPrecondition,
            Self::Reserved(_) | Self::NotOfNodes(_) | Self::AsSuperuser(_) | Self::NotScram => Code::InvalidArgument,
            Self::Silent => Code::DeadlineExceeded,
        }
    }
}

impl Coded for BackupError {
    fn code(&self) -> Code {
        match self {
            Self::Request(_) => Code::InvalidArgument,
            Self::Busy | Self::NotReady | Self::OtherHistory { .. } => Code::FailedPrecondition,
            Self::Sign(_) => Code::InvalidArgument,
            Self::Certs(error) => error.code(),
            Self::File(error) => error.code(),
            Self::Etcd(_) | Self::Store(_) | Self::Full(_) => Code::Unavailable,
        }
    }
}

impl Coded for RestoreTestError {
    fn code(&self) -> Code {
        match self {
            Self::Restore(error) => error.code(),
            Self::Backup(error) => error.code(),
            Self::File(error) => error.code(),
            Self::NoEtcd(_) => Code::FailedPrecondition,
            Self::NoRoom { .. } => Code::ResourceExhausted,
            Self::Request(_) | Self::OtherRevision { .. } | Self::TooFar { .. } => Code::InvalidArgument,
            // It is tried again.
            Self::LeaseEnded => Code::Aborted,
            Self::Silent(_) | Self::Etcd(_) | Self::Full(_) | Self::Changes(_) => Code::Unavailable,
            Self::Run(_) => Code::Internal,
        }
    }
}

impl Coded for FenceError {
    fn code(&self) -> Code {
        match self {
            Self::Older { .. } | Self::TooFar { .. } => Code::FailedPrecondition,
            Self::File(error) => error.code(),
            Self::Malformed { .. } => Code::Internal,
        }
    }
}

impl Coded for CertsError {
    fn code(&self) -> Code {
        match self {
            Self::File(error) => error.code(),
            Self::Sent(_) | Self::Malformed | Self::OtherKey | Self::NoTrust => Code::InvalidArgument,
            Self::NothingPending | Self::NothingStored => Code::FailedPrecondition,
            Self::Stored { .. } | Self::Key(_) => Code::Internal,
        }
    }
}

impl Coded for ClaimError {
    fn code(&self) -> Code {
        match self {
            Self::Claimed { .. } | Self::NoToken => Code::FailedPrecondition,
            // A code of its own: the operator's raftsman can order the machine again.
            Self::TooLate { .. } => Code::DeadlineExceeded,
            Self::ShortNonce | Self::Unfit { .. } => Code::InvalidArgument,
            Self::Certs(error) => error.code(),
            Self::Access(error) => error.code(),
            Self::Boot(BootError::File(error)) => error.code(),
            Self::Boot(_) | Self::Token(_) | Self::Tls(_) | Self::SelfSigned(_) => Code::Internal,
        }
    }
}

impl Coded for AccessError {
    fn code(&self) -> Code {
        match self {
            Self::Tls(_) | Self::Key(_) => Code::InvalidArgument,
            Self::LockedOut => Code::FailedPrecondition,
            Self::File(error) => error.code(),
            Self::Malformed(_) => Code::Internal,
        }
    }
}

impl Coded for BinaryError {
    fn code(&self) -> Code {
        match self {
            Self::Version(_) | Self::Digest(_) | Self::Unknown(_) | Self::OtherBytes { .. } => Code::InvalidArgument,
            Self::NotPinned { .. } | Self::OtherPin { .. } => Code::PermissionDenied,
            Self::Swapped { .. } => Code::FailedPrecondition,
            Self::Bundle { source: BundleError::File(error), .. } => error.code(),
            Self::Bundle { source: BundleError::Changed { .. }, .. } => Code::FailedPrecondition,
            Self::Bundle { .. } => Code::InvalidArgument,
            Self::Pins(_) => Code::Internal,
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for ConfigError {
    fn code(&self) -> Code {
        match self {
            Self::OtherConfig { .. } | Self::Foreign { .. } | Self::HasSecrets(_) => Code::InvalidArgument,
            Self::NoInterface(_) => Code::FailedPrecondition,
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for PrestartError {
    fn code(&self) -> Code {
        match self {
            Self::NoCertificate(_) | Self::OtherData(_) | Self::NotAlone | Self::Bootstrap(_) => {
                Code::FailedPrecondition
            }
            Self::Certs(error) => error.code(),
            Self::Postgres(error) => error.code(),
        }
    }
}

impl Coded for PostgresPrestartError {
    fn code(&self) -> Code {
        match self {
            Self::NoCertificate(_) | Self::NoEtcdTrust | Self::OtherData { .. } => Code::FailedPrecondition,
            Self::Certificate(error) => error.code(),
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for PatroniConfigError {
    fn code(&self) -> Code {
        match self {
            Self::OtherConfig { .. }
            | Self::Foreign(_)
            | Self::Twice(_)
            | Self::Missing(_)
            | Self::Device(_)
            | Self::OtherAddress { .. }
            | Self::NoSecret(_)
            | Self::UnknownSecret(_)
            | Self::UnusableSecret(_)
            | Self::TooLong
            | Self::Trust(_) => Code::InvalidArgument,
            Self::Root(_) | Self::Watchdog | Self::NoWatchdog(_) => Code::FailedPrecondition,
            Self::User(_) => Code::Internal,
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for RestError {
    fn code(&self) -> Code {
        match self {
            Self::NotConfigured | Self::NoCertificate => Code::FailedPrecondition,
            // What it refuses depends on the state of the cluster.
            Self::Refused { status: 401 | 403, .. } => Code::Internal,
            Self::Refused { .. } => Code::FailedPrecondition,
            Self::Setting(_) => Code::InvalidArgument,
            Self::Http(_) => Code::Unavailable,
            Self::Certs(error) => error.code(),
            Self::Unusable(_) | Self::Trust(_) => Code::Internal,
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for LoginError {
    fn code(&self) -> Code {
        match self {
            Self::NotConfigured => Code::FailedPrecondition,
            Self::Trust(_) | Self::Unusable(_) => Code::Internal,
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for DataError {
    fn code(&self) -> Code {
        match self {
            Self::Other { .. } => Code::FailedPrecondition,
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for ServiceError {
    fn code(&self) -> Code {
        match self {
            Self::NotInstalled { .. }
            | Self::NotConfigured(_)
            | Self::NoPackage { .. }
            | Self::NotRunning(_)
            | Self::PortTaken { .. }
            | Self::DiskFull { .. }
            | Self::NotStopped(_)
            | Self::OtherVersion { .. } => Code::FailedPrecondition,
            Self::Prestart(error) => error.code(),
            Self::Binary(error) => error.code(),
            Self::Data(error) => error.code(),
            Self::File(error) => error.code(),
            Self::Closed => Code::Unavailable,
            Self::Launch(error) => error.code(),
            Self::Process { .. } | Self::Immortal { .. } | Self::Malformed(_) => Code::Internal,
        }
    }
}

impl Coded for LaunchError {
    fn code(&self) -> Code {
        match self {
            Self::NeedsSystemd(_) | Self::Needs { .. } | Self::ConfigRefused { .. } | Self::NoReload(_) => {
                Code::FailedPrecondition
            }
            Self::Spawn { .. } | Self::NotReloaded { .. } | Self::Systemd(_) | Self::Binary(_) | Self::File(_) => {
                Code::Internal
            }
        }
    }
}

impl Coded for AdminError {
    fn code(&self) -> Code {
        match self {
            Self::NoServer(_) => Code::NotFound,
            Self::LastServer(_) => Code::FailedPrecondition,
            Self::Unreachable { .. } | Self::Silent => Code::Unavailable,
            Self::Report(_) | Self::Refused { .. } => Code::Internal,
        }
    }
}

impl Coded for ReportError {
    fn code(&self) -> Code {
        match self {
            Self::Certs(error) => error.code(),
            Self::File(error) => error.code(),
            Self::Upgrade(error) => error.code(),
        }
    }
}

impl Coded for UpgradeError {
    fn code(&self) -> Code {
        match self {
            Self::Digest(_)
            | Self::Version(_)
            | Self::OtherSize { .. }
            | Self::OtherBytes { .. }
            | Self::OtherProgram { .. } => Code::InvalidArgument,
            Self::Older { .. } | Self::DoesNotRun(_) | Self::OnTrial => Code::FailedPrecondition,
            Self::NoRoom { .. } => Code::ResourceExhausted,
            // The previous program is about to serve again.
            Self::Reverted => Code::Unavailable,
            Self::File(error) => error.code(),
            Self::Exec { .. } | Self::NoGuardian | Self::Process(_) | Self::Malformed { .. } => Code::Internal,
        }
    }
}

impl Coded for HandshakeError {
    fn code(&self) -> Code {
        match self {
            Self::NoCertificate => Code::FailedPrecondition,
            Self::Certs(error) => error.code(),
            Self::Unusable(_) | Self::Broken(_) => Code::Internal,
        }
    }
}

impl Coded for RestoreError {
    fn code(&self) -> Code {
        match self {
            Self::NoRoom { .. } => Code::ResourceExhausted,
            Self::NotStopped | Self::OtherData(_) | Self::NoTool(_) | Self::NothingPutAway(_) => {
                Code::FailedPrecondition
            }
            Self::OtherBytes { .. } | Self::Refused { .. } | Self::Unasked => Code::InvalidArgument,
            // A code of its own: the caller can send the data.
            Self::NotPrepared => Code::NotFound,
            Self::Full(_) => Code::Unavailable,
            Self::Backup(error) => error.code(),
            Self::Binary(error) => error.code(),
            Self::Data(error) => error.code(),
            Self::File(error) => error.code(),
            Self::Run(_) | Self::TooLong | Self::NoData(_) => Code::Internal,
        }
    }
}

impl Coded for MeasureError {
    fn code(&self) -> Code {
        match self {
            Self::File(error) => error.code(),
            Self::Broken(_) => Code::Internal,
        }
    }
}

/// An error with all its causes in one line.
pub fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
