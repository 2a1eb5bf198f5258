//! HAProxy's admin socket and certificate, the machine's addresses → the balancer's part of the report.

use std::collections::BTreeMap;
use std::path::PathBuf;

use raftsman_api::v1;
use raftsman_core::observed::{BalancerFacts, ServerFacts, ServerState};
use raftsman_core::render::haproxy::TLS;
use raftsman_core::spec::Name;
use tokio::runtime::Handle;

use crate::access::certs::{CertsError, Store};
use crate::machine::addresses;
use crate::root::Root;
use crate::status::describe;
use crate::supervisor::config;
use crate::supervisor::program::Program;

pub mod haproxy;
pub mod keepalived;

/// Where the certificate is that HAProxy presents to Patroni.
pub fn tls_dir(root: &Root) -> PathBuf {
    root.path().join(TLS)
}

/// The store of that certificate.
pub fn store(root: &Root) -> Store {
    Store::new(tls_dir(root))
}

/// What a machine has of a balancer, and what a HAProxy that runs says of the servers behind it; nothing where there is
/// neither. On a thread that may block.
pub fn report(root: &Root, runs: bool) -> Result<Option<v1::BalancerReport>, CertsError> {
    let certificate = store(root).describe(v1::Purpose::Balancer, "")?;
    if !runs {
        let has = |certificate| v1::BalancerReport { certificate: Some(certificate), ..v1::BalancerReport::default() };
        return Ok(certificate.map(has));
    }
    let has_virtual_address = config::read(root, Program::Keepalived)
        .ok()
        .flatten()
        .and_then(|(_, config)| keepalived::virtual_address(&config))
        .is_some_and(addresses::has);
    let (facts, problem) = match Handle::current().block_on(haproxy::facts(root)) {
        Ok(facts) => (facts, String::new()),
        Err(error) => (BalancerFacts::default(), describe(&error)),
    };
    let (servers, replicas) = (wire(facts.servers), wire(facts.replicas));
    Ok(Some(v1::BalancerReport { servers, problem, has_virtual_address, replicas, certificate }))
}

fn wire(servers: BTreeMap<Name, ServerFacts>) -> Vec<v1::ServerReport> {
    let one = |(name, server): (Name, ServerFacts)| v1::ServerReport {
        name: name.to_string(),
        state: state(server.state).into(),
        connections: server.connections,
    };
    servers.into_iter().map(one).collect()
}

fn state(state: ServerState) -> v1::ServerState {
    match state {
        ServerState::Up => v1::ServerState::Up,
        ServerState::Draining => v1::ServerState::Draining,
        ServerState::Down => v1::ServerState::Down,
        ServerState::Maintenance => v1::ServerState::Maintenance,
    }
}
