//! The section `machines:` → the provider of machines, and what each machine is like.

use std::net::IpAddr;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::incus::Incus;
use super::libvirt::Libvirt;
use super::subnet::Subnet;
use super::types::Secret;
use super::units::{ByteSize, Name};
use super::zones::Zone;

/// Where machines come from, and what they have in common.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Machines {
    /// The provider of the machines.
    pub provider: Provider,
    /// Local provider: where the machines' directories are, relative to this file. Below the state by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Local provider: the loopback network that the machines' addresses are taken from, such as `127.0.42.0/24`.
    /// Chosen by raftsman by default, so that two fleets on one computer do not collide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Hosts: how they are reached by SSH, once. The user's own configuration of SSH and agent are respected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh: Option<Ssh>,
    /// Incus: the server, and what machines there are made of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incus: Option<Incus>,
    /// libvirt: where virtual machines are made, from what, and what they are connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libvirt: Option<Libvirt>,
    /// Failure domains, by name: what fails together. Members of a cluster are spread over them.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub zones: IndexMap<Name, Zone>,
    /// Virtual CPUs of a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u32>,
    /// Memory of a machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Size of a machine's system disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<ByteSize>,
    /// Size of a separate disk for the data of etcd or PostgreSQL, kept when the machine is rebuilt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_disk: Option<ByteSize>,
    /// The image that machines boot from: a name or id as the provider knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// How administrators log in to the machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin: Option<Admin>,
    /// Time servers (chrony).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Log forwarding (fluent-bit).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Logs>,
    /// The network that machines have their addresses in, such as `10.77.0.0/24`: each is set up with its own address,
    /// permanently. Without it, a machine uses DHCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet: Option<Subnet>,
    /// The default gateway of the subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Name servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// The firewall of a machine: `false`, or the sources that each port accepts. By default it accepts every source
    /// on the ports of services, and nothing on others; off on hosts that exist already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firewall: Option<Firewall>,
    /// Metrics of the machine itself for Prometheus, on port 9100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_exporter: Option<bool>,
    /// Which updates of the system install themselves. None of them restarts the machine. The image's by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updates: Option<Updates>,
    /// Whether the first boot installs packages; `false` when the image carries everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_dependencies: Option<bool>,
    /// Where packages come from, instead of the distribution's servers: for machines that cannot reach them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<Mirror>,
}

impl Machines {
    /// Whether the first boot installs packages.
    pub fn installs(&self) -> bool {
        self.install_dependencies.unwrap_or(true)
    }

    /// Whether machines are to have something that is not in what they boot with, because it is secret.
    pub fn has_deliveries(&self) -> bool {
        self.logs.is_some() || self.admin.as_ref().is_some_and(|admin| admin.console_password.is_some())
    }

    /// The sources that the firewall accepts, or nothing where there is no firewall.
    pub fn sources(&self) -> Option<FirewallSources> {
        match &self.firewall {
            Some(Firewall::Sources(sources)) => Some(sources.clone()),
            Some(Firewall::Switch(on)) => on.then(FirewallSources::default),
            // A host that existed before may run other services: no firewall locks their clients out unasked.
            None => (self.provider != Provider::Hosts).then(FirewallSources::default),
        }
    }
}

/// The provider of the machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// This computer: every machine is a directory, an agent and a loopback address.
    #[default]
    Local,
    /// Hosts that exist already, reached by SSH once.
    Hosts,
    /// Incus containers or virtual machines.
    Incus,
    /// KVM through libvirt.
    Libvirt,
    /// OpenStack servers.
    Openstack,
    /// AWS EC2 instances.
    Aws,
}

/// How hosts that exist already are reached, once: from then on their agents are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ssh {
    /// The login user: root, or a user with passwordless sudo. As in your SSH configuration by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// A configuration file of SSH instead of your own. Relative to this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
}

/// How administrators log in to the machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// The user with sudo.
    #[serde(default = "default_admin_user")]
    pub user: Name,
    /// Public SSH keys that may log in as this user.
    #[serde(default)]
    pub ssh_keys: Vec<String>,
    /// A password for the console. It does not open SSH to passwords.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub console_password: Option<Secret>,
}

