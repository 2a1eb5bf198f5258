//! One instance of a balancer and the servers behind it → HAProxy's configuration file.
//!
//! TCP is passed through, so that TLS is between client and server, and etcd sees the client's certificate.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use crate::spec::{Name, Subnet};

/// Debian's HAProxy.
pub const PROGRAM: &str = "/usr/sbin/haproxy";
/// Debian's package of it.
pub const PACKAGE: &str = "haproxy";
/// The name of its configuration file.
pub const FILE: &str = "haproxy.cfg";
/// The backend with the members that are healthy.
pub const BACKEND: &str = "etcd";
/// The backend with all members that accept connections, for when none is healthy.
pub const FALLBACK: &str = "any";
/// The backend with the nodes of PostgreSQL of which one is the primary.
pub const PRIMARY: &str = "primary";
/// The backend with its standbys.
pub const REPLICAS: &str = "replicas";
/// The certificate that it shows to Patroni, and the CA certificates that it checks Patroni by, below the machine's root.
pub const TLS: &str = "haproxy/tls";
/// Where members are drained and admitted, below the machine's root.
pub const SOCKET: &str = "haproxy/run/admin.sock";
/// How many bytes the whole path of that socket may have. An address of a UNIX socket has 107 and an end; HAProxy first
/// binds the path with `.<process id>.tmp` behind it, and process ids have up to 7 digits.
pub const LONGEST_SOCKET: usize = 107 - ".4194304.tmp".len();

/// What etcd says about itself: whether it has a leader, and a linearizable read succeeds. A database that is full still
/// serves reads and deletions, which is how space is freed. etcd up to 3.4 does not know the exception; see [`FALLBACK`].
const HEALTH: &str = "/health?exclude=NOSPACE";

/// Where Patroni says whether a node has a role.
const ROLES: [&str; 2] = ["/primary", "/replica"];

/// What is said of all members: an election is over before a member is unhealthy, with the default timers.
const EACH_MEMBER: &str = "check inter 1s fall 3 rise 2 on-marked-down shutdown-sessions tcp-ut 30s";
/// What is said of all members in the backend for when none is healthy.
const EACH_LISTENER: &str = "check inter 1s fall 2 rise 1 tcp-ut 30s";

/// What is said of all nodes of PostgreSQL: they are asked for their role over mutual TLS.
fn each_node() -> String {
    let tls = format!("{{root}}/{TLS}/current");
    format!(
        "check check-ssl verify required ca-file {tls}/ca.crt crt {tls}/tls.crt inter 1s fastinter 500ms downinter 500ms \
         fall 3 rise 1 on-marked-down shutdown-sessions tcp-ut 30s"
    )
}

/// HAProxy takes 64 words a line.
const SOURCES_A_LINE: usize = 40;

/// What an instance's configuration is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Haproxy<'a> {
    /// The machine's own address, unless etcd has the port there.
    pub address: Option<IpAddr>,
    /// The address that the instance has at times.
    pub virtual_address: Option<IpAddr>,
    /// The port that clients connect to.
    pub port: u16,
    /// The servers that connections are passed to.
    pub servers: Servers<'a>,
    /// How many connections are accepted.
    pub max_connections: u32,
    /// How long a connection to a server may take to be made, in milliseconds.
    pub connect_ms: u64,
    /// How long a connection may be without traffic, in milliseconds.
    pub idle_ms: u64,
}

/// The servers behind a balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Servers<'a> {
    /// Members of etcd: each that is healthy gets connections.
    Members(&'a [Backend]),
    /// Nodes of PostgreSQL: the primary gets connections, and standbys those of another port.
    Nodes {
        /// The nodes.
        nodes: &'a [Backend],
        /// The port that leads to standbys.
        replicas_port: Option<u16>,
        /// From where clients may connect. Nodes see the balancer's address, and cannot tell.
        from: &'a [Subnet],
        /// The fingerprint of the certificate that HAProxy shows to Patroni. It is read when HAProxy starts or reloads: with
        /// another one, the file is another one, too.
        certificate: &'a str,
    },
}

/// A server behind a balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Its name.
    pub name: Name,
    /// Where clients' connections go.
    pub client: SocketAddr,
    /// Where its health is asked for.
    pub health: SocketAddr,
}

