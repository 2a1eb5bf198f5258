//! a fleet's CA and a directory → machines with a running agent, and clients of every role.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use raftsman_agent::postgres::running;
use raftsman_agent::root::Root;
use raftsman_agent::supervisor::process;
use raftsman_agent::supervisor::program::{Files, Program};
use raftsman_api::claim::{self, JoinToken};
use raftsman_api::roles::Role;
use raftsman_api::tls::{ClientTls, ConnectError, Connected, Identity, connect, machine_name};
use raftsman_api::v1::agent_client::AgentClient;
use raftsman_api::v1::{self, Purpose};
use raftsman_api::{fence, hex};
use raftsman_core::render::patroni::sockets;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustix::process::Signal;
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Request, Status};

pub(crate) type Client = AgentClient<Channel>;

pub(crate) const PORT: u16 = 2378;
pub(crate) const VERSION: &str = "3.6.15";

pub(crate) struct Fleet {
    pub(crate) id: &'static str,
    issuer: Issuer<'static, KeyPair>,
    pub(crate) ca_pem: String,
}

impl Fleet {
    pub(crate) fn new(id: &'static str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, format!("{id} CA"));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let ca_pem = params.self_signed(&key).unwrap().pem();
        Self { id, issuer: Issuer::new(params, key), ca_pem }
    }

    pub(crate) fn identity(&self, organization: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let chain = params.signed_by(&key, &self.issuer).unwrap().pem();
        Identity::from_pem(&chain, &key.serialize_pem()).unwrap()
    }

    pub(crate) fn sign(&self, csr_der: &[u8], name: &str, address: IpAddr) -> String {
        let mut csr = CertificateSigningRequestParams::from_der(&csr_der.to_vec().into()).unwrap();
        csr.params.subject_alt_names = vec![SanType::DnsName(name.try_into().unwrap()), SanType::IpAddress(address)];
        self.sign_params(csr)
    }

    /// As members show it to each other: on loopback they all come from 127.0.0.1.
    pub(crate) fn sign_peer(&self, csr_der: &[u8], address: IpAddr) -> String {
        let mut csr = CertificateSigningRequestParams::from_der(&csr_der.to_vec().into()).unwrap();
        csr.params.subject_alt_names =
            [address, Ipv4Addr::LOCALHOST.into()].into_iter().map(SanType::IpAddress).collect();
        self.sign_params(csr)
    }

    fn sign_params(&self, mut csr: CertificateSigningRequestParams) -> String {
        csr.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        csr.params.use_authority_key_identifier_extension = true;
        csr.signed_by(&self.issuer).unwrap().pem()
    }
}

/// An address of this computer that no other test has while this one runs: the test that listens on its first port owns it.
pub(crate) fn own_address() -> Ipv4Addr {
    let candidates = (0..250).flat_map(|net| (1..250).map(move |host| Ipv4Addr::new(127, 76, net, host)));
    let free = |address: &Ipv4Addr| match TcpListener::bind((*address, 1)) {
        Ok(listener) => {
            // For as long as the test runs, and not longer than its process.
            std::mem::forget(listener);
            true
        }
        Err(_) => false,
    };
    candidates.into_iter().find(free).unwrap()
}

/// A file system of a given size, in memory. Needs root, or `sudo` without a password.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, mib: u32) -> Self {
        let owner = fs::metadata(at).unwrap();
        let options = format!("size={mib}M,mode=700,uid={},gid={}", owner.uid(), owner.gid());
        as_root(&["mount", "-t", "tmpfs", "-o", &options, "tmpfs", &at.display().to_string()]);
        Self(at.to_path_buf())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        as_root(&["umount", "--lazy", &self.0.display().to_string()]);
    }
}

fn as_root(command: &[&str]) {
    let sudo = ["sudo", "-n"].iter().take(if rustix::process::geteuid().is_root() { 0 } else { 2 });
    let words: Vec<&str> = sudo.chain(command).copied().collect();
    let ended = Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(ended.success(), "{words:?}: it needs root, or `sudo` without a password");
}

pub(crate) struct Machine {
    disk: Option<SmallDisk>,
    dir: tempfile::TempDir,
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) token: JoinToken,
    child: Option<Child>,
}

