//! A lost ledger, the rest of the state and an observation → a ledger that is no less careful than the lost one.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{EtcdLedger, Ledger};
use crate::desired::Stack;
use crate::observed::{Data, Observed, Trust, TrustDomain, View};
use crate::spec::Name;

/// The incarnation of a machine that etcd was started on and that cannot be asked: no machine has it, so that a machine
/// that returns without its data is never taken for the previous member.
const UNKNOWN_INCARNATION: &str = "unknown";

/// Why no ledger can be made of what is seen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    /// A machine cannot be asked whether it has data.
    #[error(
        "machine `{0}` cannot be asked what it holds: bring it back, or bring the state's directory back from a copy"
    )]
    Silent(Name),
    /// Machines hold data of several clusters.
    #[error(
        "the machines hold data of several clusters: which one is meant cannot be seen; bring the state's directory back \
         from a copy"
    )]
    SeveralClusters,
    /// A recovery or a restore may have been under way.
    #[error(
        "machine `{0}` had data and has none now: a restore or a recovery may have been under way; bring the state's \
         directory back from a copy"
    )]
    DataGone(Name),
    /// Members have data, and the state has no CA that they trust.
    #[error(
        "members have data, and the state keeps no {0} CA: a new one would be trusted by none of them; bring the state's \
         directory back from a copy, with its certificates and secrets"
    )]
    NoAuthority(TrustDomain),
}

impl Ledger {
    /// A ledger of what is seen. Where the observation leaves something open, the ledger assumes that more may have
    /// happened, not less.
    pub fn rebuilt_from(
        desired: &Stack,
        trust: (Option<Trust>, Option<Trust>),
        observed: &Observed,
        now: Timestamp,
    ) -> Result<Self, RebuildError> {
        let (peers, clients) = trust;
        let mut ledger = Self { etcd: EtcdLedger { peers, clients, ..EtcdLedger::default() }, ..Self::default() };
        let view = View::of(observed);
        let listed = view.listed.filter(|_| view.has_quorum());
        let mut on_disk = BTreeMap::new();
        for (name, seen) in observed.member_machines() {
            match seen.report() {
                Some(report) => match report.etcd.data {
                    Data::Present { cluster, .. } => {
                        on_disk.insert(name.clone(), (cluster, report.incarnation.clone()));
                    }
                    Data::Empty if report.etcd.had_data && listed.is_none() => {
                        return Err(RebuildError::DataGone(name.clone()));
                    }
                    Data::Empty | Data::Unreadable { .. } => {}
                },
                // A majority's member list tells which machines are members; without it a silent machine may hold
                // anything.
                None if seen.machine.is_absent() || listed.is_some() => {}
                None => return Err(RebuildError::Silent(name.clone())),
            }
        }
        let mut clusters: Vec<_> = on_disk.values().map(|(cluster, _)| *cluster).collect();
        clusters.sort_unstable();
        clusters.dedup();
        let cluster = match clusters.as_slice() {
            [] => return Ok(ledger),
            [only] => *only,
            _ => return Err(RebuildError::SeveralClusters),
        };
        if let Some(side) = TrustDomain::ALL.into_iter().find(|side| ledger.etcd.trust(*side).is_none()) {
            return Err(RebuildError::NoAuthority(side));
        }
        ledger.etcd.cluster = Some(cluster);
        ledger.etcd.auth = Some(desired.etcd.auth);
        ledger.etcd.reshaped = true;
        for member in &desired.etcd.members {
            ledger.etcd.members.insert(member.name.clone(), member.peer_url());
        }
        ledger.etcd.founders.clone_from(&ledger.etcd.members);
        ledger.etcd.started = on_disk.into_iter().map(|(name, (_, incarnation))| (name, incarnation)).collect();
        for member in listed.unwrap_or_default() {
            if let Some(name) = ledger.etcd.name_of(member) {
                ledger.etcd.started.entry(name).or_insert_with(|| UNKNOWN_INCARNATION.to_owned());
            }
        }
        ledger.etcd.last_revision = view.answering.values().map(|etcd| etcd.revision).max().unwrap_or(0);
        ledger.learn(desired, observed, now);
        Ok(ledger)
    }
}
