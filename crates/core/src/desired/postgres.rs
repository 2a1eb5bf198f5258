//! One PostgreSQL cluster of the file → its nodes, the keys and the user that Patroni has in etcd, Patroni's settings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::addresses::{Allotment, Spot};
use super::{Balancer, CLIENT_PORT, Config, DesireError, LeafProfile, Machine, Stack, Usage};
use crate::ledger::Ledger;
use crate::observed::{Granted, NodePurpose, Role};
use crate::render::patroni::{self, Patroni, Programs};
use crate::spec::postgres::{NodeTags, Nodes, PostgresSource};
use crate::spec::{
    Keys, Level, Name, PatroniVersion, PostgresCluster, PostgresVersion, Provider, Secret, SyncMode, Watchdog,
    WatchdogMode,
};

/// Where PostgreSQL listens.
pub const POSTGRES_PORT: u16 = 5432;
/// Where Patroni's REST interface listens.
pub const REST_PORT: u16 = 8008;

/// A standby that is behind by more WAL than this loses its slot, and is copied anew: a slot without a bound fills the
/// primary's disk. It is a quarter of the disk, and no less than PostgreSQL's own `max_wal_size`.
const LEAST_SLOT_WAL_MIB: u64 = 1024;
/// Where the size of the disk is not known.
const SLOT_WAL_MIB: u64 = 4096;

/// One PostgreSQL cluster that should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Postgres {
    /// Its name.
    pub name: Name,
    /// Its keys in etcd are below this: its user of etcd may read and write them, and no others.
    pub prefix: String,
    /// The version of PostgreSQL.
    pub version: PostgresVersion,
    /// The version of Patroni.
    pub patroni: PatroniVersion,
    /// Its nodes, in the order of the file: those whose address is known.
    pub nodes: Vec<Node>,
    /// Patroni's settings of the whole cluster, each by its path (`ttl`, `postgresql.parameters.max_connections`), in JSON.
    pub settings: BTreeMap<String, String>,
    /// The addresses of the instances of balancers in front of it.
    pub balancers: BTreeSet<IpAddr>,
    /// Its section of the file.
    pub section: Arc<PostgresCluster>,
}

/// One node that should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name: its machine's.
    pub name: Name,
    /// Its name among Patroni's.
    pub patroni_name: String,
    /// Its machine's address.
    pub address: IpAddr,
    /// Patroni's tags of it.
    pub tags: NodeTags,
    /// The certificate that PostgreSQL presents to clients and to other nodes.
    pub server: LeafProfile,
    /// The certificate of Patroni's REST interface, which it presents to those of other nodes, too.
    pub rest: LeafProfile,
    /// What resets its machine when Patroni hangs.
    pub watchdog: Watchdog,
    /// How many MiB of WAL it keeps for a standby that is behind.
    pub slot_wal_mib: u64,
}

/// What comes before the name of a parameter of PostgreSQL in the path of a setting of Patroni's.
pub const PARAMETERS: &str = "postgresql.parameters.";

/// Which of the two users of etcd that a PostgreSQL cluster has. Patroni logs in as one of them; the other one takes its
/// place when the password changes, because a changed password of the user in use demotes the primary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserSlot {
    /// The first.
    #[default]
    A,
    /// The second.
    B,
}

impl UserSlot {
    /// Both of them.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl fmt::Display for UserSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "a",
            Self::B => "b",
        })
    }
}

impl Node {
    /// What a certificate of it holds.
    pub fn profile(&self, purpose: NodePurpose) -> &LeafProfile {
        match purpose {
            NodePurpose::Server => &self.server,
            NodePurpose::Rest => &self.rest,
        }
    }
}