impl Machine {
    /// A machine with boot data, its agent not yet started.
    pub(crate) fn lay_out(fleet: &Fleet, deadline: Option<&str>) -> Self {
        Self::lay_out_on(fleet, deadline, None)
    }

    /// The same, its root on a disk of so many MiB.
    fn lay_out_on(fleet: &Fleet, deadline: Option<&str>, mib: Option<u32>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = mib.map(|mib| SmallDisk::mount(dir.path(), mib));
        let token = JoinToken::generate().unwrap();
        let address = SocketAddr::from((own_address(), PORT));
        let mut boot = serde_json::json!({
            "fleet_id": fleet.id, "fleet": "test", "machine": "etcd-1", "address": address.ip(), "agent_port": PORT,
            "fleet_ca_pem": fleet.ca_pem, "join_token": token.to_hex(),
        });
        if let Some(deadline) = deadline {
            boot["join_deadline"] = deadline.into();
        }
        fs::create_dir(dir.path().join("agent")).unwrap();
        fs::write(dir.path().join("agent/boot.json"), boot.to_string()).unwrap();
        Self { disk, dir, name: "etcd-1", address, token, child: None }
    }

    pub(crate) async fn start(fleet: &Fleet) -> Self {
        let mut machine = Self::lay_out(fleet, None);
        machine.start_agent().await;
        machine
    }

    /// Claimed, with a client of the operator role.
    pub(crate) async fn claimed(fleet: &Fleet) -> (Self, Client) {
        Self::start(fleet).await.claimed_by(fleet).await
    }

    /// The same, its root on a disk of so many MiB.
    pub(crate) async fn claimed_with_disk(fleet: &Fleet, mib: u32) -> (Self, Client) {
        let mut machine = Self::lay_out_on(fleet, None, Some(mib));
        machine.start_agent().await;
        machine.claimed_by(fleet).await
    }

    async fn claimed_by(self, fleet: &Fleet) -> (Self, Client) {
        let machine = self;
        machine.claim(fleet, &machine.token).await.unwrap();
        let client = machine.client(fleet, Role::Operator).await;
        (machine, client)
    }

    /// How long it took until the agent listened.
    pub(crate) async fn start_agent(&mut self) -> Duration {
        let log = fs::OpenOptions::new().append(true).create(true).open(self.path().join("agent.log")).unwrap();
        let begun = Instant::now();
        let child = Command::new(env!("CARGO_BIN_EXE_raftsman-agent"))
            .arg("--root")
            .arg(self.path())
            .arg("--detach")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        while tokio::net::TcpStream::connect(self.address).await.is_err() {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the agent ended: {}", self.log());
            sleep(Duration::from_micros(200)).await;
        }
        begun.elapsed()
    }

