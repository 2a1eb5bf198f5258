//! A healthy member of etcd → what Patroni of each PostgreSQL cluster keeps there.

use std::collections::BTreeMap;

use etcd_client::{Client, GetOptions};
use futures::future::join_all;
use jiff::Timestamp;
use raftsman_core::desired::Postgres;
use raftsman_core::observed::{Fact, Observed, PatroniKeys, PostgresObserved, View};
use raftsman_core::spec::Name;
use raftsman_etcd::{EtcdError, bounded};

use super::Observer;
use crate::stack::ClusterCredentials;

impl Observer {
    /// Reads Patroni's keys through one healthy member. Raftsman never writes them.
    pub(super) async fn look_for_patroni(
        &self,
        observed: &Observed,
        credentials: Option<&ClusterCredentials>,
        now: Timestamp,
    ) -> BTreeMap<Name, PostgresObserved> {
        let clusters = &self.cluster.desired.postgres;
        if clusters.is_empty() {
            return BTreeMap::new();
        }
        let client = match credentials {
            Some(credentials) => self.patronis_member(observed, credentials).await,
            None => Err("etcd cannot be asked yet".to_owned()),
        };
        let read = clusters.iter().map(|cluster| {
            let client = client.clone();
            async move {
                let keys = match client {
                    Ok(client) => read(client, cluster).await,
                    Err(error) => Err(error),
                };
                let keys = match keys {
                    Ok(value) => Fact::Seen { value, at: now },
                    Err(error) => Fact::Unreachable { error, since: now },
                };
                (cluster.name.clone(), PostgresObserved { keys, logins: BTreeMap::new() })
            }
        });
        join_all(read).await.into_iter().collect()
    }

    async fn patronis_member(&self, observed: &Observed, credentials: &ClusterCredentials) -> Result<Client, String> {
        let healthy = View::of(observed).healthy.into_iter().min().cloned();
        let link =
            healthy.and_then(|name| self.etcd(&name)).ok_or_else(|| "no member of etcd is healthy".to_owned())?;
        link.client(credentials).await.map_err(|error| error.to_string())
    }
}

async fn read(mut client: Client, cluster: &Postgres) -> Result<PatroniKeys, String> {
    let all = GetOptions::new().with_prefix();
    let range = async { Ok::<_, EtcdError>(client.get(cluster.prefix.as_str(), Some(all)).await?) };
    let found = bounded(range).await.map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let keys: Vec<(String, String, i64)> =
        found.kvs().iter().map(|kv| (text(kv.key()), text(kv.value()), kv.mod_revision())).collect();
    let keys = keys.iter().map(|(key, value, revision)| (key.as_str(), value.as_str(), *revision));
    PatroniKeys::read(&cluster.prefix, keys).map_err(|error| error.to_string())
}