impl Postgres {
    /// The node of this name.
    pub fn node(&self, name: &Name) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == *name)
    }

    /// The node that Patroni has under this name.
    pub fn node_in_patroni(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.patroni_name == name)
    }

    /// The packages of the distribution that its nodes' machines need: PostgreSQL's programs, and what Patroni is run by.
    pub fn packages(&self) -> impl Iterator<Item = String> {
        self.package().into_iter().chain(["python3".to_owned()])
    }

    /// The package that PostgreSQL's programs come from, unless they come from elsewhere.
    pub fn package(&self) -> Option<String> {
        match &self.section.source {
            None => Some(format!("postgresql-{}", self.version.major)),
            Some(PostgresSource::Package(package)) => Some(package.clone()),
            Some(PostgresSource::Directory(_) | PostgresSource::Archive(_)) => None,
        }
    }

    /// Whether the file says something of its roles or databases, or of the passwords that nodes log in with.
    pub fn has_catalog(&self) -> bool {
        let section = &self.section;
        section.roles.is_some() || section.databases.is_some() || self.node_passwords().next().is_some()
    }

    /// The roles that nodes log in as and that have a password of the file.
    pub fn node_passwords(&self) -> impl Iterator<Item = &'static str> {
        [patroni::REPLICATOR, patroni::REWIND].into_iter().filter(|role| self.node_password(role).is_some())
    }

    /// The password of the file for a role that nodes log in as.
    pub fn node_password(&self, role: &str) -> Option<&Secret> {
        match role {
            patroni::REPLICATOR => self.section.replicator.password.as_ref(),
            patroni::REWIND => self.section.rewind.password.as_ref(),
            _ => None,
        }
    }

    /// How many synchronous standbys there should be.
    pub fn synchronous_standbys(&self) -> u32 {
        let standbys = u32::try_from(self.nodes.len().saturating_sub(1)).unwrap_or(u32::MAX);
        match self.section.synchronous.mode {
            SyncMode::Strict | SyncMode::Quorum | SyncMode::Preferred => self.section.synchronous.nodes.min(standbys),
            SyncMode::Off => 0,
        }
    }

    /// The addresses of all present and future nodes: they reach each other, and the members of etcd.
    pub fn neighbours(&self, ledger: &Ledger) -> BTreeSet<IpAddr> {
        self.places(ledger).into_values().collect()
    }

    /// All present and future nodes with their addresses.
    pub fn places(&self, ledger: &Ledger) -> BTreeMap<Name, IpAddr> {
        let places = ledger.places();
        let started = ledger.of_postgres(&self.name).started.keys();
        let here = started.filter_map(|node| Some((node.clone(), *places.get(node)?)));
        here.chain(self.nodes.iter().map(|node| (node.name.clone(), node.address))).collect()
    }

    /// Patroni's file on a node, with these members of etcd and this user of etcd in it. The node's agent puts secrets, and
    /// what else it alone knows, in their places. Its digest is [`patroni::digest`].
    pub fn patroni_file(&self, node: &Node, hosts: &BTreeSet<SocketAddr>, user: UserSlot) -> Config {
        let section = &self.section;
        let text = patroni::config(&Patroni {
            scope: section.patroni.scope.as_deref().unwrap_or(self.name.as_str()),
            namespace: &section.patroni.namespace,
            name: &node.patroni_name,
            address: node.address,
            hosts,
            etcd_user: &self.etcd_user(user),
            settings: &self.settings,
            nodes: &self.nodes.iter().map(|node| node.address).collect(),
            access: &section.access,
            balancers: &self.balancers,
            programs: match section.source {
                None | Some(PostgresSource::Package(_)) => Programs::Package(self.version.major),
                Some(PostgresSource::Directory(_) | PostgresSource::Archive(_)) => Programs::Installed(self.version),
            },
            slot_wal_mib: node.slot_wal_mib,
            watchdog: &node.watchdog,
            tags: node.tags,
        });
        Config { digest: patroni::digest(&text), text }
    }

    /// Lets clients in by way of this balancer; returns what its nodes' certificates hold.
    pub(super) fn stand_behind(&mut self, balancer: &Balancer) -> impl Iterator<Item = &mut LeafProfile> {
        self.balancers.extend(balancer.instances.iter().map(|instance| instance.address));
        self.nodes.iter_mut().map(|node| &mut node.server)
    }

    /// Makes the choices that its nodes' machines decide.
    pub(super) fn stand_on(&mut self, machines: &BTreeMap<Name, Machine>) {
        for node in &mut self.nodes {
            let Some(machine) = machines.get(&node.name) else { continue };
            if machine.place.provider == Provider::Local {
                // It would reset this computer.
                node.watchdog.mode = WatchdogMode::Off;
            }
            if let Some(disk) = machine.settings.data_disk.or(machine.settings.disk) {
                node.slot_wal_mib = (disk.bytes() / 4 / (1 << 20)).max(LEAST_SLOT_WAL_MIB);
            }
        }
    }

    /// The role that its user of etcd has: all below its prefix, and nothing else.
    pub fn etcd_role(&self) -> (String, Role) {
        let keys = Keys::Prefix(self.prefix.clone()).span();
        (format!("{}-patroni", self.name), [Granted { level: Level::Readwrite, keys }].into_iter().collect())
    }

    /// The name of its user of etcd in this slot.
    pub fn etcd_user(&self, slot: UserSlot) -> String {
        format!("{}-patroni-{slot}", self.name)
    }

    /// The slot of this user of etcd, where it is one of the two.
    pub fn slot_of(&self, user: &str) -> Option<UserSlot> {
        UserSlot::BOTH.into_iter().find(|slot| self.etcd_user(*slot) == user)
    }
}

impl Stack {
    /// The PostgreSQL cluster of this name.
    pub fn postgres(&self, name: &Name) -> Option<&Postgres> {
        self.postgres.iter().find(|cluster| cluster.name == *name)
    }