/// HAProxy's configuration file. `{root}` stands for the machine's own directory, which only its agent knows.
pub fn config(haproxy: &Haproxy<'_>) -> String {
    let mut out = String::with_capacity(3072);
    let Haproxy { max_connections, connect_ms, idle_ms, .. } = haproxy;
    let _ = write!(
        out,
        "\
# Written by raftsman: changes are lost when the balancer is configured again.
global
    log stdout format raw local0
    maxconn {max_connections}
    # On this computer its limit of open files may be lower than that of a machine's unit.
    no strict-limits
    # After a reload, the process before it keeps its connections for this long.
    hard-stop-after 5m
    stats socket {{root}}/{SOCKET} mode 600 level admin expose-fd listeners
    stats timeout 30s
"
    );
    if let Servers::Nodes { certificate, .. } = haproxy.servers {
        let _ = write!(
            out,
            "    \
# The key is beside the certificate: {certificate}
    ssl-load-extra-del-ext
    ssl-default-server-options ssl-min-ver TLSv1.3
"
        );
    }
    let _ = write!(
        out,
        "
defaults
    mode tcp
    log global
    option tcplog
    option dontlog-normal
    # Watches may be without traffic for hours. Peers that are gone are noticed within a minute.
    option clitcpka
    option srvtcpka
    clitcpka-idle 30s
    clitcpka-intvl 10s
    clitcpka-cnt 3
    srvtcpka-idle 30s
    srvtcpka-intvl 10s
    srvtcpka-cnt 3
    timeout client {idle_ms}ms
    timeout server {idle_ms}ms
    timeout tunnel {idle_ms}ms
    timeout connect {connect_ms}ms
    timeout queue {connect_ms}ms
    timeout check 2s
    # A server that refuses a connection is not tried again: the next one is.
    retries 3
    option redispatch 1
"
    );
    match haproxy.servers {
        Servers::Members(members) => members_of(&mut out, haproxy, members),
        Servers::Nodes { nodes, replicas_port, from, .. } => nodes_of(&mut out, haproxy, nodes, replicas_port, from),
    }
    out
}

fn frontend(out: &mut String, haproxy: &Haproxy<'_>, name: &str, port: u16) {
    let _ = writeln!(out, "\nfrontend {name}");
    if let Some(address) = haproxy.address {
        let _ = writeln!(out, "    bind {} tcp-ut 30s", SocketAddr::new(address, port));
    }
    if let Some(address) = haproxy.virtual_address {
        // It listens there before the machine has the address.
        let _ = writeln!(out, "    bind {} tcp-ut 30s transparent", SocketAddr::new(address, port));
    }
}

fn members_of(out: &mut String, haproxy: &Haproxy<'_>, members: &[Backend]) {
    frontend(out, haproxy, "clients", haproxy.port);
    let _ = write!(
        out,
        "\
    # Without quorum no member is healthy. Clients that read from one member, and etcdctl, still get through.
    use_backend {FALLBACK} if {{ nbsrv({BACKEND}) eq 0 }}
    default_backend {BACKEND}

backend {BACKEND}
    # Connections last for days: new ones go to the member with the fewest.
    balance leastconn
    option httpchk
    http-check send meth GET uri {HEALTH} ver HTTP/1.1 hdr Host etcd
    http-check expect status 200
    # An election is over before a member is unhealthy, with the default timers. A member that is cut off from the majority
    # loses its clients, which would wait there for ever.
    default-server {EACH_MEMBER}
"
    );
    for backend in members {
        let Backend { name, client, health } = backend;
        // The machine is the same: only the port differs.
        let _ = writeln!(out, "    server {name} {client} port {}", health.port());
    }
    let _ = write!(out, "\nbackend {FALLBACK}\n    balance leastconn\n    default-server {EACH_LISTENER}\n");
    for Backend { name, client, .. } in members {
        let _ = writeln!(out, "    server {name} {client}");
    }
}

fn nodes_of(out: &mut String, haproxy: &Haproxy<'_>, nodes: &[Backend], replicas_port: Option<u16>, from: &[Subnet]) {
    let [primary, replica] = ROLES;
    for (name, port, backend) in [("clients", Some(haproxy.port), PRIMARY), ("readers", replicas_port, REPLICAS)] {
        let Some(port) = port else { continue };
        frontend(out, haproxy, name, port);
        let _ = write!(
            out,
            "    \
# Until checks have shown which node is the primary, each node seems to have each role: after a start, for about a second.
    tcp-request connection reject if {{ nbsrv({PRIMARY}) gt 1 }}
"
        );
        only_from(out, from);
        let _ = writeln!(out, "    default_backend {backend}");
    }
    backend(out, PRIMARY, "first", primary, nodes);
    if replicas_port.is_some() {
        backend(out, REPLICAS, "leastconn", replica, nodes);
    }
}

/// Nodes see the balancer's address in the place of the client's: what the file allows of sources is checked here.
fn only_from(out: &mut String, from: &[Subnet]) {
    for sources in from.chunks(SOURCES_A_LINE) {
        let sources: Vec<String> = sources.iter().map(Subnet::to_string).collect();
        let _ = writeln!(out, "    tcp-request connection accept if {{ src {} }}", sources.join(" "));
    }
    let _ = writeln!(out, "    tcp-request connection reject");
}

