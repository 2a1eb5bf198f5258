//! `raftsman restore`: a backup → what would be lost, and a decision that `apply` carries out.

use std::sync::Arc;

use jiff::Timestamp;
use raftsman_backup::Keys;
use raftsman_core::backup::FullName;
use raftsman_core::observed::{Observed, Restoration};
use raftsman_core::plan::restore::{decide, replaced};
use raftsman_core::spec::Name;
use serde::Serialize;
use serde_json::json;

use super::plan::{FleetPlan, cluster_plan};
use super::{OpError, pick_cluster};
use crate::act::restore::snapshot;
use crate::backup::StoreOf;
use crate::cluster::ClusterAt;
use crate::fleet::Fleet;
use crate::journal::Journal;
use crate::observe::Observer;
use crate::point::{Point, Wish};
use crate::rehearsal::{Rehearsed, Stage, rehearse};
use crate::store::Lock;

/// No cluster writes so often between the last time that anybody looked and now.
const BUMP: u64 = 1_000_000_000;

/// What restoring a backup would do.
#[derive(Debug, Serialize)]
pub struct Survey {
    /// Into which cluster.
    pub cluster: Name,
    /// From where.
    pub place: String,
    /// The full backup.
    pub backup: FullName,
    /// So many batches of changes are made again.
    pub batches: usize,
    /// Everything up to this revision comes back.
    pub revision: i64,
    /// When the last change was made that comes back.
    pub at: Timestamp,
    /// The highest revision that was ever seen of this cluster.
    pub seen: i64,
    /// What `apply` would do.
    #[serde(skip)]
    pub plan: FleetPlan,
    #[serde(skip)]
    point: Point,
    #[serde(skip)]
    observed: Observed,
}

impl Survey {
    /// So many revisions go, as far as anybody knows.
    pub fn lost(&self) -> i64 {
        (self.seen - self.revision).max(0)
    }
}

/// Whose backups: those of the cluster itself, or of another one, as `CLUSTER` or `FLEET/CLUSTER`.
fn source(fleet: &Fleet, cluster: &Name, from: Option<&str>) -> Result<StoreOf, OpError> {
    let Some(from) = from else { return Ok(StoreOf::open(fleet, cluster)?) };
    let name = |text: &str| Name::parse(text).map_err(|error| OpError::Unclear(error.to_string()));
    let (owner, cluster) = match from.split_once('/') {
        Some((owner, cluster)) => (name(owner)?, name(cluster)?),
        None => (fleet.spec.fleet.clone(), name(from)?),
    };
    Ok(StoreOf::of_another(fleet, &owner, &cluster)?)
}

/// Looks at what there is, and what would become of it. Nothing is changed.
pub async fn survey(
    fleet: &Arc<Fleet>,
    cluster: Option<&str>,
    from: Option<&str>,
    wish: Wish,
    keys: &Keys,
) -> Result<Survey, OpError> {
    let cluster = Arc::new(pick_cluster(fleet, cluster)?);
    let at = source(fleet, &cluster.desired.name, from)?;
    let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
    if observed.ledger.adopted.is_some() {
        return Err(OpError::Unclear("others run this cluster: restore it where it is run".to_owned()));
    }
    if observed.ledger.cluster.is_none() {
        return Err(OpError::Unclear(format!(
            "`{}` has no machines yet: run `raftsman apply` first",
            cluster.desired.name
        )));
    }
    let point = Point::find(&at, wish, keys).await?;
    let mut then = observed.clone();
    decide(&mut then.ledger, restoration(&cluster, &observed, &point, None));
    let plan = cluster_plan(&cluster.desired, &then);
    Ok(Survey {
        cluster: cluster.desired.name.clone(),
        place: at.store.place().to_owned(),
        backup: point.full.about.name,
        batches: point.batches.len(),
        revision: point.last(),
        at: point.at(),
        seen: seen(&observed),
        plan: FleetPlan { fleet: fleet.spec.fleet.clone(), clusters: vec![plan], strangers: Vec::new() },
        point,
        observed,
    })
}

