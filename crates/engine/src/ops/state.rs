//! `raftsman state`: the ledger of every cluster → whether it is intact, and a repaired ledger.

use std::sync::Arc;

use jiff::Timestamp;
use raftsman_core::desired::Stack;
use raftsman_core::observed::{EtcdLedger, Ledger, TrustDomain};
use raftsman_core::spec::{Name, Spec};
use serde::Serialize;
use serde_json::json;

use super::OpError;
use super::begin::{Begun, Consent, begin, clusters};
use crate::authorities::only_kept;
use crate::fleet::{Context, Fleet, FleetError};
use crate::journal::Journal;
use crate::observe::Observer;
use crate::stack::{StackError, StackHandle};
use crate::store::{Lock, StoreError};

/// The ledger of one cluster.
#[derive(Debug, Clone, Serialize)]
pub struct LedgerState {
    /// The cluster.
    pub cluster: Name,
    /// The ledger's version; none where it is missing, damaged or not made yet.
    pub version: Option<u64>,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// How many earlier versions the history holds.
    pub history: usize,
    /// Copies in the history that are damaged.
    pub damaged_copies: Vec<u64>,
    /// What `repair` does.
    pub remedy: Remedy,
}

/// How a ledger is repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Nothing is wrong.
    None,
    /// This version of the history, the last that was written, replaces it.
    History {
        /// Its number.
        version: u64,
    },
    /// It is rebuilt from the machines and members.
    World,
}

/// A repaired ledger.
#[derive(Debug, Clone, Serialize)]
pub struct Repaired {
    /// The cluster.
    pub cluster: Name,
    /// From where.
    pub from: Remedy,
    /// Its version now.
    pub version: u64,
    /// What could not be restored.
    pub lost: Vec<&'static str>,
}

/// What no observation can tell.
const LOST: [&str; 5] = [
    "members that were marked to be replaced",
    "since when members are down",
    "measured timers (`raftsman preflight --save` measures again)",
    "the record of the last snapshot and drill",
    "the highest revision ever seen, beyond what members show now",
];

fn chosen<'a>(fleet: &'a Fleet, only: &'a [Name]) -> impl Iterator<Item = &'a Stack> {
    fleet.desired.stacks.iter().filter(|c| only.is_empty() || only.contains(&c.name))
}

/// Checks the ledgers. Machines are observed where a ledger is missing: if there never was one, there are no machines.
pub async fn check(fleet: &Arc<Fleet>, only: &[Name]) -> Result<Vec<LedgerState>, OpError> {
    let mut states = Vec::new();
    for desired in chosen(fleet, only) {
        let name = desired.name.as_str();
        let copies = fleet.store.history(name).await?;
        let (version, problem) = match StackHandle::open(fleet, desired).await {
            Ok(cluster) if cluster.has_ledger() => (Some(cluster.version()), None),
            Ok(cluster) => match Observer::new(Arc::new(cluster))?.look().await {
                Ok(_) => (None, None),
                Err(error) => (None, Some(lost(error)?)),
            },
            Err(error) => (None, Some(lost(error)?)),
        };
        let newest = fleet.store.newest_in_history::<Ledger>(name).await?;
        let remedy = match (&problem, newest) {
            (None, _) => Remedy::None,
            (Some(_), Some(kept)) => Remedy::History { version: kept.version.number() },
            (Some(_), None) => Remedy::World,
        };
        let damaged_copies = copies.iter().filter(|(_, fault)| fault.is_some()).map(|(number, _)| *number).collect();
        let (cluster, history) = (desired.name.clone(), copies.len());
        states.push(LedgerState { cluster, version, problem, history, damaged_copies, remedy });
    }
    Ok(states)
}

/// What is wrong with a ledger; every other error is returned as it is.
fn lost(error: StackError) -> Result<String, OpError> {
    match error {
        StackError::Store(StoreError::LedgerMissing { trace, .. }) => {
            Ok(format!("it is missing, though there is {trace}"))
        }
        StackError::Store(StoreError::LedgerDamaged { detail, .. }) => Ok(format!("it is damaged: {detail}")),
        other => Err(other.into()),
    }
}

