//! Nothing → an Incus server with a network and an image, in a network with the test, gone when it ends.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::hosts::with_libraries;
use crate::lab::{Output, machines_dir, text};
use crate::space::Space;

/// The image that the server has: the machine of `just lab-machines`, as a container.
pub const IMAGE: &str = "raftsman-machine";
/// The bridge that machines are on.
pub const NETWORK: &str = "raftsmanbr0";
/// The addresses of that bridge. Those from .200 on are given out by DHCP.
pub const SUBNET: &str = "10.78.0.0/24";

/// A server that runs. Dropped, nothing of it and its machines is left.
pub struct Incus {
    space: Space,
    dir: tempfile::TempDir,
}

impl Incus {
    /// Starts a server of its own. The test's thread, and the threads and programs that it starts from now on, are in its
    /// network: a runtime must not exist yet. Needs root.
    pub fn up() -> Self {
        let dir = tempfile::Builder::new().prefix("raftsman-incus-").tempdir().expect("a directory");
        let at = dir.path().display();
        // Machines' disks are in memory: quick, and gone with the space. The name server of this computer is not theirs.
        let script = format!(
            "export INCUS_DIR={at}/var INCUS_CONF={at}/conf PATH=/usr/libexec/incus:/usr/sbin:/usr/bin:/sbin:/bin\n\
             mkdir -p $INCUS_DIR $INCUS_CONF && mkdir -m 711 $INCUS_DIR/storage-pools\n\
             mount -t tmpfs -o mode=711,size=6G tmpfs $INCUS_DIR/storage-pools\n\
             : >{at}/resolv.conf && mount --bind {at}/resolv.conf /etc/resolv.conf\n\
             mkdir /run/lxc\n\
             incusd --group root >{at}/log 2>&1 &\n\
             incusd waitready --timeout=120 >&2\n"
        );
        let incus = Self { space: Space::enter(&script), dir };
        let network = json!({"name": NETWORK, "type": "bridge", "config": {
            "ipv4.address": "10.78.0.1/24", "ipv4.nat": "false", "ipv4.dhcp.ranges": "10.78.0.200-10.78.0.250",
            "ipv6.address": "none",
        }});
        let pool = json!({"name": "default", "driver": "dir", "config": {}});
        let devices = json!({"devices": {
            "root": {"type": "disk", "path": "/", "pool": "default"},
            "eth0": {"type": "nic", "network": NETWORK, "name": "eth0"},
        }});
        for (method, path, body) in [
            ("POST", "/1.0/networks", network),
            ("POST", "/1.0/storage-pools", pool),
            ("PUT", "/1.0/profiles/default", devices),
        ] {
            incus.query(method, path, Some(&body)).unwrap_or_else(|e| panic!("{method} {path}: {e}"));
        }
        incus.import(IMAGE, "machine.squashfs");
        incus
    }

    /// Adds an image with this name: a file system that `just lab-machines` made.
    pub fn import(&self, alias: &str, squashfs: &str) {
        let machines = machines_dir();
        let mut import = self.client(&["image", "import"]);
        import.arg(machines.join("machine.meta.tar")).arg(machines.join(squashfs));
        text(import.args(["--alias", alias, "--quiet"]).output().expect("incus runs")).ok();
    }

    /// Puts a program of this computer onto a machine, with the libraries that it needs and the machine does not have, in
    /// place of `apt-get install`: no mirror of packages is reached from there.
    pub fn install(&self, machine: &str, program: &str) {
        for path in with_libraries(program) {
            if self.exec(machine, &format!("test -e {path}")).code == 0 {
                continue;
            }
            let to = format!("{}{path}", self.called(machine));
            let mut push =
                self.client(&["file", "push", "--quiet", "--create-dirs", "--uid=0", "--gid=0", "--mode=0755"]);
            let file = std::fs::canonicalize(&path).expect("a file of this computer");
            text(push.arg(file).arg(to).output().expect("incus runs")).ok();
        }
    }

    /// From now on the server listens on its bridge, too: the address and the certificate that it shows, which
    /// clients know it by: the address is not in it.
    pub fn https(&self) -> (String, String) {
        let listen = json!({"config": {"core.https_address": "10.78.0.1:8443"}});
        self.query("PATCH", "/1.0", Some(&listen)).unwrap_or_else(|e| panic!("it does not listen: {e}"));
        let server = self.query("GET", "/1.0", None).expect("the server");
        let certificate = server["environment"]["certificate"].as_str().expect("a certificate");
        ("https://10.78.0.1:8443".to_owned(), certificate.to_owned())
    }

    /// Adds this certificate (PEM) to the server's trusted clients.
    pub fn trust(&self, name: &str, certificate: &str) {
        let der: String = certificate.lines().filter(|line| !line.starts_with("-----")).collect();
        let trust = json!({"type": "client", "name": name, "certificate": der});
        self.query("POST", "/1.0/certificates", Some(&trust)).unwrap_or_else(|e| panic!("no trust: {e}"));
    }

