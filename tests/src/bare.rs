//! etcd brought up by hand, as well as one can: the bare engine that raftsman is measured against.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use raftsman_api::tls::Identity;
use raftsman_core::spec::KeyAlgorithm;
use raftsman_engine::pki::{Authority, AuthorityKind, LeafProfile, Usages};
use raftsman_etcd::{Credentials, bounded, dial};
use secrecy::ExposeSecret;

use crate::postgres::Dcs;
use crate::postgres::bare::DCS_LOGIN;

/// The operator checks each member this often.
const POLL: Duration = Duration::from_millis(20);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A cluster whose certificates and configuration are there, and whose members do not run yet.
pub struct Bare {
    dir: tempfile::TempDir,
    etcd: PathBuf,
    members: Vec<(String, IpAddr)>,
    root: Credentials,
    running: Vec<Child>,
}

impl Bare {
    /// Makes everything that can be made beforehand, for clients that log in by their certificates.
    pub fn prepare(etcd: &Path, members: u8, network: u8) -> Self {
        Self::prepare_for(etcd, members, network, true)
    }

    /// The same, for clients that log in by passwords, as Patroni does.
    pub fn prepare_for_passwords(etcd: &Path, members: u8, network: u8) -> Self {
        Self::prepare_for(etcd, members, network, false)
    }

    fn prepare_for(etcd: &Path, members: u8, network: u8, certificates: bool) -> Self {
        let dir = tempfile::Builder::new().prefix("bare-etcd-").tempdir().expect("a directory");
        let now = Timestamp::now();
        let make = |kind| Authority::make(kind, "bare CA", None, KeyAlgorithm::EcdsaP256, now, DAY).expect("a CA");
        let (peers, clients) = (make(AuthorityKind::EtcdPeers), make(AuthorityKind::EtcdClients));
        let members: Vec<(String, IpAddr)> =
            (1..=members).map(|n| (format!("bare-{n}"), IpAddr::V4(Ipv4Addr::new(127, 66, network, n)))).collect();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("a file");
        write("peers.crt", peers.certificate_pem());
        write("clients.crt", clients.certificate_pem());
        let initial: Vec<String> = members.iter().map(|(n, a)| format!("{n}=https://{a}:2380")).collect();
        for (name, address) in &members {
            for (authority, what, usages) in [(&peers, "peer", Usages::Both), (&clients, "server", Usages::Server)] {
                let key = rcgen::KeyPair::generate().expect("a key");
                let csr = rcgen::CertificateParams::default().serialize_request(&key).expect("a request");
                let profile = LeafProfile {
                    common_name: name.clone(),
                    organization: None,
                    dns_names: vec![],
                    addresses: vec![*address, IpAddr::V4(Ipv4Addr::LOCALHOST)],
                    usages,
                    validity: DAY,
                };
                let chain = authority.sign_csr(csr.der(), &profile, now).expect("a certificate");
                write(&format!("{name}-{what}.crt"), &chain);
                write(&format!("{name}-{what}.key"), &key.serialize_pem());
            }
            let root = dir.path().display();
            // With a CA to check clients by, etcd lets no client in without a certificate.
            let checks = match certificates {
                true => format!("  client-cert-auth: true\n  trusted-ca-file: {root}/clients.crt\n"),
                false => String::new(),
            };
            write(
                &format!("{name}.yaml"),
                &format!(
                    "name: {name}\ndata-dir: {root}/{name}.data\nlisten-client-urls: https://{address}:2379\n\
                     advertise-client-urls: https://{address}:2379\nlisten-peer-urls: https://{address}:2380\n\
                     initial-advertise-peer-urls: https://{address}:2380\ninitial-cluster: {}\n\
                     initial-cluster-token: bare\ninitial-cluster-state: new\nlogger: zap\nlog-level: info\n\
                     log-outputs: [stderr]\nclient-transport-security:\n  cert-file: {root}/{name}-server.crt\n  \
                     key-file: {root}/{name}-server.key\n{checks}peer-transport-security:\n  \
                     cert-file: {root}/{name}-peer.crt\n  key-file: {root}/{name}-peer.key\n  \
                     client-cert-auth: true\n  trusted-ca-file: {root}/peers.crt\n",
                    initial.join(",")
                ),
            );
        }
        let (chain, key) = clients.issue_client("root", None, DAY, now).expect("a client certificate");
        write("root.crt", &chain);
        write("root.key", key.expose_secret());
        let identity = Identity::from_pem(&chain, key.expose_secret()).expect("an identity");
        let root = Credentials::new(clients.certificate_pem(), Some(&identity), None).expect("credentials");
        Self { dir, etcd: etcd.to_owned(), members, root, running: Vec::new() }
    }

