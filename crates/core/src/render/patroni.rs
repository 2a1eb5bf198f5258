//! One node and its PostgreSQL cluster's settings → Patroni's file, with placeholders for what only the agent knows.
//!
//! Names of secrets, and paths below a machine's root, are here for all that read, write and fill in this file.

mod lines;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::yaml::quoted;
use crate::desired::{PARAMETERS, POSTGRES_PORT, REST_PORT};
use crate::spec::postgres::{HbaRule, NodeTags};
use crate::spec::{FlagValue, PostgresVersion, Subnet, Watchdog, WatchdogMode};

pub use lines::{foreign_line, setting_allowed};
pub use read::{Line, hosts, lines, value};

/// The name of its file, in [`DIR`].
pub const FILE: &str = "patroni.yml";
/// All of a node's, below the machine's root.
pub const DIR: &str = "postgres";
/// PostgreSQL's data.
pub const DATA: &str = "postgres/data";
/// What Patroni writes besides: passwords for the programs of PostgreSQL that it starts.
pub const RUN: &str = "postgres/run";
/// PostgreSQL's own programs, a directory for each version, where the distribution does not bring them.
pub const PROGRAMS: &str = "postgres/programs";
/// The certificate that PostgreSQL presents to clients and other nodes.
pub const SERVER_TLS: &str = "postgres/tls/server";
/// The certificate of Patroni's REST interface, which it presents to those of other nodes, too.
pub const REST_TLS: &str = "postgres/tls/rest";
/// The CA certificates that Patroni checks members of etcd by. It reads them anew for each connection.
pub const ETCD_CA: &str = "postgres/tls/etcd-ca.crt";

/// The directory of PostgreSQL's socket where systemd runs it.
pub const UNIT_SOCKETS: &str = "/run/raftsman-postgres";
/// How many bytes the path of a socket may have.
pub const LONGEST_SOCKET: usize = 107;
/// Stands for the directory of PostgreSQL's socket: see [`sockets`].
const SOCKETS: &str = "{sockets}";
/// Stands for the user that PostgreSQL runs as, by the name that PostgreSQL sees.
const USER: &str = "{user}";

/// PostgreSQL's superuser. It logs in without a password on the socket of its own machine, as Patroni and the agent do.
pub const SUPERUSER: &str = "postgres";
/// The role that standbys replicate as.
pub const REPLICATOR: &str = "replicator";
/// The role that a former primary is rewound as.
pub const REWIND: &str = "rewind";
/// The user of Patroni's REST interface.
pub const REST_USER: &str = "raftsman";

/// A WAL receiver that does not answer for so long is dropped, so that another standby becomes synchronous.
const WAL_SENDER_TIMEOUT: &str = "10s";
/// PostgreSQL's parameters that are each node's own: not for the file, and none that must be alike on all nodes.
const WAL_SENDER: &str = "wal_sender_timeout";
const SLOT_WAL: &str = "max_slot_wal_keep_size";

/// A secret in Patroni's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PgSecret {
    /// The password of Patroni's user of etcd.
    Dcs,
    /// The password of the REST interface.
    Rest,
    /// The password of the role that standbys replicate as.
    Replicator,
    /// The password of the role that a former primary is rewound as.
    Rewind,
}

impl PgSecret {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Dcs, Self::Rest, Self::Replicator, Self::Rewind];

    /// What it is called between raftsman and its agents, and in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dcs => "dcs",
            Self::Rest => "rest",
            Self::Replicator => "replicator",
            Self::Rewind => "rewind",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// What stands for it in the file.
    fn placeholder(self) -> String {
        format!("{{secret:{}}}", self.name())
    }
}

/// Where the programs of PostgreSQL are on a node's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Programs {
    /// Debian's package of this major version has them.
    Package(u32),
    /// They are below the machine's root, by this version.
    Installed(PostgresVersion),
}

impl Programs {
    fn directory(self) -> String {
        match self {
            Self::Package(major) => format!("/usr/lib/postgresql/{major}/bin"),
            Self::Installed(version) => format!("{{root}}/{PROGRAMS}/{version}/bin"),
        }
    }
}

