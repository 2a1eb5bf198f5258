//! What HAProxy reports over its admin socket (`show stat`) → each server's state at one instance of a balancer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::agent::{CertificateFacts, PortTaken, Service, ServiceState};
use crate::render::haproxy::{BACKEND, PRIMARY, REPLICAS};
use crate::spec::Name;

/// An instance of a balancer on one machine, as its agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerOnMachine {
    /// HAProxy.
    pub haproxy: PackagedProgram,
    /// keepalived.
    pub keepalived: PackagedProgram,
    /// What HAProxy reports, while it runs and answers.
    pub facts: BalancerFacts,
    /// Why it could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether the machine has the virtual address now.
    #[serde(default)]
    pub has_virtual_address: bool,
    /// The certificate that HAProxy shows to Patroni.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<CertificateFacts>,
}

/// A program of the distribution on one machine, as its agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackagedProgram {
    /// The version that is installed.
    pub installed: Option<String>,
    /// Digest of the configuration file.
    pub config: Option<String>,
    /// The text of that file, where the agent tells it: of keepalived, with the machine's interface in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_text: Option<String>,
    /// Digest of the configuration that the running process has.
    pub running_config: Option<String>,
    /// The process.
    pub service: Service,
    /// Ports that it needs and other processes hold.
    pub ports_taken: Vec<PortTaken>,
}

impl PackagedProgram {
    /// Whether its process runs.
    pub fn runs(&self) -> bool {
        self.service.state == ServiceState::Running
    }

    /// Whether it does not run, and is not meant to.
    pub fn is_stopped(&self) -> bool {
        self.service.state == ServiceState::Stopped
    }
}

/// What one instance reports about the servers behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerFacts {
    /// Each member, or each node of PostgreSQL, that it passes connections to, by name. Of nodes, the primary alone is up.
    pub servers: BTreeMap<Name, ServerFacts>,
    /// Each node that it passes connections of clients to that only read. Of these, standbys are up.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replicas: BTreeMap<Name, ServerFacts>,
}

/// What one instance reports about one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// Whether it gets new connections, and why not.
    pub state: ServerState,
    /// How many connections it has through this instance.
    pub connections: u64,
}

/// Whether a server gets new connections, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    /// It is healthy and gets new connections.
    Up,
    /// It is healthy, and was drained: it keeps its connections and gets no new ones.
    Draining,
    /// Its health checks fail.
    Down,
    /// It is in maintenance, and is not checked.
    Maintenance,
}

/// Why a report could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatError {
    /// The first line does not name the columns.
    #[error("HAProxy's report has no column `{0}`: its version is not one that raftsman knows (2.2 or later)")]
    NoColumn(&'static str),
    /// A column has a value that it cannot have.
    #[error("HAProxy reports `{value}` as the {column} of `{server}`")]
    Value {
        /// The member.
        server: String,
        /// The column.
        column: &'static str,
        /// What stands there.
        value: String,
    },
}

impl BalancerFacts {
    /// Reads what `show stat` printed.
    pub fn parse(report: &str) -> Result<Self, StatError> {
        let mut lines = report.lines().map(str::trim).filter(|line| !line.is_empty());
        let header: Vec<&str> = lines.next().unwrap_or_default().trim_start_matches("# ").split(',').collect();
        let column =
            |name: &'static str| header.iter().position(|column| *column == name).ok_or(StatError::NoColumn(name));
        let (proxy, server, status, connections) =
            (column("pxname")?, column("svname")?, column("status")?, column("scur")?);
        let mut facts = Self::default();
        for line in lines {
            let columns: Vec<&str> = line.split(',').collect();
            let at = |index: usize| columns.get(index).copied().unwrap_or_default();
            let servers = match at(proxy) {
                BACKEND | PRIMARY => &mut facts.servers,
                REPLICAS => &mut facts.replicas,
                _ => continue,
            };
            // Besides servers, there is a line for the backend as a whole.
            let Ok(name) = Name::parse(at(server)) else { continue };
            let wrong = |column: &'static str, value: &str| StatError::Value {
                server: name.to_string(),
                column,
                value: value.to_owned(),
            };
            let state = ServerState::parse(at(status)).ok_or_else(|| wrong("status", at(status)))?;
            let connections = at(connections).parse().map_err(|_| wrong("scur", at(connections)))?;
            servers.insert(name, ServerFacts { state, connections });
        }
        Ok(facts)
    }

    /// Whether this member can be drained at this instance: another one gets new connections.
    pub fn can_drain(&self, member: &Name) -> bool {
        self.servers.iter().any(|(name, server)| name != member && server.state == ServerState::Up)
    }
}

