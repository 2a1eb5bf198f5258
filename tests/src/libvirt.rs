//! Nothing → a libvirt with a network, a pool and a disk to boot from, in a network with the test, gone when it ends.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{Output, machines_dir, text};
use crate::space::Space;

/// The pool of the machines' disks: a directory.
pub const POOL: &str = "machines";
/// The volume that machines boot from.
pub const BASE: &str = "base.qcow2";
/// The network that machines are on.
pub const NETWORK: &str = "lab";
/// The addresses of that network. Those from .200 on are given out by DHCP.
pub const SUBNET: &str = "10.79.0.0/24";
/// A machine without KVM: the time from its start until its agent serves is a minute on two cores, and several beside
/// others on cores that are taken away at times. What does not boot at all is seen late, and is seen.
pub const BOOT_LIMIT: Duration = Duration::from_secs(600);

/// KVM hosts on one network: a libvirt on each, with a pool and a disk to boot from. It is used like its first host.
/// Dropped, nothing of them and their machines is left.
pub struct Libvirt {
    space: Space,
    hosts: Vec<Host>,
}

/// One KVM host.
pub struct Host {
    /// Its control group in the space: libvirt and its machines are in it.
    group: PathBuf,
    dir: tempfile::TempDir,
}

impl Libvirt {
    /// One host.
    pub fn up() -> Self {
        Self::hosts(1)
    }

    /// So many hosts. The test's thread, and the threads and programs that it starts from now on, are in their network: a
    /// runtime must not exist yet. Needs root.
    pub fn hosts(count: usize) -> Self {
        let base = machines_dir().join(BASE);
        assert!(base.exists(), "{} is missing: run `just lab-vms` first", base.display());
        let dir = || tempfile::Builder::new().prefix("raftsman-libvirt-").tempdir().expect("a directory");
        let host = |number| Host { group: format!("/sys/fs/cgroup/host{number}").into(), dir: dir() };
        let hosts: Vec<Host> = (1..=count).map(host).collect();
        let script: String = hosts.iter().map(Host::script).collect();
        let libvirt = Self { space: Space::enter(&script), hosts };
        for (number, host) in libvirt.hosts.iter().enumerate() {
            host.answers();
            host.prepare(&base, number == 0);
        }
        libvirt
    }

    /// The host of this number, from 0.
    pub fn host(&self, number: usize) -> &Host {
        &self.hosts[number]
    }

    /// A host loses its power: its libvirt and its machines are gone.
    pub fn lose(&self, number: usize) {
        self.space.run(&format!("echo 1 >{}/cgroup.kill", self.hosts[number].group.display()));
    }

    /// It has power again: its libvirt runs, its machines do not.
    pub fn power_on(&self, number: usize) {
        let host = &self.hosts[number];
        self.space.run(&host.script());
        host.answers();
        if number > 0 {
            // The bridge is the first host's, and was there all the time.
            host.virsh(&["net-start", NETWORK]).ok();
        }
        host.virsh(&["pool-start", POOL]).ok();
    }

    /// From now on the test is in this network, too, on the same bridge: an address such as `10.80.0.1/24`.
    pub fn also_at(&self, address: &str) {
        self.space.run(&format!("ip address add {address} dev labbr0"));
    }

    /// The control group that libvirt and its machines are in.
    pub fn group(&self) -> &Path {
        self.space.group()
    }
}

impl std::ops::Deref for Libvirt {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.hosts[0]
    }
}

impl Host {
    /// Starts its libvirt. Its directories are its own, and so is its control group.
    fn script(&self) -> String {
        let (at, group) = (self.dir.path().display(), self.group.display());
        // Where KVM serves paravirtual guests only, libvirt takes it for usable: a file that cannot be written to is not.
        format!(
            "mkdir -p {at}/{{etc/qemu/networks,run,lib,log,cache,pool}} {group}\n\
             printf '%s\\n' 'unix_sock_dir = \"{at}/run\"' 'auth_unix_rw = \"none\"' 'auth_unix_ro = \"none\"' \
               'log_outputs = \"3:file:{at}/log/libvirtd.log\"' >{at}/etc/libvirtd.conf\n\
             printf '%s\\n' 'user = \"root\"' 'group = \"root\"' 'security_driver = \"none\"' 'cgroup_controllers = []' \
               'namespaces = []' 'stdio_handler = \"file\"' 'remember_owner = 0' >{at}/etc/qemu.conf\n\
             echo 'firewall_backend = \"iptables\"' >{at}/etc/network.conf\n\
             : >{at}/none\n\
             (echo 0 >{group}/cgroup.procs\n\
             exec unshare --mount --propagation private bash -euc '\n\
             for pair in etc:/etc/libvirt lib:/var/lib/libvirt log:/var/log/libvirt cache:/var/cache/libvirt \
               run:/run/libvirt; do mkdir -p ${{pair#*:}}; mount --bind {at}/${{pair%%:*}} ${{pair#*:}}; done\n\
             mount --bind {at}/none /etc/resolv.conf\n\
             if [ -e /dev/kvm ]; then mount --bind {at}/none /dev/kvm; mount -o remount,bind,ro /dev/kvm; fi\n\
             exec libvirtd -f /etc/libvirt/libvirtd.conf -p {at}/libvirtd.pid') >{at}/log/out 2>&1 </dev/null &\n"
        )
    }

