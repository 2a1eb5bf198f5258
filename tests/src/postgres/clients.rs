//! Nodes, a login, a CA → how clients connect to a PostgreSQL cluster, made by hand or by raftsman.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use super::bare::PORT;
use super::connect::Tls;

/// What clients of a PostgreSQL cluster know.
pub struct Clients {
    nodes: Vec<(String, IpAddr)>,
    through: Vec<SocketAddr>,
    login: Config,
    tls: Tls,
    runtime: tokio::runtime::Runtime,
}

impl Clients {
    /// Clients of a cluster with these nodes, that check them by this CA and log in with this role's password.
    pub fn new(nodes: Vec<(String, IpAddr)>, (user, password): (&str, &str), database: &str, ca_pem: &str) -> Self {
        Self::with(nodes, (user, password), database, Tls::trusting(ca_pem))
    }

    pub(super) fn with(nodes: Vec<(String, IpAddr)>, (user, password): (&str, &str), database: &str, tls: Tls) -> Self {
        let mut login = Config::new();
        login.user(user).password(password).dbname(database);
        login.ssl_mode(SslMode::Require).connect_timeout(Duration::from_secs(2));
        login.keepalives_idle(Duration::from_secs(1)).keepalives_interval(Duration::from_secs(1)).keepalives_retries(2);
        login.tcp_user_timeout(Duration::from_secs(3));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { nodes, through: Vec::new(), login, tls, runtime: runtime.expect("a runtime") }
    }

    /// Every other client connects through these instances of a balancer from now on.
    pub fn lead_through(&mut self, instances: Vec<SocketAddr>) {
        self.through = instances;
    }

    /// How the client of this number connects.
    pub(super) fn config_of(&self, client: usize) -> Config {
        if self.through.is_empty() || client.is_multiple_of(2) {
            return self.config();
        }
        // The primary is the only one there: a client that gets another sees it by its writes that are refused.
        let mut config = self.login.clone();
        for at in &self.through {
            config.host(at.ip().to_string()).port(at.port());
        }
        config
    }

    /// How clients connect: every node is named, and the one that takes writes is used.
    pub(super) fn config(&self) -> Config {
        let mut config = self.login.clone();
        for (_, address) in &self.nodes {
            config.host(address.to_string()).port(PORT);
        }
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        config
    }

    /// How a client connects to each node by itself.
    pub(super) fn config_of_each(&self) -> Vec<(String, Config)> {
        let config = |(name, address): &(String, IpAddr)| {
            let mut config = self.login.clone();
            config.host(address.to_string()).port(PORT).connect_timeout(Duration::from_secs(1));
            (name.clone(), config)
        };
        self.nodes.iter().map(config).collect()
    }

    pub(super) fn tls(&self) -> Tls {
        self.tls.clone()
    }

    pub(super) fn runtime(&self) -> &tokio::runtime::Runtime {
        &self.runtime
    }
}