    pub(crate) fn kill_agent(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The process of the agent that serves. After an upgrade that was reverted it is another than the one that the test
    /// started.
    pub(crate) fn agent_pid(&self) -> Option<u32> {
        fs::read_to_string(self.root().lock()).ok()?.trim().parse().ok()
    }

    /// Processes of this machine, by their command line.
    pub(crate) fn processes(&self, containing: &str) -> Vec<u32> {
        let root = self.root().path().display().to_string();
        let line = |pid: u32| {
            let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != std::process::id())
            .filter(|pid| line(*pid).contains(&format!("--root {root}")) && line(*pid).contains(containing))
            .collect()
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn root(&self) -> Root {
        Root::open(self.path()).unwrap()
    }

    pub(crate) fn etcd_files(&self) -> Files {
        Program::Etcd.files(&self.root())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path().join("agent.log")).unwrap_or_default()
    }

    pub(crate) fn etcd_pid(&self) -> Option<u32> {
        process::of(&self.root(), Program::Etcd).map(|etcd| etcd.pid())
    }

    pub(crate) async fn unclaimed(&self, fleet: &Fleet) -> Result<Connected, ConnectError> {
        let identity = fleet.identity(Role::Operator.organization());
        connect(self.address, &ClientTls::unclaimed(&identity, self.name, fleet.id).unwrap()).await
    }

    /// As the engine does it.
    pub(crate) async fn claim(&self, fleet: &Fleet, token: &JoinToken) -> Result<(), String> {
        let Connected { channel, server_certificate } =
            self.unclaimed(fleet).await.map_err(|error| error.to_string())?;
        let mut client = Client::new(channel);
        let nonce = claim::nonce().unwrap();
        let reply = client
            .claim(v1::ClaimRequest { nonce: nonce.clone() })
            .await
            .map_err(|status| status.message().to_owned())?
            .into_inner();
        claim::verify(token, &nonce, &server_certificate, &reply.csr_der, &reply.proof)
            .map_err(|error| error.to_string())?;
        let chain_pem = fleet.sign(&reply.csr_der, &machine_name(self.name, fleet.id), self.address.ip());
        client
            .finish_claim(v1::FinishClaimRequest { chain_pem })
            .await
            .map_err(|status| status.message().to_owned())?;
        Ok(())
    }

    pub(crate) async fn connect_as(&self, fleet: &Fleet, organization: &str) -> Result<Connected, ConnectError> {
        let identity = fleet.identity(organization);
        connect(self.address, &ClientTls::claimed(&identity, &fleet.ca_pem, self.name, fleet.id).unwrap()).await
    }

    pub(crate) async fn client(&self, fleet: &Fleet, role: Role) -> Client {
        Client::new(self.connect_as(fleet, role.organization()).await.unwrap().channel)
    }

    /// Pins the SHA-256 of these bytes as an admin.
    pub(crate) async fn pin(&self, fleet: &Fleet, program: &str, version: &str, sha256: &str) {
        let head =
            v1::InstallEtcdHead { version: version.to_owned(), sha256: sha256.to_owned(), program: program.to_owned() };
        let request = v1::PinBinariesRequest { binaries: vec![head] };
        self.client(fleet, Role::Admin).await.pin_binaries(stamp(request)).await.unwrap();
    }

    /// Everything that etcd needs but its start.
    pub(crate) async fn ready_etcd(&self, fleet: &Fleet, client: &mut Client, version: &str) {
        put_artifact(&self.root(), version);
        self.pin(fleet, "etcd", version, &etcd_digest(version)).await;
        let head = install_head(version, &etcd_digest(version));
        let reply = client.install_etcd(stamp(tokio_stream::iter([head]))).await.unwrap();
        assert!(!reply.into_inner().bytes_needed);
        for purpose in [Purpose::EtcdPeer, Purpose::EtcdServer] {
            self.certify(fleet, client, purpose).await;
        }
        configure(client, &self.config()).await.unwrap();
    }

    pub(crate) async fn certify(&self, fleet: &Fleet, client: &mut Client, purpose: Purpose) -> String {
        let request = v1::RequestCertificateRequest { purpose: purpose.into() };
        let csr = client.request_certificate(stamp(request)).await.unwrap().into_inner().csr_der;
        let address = self.address.ip();
        let chain_pem = match purpose {
            Purpose::Agent => fleet.sign(&csr, &machine_name(self.name, fleet.id), address),
            Purpose::EtcdPeer => fleet.sign_peer(&csr, address),
            Purpose::EtcdServer
            | Purpose::EtcdClient
            | Purpose::Postgres
            | Purpose::Patroni
            | Purpose::Balancer
            | Purpose::Unspecified => fleet.sign(&csr, self.name, address),
        };
        let request = v1::StoreCertificateRequest {
            purpose: purpose.into(),
            chain_pem: chain_pem.clone(),
            trust_pem: fleet.ca_pem.clone(),
        };
        client.store_certificate(stamp(request)).await.unwrap();
        chain_pem
    }

    /// A configuration with the bootstrap lines (`initial-cluster`) in it.
    pub(crate) fn config(&self) -> String {
        format!("{}{}", self.bootstrap(), self.plain_config())
    }

    /// The lines of a cluster of one.
    pub(crate) fn bootstrap(&self) -> String {
        format!("initial-cluster: etcd-1=https://{}:2380\ninitial-cluster-state: new\n", self.address.ip())
    }

    /// A configuration without bootstrap lines: the start call brings them.
    pub(crate) fn plain_config(&self) -> String {
        let ip = self.address.ip();
        let security = |purpose: &str| {
            format!(
                "  cert-file: {{root}}/etcd/tls/{purpose}/current/tls.crt\n  \
                 key-file: {{root}}/etcd/tls/{purpose}/current/tls.key\n  \
                 trusted-ca-file: {{root}}/etcd/tls/{purpose}/current/ca.crt\n  client-cert-auth: true\n"
            )
        };
        format!(
            "name: etcd-1\ndata-dir: {{root}}/etcd/data\nlogger: zap\n\
             listen-client-urls: https://{ip}:2379\nadvertise-client-urls: https://{ip}:2379\n\
             listen-peer-urls: https://{ip}:2380\ninitial-advertise-peer-urls: https://{ip}:2380\n\
             client-transport-security:\n{}peer-transport-security:\n{}",
            security("server"),
            security("peer")
        )
    }
}

impl Machine {
    /// Asks the machine's etcd, with the machine's own certificate; what etcdctl says, or its complaint.
    pub(crate) fn etcdctl(&self, arguments: &[&str]) -> Result<String, String> {
        let tls = self.root().server_tls().join("current");
        let output = Command::new(etcdctl())
            .env_clear()
            .arg(format!("--endpoints=https://{}:2379", self.address.ip()))
            .arg("--cacert")
            .arg(tls.join("ca.crt"))
            .arg("--cert")
            .arg(tls.join("tls.crt"))
            .arg("--key")
            .arg(tls.join("tls.key"))
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Waits until etcd obeys.
    pub(crate) async fn serves(&self) {
        let begun = Instant::now();
        while let Err(complaint) = self.etcdctl(&["put", "key", "value"]) {
            assert!(begun.elapsed() < Duration::from_secs(60), "etcd does not serve: {complaint}");
            sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Those that watch an upgrade first: they would start the agent again.
        for of in ["guard", ""] {
            self.processes(of).into_iter().for_each(kill);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        while let Some(pid) = self.etcd_pid() {
            kill(pid);
            std::thread::sleep(Duration::from_millis(5));
        }
        while let Some(left) = process::all_of(&self.root(), Program::Haproxy).first() {
            kill(left.pid());
            std::thread::sleep(Duration::from_millis(5));
        }
        // Patroni first, which would start PostgreSQL again.
        while let Some(patroni) = process::of(&self.root(), Program::Patroni) {
            kill(patroni.pid());
            std::thread::sleep(Duration::from_millis(5));
        }
        for left in running::left(&self.root()) {
            // So that it removes its shared memory.
            signal(left.pid(), Signal::QUIT);
        }
        let begun = Instant::now();
        while let Some(left) = running::left(&self.root()).first() {
            if begun.elapsed() > Duration::from_secs(10) {
                kill(left.pid());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = fs::remove_dir_all(sockets(&self.root().path().display().to_string()));
        if std::thread::panicking() {
            let log = self.log();
            let patroni = fs::read_to_string(Program::Patroni.files(&self.root()).log()).unwrap_or_default();
            if !patroni.is_empty() {
                let last: Vec<&str> = patroni.lines().collect();
                eprintln_lines(&format!("end of patroni.log:\n{}", last[last.len().saturating_sub(40)..].join("\n")));
            }
            let etcd = fs::read_to_string(self.etcd_files().log()).unwrap_or_default();
            let last: Vec<&str> = etcd.lines().rev().take(5).collect();
            eprintln_lines(&format!("agent.log:\n{log}\nend of etcd.log:\n{}", last.join("\n")));
        }
        drop(self.disk.take());
    }
}

#[allow(clippy::print_stderr, reason = "a failed test prints what happened")]
fn eprintln_lines(text: &str) {
    eprintln!("{text}");
}

pub(crate) fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

/// A call under the first generation.
pub(crate) fn stamp<T>(message: T) -> Request<T> {
    fence::stamp(Request::new(message), 1)
}

pub(crate) fn install_head(version: &str, sha256: &str) -> v1::InstallEtcdRequest {
    let head = v1::InstallEtcdHead { version: version.to_owned(), sha256: sha256.to_owned(), program: String::new() };
    v1::InstallEtcdRequest { part: Some(v1::install_etcd_request::Part::Head(head)) }
}

pub(crate) fn chunk(bytes: &[u8]) -> v1::InstallEtcdRequest {
    v1::InstallEtcdRequest { part: Some(v1::install_etcd_request::Part::Chunk(bytes.to_vec())) }
}

pub(crate) async fn configure(client: &mut Client, config: &str) -> Result<(), Status> {
    let digest = hex::sha256(config.as_bytes());
    client.configure_etcd(stamp(v1::ConfigureEtcdRequest { config: config.to_owned(), digest })).await.map(drop)
}

/// For a configuration that has the bootstrap lines in it.
pub(crate) async fn start_empty(client: &mut Client, version: &str) -> Result<u32, Status> {
    bear(client, version, "").await
}

pub(crate) async fn bear(client: &mut Client, version: &str, bootstrap: &str) -> Result<u32, Status> {
    let request = v1::StartEtcdRequest {
        version: version.to_owned(),
        expected_data: v1::DataState::Empty.into(),
        bootstrap: bootstrap.to_owned(),
        ..v1::StartEtcdRequest::default()
    };
    client.start_etcd(stamp(request)).await.map(|reply| reply.into_inner().pid)
}

/// On the data that is there.
pub(crate) async fn start_on(client: &mut Client, cluster: u64, alone: bool) -> Result<u32, Status> {
    let request = v1::StartEtcdRequest {
        version: VERSION.to_owned(),
        expected_data: v1::DataState::Present.into(),
        expected_cluster_id: cluster,
        force_new_cluster: alone,
        ..v1::StartEtcdRequest::default()
    };
    client.start_etcd(stamp(request)).await.map(|reply| reply.into_inner().pid)
}

pub(crate) async fn stop(client: &mut Client) {
    client.stop_etcd(stamp(v1::StopEtcdRequest { grace_seconds: 10, ..Default::default() })).await.unwrap();
}

pub(crate) async fn report(client: &mut Client) -> v1::ReportReply {
    client.report(v1::ReportRequest::default()).await.unwrap().into_inner()
}

/// Reports until one is as wanted.
pub(crate) async fn until(client: &mut Client, what: &str, wanted: impl Fn(&v1::EtcdReport) -> bool) -> v1::EtcdReport {
    let begun = Instant::now();
    loop {
        let etcd = report(client).await.etcd.unwrap();
        if wanted(&etcd) {
            return etcd;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "waited in vain for: {what}; last seen: {etcd:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until etcd runs and has data.
pub(crate) async fn running(client: &mut Client) -> v1::EtcdReport {
    until(client, "etcd with data", |etcd| {
        etcd.service.as_ref().unwrap().state() == v1::ServiceState::Running
            && etcd.data.as_ref().unwrap().member_id != 0
    })
    .await
}

pub(crate) fn etcdctl() -> PathBuf {
    std::env::var_os("RAFTSMAN_ETCDCTL").expect("RAFTSMAN_ETCDCTL is not set: run `just lab` first").into()
}

pub(crate) fn etcd_dir() -> PathBuf {
    let dir = std::env::var_os("RAFTSMAN_ETCD_DIR");
    PathBuf::from(
        dir.expect("RAFTSMAN_ETCD_DIR is not set: run `just lab` first; it fetches etcd and names the directory"),
    )
}

/// The versions that the lab has.
pub(crate) fn versions() -> Vec<String> {
    let mut found: Vec<String> =
        fs::read_dir(etcd_dir()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    found
}

pub(crate) fn etcd_digest(version: &str) -> String {
    hex::sha256(&fs::read(etcd_dir().join(version).join("etcd")).unwrap())
}

/// A copy, never a hard link: nothing that a test does may reach the lab's own binaries.
pub(crate) fn put_artifact(root: &Root, version: &str) {
    let artifact = root.artifact("etcd", version);
    if !artifact.exists() {
        fs::create_dir_all(artifact.parent().unwrap()).unwrap();
        fs::copy(etcd_dir().join(version).join("etcd"), &artifact).unwrap();
    }
}