    /// Starts all members at once.
    pub fn start(&mut self) {
        for index in 0..self.members.len() {
            self.start_one(index);
        }
    }

    /// Starts the first member, which all others ask for the member list, and the others once it serves: what raftsman
    /// does, by hand.
    pub fn start_one_ahead(&mut self) {
        self.start_one(0);
        let address = std::net::SocketAddr::new(self.members[0].1, 2380);
        while std::net::TcpStream::connect(address).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // The socket opens before it is served: the rest takes about as long again.
        std::thread::sleep(Duration::from_millis(80));
        for index in 1..self.members.len() {
            self.start_one(index);
        }
    }

    fn start_one(&mut self, index: usize) {
        let (name, _) = &self.members[index];
        let log = std::fs::File::create(self.dir.path().join(format!("{name}.log"))).expect("a log");
        let child = Command::new(&self.etcd)
            .arg(format!("--config-file={}/{name}.yaml", self.dir.path().display()))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.running.push(child);
    }

    /// Waits until a linearizable read went through every member, looking at each by itself.
    pub async fn healthy(&self) {
        let looks = self.members.iter().map(|(_, address)| async {
            loop {
                let read = async {
                    let mut client = dial(*address, &self.root).await?;
                    bounded(async { Ok(client.get("probe", None).await?) }).await
                };
                if read.await.is_ok() {
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
        });
        futures::future::join_all(looks).await;
    }

    /// Turns auth on with `etcdctl`.
    pub fn enable_auth(&self, etcdctl: &Path) {
        for arguments in [
            &["user", "add", "root", "--no-password"][..],
            &["user", "grant-role", "root", "root"],
            &["auth", "enable"],
        ] {
            assert!(self.etcdctl(etcdctl, arguments), "etcdctl {arguments:?}");
        }
    }

    /// Makes a user of Patroni with its role, and turns auth on with `etcdctl`.
    pub fn enable_passwords(&self, etcdctl: &Path) {
        let Dcs { user, password, .. } = self.dcs();
        let login = format!("{user}:{password}");
        for arguments in [
            &["user", "add", "root:root-secret"][..],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "patroni"],
            &["role", "grant-permission", "patroni", "--prefix=true", "readwrite", "/service/pg/"],
            &["user", "add", &login],
            &["user", "grant-role", "patroni", "patroni"],
            &["auth", "enable"],
        ] {
            assert!(self.etcdctl(etcdctl, arguments), "etcdctl {arguments:?}");
        }
    }

    /// The login that Patroni will have.
    pub fn dcs(&self) -> Dcs {
        Dcs {
            members: self.members.iter().map(|(_, address)| *address).collect(),
            ca: self.dir.path().join("clients.crt"),
            user: DCS_LOGIN.0.to_owned(),
            password: DCS_LOGIN.1.to_owned(),
        }
    }

    fn etcdctl(&self, etcdctl: &Path, arguments: &[&str]) -> bool {
        let file = |name: &str| self.dir.path().join(name);
        let status = Command::new(etcdctl)
            .arg(format!("--endpoints=https://{}:2379", self.members[0].1))
            .arg(format!("--cacert={}", file("clients.crt").display()))
            .arg(format!("--cert={}", file("root.crt").display()))
            .arg(format!("--key={}", file("root.key").display()))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        status.expect("etcdctl runs").success()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
