//! A number → that many hosts with a systemd of their own, in a network with the test, gone when it ends.
//!
//! Each is a container with its own disk (a layer over the machine that `just lab-machines` made) and its own network.
//! They are like hosts that exist already: sshd runs, an administrator may become root, and nothing else is there.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::lab::{Output, eventually, kill, machines_dir, text};
use crate::space::{Space, gone};

/// The user that logs in: not root, with passwordless sudo.
pub const USER: &str = "deploy";
const USER_ID: u32 = 1000;
const SSH: u16 = 22;

/// What changes on a host by itself.
const NOISE: [&str; 14] = [
    "dev",
    // What the system's own tools keep of the file before a user came or went.
    "etc/group-",
    "etc/gshadow-",
    "etc/passwd-",
    "etc/shadow-",
    "proc",
    "run",
    "sys",
    "tmp",
    "var/cache",
    "var/lib/systemd/random-seed",
    "var/lib/systemd/timers",
    "var/log",
    "var/tmp",
];

/// Everything that is on a host, one line each: the difference between before and after is what is left on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest(pub BTreeSet<String>);

impl Manifest {
    /// What came and what went since an earlier one.
    pub fn since(&self, earlier: &Self) -> Vec<String> {
        let gone = earlier.0.difference(&self.0).map(|line| format!("- {line}"));
        let new = self.0.difference(&earlier.0).map(|line| format!("+ {line}"));
        gone.chain(new).collect()
    }
}

/// A program of this computer and the libraries that it is linked to.
pub fn with_libraries(program: &str) -> Vec<String> {
    let said = text(Command::new("ldd").arg(program).output().expect("ldd: install libc-bin")).ok().stdout;
    let libraries = said.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned);
    std::iter::once(program.to_owned()).chain(libraries).collect()
}

struct Host {
    /// What its disk lies above: the machine, and PostgreSQL's layer where it has that.
    below: Vec<PathBuf>,
    /// Runs as long as the host has power.
    power: Option<Child>,
    cut: bool,
}

/// Hosts that run. Dropped, nothing of them is left.
pub struct Hosts {
    hosts: Vec<Host>,
    space: Space,
    dir: tempfile::TempDir,
}

impl Hosts {
    /// Hosts 0 to n - 1, with sshd ready. The test's thread, and the threads and programs that it starts from now on, are
    /// in their network: a runtime must not exist yet. Needs root.
    pub fn up(n: usize) -> Self {
        Self::with_postgres(n, 0)
    }

    /// The same, where the last ones have Debian's package of PostgreSQL.
    pub fn with_postgres(n: usize, nodes: usize) -> Self {
        let (machine, postgres) = (machines_dir().join("machine"), machines_dir().join("postgres"));
        assert!(nodes == 0 || postgres.exists(), "no PostgreSQL for machines: run `just lab-machines` as root first");
        let below = |i| if i + nodes < n { vec![machine.clone()] } else { vec![postgres.clone(), machine.clone()] };
        let dir = tempfile::Builder::new().prefix("raftsman-hosts-").tempdir().expect("a directory");
        let space = Space::enter(
            "ip link add bridge type bridge\nip address add 10.77.0.1/24 dev bridge\nip link set bridge up\n",
        );
        let hosts = (0..n).map(|i| Host { below: below(i), power: None, cut: false }).collect();
        let mut hosts = Self { hosts, space, dir };
        keygen(&hosts.dir.path().join("key"));
        for i in 0..n {
            let (host, address) = (name(i), address(i));
            hosts.new_disk(i);
            hosts.space.run(&format!(
                "ip netns add {host}\nip link add {host} type veth peer name eth0 netns {host}\nip link set {host} master \
                 bridge up\nip -n {host} link set lo up\nip -n {host} address add {address}/24 dev eth0\nip -n {host} link \
                 set eth0 up\nip -n {host} route add default via 10.77.0.1\n"
            ));
            hosts.power(i);
        }
        hosts.write_config();
        (0..n).for_each(|i| hosts.wait(i));
        hosts
    }

