//! For tests: a cluster's name, and what is known of a backup of it before its first byte comes.

use jiff::Timestamp;
use raftsman_core::backup::{About, FullName, Layout};
use raftsman_core::observed::ClusterId;
use raftsman_core::spec::{EtcdVersion, Name};

pub(crate) fn cluster() -> Name {
    Name::fixed("main")
}

pub(crate) fn layout() -> Layout {
    Layout::new("", &Name::fixed("shop"), &cluster())
}

/// Of a backup that was taken then, and holds nothing after `upto`.
pub(crate) fn about(taken: Timestamp, revision: i64, upto: i64) -> About {
    About {
        name: FullName::new(taken, revision),
        fleet: Name::fixed("shop"),
        fleet_id: "f".to_owned(),
        cluster: cluster(),
        cluster_id: ClusterId(7),
        member: Name::fixed("main-2"),
        version: EtcdVersion::default(),
        begun: taken,
        upto: Some(upto),
    }
}