/// What a node's file is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Patroni<'a> {
    /// The cluster's name in Patroni.
    pub scope: &'a str,
    /// What the cluster's keys in etcd begin with, before the scope.
    pub namespace: &'a str,
    /// The node's name in Patroni.
    pub name: &'a str,
    /// The node's address.
    pub address: IpAddr,
    /// The members of etcd, by their client address.
    pub hosts: &'a BTreeSet<SocketAddr>,
    /// The user of etcd that Patroni logs in as.
    pub etcd_user: &'a str,
    /// Patroni's settings of the whole cluster, each by its path, in JSON. Patroni takes them from here only when it makes
    /// the cluster; afterwards they are in etcd.
    pub settings: &'a BTreeMap<String, String>,
    /// The addresses of all nodes, this one's among them.
    pub nodes: &'a BTreeSet<IpAddr>,
    /// Which clients may connect.
    pub access: &'a [HbaRule],
    /// The addresses of balancers, which let in clients from all networks of `access`.
    pub balancers: &'a BTreeSet<IpAddr>,
    /// Where the programs of PostgreSQL are.
    pub programs: Programs,
    /// How many MiB of WAL a standby may be behind before its slot is given up.
    pub slot_wal_mib: u64,
    /// What resets the machine when Patroni hangs.
    pub watchdog: &'a Watchdog,
    /// Patroni's tags of the node.
    pub tags: NodeTags,
}

/// Patroni's file. `{root}` stands for the machine's own directory, `{sockets}`, `{user}` and `{secret:…}` for what
/// [`filled`] puts there.
pub fn config(patroni: &Patroni<'_>) -> String {
    let mut out = Lines::default();
    let at = |port| free(&SocketAddr::new(patroni.address, port).to_string());
    out.set("", "scope", &free(patroni.scope));
    out.set("", "namespace", &free(patroni.namespace));
    out.set("", "name", &free(patroni.name));
    out.fixed("log", &["level", "type"]);
    out.set("restapi", "listen", &at(REST_PORT));
    out.set("restapi", "connect_address", &at(REST_PORT));
    out.fixed("restapi", &["certfile", "keyfile", "cafile", "verify_client"]);
    out.fixed("restapi/authentication", &["username", "password"]);
    out.fixed("ctl", &["cacert", "certfile", "keyfile"]);
    for host in patroni.hosts {
        out.item("etcd3/hosts", &free(&host.to_string()));
    }
    out.fixed("etcd3", &["protocol", "cacert"]);
    out.set("etcd3", "username", &free(patroni.etcd_user));
    out.fixed("etcd3", &["password"]);
    for (path, json) in patroni.settings {
        match (path.strip_prefix(PARAMETERS), path.split_once('.')) {
            (Some(parameter), _) => {
                out.set("bootstrap/dcs/postgresql/parameters", &quoted(parameter), &scalar(json));
            }
            (None, Some((section, key))) => out.set(&format!("bootstrap/dcs/{section}"), key, &scalar(json)),
            (None, None) => out.set("bootstrap/dcs", path, &scalar(json)),
        }
    }
    for option in INITDB {
        out.item("bootstrap/initdb", option);
    }
    out.set("postgresql", "listen", &at(POSTGRES_PORT));
    out.set("postgresql", "connect_address", &at(POSTGRES_PORT));
    out.fixed("postgresql", &["use_unix_socket", "data_dir"]);
    out.set("postgresql", "bin_dir", &quoted(&patroni.programs.directory()));
    out.fixed("postgresql", &["pgpass"]);
    out.fixed("postgresql/authentication/superuser", &["username"]);
    for role in ["postgresql/authentication/replication", "postgresql/authentication/rewind"] {
        out.fixed(role, &["username", "password", "sslmode", "sslrootcert"]);
    }
    out.fixed("postgresql/parameters", &OWN_PARAMETERS);
    // What the file says of these is in the settings of the whole cluster, which a node's own would override.
    let given = |parameter: &str| patroni.settings.contains_key(&format!("{PARAMETERS}{parameter}"));
    if !given(WAL_SENDER) {
        out.set("postgresql/parameters", WAL_SENDER, &quoted(WAL_SENDER_TIMEOUT));
    }
    if !given(SLOT_WAL) {
        out.set("postgresql/parameters", SLOT_WAL, &quoted(&format!("{}MB", patroni.slot_wal_mib)));
    }
    for rule in access_rules(patroni) {
        out.item("postgresql/pg_hba", &free(&rule));
    }
    for rule in IDENT {
        out.item("postgresql/pg_ident", &quoted(rule));
    }
    let Watchdog { mode, device, safety_margin } = patroni.watchdog;
    out.set("watchdog", "mode", &quoted(watchdog_mode(*mode)));
    out.set("watchdog", "device", &free(device));
    out.set("watchdog", "safety_margin", &safety_margin.to_string());
    let NodeTags { nofailover, noloadbalance, nosync, clonefrom, failover_priority } = patroni.tags;
    let tags =
        [("nofailover", nofailover), ("noloadbalance", noloadbalance), ("nosync", nosync), ("clonefrom", clonefrom)];
    for (tag, _) in tags.into_iter().filter(|(_, on)| *on) {
        out.set("tags", tag, "true");
    }
    // Patroni takes one of the two, and `nofailover` where both are given.
    if let Some(priority) = failover_priority.filter(|_| !nofailover) {
        out.set("tags", "failover_priority", &priority.to_string());
    }
    out.text
}

