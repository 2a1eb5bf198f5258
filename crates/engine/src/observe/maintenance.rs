//! An alarm → its cause: what fills the database, or which member's data differs from the others'.

use std::time::{Duration, Instant};

use etcd_client::{Client, Error, GetOptions, KeyValue, WatchOptions};
use futures::future::join_all;
use jiff::Timestamp;
use raftsman_core::observed::{Alarm, Filling, Hash, Hashes, Maintenance, Observed, PrefixCounter, View};
use raftsman_core::spec::Name;
use raftsman_etcd::{EtcdError, bounded, within};

use super::Observer;
use crate::stack::ClusterCredentials;

/// The limit for counting keys; the keys counted by then stand for all.
const COUNTING: Duration = Duration::from_secs(5);
/// The limit for reading samples.
const SAMPLING: Duration = Duration::from_secs(3);
/// Keys a call.
const PAGE: i64 = 5_000;
/// When keys are long, so few fit into an answer.
const SMALL_PAGE: i64 = 50;
/// What etcd keeps beside key and value, about.
const OVERHEAD: u64 = 64;
/// A value that does not fit into an answer has this size at least.
const HUGE: u64 = 4 << 20;
/// A member reads its whole database for a hash.
const HASHING: Duration = Duration::from_secs(120);
/// How long a result is reused: the contents of a database change slowly.
const FILLING_AGE: Duration = Duration::from_secs(60);
/// How long hashes are reused: while the alarm is raised, no client writes.
const HASHES_AGE: Duration = Duration::from_secs(10);

/// What was found last, and when.
#[derive(Debug, Default)]
pub(super) struct Causes {
    filling: Option<(Instant, Filling)>,
    hashes: Option<(Instant, Hashes)>,
}

impl Observer {
    /// Finds the causes of the observed alarms.
    pub(super) async fn look_into_alarms(&self, observed: &Observed, credentials: &ClusterCredentials) -> Maintenance {
        // A member that does not start because its data differs leaves open which data is right.
        let disputed = observed.reports().map(|(_, report)| report);
        let disputed = disputed.into_iter().any(|report| report.etcd.service.finds_others_different());
        let (no_space, corrupt, asked, voters) = {
            let view = View::of(observed);
            if !view.has_quorum() {
                return Maintenance::default();
            }
            // A follower has less load than the leader.
            let asked = view.healthy.iter().find(|name| view.leader != Some(**name)).or(view.healthy.first());
            let voters: Vec<Name> =
                view.answering.iter().filter(|(_, e)| !e.learner).map(|(n, _)| (*n).clone()).collect();
            (view.alarmed(Alarm::NoSpace), view.corrupt() || disputed, asked.map(|name| (*name).clone()), voters)
        };
        let mut found = self.maintenance.lock().await;
        let fresh = |at: &Instant, age| at.elapsed() < age;
        if !no_space {
            found.filling = None;
        } else if let Some(name) = asked.filter(|_| !found.filling.as_ref().is_some_and(|f| fresh(&f.0, FILLING_AGE)))
            && let Some(filling) = self.filling(&name, credentials).await
        {
            found.filling = Some((Instant::now(), filling));
        }
        let same = |hashes: &Hashes| voters.iter().all(|name| hashes.members.contains_key(name));
        if !corrupt {
            found.hashes = None;
        } else if !found.hashes.as_ref().is_some_and(|(at, h)| fresh(at, HASHES_AGE) && same(h)) {
            let hashes = self.hashes(observed, credentials).await;
            found.hashes = Some((Instant::now(), hashes));
        }
        Maintenance {
            filling: found.filling.as_ref().map(|(_, filling)| filling.clone()),
            hashes: found.hashes.as_ref().map(|(_, hashes)| hashes.clone()),
        }
    }

    async fn filling(&self, name: &Name, credentials: &ClusterCredentials) -> Option<Filling> {
        let client = self.etcd(name)?.client(credentials).await.ok()?;
        Box::pin(filling(client)).await.ok()
    }