    fn answers(&self) {
        let begun = Instant::now();
        while self.virsh(&["version"]).code != 0 {
            let log = || std::fs::read_to_string(self.path().join("log/out")).unwrap_or_default();
            assert!(begun.elapsed() < Duration::from_secs(60), "libvirt does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A network, a pool and a disk to boot from. The first host has the bridge that the machines of all are on.
    fn prepare(&self, base: &Path, first: bool) {
        let network = match first {
            true => format!(
                "<network><name>{NETWORK}</name><forward mode='nat'/><bridge name='labbr0' stp='off' delay='0'/>\
                 <ip address='10.79.0.1' netmask='255.255.255.0'><dhcp><range start='10.79.0.200' end='10.79.0.250'/>\
                 </dhcp></ip></network>"
            ),
            false => {
                format!("<network><name>{NETWORK}</name><forward mode='bridge'/><bridge name='labbr0'/></network>")
            }
        };
        self.define("net-define", &network);
        self.virsh(&["net-start", NETWORK]).ok();
        let pool = self.path().join("pool").display().to_string();
        self.virsh(&["pool-define-as", POOL, "dir", "--target", &pool]).ok();
        // A hard link where it can be: it is only read.
        let volume = self.path().join("pool").join(BASE);
        if std::fs::hard_link(base, &volume).is_err() {
            std::fs::copy(base, &volume).expect("a copy of the disk");
        }
        self.virsh(&["pool-start", POOL]).ok();
    }

    /// How it is reached.
    pub fn uri(&self) -> String {
        format!("qemu+unix:///system?socket={}/run/libvirt-sock", self.dir.path().display())
    }

    /// Asks libvirt.
    pub fn virsh(&self, arguments: &[&str]) -> Output {
        let mut virsh = Command::new("virsh");
        virsh.args(["--quiet", "--connect", &self.uri()]).args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
        text(virsh.output().expect("virsh: run `just lab-vms` first"))
    }

    /// Defines what is described by this XML.
    pub fn define(&self, verb: &str, xml: &str) {
        let file = self.path().join("defined.xml");
        std::fs::write(&file, xml).expect("a file");
        self.virsh(&[verb, &file.display().to_string()]).ok();
    }

    /// A directory for files of the test.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Everything that libvirt lists: domains, networks with the addresses that they keep for machines,
    /// pools, volumes. The difference between before and after is what is left.
    pub fn everything(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let names = |verb: &str| {
            let list = self.virsh(&[verb, "--all", "--name"]).ok().stdout;
            list.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        all.extend(names("list").into_iter().map(|name| format!("domain {name}")));
        for name in names("net-list") {
            let kept = self.virsh(&["net-dumpxml", &name, "--inactive"]).ok().stdout;
            all.extend(
                kept.lines().filter(|line| line.contains("<host")).map(|line| format!("{name} {}", line.trim())),
            );
            all.insert(format!("network {name}"));
        }
        for name in names("pool-list") {
            self.virsh(&["pool-refresh", &name]).ok();
            // Two columns; the names have no blanks.
            let volumes = self.virsh(&["vol-list", &name]).ok().stdout;
            let volumes = volumes.lines().filter_map(|line| line.split_whitespace().next());
            all.extend(volumes.map(|volume| format!("volume {name}/{volume}")));
            all.insert(format!("pool {name}"));
        }
        all
    }

    /// What libvirt calls a machine of raftsman's: the fleet's name comes first. Another domain is called as it is.
    pub fn called(&self, machine: &str) -> String {
        let all = self.virsh(&["list", "--all", "--name"]).ok().stdout;
        let mut names = all.lines().map(str::trim);
        names.find(|name| name.ends_with(&format!("-{machine}"))).unwrap_or(machine).to_owned()
    }

    /// A machine loses its power; its disks stay.
    pub fn power_cut(&self, domain: &str) {
        self.virsh(&["destroy", &self.called(domain)]).ok();
    }

    /// What a machine says on its serial line, for one whose line is a file of the lab.
    pub fn console(&self, domain: &str) -> PathBuf {
        self.path().join("log").join(format!("{domain}.console"))
    }
}
