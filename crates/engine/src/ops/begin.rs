//! A file and a context → the open fleet, under the lock of what an operation changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use raftsman_core::spec::{Name, Spec};
use raftsman_providers::networks::Networks;

use super::destroy::remove_dir;
use super::{OpError, pick_member};
use crate::fleet::{Context, Fleet};
use crate::store::{Lock, LockInfo, LockScope, Protection, Store, StoreError};

/// A fleet, and the right to change it.
#[derive(Debug)]
pub struct Begun {
    /// The fleet.
    pub fleet: Arc<Fleet>,
    /// The lock of what is changed.
    pub lock: Lock,
    /// Whether there was no state before.
    pub made: bool,
}

/// Asks the operator before anything is changed.
pub struct Consent<'a, T> {
    /// Shows what will be done.
    pub show: &'a (dyn Fn(&T) + Sync),
    /// Whether it may be done; else, what the operator has to do first.
    pub approve: &'a (dyn Fn(&T) -> Result<(), String> + Sync),
}

impl<T> std::fmt::Debug for Consent<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consent").finish_non_exhaustive()
    }
}

impl<T> Consent<'_, T> {
    pub(super) fn ask(&self, what: &T) -> Result<(), OpError> {
        (self.approve)(what).map_err(OpError::Declined)
    }
}

/// The state of this fleet; none where it does not exist, or its identity is incomplete.
pub async fn state(spec: &Spec, context: &Context) -> Result<Option<Store>, OpError> {
    match Store::open(&context.state_dir(spec), spec.fleet.as_str()).await {
        Ok(store) => Ok(Some(store)),
        Err(StoreError::Missing { .. } | StoreError::Unfinished { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether this fleet has no state yet, or one whose creation was interrupted.
pub async fn is_new(spec: &Spec, context: &Context) -> Result<bool, OpError> {
    Ok(match state(spec, context).await? {
        Some(store) => !Fleet::is_complete(&store).await?,
        None => true,
    })
}

/// Opens the fleet to read it.
pub async fn open(spec: Spec, context: Context) -> Result<Arc<Fleet>, OpError> {
    // The fleet is large, and most of the future is room for it.
    Ok(Box::pin(Fleet::open(spec, context, Timestamp::now())).await?)
}

/// Makes the state where there is none yet, completes one whose creation was interrupted, takes the lock and opens the
/// fleet.
pub async fn begin(spec: Spec, context: &Context, verb: &str, scope: &LockScope) -> Result<Begun, OpError> {
    let (store, made) = match state(&spec, context).await? {
        Some(store) => (store, false),
        None => (Fleet::create(&spec, context, Protection::IdentityFile, Timestamp::now()).await?, true),
    };
    let info = LockInfo::new(verb, &context.user, &context.host);
    let begun = async {
        if Fleet::is_to_be_completed(&store, &spec).await? {
            // These are the fleet's own entries.
            Fleet::complete(&spec, context, &store.lock(info.clone()).await?, Timestamp::now()).await?;
        }
        let lock = store.lock_for(scope, info).await?;
        Ok::<_, OpError>((open(spec, context.clone()).await?, lock))
    };
    match Box::pin(begun).await {
        Ok((fleet, lock)) => Ok(Begun { fleet, lock, made }),
        Err(error) => {
            if made {
                withdraw(store, context).await?;
            }
            Err(error)
        }
    }
}

/// Removes a state that this operation made, when nothing can start. A state that another operator uses by now stays.
pub(super) async fn withdraw(store: Store, context: &Context) -> Result<(), OpError> {
    let lock = match store.lock(LockInfo::new("withdraw", &context.user, &context.host)).await {
        Ok(lock) => lock,
        Err(StoreError::Locked { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    Networks::new(context.registry.clone()).release(&store.fleet().id)?;
    remove_dir(&store.dir().join("artifacts"))?;
    store.remove(lock).await?;
    Ok(())
}

/// The lock of these clusters; of all clusters of the file where none is named.
pub fn clusters(spec: &Spec, only: &[Name]) -> LockScope {
    let named = |name: &&Name| only.is_empty() || only.contains(name);
    LockScope::Stacks(spec.etcd.keys().filter(named).map(ToString::to_string).collect())
}

/// A fleet that was applied before, under the lock of these clusters; of all of them where none is named.
pub(super) async fn locked(
    spec: Spec,
    context: &Context,
    verb: &str,
    only: &[Name],
) -> Result<(Arc<Fleet>, Lock), OpError> {
    let scope = clusters(&spec, only);
    locked_for(spec, context, verb, &scope).await
}

/// A fleet that was applied before, under the lock of the whole fleet.
pub(super) async fn locked_fleet(spec: Spec, context: &Context, verb: &str) -> Result<(Arc<Fleet>, Lock), OpError> {
    locked_for(spec, context, verb, &LockScope::Fleet).await
}

/// A fleet that was applied before, under the lock of the cluster of this name; without a name, of the only one.
pub(super) async fn locked_cluster(
    spec: Spec,
    context: &Context,
    verb: &str,
    cluster: Option<&str>,
) -> Result<(Arc<Fleet>, Lock), OpError> {
    let known = || spec.etcd.keys().map(ToString::to_string).collect::<Vec<_>>();
    let name = match cluster {
        Some(name) if spec.etcd.keys().any(|one| one.as_str() == name) => name.to_owned(),
        Some(name) => return Err(OpError::NoSuchCluster { name: name.to_owned(), known: known() }),
        None => match known().as_slice() {
            [only] => only.clone(),
            several => return Err(OpError::WhichCluster(several.to_vec())),
        },
    };
    locked_for(spec, context, verb, &LockScope::Stacks(BTreeSet::from([name]))).await
}

/// A fleet that was applied before, under the lock of the cluster that this member is of.
pub(super) async fn locked_member(
    spec: Spec,
    context: &Context,
    verb: &str,
    cluster: Option<&str>,
    member: &str,
) -> Result<(Arc<Fleet>, Lock), OpError> {
    if is_new(&spec, context).await? {
        return Err(OpError::NeverApplied);
    }
    let fleet = open(spec.clone(), context.clone()).await?;
    let cluster = pick_member(&fleet, cluster, member).await?.0.desired.name;
    // The operator has given a passphrase already: it is not requested again.
    locked_for(spec, &fleet.context, verb, &LockScope::Stacks(BTreeSet::from([cluster.to_string()]))).await
}

async fn locked_for(
    spec: Spec,
    context: &Context,
    verb: &str,
    scope: &LockScope,
) -> Result<(Arc<Fleet>, Lock), OpError> {
    if is_new(&spec, context).await? {
        return Err(OpError::NeverApplied);
    }
    let Begun { fleet, lock, .. } = begin(spec, context, verb, scope).await?;
    Ok((fleet, lock))
}