/// The digest of a file as [`config`] writes it: without what Patroni reads only when it makes the cluster. A setting of
/// the whole cluster that changes later changes no node's digest.
pub fn digest(text: &str) -> String {
    let mut bootstrap = false;
    let lasting = text.split_inclusive('\n').filter(|line| {
        bootstrap = if line.starts_with(' ') { bootstrap } else { line.starts_with("bootstrap:") };
        !bootstrap
    });
    super::digest(&lasting.collect::<String>())
}

/// What `initdb` is given. The superuser logs in on the socket; its password, where it has one, is set later.
const INITDB: [&str; 5] = [
    "encoding: \"UTF8\"",
    "locale: \"C.UTF-8\"",
    "\"data-checksums\"",
    "auth-local: \"peer\"",
    "auth-host: \"scram-sha-256\"",
];

/// Parameters of PostgreSQL that no file may set: see `spec/check/postgres/parameters.rs`.
const OWN_PARAMETERS: [&str; 8] = [
    "unix_socket_directories",
    "ssl",
    "ssl_cert_file",
    "ssl_key_file",
    "ssl_min_protocol_version",
    "password_encryption",
    "tcp_user_timeout",
    "wal_retrieve_retry_interval",
];

/// The users of the machine that are PostgreSQL's superuser on its socket: Patroni's own, and the agent's.
const IDENT: [&str; 2] = ["raftsman {user} postgres", "raftsman root postgres"];