/// Name servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dns {
    /// The addresses of name servers. Those that DHCP names by default.
    pub servers: Vec<IpAddr>,
    /// Domains that short names are looked for in.
    pub search: Vec<String>,
}

/// The firewall of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Firewall {
    /// None, or one that accepts every source where that is allowed.
    Switch(bool),
    /// One that accepts these sources.
    Sources(FirewallSources),
}

/// From where each service of a machine may be reached: networks such as `10.0.0.0/8`, or single addresses. Members
/// always reach each other; the peer port accepts members only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FirewallSources {
    /// The agent, port 2378: where raftsman is run. Anywhere by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operators_from: Option<Vec<Subnet>>,
    /// etcd's clients, port 2379. Anywhere by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients_from: Option<Vec<Subnet>>,
    /// SSH, port 22. Anywhere by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_from: Option<Vec<Subnet>>,
    /// The node exporter, port 9100, and etcd's metrics, port 2381, where they have a listener of their own. Anywhere by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_from: Option<Vec<Subnet>>,
    /// PostgreSQL, port 5432, besides the cluster's own nodes. Anywhere by default; `access` of the cluster decides as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres_from: Option<Vec<Subnet>>,
    /// Patroni's REST interface, port 8008, besides the cluster's own nodes. Nowhere by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest_from: Option<Vec<Subnet>>,
}

/// Which updates of the system install themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Updates {
    /// None.
    Off,
    /// Security updates.
    Security,
}

/// Where packages come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// The distribution's packages, such as `http://mirror.example.com/debian`.
    pub packages: String,
    /// Its security updates, such as `http://mirror.example.com/debian-security`. In the same place by default, as on
    /// Ubuntu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security: Option<String>,
}

/// Time servers (chrony).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Time {
    /// Single servers.
    pub servers: Vec<TimeSource>,
    /// Pools of servers.
    pub pools: Vec<TimeSource>,
    /// When to step the clock rather than slew it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub makestep: Option<MakeStep>,
}

/// One time server or pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeSource {
    /// Its name or address.
    pub url: String,
    /// chrony's options for it, such as `iburst`.
    #[serde(default)]
    pub options: Vec<String>,
}

/// When chrony steps the clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeStep {
    /// Step when the offset is larger than this many seconds.
    pub threshold: f64,
    /// Only in this number of first updates; -1 for always.
    pub limit: i32,
}

/// Log forwarding (fluent-bit).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Logs {
    /// Tag of etcd's logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_tag: Option<String>,
    /// Tag of the node exporter's logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_exporter_tag: Option<String>,
    /// Tag of Patroni's and PostgreSQL's logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patroni_tag: Option<String>,
    /// How much is kept while the receiver does not answer. fluent-bit's own limits by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub buffer: Option<LogBuffer>,
    /// Forward to another fluentd or fluent-bit over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward: Option<LogForward>,
    /// Fetch fluent-bit's configuration from an etcd prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<LogDynamic>,
}

/// How much is kept of logs while the receiver does not answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogBuffer {
    /// In memory, for each log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem_limit: Option<ByteSize>,
    /// On disk, in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem_limit: Option<ByteSize>,
}

/// Where logs are forwarded to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogForward {
    /// Name or address of the receiver.
    pub host: String,
    /// Port of the receiver.
    #[serde(default = "default_forward_port")]
    pub port: u16,
    /// The host name that the machine reports there; its own name by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// The key shared with the receiver.
    pub shared_key: Secret,
    /// The CA certificate that signed the receiver's: a file, relative to this one.
    pub ca_cert: String,
}

/// An etcd that holds fluent-bit's configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogDynamic {
    /// The prefix of the keys that hold the configuration.
    pub key_prefix: String,
    /// `address:port` of each member.
    pub endpoints: Vec<String>,
    /// The CA certificate of that etcd: a file.
    pub ca_cert: String,
    /// A client certificate: a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The client certificate's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Secret>,
    /// A user name, instead of a certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// That user's password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
}

fn default_admin_user() -> Name {
    Name::fixed("admin")
}

fn default_forward_port() -> u16 {
    24224
}
