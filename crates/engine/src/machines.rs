//! Names → the provider's machines, connection by connection; a machine to remove → deleted where raftsman made it, or
//! cleaned where it existed before.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use futures::future::join_all;
use raftsman_api::fence::stamp;
use raftsman_api::v1::LeaveRequest;
use raftsman_core::desired::{AGENT_PORT, Capabilities};
use raftsman_core::spec::Name;
use raftsman_providers::{Connection, MachineRecord, ProviderError};
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::fleet::Fleet;
use crate::observe::{AgentLink, LinkError};
use crate::store::{Lock, StoreError};
use crate::tokens::token_name;

/// How long a connection of the provider may take to list machines: virsh over SSH needs several seconds.
const PROVIDER_LIMIT: Duration = Duration::from_secs(60);
/// An agent stops etcd and removes all files within this time.
const LEAVE_LIMIT: Duration = Duration::from_secs(60);
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);

/// Why a machine is still there.
#[derive(Debug, thiserror::Error)]
pub enum GiveBackError {
    /// The provider.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A connection of the provider that does not answer: the status of its machines is unknown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SilentConnection {
    /// Its name, where the provider has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// Why it cannot be asked.
    pub error: String,
}

impl fmt::Display for SilentConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.connection {
            Some(name) => write!(f, "the provider's connection `{name}` cannot be asked for machines: {}", self.error),
            None => write!(f, "the provider cannot be asked for machines: {}", self.error),
        }
    }
}

impl SilentConnection {
    fn is(&self, connection: &str) -> bool {
        self.connection.as_deref().unwrap_or_default() == connection
    }
}

/// The fleet's machines, as far as the provider's connections answer.
#[derive(Debug, Default)]
pub struct Inventory {
    /// By name, of all connections that answered.
    pub machines: Vec<MachineRecord>,
    /// Connections that did not.
    pub silent: Vec<SilentConnection>,
}

/// What the provider has of one machine, or why it cannot be asked.
pub type Lookup = Result<Option<MachineRecord>, String>;

/// Asks every connection for its machines, each within its own time.
async fn inventory(provider: &Connection, limit: Duration) -> Inventory {
    let asked = join_all(provider.connections().into_iter().map(|connection| async move {
        let answer = within(limit, provider.inventory_of(&connection)).await;
        (connection, answer.and_then(|found| found.map_err(|error| crate::error_chain(&error))))
    }));
    let mut inventory = Inventory::default();
    for (connection, answer) in asked.await {
        match answer {
            Ok(machines) => inventory.machines.extend(machines),
            Err(error) => {
                let connection = Some(connection).filter(|name| !name.is_empty());
                inventory.silent.push(SilentConnection { connection, error });
            }
        }
    }
    inventory.machines.sort_by(|a, b| a.name.cmp(&b.name));
    inventory
}

/// Asks for these machines, those of every connection within its own limit: a connection that hangs does not hide the
/// machines of another.
async fn records(provider: &Connection, names: &[Name], limit: Duration) -> BTreeMap<Name, Lookup> {
    let mut groups: BTreeMap<Option<String>, Vec<&Name>> = BTreeMap::new();
    for name in names {
        groups.entry(provider.connection_of(name.as_str())).or_default().push(name);
    }
    let asked = join_all(groups.into_values().map(|names| async move {
        let texts: Vec<String> = names.iter().map(ToString::to_string).collect();
        let answers: Vec<Lookup> = match within(limit, provider.machines(&texts)).await {
            Ok(found) => found.into_iter().map(|one| one.map_err(|error| crate::error_chain(&error))).collect(),
            Err(silent) => names.iter().map(|_| Err(silent.clone())).collect(),
        };
        names.into_iter().cloned().zip(answers).collect::<Vec<_>>()
    }));
    asked.await.into_iter().flatten().collect()
}

async fn within<T>(limit: Duration, asked: impl Future<Output = T>) -> Result<T, String> {
    timeout(limit, asked).await.map_err(|_| format!("no answer within {} s", limit.as_secs()))
}

impl Fleet {
    /// The machines that the provider has of this fleet, as far as its connections answer.
    pub async fn inventory(&self) -> Inventory {
        inventory(&self.provider, PROVIDER_LIMIT).await
    }

    /// What the provider has of each of these machines.
    pub async fn machine_records(&self, names: &[Name]) -> BTreeMap<Name, Lookup> {
        records(&self.provider, names, PROVIDER_LIMIT).await
    }

