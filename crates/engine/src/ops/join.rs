//! `raftsman join`: a host of the file that nobody here may log in to → what a person tells its agent.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use raftsman_core::boot::Boot;
use raftsman_core::spec::{Name, Provider, Spec};
use serde::Serialize;

use super::{OpError, pick_member};
use crate::act;
use crate::fleet::Fleet;
use crate::store::Lock;

/// What takes a host in.
#[derive(Debug, Clone, Serialize)]
pub struct Invitation {
    /// The host.
    pub machine: Name,
    /// Where its agent will answer.
    pub address: IpAddr,
    /// Until when.
    pub until: Option<Timestamp>,
    /// What its agent reads, on one line. Of no value to anybody once the host is taken in.
    pub boot: Boot,
}

/// Whether the file has hosts to invite: before anything is made.
pub fn check(spec: &Spec) -> Result<(), OpError> {
    if spec.machines.provider == Provider::Hosts { Ok(()) } else { Err(OpError::NoHosts) }
}

/// Invites a host: the next `apply` takes it in, once its agent was told.
pub fn join(fleet: &Arc<Fleet>, _: &Lock, host: &str) -> Result<Invitation, OpError> {
    let (cluster, machine) = pick_member(fleet, None, host)?;
    check(&fleet.spec)?;
    let missing = || OpError::NoSuchMachine { name: host.to_owned(), known: Vec::new() };
    let address = cluster.desired.member(&machine).ok_or_else(missing)?.address;
    let boot = act::boot(fleet, &machine, address, Timestamp::now())?;
    Ok(Invitation { machine, address, until: boot.join_deadline, boot })
}
