//! A ledger ↔ the form in which the state keeps it: all in one level, in this order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Adopted, EtcdLedger, LearnerRecord, Ledger, MachineLedger, Mode, PostgresLedger, Recovery, Restoration,
    SnapshotRecord, SpaceRecord,
};
use crate::backup::{Drill, History};
use crate::observed::{ClusterId, MemberId, Preflight, Trust};
use crate::spec::{AuthMode, Name};

/// A ledger, as the state keeps it.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Stored {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterId>,
    members: BTreeMap<Name, String>,
    founders: BTreeMap<Name, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reshaped: bool,
    started: BTreeMap<Name, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    instances: BTreeMap<Name, IpAddr>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    addresses: BTreeMap<Name, IpAddr>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    zones: BTreeMap<Name, Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    auth: Option<AuthMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secured: Option<ClusterId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<Trust>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clients: Option<Trust>,
    last_revision: i64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    replace: BTreeMap<Name, MemberId>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    down_since: BTreeMap<Name, Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    learner: Option<LearnerRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adopted: Option<Adopted>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    evicted: BTreeMap<Name, Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<SpaceRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<SnapshotRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preflight: Option<Preflight>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_renewed: Option<BTreeSet<MemberId>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery: Option<Recovery>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drill: Option<Drill>,
    #[serde(skip_serializing_if = "Option::is_none")]
    restoration: Option<Box<Restoration>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    histories: Vec<History>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_step: Option<Timestamp>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    voters_since: BTreeMap<MemberId, Timestamp>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    postgres: BTreeMap<Name, PostgresLedger>,
}

impl From<Ledger> for Stored {
    fn from(ledger: Ledger) -> Self {
        let MachineLedger { instances, addresses, zones } = ledger.machines;
        let EtcdLedger {
            mode,
            cluster,
            members,
            founders,
            reshaped,
            started,
            auth,
            secured,
            peers,
            clients,
            last_revision,
            replace,
            down_since,
            learner,
            evicted,
            space,
            snapshot,
            preflight,
            log_renewed,
            drill,
            histories,
            last_step,
            voters_since,
        } = ledger.etcd;
        let (adopted, recovery, restoration) = match mode {
            Mode::Normal => (None, None, None),
            Mode::Adopted(adopted) => (Some(adopted), None, None),
            Mode::Recovering(recovery) => (None, Some(recovery), None),
            Mode::Restoring(restoration) => (None, None, Some(restoration)),
        };
        let postgres = ledger.postgres;
        Self {
            cluster,
            members,
            founders,
            reshaped,
            started,
            instances,
            addresses,
            zones,
            auth,
            secured,
            peers,
            clients,
            last_revision,
            replace,
            down_since,
            learner,
            adopted,
            evicted,
            space,
            snapshot,
            preflight,
            log_renewed,
            recovery,
            drill,
            restoration,
            histories,
            last_step,
            voters_since,
            postgres,
        }
    }
}

impl From<Stored> for Ledger {
    fn from(stored: Stored) -> Self {
        let Stored {
            cluster,
            members,
            founders,
            reshaped,
            started,
            instances,
            addresses,
            zones,
            auth,
            secured,
            peers,
            clients,
            last_revision,
            replace,
            down_since,
            learner,
            adopted,
            evicted,
            space,
            snapshot,
            preflight,
            log_renewed,
            recovery,
            drill,
            restoration,
            histories,
            last_step,
            voters_since,
            postgres,
        } = stored;
        // Before there was one mode, a recovery could be decided upon during a restore: it was the later decision, and the
        // planner carried it out first.
        let mode = match (recovery, restoration, adopted) {
            (Some(recovery), _, _) => Mode::Recovering(recovery),
            (None, Some(restoration), _) => Mode::Restoring(restoration),
            (None, None, Some(adopted)) => Mode::Adopted(adopted),
            (None, None, None) => Mode::Normal,
        };
        let machines = MachineLedger { instances, addresses, zones };
        let etcd = EtcdLedger {
            mode,
            cluster,
            members,
            founders,
            reshaped,
            started,
            auth,
            secured,
            peers,
            clients,
            last_revision,
            replace,
            down_since,
            learner,
            evicted,
            space,
            snapshot,
            preflight,
            log_renewed,
            drill,
            histories,
            last_step,
            voters_since,
        };
        Self { machines, etcd, postgres }
    }
}