/// The whole of `raftsman state repair`: checks under the lock, asks, and repairs what is lost or damaged.
pub async fn run_repair(
    spec: Spec,
    context: &Context,
    only: &[Name],
    consent: Consent<'_, Vec<LedgerState>>,
) -> Result<Vec<Repaired>, OpError> {
    let scope = clusters(&spec, only);
    let Begun { fleet, lock, .. } = begin(spec, context, "state repair", &scope).await?;
    let found = check(&fleet, only).await?;
    (consent.show)(&found);
    if found.iter().all(|one| one.problem.is_none()) {
        return Ok(Vec::new());
    }
    consent.ask(&found)?;
    repair(&fleet, &lock, &found).await
}

/// Repairs the ledgers that are lost or damaged.
pub async fn repair(fleet: &Arc<Fleet>, lock: &Lock, states: &[LedgerState]) -> Result<Vec<Repaired>, OpError> {
    let mut done = Vec::new();
    for state in states.iter().filter(|state| state.problem.is_some()) {
        let name = state.cluster.as_str();
        let (ledger, lost) = match state.remedy {
            Remedy::None => continue,
            Remedy::History { .. } => match fleet.store.newest_in_history::<Ledger>(name).await? {
                Some(kept) => (kept.value, Vec::new()),
                None => continue,
            },
            Remedy::World => {
                let Some(desired) = fleet.desired.stacks.iter().find(|c| c.name == state.cluster) else { continue };
                (rebuild(fleet, desired).await?, LOST.to_vec())
            }
        };
        let version = fleet.store.replace_cluster(lock, name, &ledger).await?.number();
        let journal = Journal::new(&fleet.store, &fleet.context, lock);
        journal.note(Some(&state.cluster), "repaired", json!({ "from": state.remedy, "version": version })).await?;
        done.push(Repaired { cluster: state.cluster.clone(), from: state.remedy, version, lost });
    }
    Ok(done)
}

/// The cluster with the addresses of machines that exist: only the lost ledger had those that the provider assigned.
async fn where_it_is(fleet: &Fleet, desired: &Stack) -> Result<Stack, OpError> {
    let unplaced: Vec<Name> = desired.unplaced_machines().map(|machine| machine.name.clone()).collect();
    let mut placed = desired.clone();
    for (machine, found) in fleet.machine_records(&unplaced).await {
        let cluster = desired.name.clone();
        match found {
            Ok(Some(found)) => placed = placed.place(&machine, found.address).map_err(FleetError::from)?,
            Ok(None) => {}
            Err(error) => return Err(StackError::MachineUnknown { cluster, machine, error }.into()),
        }
    }
    Ok(placed)
}

async fn rebuild(fleet: &Arc<Fleet>, desired: &Stack) -> Result<Ledger, OpError> {
    let kept = async |side: TrustDomain| {
        only_kept(&fleet.store, &desired.name, side).await?.map_err(|count| {
            let cluster = desired.name.clone();
            OpError::RebuildRotation { cluster, side, count }
        })
    };
    let (peers, clients) = (kept(TrustDomain::Peers).await?, kept(TrustDomain::Clients).await?);
    let etcd = EtcdLedger { peers: peers.clone(), clients: clients.clone(), ..EtcdLedger::default() };
    let draft = Ledger { etcd, ..Ledger::default() };
    let desired = &where_it_is(fleet, desired).await?;
    let draft = StackHandle::draft(fleet, desired, draft);
    let observed = Observer::new(Arc::new(draft))?.look().await?;
    Ledger::rebuilt_from(desired, (peers, clients), &observed, Timestamp::now())
        .map_err(|source| OpError::Rebuild { cluster: desired.name.clone(), source })
}