    /// The network that they are in, where the test is 10.77.0.1.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Their addresses.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        (0..self.hosts.len()).map(address).collect()
    }

    /// A configuration for `ssh -F`: the user, the key, and the hosts' keys, which are checked. It knows the addresses and
    /// the names h1, h2, ….
    pub fn ssh_config(&self) -> PathBuf {
        self.dir.path().join("ssh_config")
    }

    /// The private key with which the user gets in, and root.
    pub fn key(&self) -> PathBuf {
        self.dir.path().join("key")
    }

    /// The hosts' public keys, as ssh keeps them.
    pub fn known_hosts(&self) -> PathBuf {
        self.dir.path().join("known_hosts")
    }

    /// Runs a command on a host by SSH, as the user of the configuration.
    pub fn ssh(&self, i: usize, command: &str) -> Output {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(self.ssh_config()).arg(name(i)).arg(command).stdin(Stdio::null());
        text(ssh.output().expect("ssh: install openssh-client"))
    }

    /// Runs a command on a host as root, without its network.
    pub fn console(&self, i: usize, command: &str) -> Output {
        let first = self.first(i).expect("the host runs");
        let mut console = Command::new("nsenter");
        console.arg(format!("--target={first}")).args(["--all", "--", "/bin/sh", "-c", command]).stdin(Stdio::null());
        // The host must not see the test's own environment.
        console.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        text(console.output().expect("nsenter: install util-linux"))
    }

    /// A file or directory on a host's disk, seen from the test; also while the host has no power.
    pub fn disk(&self, i: usize, path: &str) -> PathBuf {
        self.space.path(&self.at(i, "root")).join(path.trim_start_matches('/'))
    }

    /// Puts a program of this computer onto a host's disk, with the libraries that it needs and the host does not have.
    pub fn install(&self, i: usize, program: &str) {
        for path in with_libraries(program) {
            let target = self.disk(i, &path);
            if !target.exists() {
                std::fs::copy(&path, &target).unwrap_or_else(|error| panic!("{path}: {error}"));
            }
        }
    }

    /// Every process of the host ends in the same moment. The disk stays, with everything that was written: what the
    /// kernel had in memory is not lost here.
    pub fn power_cut(&mut self, i: usize) {
        let Some(mut power) = self.hosts[i].power.take() else { return };
        eventually("the host is off", || {
            self.first_of(power.id()).into_iter().for_each(|first| kill(first, Signal::KILL));
            power.try_wait().expect("a child of ours")
        });
    }

    /// Shuts the host down properly.
    pub fn power_off(&mut self, i: usize) {
        const POWEROFF: i32 = 38; // SIGRTMIN+4, as systemd names it
        let Some(mut power) = self.hosts[i].power.take() else { return };
        let first = self.first_of(power.id()).expect("the host runs");
        let kill = Command::new("kill").args(["-s", &POWEROFF.to_string(), &first.to_string()]).status();
        assert!(kill.expect("kill: install procps").success(), "PID 1 takes no signal");
        gone(&mut power);
    }

    /// Switches a host on, and waits for its sshd unless its network is cut.
    pub fn start(&mut self, i: usize) {
        assert!(self.hosts[i].power.is_none(), "host {i} has power already");
        self.power(i);
        self.wait(i);
    }

    /// Cuts the host off: no traffic in or out.
    pub fn cut(&mut self, i: usize) {
        self.space.run(&format!("ip link set {} down", name(i)));
        self.hosts[i].cut = true;
    }

    /// Two hosts do not reach each other; the test and the other hosts reach both.
    pub fn part(&self, i: usize, j: usize) {
        for (host, other) in [(i, j), (j, i)] {
            let (host, other) = (name(host), address(other));
            self.space.run(&format!(
                "ip netns exec {host} nft 'table inet part {{ chain in {{ type filter hook input priority 0; ip saddr \
                 {other} drop; }}; }}'"
            ));
        }
    }

    /// All hosts reach each other again.
    pub fn unite(&self) {
        for i in 0..self.hosts.len() {
            self.space.run(&format!("ip netns exec {} nft 'table inet part; delete table inet part'", name(i)));
        }
    }

    /// The host's network is back.
    pub fn heal(&mut self, i: usize) {
        self.space.run(&format!("ip link set {} up", name(i)));
        self.hosts[i].cut = false;
    }

    /// Cuts the power and gives the host a new disk: another machine under the old address, with another host key, which
    /// the configuration knows. It is off.
    pub fn wipe(&mut self, i: usize) {
        self.power_cut(i);
        self.space.run(&format!("umount {}", self.at(i, "root").display()));
        std::fs::remove_dir_all(self.dir.path().join(name(i))).expect("the disk is ours");
        self.new_disk(i);
        self.write_config();
    }

    /// Refuses logins from now on, and ends open sessions.
    pub fn stop_sshd(&self, i: usize) {
        self.console(i, "systemctl stop ssh.service && while pkill -KILL '^sshd'; do sleep 0.05; done").ok();
    }

    /// Accepts logins again.
    pub fn start_sshd(&self, i: usize) {
        self.console(i, "systemctl start ssh.service").ok();
        self.wait(i);
    }

    /// The control group that all of them are in.
    pub fn group(&self) -> &Path {
        self.space.group()
    }

    /// Waits until a host's sshd answers, unless its network is cut.
    #[track_caller]
    pub fn wait(&self, i: usize) {
        if self.hosts[i].cut {
            return;
        }
        let address = SocketAddr::from((address(i), SSH));
        eventually("sshd answers", || {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
            stream.read_exact(&mut [0; 4]).ok()
        });
    }

    /// What is otherwise on a host than it was, once systemd has forgotten the unit with which the agent left.
    pub fn left(&self, i: usize, before: &Manifest) -> Vec<String> {
        let kind = std::time::Instant::now();
        loop {
            let left = self.manifest(i).since(before);
            if left.is_empty() || kind.elapsed() > Duration::from_secs(10) {
                return left;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// What is on a host that runs: units, users, groups, files, ports.
    pub fn manifest(&self, i: usize) -> Manifest {
        let mut lines = BTreeSet::new();
        let mut add = |kind: &str, text: &str| {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            lines.extend(text.lines().filter(|l| !l.is_empty()).map(|line| format!("{kind} {}", words(line))));
        };
        add("unit", &self.console(i, "systemctl list-unit-files --no-legend --no-pager").ok().stdout);
        // Timers run services at times of their own: units that listen or run count, not those that have run.
        let running = "systemctl list-units --no-legend --no-pager --plain --type=service,socket,timer,path,mount \
                       --state=running,listening,waiting,mounted,failed | cut -d' ' -f1";
        add("running", &self.console(i, running).ok().stdout);
        add("user", &self.console(i, "cat /etc/passwd").ok().stdout);
        add("group", &self.console(i, "cat /etc/group").ok().stdout);
        add("port", &self.console(i, "ss -Hltun | awk '{ print $1, $5 }'").ok().stdout);
        walk(&Tree { merged: self.disk(i, "/"), below: &self.hosts[i].below }, Path::new(""), &mut lines);
        Manifest(lines)
    }

    fn at(&self, i: usize, part: &str) -> PathBuf {
        self.dir.path().join(name(i)).join(part)
    }

    fn power(&mut self, i: usize) {
        // On reboot a host ends with 133. Its group is used again, but not what it left in there.
        let script = r#"
            group=/sys/fs/cgroup/$2
            while :; do
              mkdir -p "$group" && find "$group" -mindepth 1 -depth -type d -exec rmdir {} +
              (echo $BASHPID >"$group/cgroup.procs" && SYSTEMD_NSPAWN_API_VFS_WRITABLE=network exec systemd-nspawn \
                --quiet --boot --directory="$1" --machine="$2" --hostname="$2" --register=no --keep-unit --resolv-conf=off \
                --timezone=off --link-journal=no --network-namespace-path=/run/netns/"$2" \
                --capability=CAP_NET_ADMIN,CAP_NET_RAW --notify-ready=no --console=pipe) || ended=$?
              [ "${ended:-0}" = 133 ] || exit "${ended:-0}"
              ended=
            done"#;
        let log = std::fs::File::options().create(true).append(true).open(self.at(i, "console"));
        let log = log.expect("a log");
        let mut power = self.space.command("bash");
        power.args(["-c", script, "bash"]).arg(self.at(i, "root")).arg(name(i));
        power.stdout(log.try_clone().expect("a log")).stderr(log);
        self.hosts[i].power = Some(power.spawn().expect("nsenter: install util-linux"));
    }

    fn new_disk(&self, i: usize) {
        for part in ["own", "work", "root"] {
            std::fs::create_dir_all(self.at(i, part)).expect("a directory");
        }
        let disk = Disk { below: &self.hosts[i].below, own: &self.at(i, "own") };
        let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a random number");
        disk.write("etc/machine-id", 0o444, &id.replace('-', ""));
        disk.write("etc/hostname", 0o644, &format!("{}\n", name(i)));
        disk.write("etc/hosts", 0o644, &format!("127.0.0.1 localhost\n127.0.1.1 {}\n", name(i)));
        disk.directory(Path::new("etc/ssh"));
        keygen(&disk.own.join("etc/ssh/ssh_host_ed25519_key"));
        // The host exists already, with the network that it has.
        disk.write("etc/cloud/cloud-init.disabled", 0o644, "");
        for unit in ["service", "socket"] {
            disk.link(&format!("etc/systemd/system/systemd-networkd.{unit}"), "/dev/null");
        }
        disk.extend("etc/passwd", &format!("{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash\n"));
        disk.extend("etc/shadow", &format!("{USER}:*:20000:0:99999:7:::\n"));
        disk.extend("etc/group", &format!("{USER}:x:{USER_ID}:\n"));
        disk.extend("etc/gshadow", &format!("{USER}:!::\n"));
        disk.write(&format!("etc/sudoers.d/{USER}"), 0o440, &format!("{USER} ALL=(ALL) NOPASSWD: ALL\n"));
        let key = std::fs::read_to_string(self.key().with_extension("pub")).expect("a key");
        for (home, owner) in [("root".to_owned(), 0), (format!("home/{USER}"), USER_ID)] {
            disk.write(&format!("{home}/.ssh/authorized_keys"), 0o600, &key);
            for path in [home.clone(), format!("{home}/.ssh"), format!("{home}/.ssh/authorized_keys")] {
                lchown(disk.own.join(&path), Some(owner), Some(owner)).expect("an owner");
            }
            mode(&disk.own.join(&home).join(".ssh"), 0o700);
        }
        let below: Vec<String> = self.hosts[i].below.iter().map(|layer| layer.display().to_string()).collect();
        self.space.run(&format!(
            "mount -t overlay overlay -o lowerdir={},upperdir={},workdir={} {}",
            below.join(":"),
            self.at(i, "own").display(),
            self.at(i, "work").display(),
            self.at(i, "root").display(),
        ));
    }

    fn write_config(&self) {
        let (mut config, mut known) = (String::new(), String::new());
        for i in 0..self.hosts.len() {
            let key = std::fs::read_to_string(self.at(i, "own/etc/ssh/ssh_host_ed25519_key.pub")).expect("a host key");
            let _ = write!(known, "{} {key}", address(i));
            let _ = writeln!(config, "Host {}\n  HostName {}", name(i), address(i));
        }
        let _ = write!(
            config,
            "Host *\n  User {USER}\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile {}\n  \
             GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 10\n",
            self.key().display(),
            self.known_hosts().display(),
        );
        std::fs::write(self.known_hosts(), known).expect("the keys");
        std::fs::write(self.ssh_config(), config).expect("the configuration");
    }

    /// PID 1 of a host, as seen from outside.
    fn first(&self, i: usize) -> Option<u32> {
        self.first_of(self.hosts[i].power.as_ref()?.id())
    }

    /// The one below this process that is the first of a namespace in the space's.
    fn first_of(&self, process: u32) -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        let numbers: Vec<&str> = numbers.split_whitespace().collect();
        if numbers.len() > 2 && numbers.last() == Some(&"1") {
            return Some(process);
        }
        let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
        children.split_whitespace().filter_map(|child| child.parse().ok()).find_map(|child| self.first_of(child))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for i in 0..self.hosts.len() {
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.at(i, "console")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                let _ =
                    std::io::Write::write_all(&mut std::io::stderr(), format!("{}: {last:?}\n", name(i)).as_bytes());
            }
            // All at once, then each is waited for.
            self.first(i).into_iter().for_each(|first| kill(first, Signal::KILL));
        }
        (0..self.hosts.len()).for_each(|i| self.power_cut(i));
    }
}