    /// Every node of its PostgreSQL clusters.
    pub fn nodes(&self) -> impl Iterator<Item = (&Postgres, &Node)> {
        self.postgres.iter().flat_map(|cluster| cluster.nodes.iter().map(move |node| (cluster, node)))
    }

    /// The node that runs on this machine.
    pub fn node(&self, machine: &Name) -> Option<(&Postgres, &Node)> {
        self.nodes().find(|(_, node)| node.name == *machine)
    }

    /// The members of etcd that Patroni is given: those of the file, and those that are members still.
    pub fn etcd_hosts(&self, ledger: &Ledger) -> BTreeSet<SocketAddr> {
        self.etcd.neighbours(ledger).into_iter().map(|address| SocketAddr::new(address, CLIENT_PORT)).collect()
    }
}

/// Makes every choice that the file leaves open about a PostgreSQL cluster on this etcd cluster; and its machines, those
/// among them that have no address yet.
pub(super) fn resolve(
    fleet: &Name,
    name: &Name,
    section: &PostgresCluster,
    etcd: &Name,
    addresses: &mut Allotment,
) -> Result<(Postgres, Vec<Spot>), DesireError> {
    let mut places: Vec<Spot> = Vec::new();
    let mut described = Vec::new();
    match &section.nodes {
        Nodes::Count(count) => {
            for index in 1..=*count {
                let node = Name::parse(&format!("{name}-{index}"))
                    .map_err(|_| DesireError::NameTooLong { cluster: name.clone() })?;
                let address = addresses.allot(etcd, &node)?;
                described.push((node.to_string(), NodeTags::default()));
                places.push((node, address));
            }
        }
        Nodes::List(list) => {
            for node in list {
                let address = match node.address {
                    Some(address) => Some(address),
                    None => addresses.allot(etcd, &node.name)?,
                };
                let patroni_name = node.patroni_name.clone().unwrap_or_else(|| node.name.to_string());
                described.push((patroni_name, node.tags));
                places.push((node.name.clone(), address));
            }
        }
    }
    let certificates = &section.certificates;
    let organization = certificates.organization.clone().unwrap_or_else(|| fleet.to_string());
    let nodes = places.iter().zip(described).filter_map(|((name, address), (patroni_name, tags))| {
        let address = (*address)?;
        let profile = |usage, names, addresses| {
            LeafProfile::new(name.to_string(), organization.clone(), names, addresses, usage, certificates)
        };
        let mut names = certificates.extra_names.clone();
        names.push(name.to_string());
        let mut addresses = certificates.extra_addresses.clone();
        addresses.push(address);
        Some(Node {
            server: profile(Usage::Server, names, addresses),
            rest: profile(Usage::ServerAndClient, vec![name.to_string()], vec![address]),
            name: name.clone(),
            patroni_name,
            address,
            tags,
            watchdog: section.watchdog.clone(),
            slot_wal_mib: SLOT_WAL_MIB,
        })
    });
    let postgres = Postgres {
        name: name.clone(),
        prefix: section.prefix(name),
        version: section.version,
        patroni: section.patroni.version,
        nodes: nodes.collect(),
        settings: settings(section),
        balancers: BTreeSet::new(),
        section: Arc::new(section.clone()),
    };
    Ok((postgres, places))
}

/// Patroni's settings of the whole cluster.
fn settings(section: &PostgresCluster) -> BTreeMap<String, String> {
    let patroni = &section.patroni;
    let sync = section.synchronous;
    let mode = match sync.mode {
        SyncMode::Strict | SyncMode::Preferred => "true".to_owned(),
        SyncMode::Quorum => "\"quorum\"".to_owned(),
        SyncMode::Off => "false".to_owned(),
    };
    let strict = matches!(sync.mode, SyncMode::Strict | SyncMode::Quorum);
    let mut settings = BTreeMap::from([
        ("ttl", patroni.ttl.to_string()),
        ("loop_wait", patroni.loop_wait.to_string()),
        ("retry_timeout", patroni.retry_timeout.to_string()),
        ("primary_start_timeout", patroni.primary_start_timeout.to_string()),
        ("primary_stop_timeout", patroni.primary_stop_timeout.to_string()),
        ("maximum_lag_on_failover", patroni.maximum_lag_on_failover.bytes().to_string()),
        ("failsafe_mode", section.failsafe.to_string()),
        ("synchronous_mode", mode),
        ("synchronous_mode_strict", strict.to_string()),
        ("synchronous_node_count", sync.nodes.to_string()),
        ("check_timeline", "true".to_owned()),
        ("postgresql.use_pg_rewind", "true".to_owned()),
        ("postgresql.use_slots", "true".to_owned()),
    ])
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect::<BTreeMap<String, String>>();
    for (key, value) in &section.parameters {
        let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
        settings.insert(format!("postgresql.parameters.{key}"), json);
    }
    settings
}