    /// Those of the silent connections that a machine of this name may be on.
    pub fn silent_for<'a>(
        &self,
        silent: &'a [SilentConnection],
        machine: &Name,
    ) -> impl Iterator<Item = &'a SilentConnection> + use<'a> {
        let on = self.provider.connection_of(machine.as_str());
        silent.iter().filter(move |one| on.as_deref().is_none_or(|on| one.is(on)))
    }

    /// Releases a machine, under this lock; succeeds when there is none. With the id of the observed machine, only that
    /// one.
    pub async fn give_back(&self, lock: &Lock, name: &str, seen: Option<&str>) -> Result<(), GiveBackError> {
        let was_there = !Capabilities::of(self.spec.machines.provider).makes;
        let machine = Name::parse(name).ok();
        self.provider.is_the_same(name, seen).await?;
        if was_there
            && let Some(found) = self.provider.machine(name).await?
            && let Some(machine) = &machine
        {
            // If the agent does not leave, the provider checks the machine itself and has another way to clean it.
            let _ = self.leave(machine, found.address, lock.generation()).await;
        }
        self.provider.delete(name, seen).await?;
        if let Some(machine) = machine {
            self.secrets.delete(lock, &token_name(&machine)).await?;
        }
        Ok(())
    }

    /// Has the agent leave its machine, and waits until it is gone.
    async fn leave(&self, machine: &Name, address: IpAddr, generation: u64) -> Result<(), LinkError> {
        let link = AgentLink::new(self, machine, address)?;
        let mut agent = link.client().await?;
        agent.leave(stamp(tonic::Request::new(LeaveRequest {}), generation)).await?;
        let begun = Instant::now();
        let socket = SocketAddr::new(address, AGENT_PORT);
        while begun.elapsed() < LEAVE_LIMIT {
            // The agent goes last.
            match timeout(CONNECT_LIMIT, TcpStream::connect(socket)).await {
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => return Ok(()),
                _ => sleep(POLL).await,
            }
        }
        Err(LinkError::StillThere { machine: machine.clone(), after: LEAVE_LIMIT })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;
    use raftsman_providers::{LocalError, MachineOrder, Power, Provider};

    use super::*;

    /// Three connections with a machine each, which bears the name of its connection: one answers, one fails, one
    /// hangs.
    #[derive(Debug)]
    struct Three;

    fn record(name: &str) -> MachineRecord {
        MachineRecord {
            name: name.to_owned(),
            id: None,
            address: [10, 0, 0, 1].into(),
            agent_port: 2378,
            power: Power::Running,
            finished: true,
            shape: None,
            zone: None,
        }
    }

    fn refused() -> ProviderError {
        LocalError::NotOurs { dir: "/x".into() }.into()
    }

    #[async_trait]
    impl Provider for Three {
        async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError> {
            Err(refused())
        }
        fn connections(&self) -> Vec<String> {
            ["up", "refuses", "hangs"].map(str::to_owned).into()
        }
        fn connection_of(&self, name: &str) -> Option<String> {
            Some(name.to_owned())
        }
        async fn inventory_of(&self, connection: &str) -> Result<Vec<MachineRecord>, ProviderError> {
            Ok(self.machine(connection).await?.into_iter().collect())
        }
        async fn machine(&self, name: &str) -> Result<Option<MachineRecord>, ProviderError> {
            match name {
                "up" => Ok(Some(record(name))),
                "refuses" => Err(refused()),
                _ => std::future::pending().await,
            }
        }
        async fn create(&self, _: &MachineOrder) -> Result<MachineRecord, ProviderError> {
            Err(refused())
        }
        async fn start(&self, _: &str) -> Result<(), ProviderError> {
            Err(refused())
        }
        async fn readdress(&self, _: &str, _: IpAddr) -> Result<(), ProviderError> {
            Err(refused())
        }
        async fn dismantle(&self, _: &str, _: Option<&str>) -> Result<(), ProviderError> {
            Err(refused())
        }
        async fn delete(&self, _: &str, _: Option<&str>) -> Result<(), ProviderError> {
            Err(refused())
        }
    }

    #[tokio::test]
    async fn a_connection_that_fails_or_hangs_hides_only_its_own_machines() {
        let (provider, limit): (Connection, _) = (Arc::new(Three), Duration::from_millis(50));
        let found = inventory(&provider, limit).await;
        assert_eq!(found.machines, [record("up")]);
        let silent: Vec<_> = found.silent.iter().map(|one| one.connection.as_deref()).collect();
        assert_eq!(silent, [Some("refuses"), Some("hangs")]);

        let names = ["hangs", "refuses", "up"].map(|name| Name::parse(name).unwrap());
        let found = records(&provider, &names, limit).await;
        assert_eq!(found[&names[2]], Ok(Some(record("up"))));
        assert!(found[&names[1]].is_err());
        assert_eq!(found[&names[0]], Err("no answer within 0 s".to_owned()));
    }
}