pub(super) fn seen(observed: &Observed) -> i64 {
    let answers = observed.members.values().filter_map(|member| member.etcd.seen()).map(|etcd| etcd.revision);
    answers.max().unwrap_or(0).max(observed.ledger.last_revision)
}

fn restoration(cluster: &ClusterAt, observed: &Observed, point: &Point, tried: Option<&Rehearsed>) -> Restoration {
    let since = Timestamp::now();
    let desired = &cluster.desired;
    let revision = tried.map_or(point.last(), |tried| tried.revision);
    Restoration {
        backup: point.full.about.name,
        revision,
        keys: tried.map_or(point.full.hashed.keys, |tried| tried.keys),
        since,
        old: replaced(observed),
        members: desired.members.iter().map(|member| (member.name.clone(), member.peer_url())).collect(),
        version: desired.version,
        file: format!("{}-restored-{}.db", desired.name, since.as_millisecond()),
        sha256: tried.and_then(|tried| tried.sha256.clone()).unwrap_or_default(),
        bump: BUMP + u64::try_from(seen(observed) - revision).unwrap_or(0),
        agreed: false,
    }
}

/// Tries the backup on a machine, in a throwaway etcd, and writes the decision down: from now on `apply` restores it.
pub async fn mark(
    fleet: &Arc<Fleet>,
    lock: &Lock,
    survey: &Survey,
    from: Option<&str>,
    keys: &Keys,
    watch: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Rehearsed, OpError> {
    let cluster = Arc::new(pick_cluster(fleet, Some(survey.cluster.as_str()))?);
    let at = source(fleet, &survey.cluster, from)?;
    let mut restoration = restoration(&cluster, &survey.observed, &survey.point, None);
    let path = snapshot(&cluster, &restoration.file);
    let tried = try_out(&cluster, lock.generation(), &at, &survey.point, keys, Some(&path), watch).await?;
    restoration.revision = tried.revision;
    restoration.keys = tried.keys;
    restoration.bump = BUMP + u64::try_from(survey.seen - tried.revision).unwrap_or(0);
    restoration.sha256 = tried.sha256.clone().unwrap_or_default();
    cluster.remember(|ledger| decide(ledger, restoration.clone()))?;
    let journal = Journal::new(&fleet.store, &fleet.setting, lock);
    journal.note(Some(&survey.cluster), "restore", json!({ "restoration": restoration }))?;
    Ok(tried)
}

/// Restores a backup into a throwaway etcd on one of the cluster's machines.
pub(super) async fn try_out(
    cluster: &Arc<ClusterAt>,
    generation: u64,
    at: &StoreOf,
    point: &Point,
    keys: &Keys,
    save: Option<&std::path::Path>,
    watch: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Rehearsed, OpError> {
    let observer = Observer::new(Arc::clone(cluster))?;
    let observed = observer.look().await?;
    let version = cluster.desired.version;
    // One that has what it takes, and that does not lead: it has enough to do.
    let leader = raftsman_core::observed::View::of(&observed).leader.cloned();
    let mut able: Vec<&Name> = cluster.desired.members.iter().map(|member| &member.name).collect();
    able.retain(|name| {
        let report = observed.members.get(*name).and_then(|member| member.report());
        report.is_some_and(|report| report.etcd.installed.contains_key(&version))
    });
    able.sort_by_key(|name| Some((*name).clone()) == leader);
    let machine = (*able
        .first()
        .ok_or(OpError::Unclear("no machine answers that could try the backup: see `raftsman status`".to_owned()))?)
    .clone();
    let hands = crate::act::Hands { observer: &observer, generation };
    hands.stage(&machine, version).await?;
    let links = observer.links(&machine).ok_or_else(|| OpError::NoSuchMember(machine.to_string()))?;
    let stage = Stage { machine, agent: &links.agent, version };
    Ok(rehearse(at, point, keys, &stage, save, watch).await?)
}