/// The value of each key that is the same in every node's file, as YAML.
fn fixed(section: &str, key: &str) -> Option<String> {
    let below = |path: &str| format!("{{root}}/{path}");
    let text = match (section, key) {
        ("log", "level") => "INFO".to_owned(),
        ("log", "type") => "plain".to_owned(),
        ("restapi" | "ctl", "certfile") => below(&format!("{REST_TLS}/current/tls.crt")),
        ("restapi" | "ctl", "keyfile") => below(&format!("{REST_TLS}/current/tls.key")),
        ("restapi", "cafile") | ("ctl", "cacert") => below(&format!("{REST_TLS}/current/ca.crt")),
        // Every request needs a certificate of the cluster's CA; one that changes something, the password as well.
        ("restapi", "verify_client") => "required".to_owned(),
        ("restapi/authentication", "username") => REST_USER.to_owned(),
        ("restapi/authentication", "password") => PgSecret::Rest.placeholder(),
        ("etcd3", "protocol") => "https".to_owned(),
        ("etcd3", "cacert") => below(ETCD_CA),
        ("etcd3", "password") => PgSecret::Dcs.placeholder(),
        ("postgresql", "use_unix_socket") => return Some("true".to_owned()),
        ("postgresql", "data_dir") => below(DATA),
        ("postgresql", "pgpass") => below(&format!("{RUN}/pgpass")),
        ("postgresql/authentication/superuser", "username") => SUPERUSER.to_owned(),
        ("postgresql/authentication/replication", "username") => REPLICATOR.to_owned(),
        ("postgresql/authentication/replication", "password") => PgSecret::Replicator.placeholder(),
        ("postgresql/authentication/rewind", "username") => REWIND.to_owned(),
        ("postgresql/authentication/rewind", "password") => PgSecret::Rewind.placeholder(),
        ("postgresql/authentication/replication" | "postgresql/authentication/rewind", "sslmode") => {
            "verify-full".to_owned()
        }
        ("postgresql/authentication/replication" | "postgresql/authentication/rewind", "sslrootcert") => {
            below(&format!("{SERVER_TLS}/current/ca.crt"))
        }
        ("postgresql/parameters", "unix_socket_directories") => SOCKETS.to_owned(),
        ("postgresql/parameters", "ssl") => "on".to_owned(),
        ("postgresql/parameters", "ssl_cert_file") => below(&format!("{SERVER_TLS}/current/tls.crt")),
        ("postgresql/parameters", "ssl_key_file") => below(&format!("{SERVER_TLS}/current/tls.key")),
        ("postgresql/parameters", "ssl_min_protocol_version") => "TLSv1.3".to_owned(),
        ("postgresql/parameters", "password_encryption") => "scram-sha-256".to_owned(),
        // A standby whose machine is gone is noticed, and one that follows a new primary does not wait for 5 s.
        ("postgresql/parameters", "tcp_user_timeout") => "5s".to_owned(),
        ("postgresql/parameters", "wal_retrieve_retry_interval") => "500ms".to_owned(),
        _ => return None,
    };
    Some(quoted(&text))
}

/// The rules of `pg_hba.conf`, in order: the first that fits decides.
fn access_rules(patroni: &Patroni<'_>) -> Vec<String> {
    let mut rules = vec![format!("local all {SUPERUSER} peer map=raftsman"), "local all all reject".to_owned()];
    // On this computer connections come from 127.0.0.1, whichever of its addresses they go to.
    let loopback = Subnet::parse("127.0.0.0/8").ok();
    let source = |address: &IpAddr| {
        loopback.filter(|loopback| loopback.contains(*address)).unwrap_or_else(|| Subnet::single(*address))
    };
    let nodes: BTreeSet<Subnet> = patroni.nodes.iter().map(source).collect();
    for (database, role) in [("replication", REPLICATOR), (SUPERUSER, REWIND)] {
        rules.extend(nodes.iter().map(|node| format!("hostssl {database} {role} {} scram-sha-256", network(*node))));
    }
    // A rule of the file may be for all users: these are the nodes' only.
    rules.push(format!("host all {REPLICATOR},{REWIND} all reject"));
    let sources = HbaRule::sources(patroni.access);
    for rule in patroni.access {
        let HbaRule { databases, users, from } = rule;
        let (databases, users) = (names(databases), names(users));
        let apart = |source: &Subnet| !from.iter().any(|from| from.covers(*source));
        // Of a balancer's clients, a node does not see from where they come.
        let balancers = patroni.balancers.iter().filter(|_| rule.covers(&sources));
        let balancers: BTreeSet<Subnet> = balancers.map(source).filter(apart).collect();
        let from = from.iter().copied().chain(balancers);
        rules.extend(from.map(|from| format!("hostssl {databases} {users} {} scram-sha-256", network(from))));
    }
    rules.push("host all all all reject".to_owned());
    rules
}

/// What `pg_hba.conf` takes for more than a name, unless it is in quotes.
const HBA_WORDS: [&str; 4] = ["replication", "samegroup", "samerole", "sameuser"];

fn names(names: &[String]) -> String {
    let name = |name: &String| match HBA_WORDS.contains(&name.as_str()) {
        true => format!("\"{name}\""),
        false => name.clone(),
    };
    names.iter().map(name).collect::<Vec<_>>().join(",")
}

