//! HAProxy's admin socket and the machine's addresses → the balancer's part of the report.

use raftsman_api::v1;
use raftsman_core::observed::ServerState;
use tokio::runtime::Handle;

use crate::machine::addresses;
use crate::root::Root;
use crate::status::describe;
use crate::supervisor::config;
use crate::supervisor::program::Program;

pub mod haproxy;
pub mod keepalived;

/// What a HAProxy that runs says of the members behind it. On a thread that may block.
pub fn report(root: &Root) -> v1::BalancerReport {
    let has_virtual_address = config::read(root, Program::Keepalived)
        .ok()
        .flatten()
        .and_then(|(_, config)| keepalived::virtual_address(&config))
        .is_some_and(addresses::has);
    let (servers, problem) = match Handle::current().block_on(haproxy::facts(root)) {
        Ok(facts) => (facts.servers, String::new()),
        Err(error) => (std::collections::BTreeMap::default(), describe(&error)),
    };
    let servers = servers.into_iter().map(|(name, server)| v1::ServerReport {
        name: name.to_string(),
        state: state(server.state).into(),
        connections: server.connections,
    });
    v1::BalancerReport { servers: servers.collect(), problem, has_virtual_address }
}

fn state(state: ServerState) -> v1::ServerState {
    match state {
        ServerState::Up => v1::ServerState::Up,
        ServerState::Draining => v1::ServerState::Draining,
        ServerState::Down => v1::ServerState::Down,
        ServerState::Maintenance => v1::ServerState::Maintenance,
    }
}