    /// The server's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("var/unix.socket")
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        let connection = UnixStream::connect(self.socket()).expect("the server listens");
        let peer = rustix::net::sockopt::socket_peercred(&connection).expect("its credentials");
        u32::try_from(peer.pid.as_raw_nonzero().get()).expect("a process number")
    }

    /// A directory for files of the test, with a path that is short enough for a socket.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The client of this server, not started yet.
    pub fn client(&self, arguments: &[&str]) -> Command {
        let mut client = Command::new("incus");
        client.args(arguments).stdin(Stdio::null());
        client.env("INCUS_DIR", self.dir.path().join("var")).env("INCUS_CONF", self.dir.path().join("conf"));
        client
    }

    /// What the server calls a machine of raftsman's; another instance is called as it is.
    pub fn called(&self, machine: &str) -> String {
        let all = self.query("GET", "/1.0/instances?recursion=1", None).unwrap_or_default();
        let ours = |found: &&Value| found["config"]["user.raftsman.machine"] == machine;
        let called = all.as_array().into_iter().flatten().find(ours).and_then(|found| found["name"].as_str());
        called.unwrap_or(machine).to_owned()
    }

    /// Runs a command in a machine, as root.
    pub fn exec(&self, instance: &str, command: &str) -> Output {
        let mut exec = self.client(&["exec", &self.called(instance), "--", "sh", "-c", command]);
        text(exec.output().expect("incus: run `just lab-machines` first"))
    }

    /// Asks the server, and waits for the operation that this starts: the answer's `metadata`, or the error.
    pub fn query(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        ask(&self.socket(), method, path, body)
    }

    /// A machine loses its power; its disk stays.
    pub fn power_cut(&self, instance: &str) {
        self.state(instance, json!({"action": "stop", "force": true}));
    }

    /// Switches a machine on.
    pub fn start(&self, instance: &str) {
        self.state(instance, json!({"action": "start"}));
    }

    fn state(&self, instance: &str, change: Value) {
        let path = format!("/1.0/instances/{}/state", self.called(instance));
        self.query("PUT", &path, Some(&change)).unwrap_or_else(|e| panic!("{change} of {instance}: {e}"));
    }

    /// Cuts the machine off: no traffic in or out.
    pub fn cut(&self, instance: &str) {
        self.space.run(&format!("ip link set {} down", self.link(instance)));
    }

    /// The machine's network is back.
    pub fn heal(&self, instance: &str) {
        self.space.run(&format!("ip link set {} up", self.link(instance)));
    }

    fn link(&self, instance: &str) -> String {
        let state =
            self.query("GET", &format!("/1.0/instances/{}/state", self.called(instance)), None).expect("it runs");
        state["network"]["eth0"]["host_name"].as_str().expect("a link to the bridge").to_owned()
    }

    /// Everything that the server has: the difference between before and after is what is left on it.
    pub fn inventory(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for kind in
            ["instances", "images", "certificates", "networks", "network-acls", "profiles", "projects", "storage-pools"]
        {
            all.extend(self.urls(&format!("/1.0/{kind}")));
        }
        all.extend(self.urls("/1.0/storage-pools/default/volumes"));
        all
    }

    fn urls(&self, path: &str) -> Vec<String> {
        let list = self.query("GET", path, None).unwrap_or_else(|e| panic!("{path}: {e}"));
        list.as_array().into_iter().flatten().filter_map(|url| url.as_str().map(str::to_owned)).collect()
    }

    /// The control group that the server and its machines are in.
    pub fn group(&self) -> &Path {
        self.space.group()
    }
}

/// Asks a server at a socket, and waits for the operation that this starts: the answer's `metadata`, or the error.
pub fn ask(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let reply = curl(socket, method, path, body)?;
    let Some(operation) = reply["operation"].as_str().filter(|operation| !operation.is_empty()) else {
        return Ok(reply["metadata"].clone());
    };
    let done = curl(socket, "GET", &format!("{operation}/wait?timeout=120"), None)?["metadata"].clone();
    // An operation that failed is a reply that succeeded.
    match done["status_code"].as_u64() {
        Some(200) => Ok(done),
        _ => Err(format!("{}: {}", done["status"], done["err"])),
    }
}

fn curl(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--max-time", "150", "--request", method, "--unix-socket"]).arg(socket);
    if let Some(body) = body {
        curl.args(["--header", "Content-Type: application/json", "--data-binary", &body.to_string()]);
    }
    let output = text(curl.arg(format!("http://incus{path}")).output().expect("curl runs"));
    if output.code != 0 {
        return Err(output.stderr);
    }
    let reply: Value = serde_json::from_str(&output.stdout).map_err(|e| format!("{e}: {}", output.stdout))?;
    if reply["type"] == "error" { Err(reply["error"].to_string()) } else { Ok(reply) }
}