/// A backend whose nodes are asked for their role at Patroni's REST interface, which wants a certificate.
fn backend(out: &mut String, name: &str, balance: &str, role: &str, nodes: &[Backend]) {
    let each = each_node();
    let _ = write!(
        out,
        "
backend {name}
    balance {balance}
    option httpchk
    http-check send meth GET uri {role} ver HTTP/1.1 hdr Host patroni
    http-check expect status 200
    # Clients of a node that lost this role would wait there, or read what is old: their connections are cut.
    default-server {each}
"
    );
    for Backend { name, client, health } in nodes {
        let _ = writeln!(out, "    server {name} {client} port {} verifyhost {name}", health.port());
    }
}

/// The number of the first line that is none of [`config`]'s. HAProxy's own language starts programs, opens sockets and
/// loads scripts: an agent takes only what raftsman writes, whoever sends it.
pub fn foreign_line(text: &str) -> Option<usize> {
    text.lines().position(|line| !is_ours(line)).map(|index| index + 1)
}

fn is_ours(line: &str) -> bool {
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\'' | '\\' | '$') || c == ' ';
    if line.trim_start().starts_with('#') {
        return true;
    }
    let number = |word: &str| word.trim_end_matches(['m', 's', 'h', 'd']).parse::<u64>().is_ok();
    let address = |word: &str| word.parse::<SocketAddr>().is_ok();
    let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
    line.chars().all(plain)
        && match words.as_slice() {
            []
            | ["global" | "defaults"]
            | ["frontend", "clients" | "readers"]
            | ["backend" | "default_backend", BACKEND | FALLBACK | PRIMARY | REPLICAS]
            | ["ssl-load-extra-del-ext"]
            | ["ssl-default-server-options", "ssl-min-ver", "TLSv1.3"]
            | ["tcp-request", "connection", "reject"]
            | ["log", "global"]
            | ["log", "stdout", "format", "raw", "local0"]
            | ["mode", "tcp"]
            | ["no", "strict-limits"]
            | ["balance", "leastconn" | "first"]
            | ["option", "tcplog" | "dontlog-normal" | "clitcpka" | "srvtcpka" | "httpchk"]
            | ["http-check", "expect", "status", "200"]
            | ["use_backend", FALLBACK, "if", "{", _, "eq", "0", "}"] => true,
            ["tcp-request", "connection", "reject", "if", "{", of, "gt", "1", "}"] => {
                *of == format!("nbsrv({PRIMARY})")
            }
            ["maxconn" | "retries" | "hard-stop-after", value]
            | ["option", "redispatch", value]
            | ["stats", "timeout", value]
            | ["timeout", _, value] => number(value),
            [key, value] if key.starts_with("clitcpka-") || key.starts_with("srvtcpka-") => number(value),
            ["stats", "socket", path, "mode", "600", "level", "admin", "expose-fd", "listeners"] => {
                path.strip_prefix("{root}/") == Some(SOCKET)
            }
            ["bind", at, "tcp-ut", time] | ["bind", at, "tcp-ut", time, "transparent"] => address(at) && number(time),
            ["tcp-request", "connection", "accept", "if", "{", "src", from @ .., "}"] => {
                from.iter().all(|source| Subnet::parse(source).is_ok())
            }
            ["http-check", "send", "meth", "GET", "uri", uri, "ver", "HTTP/1.1", "hdr", "Host", "etcd" | "patroni"] => {
                *uri == HEALTH || ROLES.contains(uri)
            }
            ["default-server", rest @ ..] => {
                let rest = rest.join(" ");
                rest == EACH_MEMBER || rest == EACH_LISTENER || rest == each_node()
            }
            ["server", name, at, "port", port, "verifyhost", host] => {
                Name::parse(name).is_ok() && name == host && address(at) && number(port)
            }
            ["server", name, at] => Name::parse(name).is_ok() && address(at),
            ["server", name, at, "port", port] => Name::parse(name).is_ok() && address(at) && number(port),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn backends() -> Vec<Backend> {
        (1..=3_u8)
            .map(|number| {
                let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 10 + number));
                let name = Name::parse(&format!("etcd-{number}")).expect("a name");
                Backend { name, client: SocketAddr::new(address, 2379), health: SocketAddr::new(address, 2383) }
            })
            .collect()
    }

    #[test]
    fn an_instance_with_a_virtual_address() {
        let text = config(&Haproxy {
            address: Some(IpAddr::from([10, 0, 0, 21])),
            virtual_address: Some(IpAddr::from([10, 0, 0, 100])),
            port: 2379,
            servers: Servers::Members(&backends()),
            max_connections: 10_000,
            connect_ms: 1000,
            idle_ms: 86_400_000,
        });
        assert_eq!(foreign_line(&text), None);
        insta::assert_snapshot!("haproxy", text);
    }

    #[test]
    fn an_instance_in_front_of_postgresql() {
        let node = |number: u8| {
            let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 30 + number));
            let name = Name::parse(&format!("app-{number}")).expect("a name");
            Backend { name, client: SocketAddr::new(address, 5432), health: SocketAddr::new(address, 8008) }
        };
        let nodes: Vec<Backend> = (1..=3).map(node).collect();
        let from: Vec<Subnet> =
            ["10.0.0.0/8", "fd00::/8"].iter().map(|f| Subnet::parse(f).expect("a network")).collect();
        let servers =
            Servers::Nodes { nodes: &nodes, replicas_port: Some(5433), from: &from, certificate: "0123456789abcdef" };
        let text = config(&Haproxy {
            address: Some(IpAddr::from([10, 0, 0, 21])),
            virtual_address: Some(IpAddr::from([10, 0, 0, 100])),
            port: 5432,
            servers,
            max_connections: 10_000,
            connect_ms: 1000,
            idle_ms: 86_400_000,
        });
        assert_eq!(foreign_line(&text), None);
        insta::assert_snapshot!("haproxy_postgres", text);
        let many = vec![from[0]; 100];
        let longest = config(&Haproxy {
            address: Some(IpAddr::from([10, 0, 0, 21])),
            virtual_address: None,
            port: 5432,
            servers: Servers::Nodes { nodes: &nodes, replicas_port: None, from: &many, certificate: "0" },
            max_connections: 10_000,
            connect_ms: 1000,
            idle_ms: 86_400_000,
        });
        assert!(longest.lines().all(|line| line.split_whitespace().count() <= 64), "HAProxy takes 64 words a line");
    }

    #[test]
    fn what_runs_programs_or_opens_sockets_is_not_ours() {
        for line in [
            "program x",
            "    command /bin/sh -c id",
            "    external-check command /tmp/x",
            "    option external-check",
            "    insecure-fork-wanted",
            "    lua-load /tmp/x.lua",
            "    stats socket ipv4@0.0.0.0:9999 level admin",
            "    stats socket {root}/../../tmp/x mode 600 level admin expose-fd listeners",
            "    stats socket /tmp/x mode 600 level admin expose-fd listeners",
            "    bind /tmp/x tcp-ut 30s",
            "    bind 10.0.0.1:1 ssl crt /etc/x",
            "    server a unix@/run/dbus tcp-ut",
            "    server a 10.0.0.1:2379 agent-check",
            "    log /dev/log local0",
            "    setenv A b",
            "    default-server crt {root}/haproxy/tls/../../agent/tls/current/tls.crt",
            "    default-server ca-file /etc/ssl/ca.crt",
            "    default-server check inter 1s fall 3 rise 2",
            "    http-check send meth POST uri /switchover ver HTTP/1.1 hdr Host patroni",
            "    http-check send meth GET uri /primary ver HTTP/1.1 hdr Authorization x",
            "    http-check expect status 503",
            "    tcp-request connection accept if { always_true }",
            "    tcp-request connection reject if { nbsrv(any) eq 0 }",
            "    server a 10.0.0.1:5432 port 8008 verifyhost b",
            "    ssl-engine rdrand",
            "    user root",
            "\tprogram x",
            "    maxconn 1\rprogram x",
            "    balance \"leastconn\"",
        ] {
            assert_eq!(foreign_line(&format!("global\n{line}\n")), Some(2), "{line}");
        }
    }

    #[test]
    fn addresses_of_ipv6_are_in_brackets() {
        let address: IpAddr = "fd00::11".parse().expect("an address");
        let name = Name::parse("etcd-1").expect("a name");
        let one = Backend { name, client: SocketAddr::new(address, 2379), health: SocketAddr::new(address, 2383) };
        let text = config(&Haproxy {
            address: None,
            virtual_address: Some("fd00::99".parse().expect("an address")),
            port: 2379,
            servers: Servers::Members(&[one]),
            max_connections: 100,
            connect_ms: 1000,
            idle_ms: 1000,
        });
        assert_eq!(foreign_line(&text), None);
        assert!(text.contains("    bind [fd00::99]:2379 tcp-ut 30s transparent\n"), "{text}");
        assert!(text.contains("    server etcd-1 [fd00::11]:2379 port 2383\n"), "{text}");
    }
}