/// The name of a host: people count from one.
fn name(i: usize) -> String {
    format!("h{}", i + 1)
}

fn address(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 11 + u8::try_from(i).expect("few hosts"))
}

fn keygen(path: &Path) {
    let keygen = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(path).status();
    assert!(keygen.expect("ssh-keygen: install openssh-client").success(), "no key at {}", path.display());
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
}

/// A host's layer, before it is a disk.
struct Disk<'a> {
    below: &'a [PathBuf],
    own: &'a Path,
}

/// The topmost of these layers that has this path.
fn found(layers: &[PathBuf], path: &Path) -> Option<PathBuf> {
    layers.iter().map(|layer| layer.join(path)).find(|found| found.symlink_metadata().is_ok())
}

impl Disk<'_> {
    /// Directories look as they do below.
    fn directory(&self, path: &Path) {
        if path.as_os_str().is_empty() || self.own.join(path).exists() {
            return;
        }
        self.directory(path.parent().expect("a path that is not empty"));
        std::fs::create_dir(self.own.join(path)).expect("a directory");
        self.like_below(path);
    }

    fn like_below(&self, path: &Path) {
        if let Some(below) = found(self.below, path).and_then(|below| std::fs::symlink_metadata(below).ok()) {
            lchown(self.own.join(path), Some(below.uid()), Some(below.gid())).expect("an owner");
            mode(&self.own.join(path), below.mode() & 0o7777);
        }
    }

    fn write(&self, path: &str, permissions: u32, text: &str) {
        self.directory(Path::new(path).parent().expect("a path with a parent"));
        std::fs::write(self.own.join(path), text).expect("a file");
        mode(&self.own.join(path), permissions);
    }

    fn extend(&self, path: &str, line: &str) {
        let below = found(self.below, Path::new(path)).and_then(|below| std::fs::read_to_string(below).ok());
        let below = below.expect("a file of the machine");
        self.write(path, 0o600, &(below + line));
        self.like_below(Path::new(path));
    }

    fn link(&self, path: &str, target: &str) {
        self.directory(Path::new(path).parent().expect("a path with a parent"));
        std::os::unix::fs::symlink(target, self.own.join(path)).expect("a link");
    }
}