    /// One hash of the data of every member that answers, all at the same revision.
    pub async fn hashes(&self, observed: &Observed, credentials: &ClusterCredentials) -> Hashes {
        let (revision, names) = {
            let view = View::of(observed);
            // Every voter that answers has applied this revision.
            let revision = view.answering.values().filter(|e| !e.learner).map(|e| e.revision).min().unwrap_or(0);
            (revision, view.answering.keys().map(|name| (*name).clone()).collect::<Vec<Name>>())
        };
        let asked = names.into_iter().map(|name| async move {
            let hash = self.hash(&name, revision, credentials).await;
            (name, hash.unwrap_or_else(|error| Hash::Unknown(error.to_string())))
        });
        Hashes { revision, members: join_all(asked).await.into_iter().collect() }
    }

    async fn hash(&self, name: &Name, revision: i64, credentials: &ClusterCredentials) -> Result<Hash, EtcdError> {
        let Some(link) = self.etcd(name) else { return Ok(Hash::Unknown("it has no address".to_owned())) };
        let mut client = link.client(credentials).await?;
        let answer = within(HASHING, async { Ok(client.hash_kv(revision).await?) }).await?;
        Ok(Hash::Known { hash: answer.hash(), compacted: answer.compact_version() })
    }

    /// Observes and compares the hashes anew, for `verify`, without an alarm.
    pub async fn compare(&self) -> Result<(Observed, Option<Hashes>), crate::stack::StackError> {
        let observed = self.look().await?;
        let hashes = match self.credentials(Timestamp::now()).await? {
            Some(credentials) => Some(self.hashes(&observed, &credentials).await),
            None => None,
        };
        Ok((observed, hashes))
    }
}

/// Counts the keys by their prefixes, and reads some of each as samples.
async fn filling(mut client: Client) -> Result<Filling, EtcdError> {
    let begun = Instant::now();
    let compacted = compacted(&mut client).await.unwrap_or(0);
    let mut tally = PrefixCounter::default();
    let (mut from, mut limit) = (vec![0], PAGE);
    let complete = loop {
        let options = GetOptions::new().with_from_key().with_keys_only().with_serializable().with_limit(limit);
        let page = match bounded(async { Ok(client.get(from.clone(), Some(options)).await?) }).await {
            Ok(page) => page,
            Err(_) if limit > SMALL_PAGE => {
                limit = SMALL_PAGE;
                continue;
            }
            Err(error) => return Err(error),
        };
        for kv in page.kvs() {
            tally.add(kv.key(), kept(kv, compacted));
        }
        match page.kvs().last() {
            Some(last) if page.more() => from = [last.key(), &[0]].concat(),
            _ => break true,
        }
        if begun.elapsed() > COUNTING {
            break false;
        }
    };
    let mut sizes = Vec::new();
    let begun = Instant::now();
    for sampled in tally.top() {
        let (mut sum, mut count) = (0, 0);
        for key in &sampled.samples {
            let read = GetOptions::new().with_serializable();
            let size = match bounded(async { Ok(client.get(key.clone(), Some(read)).await?) }).await {
                Ok(found) => found.kvs().first().map(|kv| (kv.key().len() + kv.value().len()) as u64),
                Err(EtcdError::Call(Error::GRpcStatus(status))) if status.code() == tonic::Code::OutOfRange => {
                    Some(HUGE)
                }
                Err(_) => None,
            };
            if let Some(size) = size {
                (sum, count) = (sum + size + OVERHEAD, count + 1);
            }
            if count > 0 && begun.elapsed() > SAMPLING {
                break;
            }
        }
        sizes.push((sampled, sum / count.max(1)));
    }
    Ok(tally.filling(complete, &sizes))
}

/// How many values of a key are kept at most: those since the last compaction, and the one before.
fn kept(kv: &KeyValue, compacted: i64) -> u64 {
    let since = (kv.mod_revision() - compacted).max(0) + 1;
    u64::try_from(kv.version().min(since)).unwrap_or(1).max(1)
}

/// The revision up to which history was compacted: etcd returns it to a watch that starts before it.
async fn compacted(client: &mut Client) -> Option<i64> {
    const UNUSED_KEY: &str = "raftsman/history";
    let options = GetOptions::new().with_serializable().with_revision(1);
    if bounded(async { Ok(client.get(UNUSED_KEY, Some(options)).await?) }).await.is_ok() {
        return Some(0);
    }
    let described = async {
        let mut watch = client.watch(UNUSED_KEY, Some(WatchOptions::new().with_start_revision(1))).await?;
        while let Some(message) = watch.message().await? {
            if message.compact_revision() > 0 {
                return Ok(Some(message.compact_revision()));
            }
        }
        Ok(None)
    };
    bounded(described).await.ok().flatten()
}