/// `pg_hba.conf` takes an address only with its mask.
fn network(subnet: Subnet) -> String {
    format!("{}/{}", subnet.first(), subnet.prefix())
}

fn watchdog_mode(mode: WatchdogMode) -> &'static str {
    match mode {
        WatchdogMode::Automatic => "automatic",
        WatchdogMode::Required => "required",
        WatchdogMode::Off => "off",
    }
}

/// Any text as YAML, without what could be taken for a placeholder.
fn free(text: &str) -> String {
    quoted(text).replace('{', "\\x7b")
}

/// A value in JSON as YAML.
fn scalar(json: &str) -> String {
    match serde_json::from_str(json) {
        Ok(FlagValue::Bool(value)) => value.to_string(),
        Ok(FlagValue::Integer(value)) => value.to_string(),
        Ok(FlagValue::Text(text)) => free(&text),
        // Nothing else is a setting: see `setting_allowed`.
        Err(_) => free(json),
    }
}

/// YAML that is written key by key, the sections that a key is in before it.
#[derive(Default)]
struct Lines {
    text: String,
    open: Vec<String>,
}

impl Lines {
    fn set(&mut self, section: &str, key: &str, value: &str) {
        self.open(section);
        let _ = writeln!(self.text, "{:1$}{key}: {value}", "", 2 * self.open.len());
    }

    fn item(&mut self, section: &str, value: &str) {
        self.open(section);
        let _ = writeln!(self.text, "{:1$}- {value}", "", 2 * self.open.len());
    }

    fn fixed(&mut self, section: &str, keys: &[&str]) {
        for key in keys {
            if let Some(value) = fixed(section, key) {
                self.set(section, key, &value);
            }
        }
    }

    fn open(&mut self, section: &str) {
        let wanted: Vec<&str> = section.split('/').filter(|part| !part.is_empty()).collect();
        let same = self.open.iter().zip(&wanted).take_while(|(open, wanted)| open == wanted).count();
        self.open.truncate(same);
        for part in &wanted[same..] {
            let _ = writeln!(self.text, "{:1$}{part}:", "", 2 * self.open.len());
            self.open.push((*part).to_owned());
        }
    }
}

/// What only a machine's agent knows of its file.
#[derive(Clone, Copy)]
pub struct OnMachine<'a> {
    /// The machine's own directory.
    pub root: &'a str,
    /// The directory of PostgreSQL's socket.
    pub sockets: &'a str,
    /// The user that PostgreSQL runs as, by the name that PostgreSQL sees.
    pub user: &'a str,
    /// The secrets.
    pub secrets: &'a BTreeMap<PgSecret, String>,
}

/// The file without a secret that it needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secret `{}` of Patroni's file is missing: give it to the agent first", .0.name())]
pub struct MissingSecret(pub PgSecret);

/// The file as Patroni reads it. The text must be one that [`foreign_line`] finds nothing in.
pub fn filled(text: &str, machine: &OnMachine<'_>) -> Result<String, MissingSecret> {
    let inner = |text: &str| {
        let text = free(text);
        text[1..text.len() - 1].to_owned()
    };
    let (root, sockets, user) = (inner(machine.root), inner(machine.sockets), inner(machine.user));
    let mut out = text.replace("{root}", &root).replace(SOCKETS, &sockets).replace(USER, &user);
    for secret in PgSecret::ALL {
        let placeholder = quoted(&secret.placeholder());
        if text.contains(&placeholder) {
            let value = machine.secrets.get(&secret).ok_or(MissingSecret(secret))?;
            // A value has no `{` left in it, so that it is no placeholder for the next one.
            out = out.replace(&placeholder, &free(value));
        }
    }
    Ok(out)
}

/// The directory of PostgreSQL's socket on a machine that is a directory of this computer: the root itself may be too
/// long for the path of a socket.
pub fn sockets(root: &str) -> String {
    let digest = super::digest(root);
    format!("/tmp/raftsman-pg-{}", &digest[..12])
}
