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
/// A machine without KVM: the time from its start until its agent serves is a minute on two cores, more beside others.
pub const BOOT_LIMIT: Duration = Duration::from_secs(300);

/// A libvirt that runs. Dropped, nothing of it and its machines is left.
pub struct Libvirt {
    space: Space,
    dir: tempfile::TempDir,
}

impl Libvirt {
    /// Starts a libvirt of its own. The test's thread, and the threads and programs that it starts from now on, are in its
    /// network: a runtime must not exist yet. Needs root.
    pub fn up() -> Self {
        let base = machines_dir().join(BASE);
        assert!(base.exists(), "{} is missing: run `just lab-vms` first", base.display());
        let dir = tempfile::Builder::new().prefix("raftsman-libvirt-").tempdir().expect("a directory");
        let at = dir.path().display();
        // Where KVM serves paravirtual guests only, libvirt takes it for usable: a file that nobody can write to is not.
        let script = format!(
            "mkdir -p {at}/{{etc/qemu/networks,run,lib,log,cache,pool}}\n\
             printf '%s\\n' 'unix_sock_dir = \"{at}/run\"' 'auth_unix_rw = \"none\"' 'auth_unix_ro = \"none\"' \
               'log_outputs = \"3:file:{at}/log/libvirtd.log\"' >{at}/etc/libvirtd.conf\n\
             printf '%s\\n' 'user = \"root\"' 'group = \"root\"' 'security_driver = \"none\"' 'cgroup_controllers = []' \
               'namespaces = []' 'stdio_handler = \"file\"' 'remember_owner = 0' >{at}/etc/qemu.conf\n\
             echo 'firewall_backend = \"iptables\"' >{at}/etc/network.conf\n\
             for pair in etc:/etc/libvirt lib:/var/lib/libvirt log:/var/log/libvirt cache:/var/cache/libvirt \
               run:/run/libvirt; do mkdir -p ${{pair#*:}}; mount --bind {at}/${{pair%%:*}} ${{pair#*:}}; done\n\
             : >{at}/none && mount --bind {at}/none /etc/resolv.conf\n\
             if [ -e /dev/kvm ]; then mount --bind {at}/none /dev/kvm; mount -o remount,bind,ro /dev/kvm; fi\n\
             libvirtd -f /etc/libvirt/libvirtd.conf -p /run/libvirtd.pid >{at}/log/out 2>&1 &\n"
        );
        let libvirt = Self { space: Space::enter(&script), dir };
        let begun = Instant::now();
        while libvirt.virsh(&["version"]).code != 0 {
            let log = || std::fs::read_to_string(libvirt.path().join("log/out")).unwrap_or_default();
            assert!(begun.elapsed() < Duration::from_secs(60), "libvirt does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
        let network = format!(
            "<network><name>{NETWORK}</name><forward mode='nat'/><bridge name='labbr0' stp='off' delay='0'/>\
             <ip address='10.79.0.1' netmask='255.255.255.0'><dhcp><range start='10.79.0.200' end='10.79.0.250'/></dhcp></ip>\
             </network>"
        );
        libvirt.define("net-define", &network);
        libvirt.virsh(&["net-start", NETWORK]).ok();
        let pool = libvirt.path().join("pool").display().to_string();
        libvirt.virsh(&["pool-define-as", POOL, "dir", "--target", &pool]).ok();
        // A reflink or a hard link where it can be: nobody writes to it.
        let volume = libvirt.path().join("pool").join(BASE);
        if std::fs::hard_link(&base, &volume).is_err() {
            std::fs::copy(&base, &volume).expect("a copy of the disk");
        }
        libvirt.virsh(&["pool-start", POOL]).ok();
        libvirt
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

    /// Everything that is there, by libvirt's own word: domains, networks with the addresses that they keep for somebody,
    /// pools, volumes. What is left is told by before and after.
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

    /// From now on the test is in this network, too, on the same bridge: an address such as `10.80.0.1/24`.
    pub fn also_at(&self, address: &str) {
        self.space.run(&format!("ip address add {address} dev labbr0"));
    }

    /// A machine loses its power; its disks stay.
    pub fn power_cut(&self, domain: &str) {
        self.virsh(&["destroy", domain]).ok();
    }

    /// What a machine says on its serial line, for one whose line is a file of the lab.
    pub fn console(&self, domain: &str) -> PathBuf {
        self.path().join("log").join(format!("{domain}.console"))
    }

    /// The control group that libvirt and its machines are in.
    pub fn group(&self) -> &Path {
        self.space.group()
    }
}
