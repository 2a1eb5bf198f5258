//! Clusters that were set up by hand → the file that describes them, a report, and nothing changed.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use insta::assert_snapshot;
use jiff::Timestamp;
use raftsman_core::spec::KeyAlgorithm;
use raftsman_engine::pki::{Authority, AuthorityKind, LeafProfile, Usages};
use raftsman_tests::files::write_private;
use raftsman_tests::lab::{Lab, Output, etcd_dir, etcdctl, eventually};
use secrecy::ExposeSecret as _;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// One of their members: where clients and peers reach it.
struct Place {
    name: String,
    client: SocketAddr,
    peer: SocketAddr,
}

/// A cluster that was set up without raftsman.
struct Theirs {
    dir: tempfile::TempDir,
    places: Vec<Place>,
    running: Vec<Child>,
    authorities: [Authority; 2],
    customs: Customs,
    /// `root`'s password, once there is one.
    password: Option<String>,
}

/// How they made their certificates.
#[derive(Clone, Copy)]
struct Customs {
    one_authority: bool,
    validity: Duration,
}

const GOOD: Customs = Customs { one_authority: false, validity: YEAR };

impl Theirs {
    /// Three members with an address each, on the usual ports.
    fn on_addresses(customs: Customs) -> Self {
        let third = u8::try_from(std::process::id() % 250).expect("small") + 1;
        let place = |n: u8| {
            let address = IpAddr::V4(Ipv4Addr::new(127, 91, third, n));
            let name = format!("etcd-{}", char::from(b'a' + n - 1));
            Place { name, client: SocketAddr::new(address, 2379), peer: SocketAddr::new(address, 2380) }
        };
        Self::at((1..=3).map(place).collect(), customs)
    }

