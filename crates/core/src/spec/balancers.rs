//! The section `balancers:` → one address in front of a cluster: where HAProxy runs, and what it listens on.

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::types::Spec;
use super::units::{Duration, Name};

/// A load balancer in front of one etcd cluster or one PostgreSQL cluster: HAProxy passes TCP connections to healthy
/// members, or to the primary, so that TLS is between client and server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Balancer {
    /// The etcd cluster that it is in front of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<Name>,
    /// The PostgreSQL cluster that it is in front of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<Name>,
    /// How many instances of HAProxy, each on a machine of its own; or each of them; or `members`: one beside every
    /// member of the etcd cluster, on the member's machine.
    pub instances: Instances,
    /// The port that clients connect to: 2379 in front of etcd, and 5432, which leads to the primary, in front of
    /// PostgreSQL, by default. On members' machines, etcd has 2379 of the machine's own address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// PostgreSQL: the port that leads to standbys, for clients that only read. None by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas_port: Option<u16>,
    /// An address that one of the instances has at a time (VRRP, by keepalived): when its machine or its HAProxy fails,
    /// another instance takes the address over. Needs two instances or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_address: Option<IpAddr>,
    /// How instances agree on which of them has the virtual address.
    #[serde(default, skip_serializing_if = "Vrrp::is_default")]
    pub vrrp: Vrrp,
    /// DNS names under which clients reach the balancer, besides its own name. They are in the certificates of members or
    /// nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// How many connections one instance accepts; further clients wait. A connection takes up to 35 KiB of memory.
    #[serde(default = "default_connections")]
    pub max_connections: u32,
    /// How long an instance waits for servers and clients.
    #[serde(default)]
    pub timeouts: BalancerTimeouts,
}

/// Where instances of a balancer run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Instances {
    /// The number of instances, named `<balancer>-1` and on, each on a machine of its own; addresses chosen by the
    /// provider.
    Count(u32),
    /// On members' machines.
    Beside(Beside),
    /// Each instance, on a machine of its own.
    List(Vec<Instance>),
}

/// The machines that instances run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Beside {
    /// One instance on the machine of every member of the balancer's cluster.
    Members,
}

/// One instance of a balancer, and its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    /// The instance's name, which is its machine's name too.
    pub name: Name,
    /// The machine's address. Chosen by the provider by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Hosts: the SSH destination, a name of your SSH configuration for example. Its address by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// How instances agree on which of them has the virtual address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Vrrp {
    /// The network interface that gets the virtual address. The one that has the machine's own address by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The virtual router ID, 1 to 255: another one for every virtual address in a network. The last number of the
    /// virtual address by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router_id: Option<u8>,
}

/// How long an instance waits for members and clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BalancerTimeouts {
    /// How long a connection to a member may take to be made before another member is tried.
    pub connect: Duration,
    /// A connection without any traffic is closed after this time. Clients that are gone are noticed within a minute
    /// anyway, by TCP keepalive.
    pub idle: Duration,
}

/// What a balancer is in front of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind<'a> {
    /// The members of this etcd cluster.
    Etcd(&'a Name),
    /// The nodes of this PostgreSQL cluster.
    Postgres(&'a Name),
}

impl Balancer {
    /// What it is in front of; nothing where the file does not say, or says two.
    pub fn behind(&self) -> Option<Behind<'_>> {
        match (&self.etcd, &self.postgres) {
            (Some(etcd), None) => Some(Behind::Etcd(etcd)),
            (None, Some(postgres)) => Some(Behind::Postgres(postgres)),
            (None, None) | (Some(_), Some(_)) => None,
        }
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        let default = if self.postgres.is_some() { 5432 } else { 2379 };
        self.port.unwrap_or(default)
    }

    /// Whether instances share machines with the members.
    pub fn is_beside_members(&self) -> bool {
        match self.instances {
            Instances::Beside(Beside::Members) => true,
            Instances::Count(_) | Instances::List(_) => false,
        }
    }

    /// The virtual router ID of its virtual address: the one of the file, or the last number of the address.
    pub fn router_id(&self) -> Option<u8> {
        let last = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(v6) => v6.octets()[15],
        };
        // 0 is no router ID.
        self.virtual_address.map(|address| self.vrrp.router_id.unwrap_or_else(|| last(address).max(1)))
    }
}

impl Spec {
    /// The etcd cluster whose stack a balancer is in: the one behind it, or the one that PostgreSQL behind it stands on.
    pub fn beneath<'a>(&'a self, balancer: &'a Balancer) -> Option<&'a Name> {
        match balancer.behind()? {
            Behind::Etcd(etcd) => Some(etcd),
            Behind::Postgres(postgres) => self.postgres.get(postgres)?.beneath(),
        }
    }
}

impl Vrrp {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for BalancerTimeouts {
    fn default() -> Self {
        // etcd sends a ping over connections without traffic every two hours: watches are never idle for a day. Clients of
        // PostgreSQL keep their connections in pools.
        Self { connect: Duration::from_millis(1000), idle: Duration::from_days(1) }
    }
}

fn default_connections() -> u32 {
    10_000
}

impl<'de> Deserialize<'de> for Instances {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = Instances;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of instances such as `2`, a list of them, or `members`")
            }
            fn visit_u64<E: Error>(self, count: u64) -> Result<Instances, E> {
                let wrong = |_| E::invalid_value(Unexpected::Unsigned(count), &self);
                u32::try_from(count).map(Instances::Count).map_err(wrong)
            }
            fn visit_i64<E: Error>(self, count: i64) -> Result<Instances, E> {
                let wrong = |_| E::invalid_value(Unexpected::Signed(count), &self);
                u32::try_from(count).map(Instances::Count).map_err(wrong)
            }
            fn visit_str<E: Error>(self, word: &str) -> Result<Instances, E> {
                match word {
                    "members" => Ok(Instances::Beside(Beside::Members)),
                    _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Instances, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(Instances::List)
            }
            fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Instances, A::Error> {
                Err(A::Error::custom(
                    "expected a number of instances such as `2`, a list of them, or `members`, found a mapping\nwrite each instance as an item of a list: `- name: lb-1`",
                ))
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}