impl ServerState {
    /// HAProxy counts beside the word while a state is about to change: `UP 1/3` gets connections, `DOWN 1/2` does not.
    fn parse(status: &str) -> Option<Self> {
        match status.split(' ').next()? {
            "UP" | "no" => Some(Self::Up),
            "DRAIN" | "NOLB" => Some(Self::Draining),
            "DOWN" => Some(Self::Down),
            "MAINT" => Some(Self::Maintenance),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).expect("a name")
    }

    const REPORT: &str = "\
# pxname,svname,qcur,qmax,scur,smax,slim,stot,bin,bout,dreq,dresp,ereq,econ,eresp,wretr,wredis,status,weight
clients,FRONTEND,,,3,4,1000,9,0,0,0,0,0,,,,,OPEN,
etcd,main-1,0,0,2,3,,7,0,0,,0,,0,0,0,0,UP,1
etcd,main-2,0,0,1,3,,7,0,0,,0,,0,0,0,0,DRAIN,1
etcd,main-3,0,0,0,3,,7,0,0,,0,,0,0,0,0,DOWN 1/2,1
etcd,BACKEND,0,0,3,3,100,7,0,0,0,0,,0,0,0,0,UP,1
any,main-1,0,0,0,0,,0,0,0,,0,,0,0,0,0,UP,1
";

    #[test]
    fn members_are_told_from_the_other_lines() {
        let facts = BalancerFacts::parse(REPORT).expect("a report");
        let server = |state, connections| ServerFacts { state, connections };
        let expected = BTreeMap::from([
            (name("main-1"), server(ServerState::Up, 2)),
            (name("main-2"), server(ServerState::Draining, 1)),
            (name("main-3"), server(ServerState::Down, 0)),
        ]);
        assert_eq!(facts.servers, expected);
    }

    #[test]
    fn standbys_are_told_from_the_primary() {
        let report = "# pxname,svname,scur,status\nprimary,app-1,3,UP\nprimary,app-2,0,DOWN\nprimary,BACKEND,3,UP\n\
                      readers,FRONTEND,1,OPEN\nreplicas,app-1,0,DOWN\nreplicas,app-2,1,UP\n";
        let facts = BalancerFacts::parse(report).expect("a report");
        let state = |of: &BTreeMap<Name, ServerFacts>| of.values().map(|server| server.state).collect::<Vec<_>>();
        assert_eq!(state(&facts.servers), [ServerState::Up, ServerState::Down]);
        assert_eq!(state(&facts.replicas), [ServerState::Down, ServerState::Up]);
    }

    #[test]
    fn the_last_member_that_gets_connections_is_not_drained() {
        let facts = BalancerFacts::parse(REPORT).expect("a report");
        assert!(!facts.can_drain(&name("main-1")), "the others are draining or down");
        assert!(facts.can_drain(&name("main-3")));
        assert!(!BalancerFacts::default().can_drain(&name("main-1")), "nothing is known");
    }

    #[test]
    fn a_report_that_cannot_be_read_is_an_error() {
        assert_eq!(BalancerFacts::parse(""), Err(StatError::NoColumn("pxname")));
        let odd = REPORT.replace("DRAIN", "BORED");
        let error = BalancerFacts::parse(&odd).expect_err("an unknown state");
        assert_eq!(error.to_string(), "HAProxy reports `BORED` as the status of `main-2`");
    }
}