    /// Three members on one address, with different ports.
    fn on_ports(customs: Customs) -> Self {
        let listeners: Vec<TcpListener> = (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let ports: Vec<SocketAddr> = listeners.iter().map(|l| l.local_addr().expect("an address")).collect();
        let place = |n: usize| Place { name: format!("node{n}"), client: ports[2 * n], peer: ports[2 * n + 1] };
        Self::at((0..3).map(place).collect(), customs)
    }

    fn at(places: Vec<Place>, customs: Customs) -> Self {
        let dir = tempfile::Builder::new().prefix("theirs-").tempdir().expect("a directory");
        let now = Timestamp::now();
        let make = |kind, name| {
            Authority::make(kind, name, None, KeyAlgorithm::EcdsaP256, now, 9 * YEAR).expect("an authority")
        };
        let clients = make(AuthorityKind::EtcdClients, "their clients");
        let peers = make(AuthorityKind::EtcdPeers, "their peers");
        let theirs = Self { dir, places, running: Vec::new(), authorities: [peers, clients], customs, password: None };
        let [_, clients] = &theirs.authorities;
        theirs.write("ca.crt", clients.certificate_pem());
        theirs.write("ca.key", clients.key_pem().expose_secret());
        theirs.write("peer-ca.crt", theirs.peers().certificate_pem());
        for place in &theirs.places {
            theirs.sign(theirs.peers(), place, "peer", Usages::Both);
            theirs.sign(clients, place, "server", Usages::Server);
        }
        let (chain, key) = clients.issue_client("root", None, YEAR, now).expect("a certificate");
        theirs.write("root.crt", &chain);
        theirs.write("root.key", key.expose_secret());
        theirs
    }

    fn peers(&self) -> &Authority {
        &self.authorities[usize::from(self.customs.one_authority)]
    }

    fn write(&self, name: &str, text: &str) {
        write_private(self.dir.path().join(name), text);
    }

    /// Signs a certificate for a new key, in the place of any that is there: etcd reads it at the next handshake.
    fn sign(&self, authority: &Authority, place: &Place, what: &str, usages: Usages) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let csr = rcgen::CertificateParams::default().serialize_request(&key).expect("a request");
        let profile = LeafProfile {
            common_name: place.name.clone(),
            organization: None,
            dns_names: vec![place.name.clone()],
            addresses: vec![place.client.ip(), IpAddr::V4(Ipv4Addr::LOCALHOST)],
            usages,
            validity: self.customs.validity,
        };
        let chain = authority.sign_csr(csr.der(), &profile, Timestamp::now()).expect("a certificate");
        self.write(&format!("{}-{what}.crt", place.name), &chain);
        self.write(&format!("{}-{what}.key", place.name), &key.serialize_pem());
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Starts them with plain flags, and waits until they answer.
    fn start(&mut self, version: &str, flags: &[&str]) {
        let initial: Vec<String> = self.places.iter().map(|p| format!("{}=https://{}", p.name, p.peer)).collect();
        for place in &self.places {
            let log = std::fs::File::create(self.file(&format!("{}.log", place.name))).expect("a log");
            let own = |what: &str| self.file(&format!("{}-{what}", place.name));
            let child = Command::new(etcd_dir().join(version).join("etcd"))
                .args(["--name", &place.name])
                .arg(format!("--data-dir={}", own("data")))
                .arg(format!("--listen-client-urls=https://{}", place.client))
                .arg(format!("--advertise-client-urls=https://{}", place.client))
                .arg(format!("--listen-peer-urls=https://{}", place.peer))
                .arg(format!("--initial-advertise-peer-urls=https://{}", place.peer))
                .arg(format!("--initial-cluster={}", initial.join(",")))
                .arg("--initial-cluster-token=theirs")
                .arg(format!("--cert-file={}", own("server.crt")))
                .arg(format!("--key-file={}", own("server.key")))
                .arg(format!("--peer-cert-file={}", own("peer.crt")))
                .arg(format!("--peer-key-file={}", own("peer.key")))
                .arg(format!("--peer-trusted-ca-file={}", self.file("peer-ca.crt")))
                .args(flags.iter().map(|flag| flag.replace("{ca}", &self.file("ca.crt"))))
                .env_clear()
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("etcd starts");
            self.running.push(child);
        }
        eventually("their cluster is healthy", || (self.try_etcdctl(&["endpoint", "health"]).code == 0).then_some(()));
    }

    fn endpoints(&self) -> String {
        self.places.iter().map(|p| format!("https://{}", p.client)).collect::<Vec<_>>().join(",")
    }

    fn try_etcdctl(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(etcdctl());
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.endpoints()));
        command.arg(format!("--cacert={}", self.file("ca.crt")));
        match &self.password {
            Some(password) => command.env("ETCDCTL_USER", format!("root:{password}")),
            None => {
                command.arg(format!("--cert={}", self.file("root.crt")));
                command.arg(format!("--key={}", self.file("root.key")))
            }
        };
        let output = command.args(arguments).output().expect("etcdctl runs");
        Output {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    fn etcdctl(&self, arguments: &[&str]) -> String {
        self.try_etcdctl(arguments).ok().stdout
    }

    /// Everything that must be the same afterwards: revision, members, users, roles, and the very processes.
    fn state(&mut self) -> (String, String, String, String, Vec<Option<u32>>) {
        let revision = self.etcdctl(&["get", "--prefix", "", "--write-out=fields"]);
        let revision = revision.lines().find(|l| l.contains("Revision")).expect("a revision").to_owned();
        let pids = self.running.iter_mut().map(|child| match child.try_wait() {
            Ok(None) => Some(child.id()),
            _ => None,
        });
        let pids = pids.collect();
        (
            revision,
            self.etcdctl(&["member", "list"]),
            self.etcdctl(&["user", "list"]),
            self.etcdctl(&["role", "list"]),
            pids,
        )
    }

    /// Adopts it into an empty lab.
    fn adopt(&self, lab: &Lab, further: &[&str]) -> Output {
        let (endpoints, ca) = (self.endpoints(), self.file("ca.crt"));
        let mut arguments = vec!["adopt", "--endpoints", &endpoints, "--cacert", &ca];
        let (certificate, key) = (self.file("root.crt"), self.file("root.key"));
        if self.password.is_none() {
            arguments.extend(["--cert", &certificate, "--key", &key]);
        }
        arguments.extend(further);
        lab.run(&arguments)
    }

    /// Takes out of a text what is another every time.
    fn plain(&self, text: &str) -> String {
        let mut text = text.replace(&self.dir.path().display().to_string(), "/theirs");
        text = text.replace(&etcd_dir().display().to_string(), "/lab");
        for place in &self.places {
            text = text.replace(&place.client.to_string(), &format!("<{} clients>", place.name));
            text = text.replace(&place.peer.to_string(), &format!("<{} peers>", place.name));
            text = text.replace(&format!("port {}", place.client.port()), "port <client>");
            text = text.replace(&format!("port {}", place.peer.port()), "port <peer>");
            if place.client.ip() != IpAddr::V4(Ipv4Addr::LOCALHOST) {
                text = text.replace(&place.client.ip().to_string(), &format!("<{}>", place.name));
            }
        }
        text
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn empty_lab() -> Lab {
    let lab = Lab::new("");
    std::fs::remove_file(lab.path().join("raftsman.yaml")).expect("our own");
    lab
}

/// Dates, ids and sizes are another every time.
fn settled(check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"id [0-9a-f]{8,16}", "id <id>");
    settings.add_filter(r"20\d\d-\d\d-\d\d", "<date>");
    settings.add_filter(r"\d+(\.\d+)? [KM]iB", "<size>");
    settings.add_filter(r"revision \d+", "revision <n>");
    settings.add_filter(r"take up to \d+ ms", "take up to <n> ms");
    settings.bind(check);
}

/// How fast this computer's disk is must not decide a test, nor how wide a column is.
fn without_disks(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut skip = false;
    let mut narrow = text.to_owned();
    while narrow.contains("   ") {
        narrow = narrow.replace("   ", "  ");
    }
    for line in narrow.lines() {
        if skip {
            skip = false;
            continue;
        }
        skip = line.contains("99 % of them");
        if !skip {
            lines.push(line);
        }
    }
    lines.join("\n")
}

const SOUND: [&str; 11] = [
    "--trusted-ca-file={ca}",
    "--client-cert-auth",
    "--peer-client-cert-auth",
    "--heartbeat-interval=200",
    "--election-timeout=2500",
    "--quota-backend-bytes=4294967296",
    "--auto-compaction-mode=periodic",
    "--auto-compaction-retention=2h",
    "--enable-grpc-gateway=false",
    "--feature-gates=InitialCorruptCheck=true,CompactHashCheck=true",
    "--max-request-bytes=10485760",
];

#[test]
fn a_sound_cluster_with_certificates() {
    let mut theirs = Theirs::on_addresses(GOOD);
    theirs.start("3.6.15", &SOUND);
    for arguments in [
        &["put", "/app/x", "1"][..],
        &["user", "add", "root", "--no-password"],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "app"],
        &["role", "grant-permission", "app", "--prefix=true", "readwrite", "/app/"],
        &["role", "grant-permission", "app", "read", "/limits/a", "/limits/n"],
        &["user", "add", "app", "--no-password"],
        &["user", "grant-role", "app", "app"],
        &["auth", "enable"],
    ] {
        theirs.etcdctl(arguments);
    }
    let before = theirs.state();
    let lab = empty_lab();
    let report = theirs.adopt(&lab, &[]).ok();
    settled(|| {
        assert_snapshot!("adopt_sound_report", without_disks(&theirs.plain(&report.stdout)));
        assert_snapshot!("adopt_sound_file", theirs.plain(&lab.file()));
    });

    // The file describes the cluster as it is, so that there is nothing to do.
    lab.run(&["check", "--strict"]).ok();
    let plan = lab.run(&["plan", "--detailed-exitcode"]).ok();
    assert!(plan.stdout.contains("Nothing to do"), "{}", plan.stdout);
    assert!(plan.stdout.contains("note: etcd-a etcd-b etcd-c: adopted read-only"), "{}", plan.stdout);
    let status = lab.run(&["status", "--json"]).ok().json();
    let cluster = &status["clusters"][0];
    assert_eq!((&cluster["settled"], &cluster["auth"]), (&true.into(), &true.into()), "{cluster}");
    let states: Vec<&str> =
        cluster["members"].as_array().expect("members").iter().filter_map(|m| m["state"].as_str()).collect();
    assert_eq!(states.iter().filter(|state| **state == "leader").count(), 1, "{states:?}");
    assert_eq!(states.iter().filter(|state| **state == "follower").count(), 2, "{states:?}");
    assert_eq!(theirs.state(), before, "something was changed");

    // Nothing is written over.
    let again = theirs.adopt(&lab, &[]).failed();
    assert!(again.stderr.contains("raftsman.yaml is there already: it stays as it is"), "{}", again.stderr);
    let other = theirs.adopt(&lab, &["-o", "other.yaml"]).failed();
    assert!(other.stderr.contains("there is a state in"), "{}", other.stderr);
    assert!(!lab.path().join("other.yaml").exists());
    // Without the authority's key nothing can be signed.
    let issue = lab.run(&["cert", "issue", "app"]).failed();
    assert!(issue.stderr.contains("because the cluster is adopted"), "{}", issue.stderr);

    // What the file says otherwise is a difference, and never a restart.
    let file = lab.file();
    lab.write_file(&file.replace("quota: 4GiB", "quota: 8GiB").replace("version: 3.6.15", "version: 3.6.14"));
    let plan = lab.run(&["plan"]).ok();
    assert!(plan.stdout.contains("etcd-a etcd-b etcd-c: `quota` is 4GiB, the file says 8GiB"), "{}", plan.stdout);
    assert!(plan.stdout.contains("etcd-a etcd-b etcd-c: `version` is 3.6.15, the file says 3.6.14"), "{}", plan.stdout);
    let refused = lab.run(&["apply", "--yes", "--timeout", "20s"]).failed();
    assert!(refused.stdout.contains("raftsman does not restart adopted members"), "{}", refused.all());
    assert_eq!(theirs.state(), before, "something was changed");

    // Roles and users are etcd's own, and can be changed from the file.
    lab.write_file(
        &file.replace("      app: { roles: [app] }\n", "      app: { roles: [app] }\n      web: { roles: [app] }\n"),
    );
    assert_ne!(lab.file(), file);
    let lines = lab.apply();
    assert!(lines.iter().any(|line| line.to_string().contains("\"set_user\"")), "{lines:?}");
    assert_eq!(theirs.etcdctl(&["user", "list"]).lines().collect::<Vec<_>>(), ["app", "root", "web"]);
    let (_, members, _, roles, processes) = theirs.state();
    assert_eq!((&members, &roles, &processes), (&before.1, &before.3, &before.4));

    // Forgetting it leaves it alone.
    lab.run(&["destroy", "--yes"]).ok();
    assert!(!lab.path().join(".raftsman").exists());
    assert_eq!(theirs.state().4, before.4, "their processes run on");
}

/// etcd as it comes: all that it does by itself can be written into the file, the gateway too.
#[test]
fn a_default_cluster_is_not_blocked() {
    let mut theirs = Theirs::on_addresses(GOOD);
    theirs.start("3.6.15", &["--trusted-ca-file={ca}", "--client-cert-auth", "--peer-client-cert-auth"]);
    for arguments in
        [&["user", "add", "root", "--no-password"][..], &["user", "grant-role", "root", "root"], &["auth", "enable"]]
    {
        theirs.etcdctl(arguments);
    }
    let lab = empty_lab();
    theirs.adopt(&lab, &[]).ok();
    assert!(lab.file().contains("\n    gateway: true\n"), "{}", lab.file());
    let plan = lab.run(&["plan", "--detailed-exitcode"]).ok();
    assert!(plan.stdout.contains("Nothing to do") && !plan.stdout.contains("blocked:"), "{}", plan.all());
    assert_eq!(lab.cluster_status()["settled"], true);
}

#[test]
fn a_key_that_is_brought_signs_certificates() {
    let mut theirs = Theirs::on_addresses(GOOD);
    theirs.start("3.6.15", &SOUND);
    let lab = empty_lab();
    let wrong = theirs.adopt(&lab, &["--ca-key", &theirs.file("root.key")]).failed();
    assert!(!lab.path().join("raftsman.yaml").exists(), "{}", wrong.stderr);
    theirs.adopt(&lab, &["--ca-key", &theirs.file("ca.key")]).ok();
    lab.run(&["cert", "issue", "app", "--out", "certs"]).ok();
    assert!(lab.path().join("certs/app.crt").exists());
    let listed = lab.etcdctl(&["member", "list"]).ok();
    assert_eq!(listed.stdout.lines().count(), 3, "{}", listed.stdout);
}

#[test]
fn a_neglected_cluster_on_one_address() {
    let ten_days = Duration::from_secs(10 * 24 * 3600);
    let mut theirs = Theirs::on_ports(Customs { one_authority: true, validity: ten_days });
    theirs.start("3.5.34", &["--trusted-ca-file={ca}", "--client-cert-auth", "--strict-reconfig-check=false"]);
    theirs.etcdctl(&["put", "a", "1"]);
    // Renewed with fewer usages: it shows when the members connect to each other the next time.
    theirs.sign(theirs.peers(), &theirs.places[0], "peer", Usages::Server);
    let lost = theirs.running.remove(2);
    drop(Dead(lost));
    let left = theirs.places.pop().expect("the third");
    eventually("the others go on", || (theirs.try_etcdctl(&["endpoint", "health"]).code == 0).then_some(()));
    theirs.places.push(left);
    let lab = empty_lab();
    let report = theirs.adopt(&lab, &[]).ok();
    settled(|| {
        assert_snapshot!("adopt_neglected_report", without_disks(&theirs.plain(&report.stdout)));
        assert_snapshot!("adopt_neglected_file", theirs.plain(&lab.file()));
    });
    let plan = lab.run(&["plan"]);
    settled(|| assert_snapshot!("adopt_neglected_plan", theirs.plain(&plan.stdout)));
    let json = lab.run(&["status", "--json"]).json();
    assert_eq!(json["clusters"][0]["settled"], false);
    assert_eq!(json["clusters"][0]["tolerance"]["can_lose"], 0);
}

/// A process that is ended.
struct Dead(Child);

impl Drop for Dead {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_cluster_with_passwords() {
    let mut theirs = Theirs::on_addresses(GOOD);
    let flags = ["--peer-client-cert-auth", "--auto-compaction-retention=1", "--quota-backend-bytes=8589934592"];
    theirs.start("3.6.15", &flags);
    const CANARY: &str = "canary-root-password-of-theirs-3a8d";
    for arguments in [
        &["user", "add", "root", "--new-user-password", CANARY][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "service"],
        &["role", "grant-permission", "service", "--prefix=true", "readwrite", "/service/"],
        &["user", "add", "patroni", "--new-user-password", "secret"],
        &["user", "grant-role", "patroni", "service"],
        &["auth", "enable"],
    ] {
        theirs.etcdctl(arguments);
    }
    theirs.password = Some(CANARY.to_owned());
    let before = theirs.state();
    let lab = empty_lab();
    let path = PathBuf::from(theirs.file("root.password"));
    write_private(&path, &format!("{CANARY}\n"));
    let report = theirs.adopt(&lab, &["--password-file", &path.display().to_string()]).ok();
    assert!(!report.all().contains(CANARY) && !lab.file().contains(CANARY));
    settled(|| assert_snapshot!("adopt_passwords_file", theirs.plain(&lab.file())));
    let plan = lab.run(&["plan", "--detailed-exitcode"]).ok();
    assert!(plan.stdout.contains("Nothing to do"), "{}", plan.stdout);
    assert_eq!(theirs.state(), before, "something was changed");
    // Without credentials adopt fails, and says which it needs.
    let anonymous = theirs.adopt(&empty_lab(), &[]).failed();
    assert!(anonymous.stderr.contains("authentication is required"), "{}", anonymous.stderr);
    let json = theirs.adopt(&empty_lab(), &["--json", "--password-file", &path.display().to_string()]).ok().json();
    assert_eq!(json["found"]["members"].as_array().map(Vec::len), Some(3), "{json}");
    assert_eq!(json["found"]["access"]["Ok"]["users"]["patroni"]["password"], "other", "{json}");
    assert!(!json.to_string().contains(CANARY));
}

#[test]
fn what_cannot_be_adopted() {
    let lab = empty_lab();
    let theirs = Theirs::on_ports(GOOD);
    let (ca, key) = (theirs.file("ca.crt"), theirs.file("root.key"));
    let mut output = String::new();
    for arguments in [
        &["--endpoints", "http://127.0.0.1:1", "--cacert", &ca][..],
        &["--endpoints", "127.0.0.1", "--cacert", &ca],
        &["--endpoints", "https://127.0.0.1:1", "--cacert", &ca],
        &["--endpoints", "https://127.0.0.1:1", "--cacert", "/nowhere/ca.crt"],
        &["--endpoints", "https://127.0.0.1:1", "--cacert", &key],
        &["--endpoints", "https://127.0.0.1:1", "--cacert", &ca, "--name", "Main"],
    ] {
        let failed = lab.run(&[&["adopt"][..], arguments].concat()).failed();
        output.push_str(&theirs.plain(&failed.stderr));
    }
    assert_snapshot!("adopt_refusals", output);
    assert!(!lab.path().join("raftsman.yaml").exists() && !lab.path().join(".raftsman").exists());
}