struct Tree<'a> {
    merged: PathBuf,
    below: &'a [PathBuf],
}

/// Lists a directory of a disk. Most files are the machine's, of the same size and time: those are not read.
fn walk(tree: &Tree<'_>, dir: &Path, lines: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(tree.merged.join(dir)).into_iter().flatten().flatten() {
        let path = dir.join(entry.file_name());
        if NOISE.iter().any(|noise| path == Path::new(noise)) {
            continue;
        }
        let Ok(meta) = entry.metadata() else { continue };
        let mut line = format!("file /{} {:o} {}:{}", path.display(), meta.mode(), meta.uid(), meta.gid());
        if meta.is_symlink() {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            let _ = write!(line, " -> {}", target.display());
        } else if meta.is_file() {
            let _ = write!(line, " {} {}", meta.len(), content(tree, &path, &meta));
        }
        lines.insert(line);
        if meta.is_dir() {
            walk(tree, &path, lines);
        }
    }
}

fn content(tree: &Tree<'_>, path: &Path, meta: &std::fs::Metadata) -> String {
    let below = found(tree.below, path).unwrap_or_default();
    let base = std::fs::symlink_metadata(&below).ok().filter(std::fs::Metadata::is_file);
    let base = base.filter(|base| base.len() == meta.len());
    let time = |meta: &std::fs::Metadata| (meta.mtime(), meta.mtime_nsec());
    if base.as_ref().is_some_and(|base| time(base) == time(meta)) {
        return "the machine's".to_owned();
    }
    let own = std::fs::read(tree.merged.join(path)).unwrap_or_default();
    if base.is_some_and(|_| std::fs::read(&below).is_ok_and(|base| base == own)) {
        return "the machine's".to_owned();
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(&own);
    format!("{:016x}", hasher.finish())
}
