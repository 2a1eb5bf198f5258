//! A machine that goes → deleted where it was made, or left clean where it was there before.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use raftsman_api::fence::stamp;
use raftsman_api::v1::LeaveRequest;
use raftsman_core::desired::{AGENT_PORT, Capabilities};
use raftsman_core::spec::Name;
use raftsman_providers::ProviderError;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::fleet::Fleet;
use crate::observe::{AgentLink, LinkError};
use crate::store::{Lock, StoreError};
use crate::tokens::token_name;

/// An agent that leaves has etcd stopped and all files removed within this.
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

impl Fleet {
    /// Gives a machine back, under this lock; fine when there is none. With the id of the machine that was seen, only that
    /// one.
    pub async fn give_back(&self, lock: &Lock, name: &str, seen: Option<&str>) -> Result<(), GiveBackError> {
        let was_there = !Capabilities::of(self.spec.machines.provider).makes;
        let machine = Name::parse(name).ok();
        self.provider.is_the_same(name, seen).await?;
        if was_there
            && let Some(found) = self.provider.machine(name).await?
            && let Some(machine) = &machine
        {
            // When it does not leave, its provider sees whether it is still there, and has another way.
            let _ = self.leave(machine, found.address, lock.generation()).await;
        }
        self.provider.delete(name, seen).await?;
        if let Some(machine) = machine {
            self.secrets.delete(lock, &token_name(&machine))?;
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
