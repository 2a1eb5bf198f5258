//! arguments → libvirt's answer, through the system's own `virsh`; its errors → what to do.

use std::io;
use std::time::Duration;

use tokio::process::Command;

use crate::program::{self, Failure};

/// A request that libvirt answers from memory; on a busy host the first one is slow.
const ASK_LIMIT: Duration = Duration::from_secs(120);
/// A disk that is copied or sent.
const DISK_LIMIT: Duration = Duration::from_secs(3600);

/// Why libvirt failed.
#[derive(Debug, thiserror::Error)]
pub enum LibvirtError {
    /// `virsh` is not there.
    #[error("`virsh` could not be run: install libvirt's client (Debian and Ubuntu: `libvirt-clients`)")]
    NoVirsh(#[source] io::Error),
    /// This user may not use libvirt.
    #[error(
        "libvirt at {uri} denies this user: join the group `libvirt` (`sudo usermod -aG libvirt $USER`) and log \
         in again, or have a policy made for it; it says:\n{words}"
    )]
    NoPermission {
        /// Where.
        uri: String,
        /// What it said.
        words: String,
    },
    /// libvirt does not answer.
    #[error(
        "libvirt at {uri} cannot be reached: see that `virsh --connect {uri} version` works without a question; it \
         says:\n{words}"
    )]
    NoConnection {
        /// Where.
        uri: String,
        /// What it said.
        words: String,
    },
    /// No such pool, or one that is off.
    #[error(
        "the storage pool `{pool}` of {uri} is missing or off: name another (`machines.libvirt.pool`), or make and start \
         it (`virsh pool-define-as {pool} dir --target /var/lib/libvirt/images`, `virsh pool-start {pool}`); libvirt \
         says:\n{words}"
    )]
    NoPool {
        /// Where.
        uri: String,
        /// Which.
        pool: String,
        /// What it said.
        words: String,
    },
    /// No such network, or one that is off.
    #[error(
        "the network `{network}` of {uri} is missing or off: name another (`machines.libvirt.network`; `virsh net-list \
         --all` lists them), or start it (`virsh net-start {network}`, `virsh net-autostart {network}`); libvirt \
         says:\n{words}"
    )]
    NoNetwork {
        /// Where.
        uri: String,
        /// Which.
        network: String,
        /// What it said.
        words: String,
    },
    /// The image is not there.
    #[error(
        "the image `{image}` is no volume of the pool `{pool}` at {uri}: put it there (`virsh vol-create-as {pool} {image} \
         <size> --format qcow2`, `virsh vol-upload {image} <file> --pool {pool}`), or name another (`machines.image`)"
    )]
    NoImage {
        /// Where.
        uri: String,
        /// The pool.
        pool: String,
        /// Which.
        image: String,
    },
    /// QEMU may not read the disk.
    #[error(
        "{machine}: QEMU may not open one of its disks: the pool's directory must be readable for the user that QEMU runs \
         as, and AppArmor must know it: on Ubuntu, add `\"<directory>/**\" rwk,` to \
         /etc/apparmor.d/local/abstractions/libvirt-qemu, then `sudo systemctl reload apparmor`; libvirt says:\n{words}"
    )]
    NoDiskAccess {
        /// The machine.
        machine: String,
        /// What it said.
        words: String,
    },
    /// No such interface on the host.
    #[error(
        "{machine}: the host has no interface `{interface}` to connect it to: `ip link` on the host lists them \
         (`machines.libvirt.macvtap`); libvirt says:\n{words}"
    )]
    NoInterface {
        /// The machine.
        machine: String,
        /// Which.
        interface: String,
        /// What it said.
        words: String,
    },
    /// No UEFI on the host.
    #[error(
        "{machine}: the host has no UEFI for it: install `ovmf` there, or set `firmware: bios`; libvirt says:\n{words}"
    )]
    NoFirmware {
        /// The machine.
        machine: String,
        /// What it said.
        words: String,
    },
    /// No KVM on the host.
    #[error(
        "{machine}: the host has no KVM: switch virtualization on in its firmware, or leave `acceleration` out; libvirt \
         says:\n{words}"
    )]
    NoKvm {
        /// The machine.
        machine: String,
        /// What it said.
        words: String,
    },
    /// The network gives out no addresses.
    #[error(
        "the network `{network}` does not give {machine} its address by DHCP: set `machines.subnet`, so that the machine \
         knows its address by itself; libvirt says:\n{words}"
    )]
    NoLease {
        /// The machine.
        machine: String,
        /// The network.
        network: String,
        /// What it said.
        words: String,
    },
    /// It belongs to another owner.
    #[error(
        "the virtual machine `{name}` at {uri} does not belong to this fleet, and was not changed: rename one of the \
         two"
    )]
    NotOurs {
        /// Where.
        uri: String,
        /// Which.
        name: String,
    },
    /// It is somewhere else.
    #[error("the machine {name} is at {found}, the order says {wanted}: virtual machines do not move")]
    OtherAddress {
        /// The machine.
        name: String,
        /// Where it is.
        found: std::net::IpAddr,
        /// What was ordered.
        wanted: std::net::IpAddr,
    },
    /// It does not serve.
    #[error(
        "{name} was started, and its agent does not answer at {address} after {} min: `virsh --connect {uri} console \
         {name}` shows what it does; can this computer reach it (the host of a macvtap cannot)? If the first boot \
         installs packages, has it a way to them?",
        limit.as_secs() / 60
    )]
    Silent {
        /// Where libvirt is.
        uri: String,
        /// The machine.
        name: String,
        /// Where it should.
        address: std::net::SocketAddr,
        /// How long it was waited for.
        limit: Duration,
    },
    /// There is none.
    #[error("there is no virtual machine {0}")]
    Missing(String),
    /// libvirt cannot change its address.
    #[error("the virtual machine {0} cannot be given another address: replace it")]
    NoMove(String),
    /// What was ordered cannot be rendered.
    #[error(transparent)]
    UserData(#[from] raftsman_core::render::cloud_init::UserDataError),
    /// The agent's program.
    #[error(transparent)]
    File(#[from] crate::files::FileError),
    /// libvirt's output has an unexpected format.
    #[error("libvirt at {uri} describes {what} in a way that is not understood: {why}")]
    Malformed {
        /// Where.
        uri: String,
        /// What.
        what: String,
        /// Why.
        why: String,
    },
    /// It took too long.
    #[error("libvirt at {uri} did not answer `virsh {verb}` within {} s", limit.as_secs())]
    TooLong {
        /// Where.
        uri: String,
        /// What was asked.
        verb: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// Anything else.
    #[error("`virsh {verb}` at {uri} failed: {words}")]
    Refused {
        /// Where.
        uri: String,
        /// What was asked.
        verb: String,
        /// What it said.
        words: String,
    },
}

impl LibvirtError {
    /// Whether libvirt itself reported this, about the request.
    pub(super) fn says(&self, what: &str) -> bool {
        matches!(self, Self::Refused { words, .. } if words.contains(what))
    }

    /// libvirt's message, if it contains one of these texts.
    pub(super) fn words(self, any: &[&str]) -> Result<String, Self> {
        match self {
            Self::Refused { words, .. } if any.iter().any(|what| words.contains(what)) => Ok(words),
            other => Err(other),
        }
    }
}

/// A connection to one libvirt.
#[derive(Clone, Debug)]
pub(super) struct Virsh {
    /// As the user wrote it.
    pub(super) uri: String,
}

impl Virsh {
    /// Runs a command; returns its output.
    pub(super) async fn ask(&self, arguments: &[&str]) -> Result<String, LibvirtError> {
        self.run(arguments, Vec::new(), ASK_LIMIT).await
    }

    /// Runs a command with this on its standard input, which is the file `/dev/stdin`.
    pub(super) async fn define(&self, arguments: &[&str], input: &str) -> Result<String, LibvirtError> {
        self.run(arguments, input.as_bytes().to_vec(), ASK_LIMIT).await
    }

    /// The same for a command whose duration depends on the size of a disk.
    pub(super) async fn send(&self, arguments: &[&str], input: Vec<u8>) -> Result<String, LibvirtError> {
        self.run(arguments, input, DISK_LIMIT).await
    }

    async fn run(&self, arguments: &[&str], input: Vec<u8>, limit: Duration) -> Result<String, LibvirtError> {
        let uri = || self.uri.clone();
        let verb = || arguments.first().map(ToString::to_string).unwrap_or_default();
        let mut command = Command::new("virsh");
        command.args(["--quiet", "--connect", &unattended(&self.uri)]).args(arguments);
        // Its messages are parsed, so they must be in English.
        command.env("LC_ALL", "C").env_remove("LANGUAGE");
        match program::run(&mut command, input, limit).await {
            Ok(printed) => Ok(String::from_utf8_lossy(&printed).into_owned()),
            Err(Failure::NotRun(error)) => Err(LibvirtError::NoVirsh(error)),
            Err(Failure::TooLong) => Err(LibvirtError::TooLong { uri: uri(), verb: verb(), limit }),
            Err(Failure::Refused { words, .. }) => Err(refusal(uri(), verb(), words)),
        }
    }
}

/// No user is there to answer a prompt of SSH.
fn unattended(uri: &str) -> String {
    match uri.split_once("://") {
        Some((transport, _)) if transport.ends_with("+ssh") && !uri.contains("no_tty=") => {
            format!("{uri}{}no_tty=1", if uri.contains('?') { '&' } else { '?' })
        }
        _ => uri.to_owned(),
    }
}

/// The cause of virsh's error, as far as it does not depend on the request.
fn refusal(uri: String, verb: String, words: String) -> LibvirtError {
    let has = |what: &str| words.contains(what);
    if !has("failed to connect to the hypervisor") {
        return LibvirtError::Refused { uri, verb, words };
    }
    let locked = ["Permission denied", "authentication unavailable", "authentication failed", "access denied"];
    let by_ssh = has("publickey") || has("Host key verification");
    if locked.iter().any(|what| has(what)) && !by_ssh {
        LibvirtError::NoPermission { uri, words }
    } else {
        LibvirtError::NoConnection { uri, words }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_virsh_says_is_understood() {
        let said = |words: &str| {
            let words = format!("error: failed to connect to the hypervisor\nerror: {words}");
            refusal("qemu:///system".to_owned(), "list".to_owned(), words)
        };
        for words in [
            "Failed to connect socket to '/var/run/libvirt/libvirt-sock': Permission denied",
            "authentication unavailable: no polkit agent available to authenticate action 'org.libvirt.unix.manage'",
        ] {
            assert!(matches!(said(words), LibvirtError::NoPermission { .. }), "{words}");
        }
        for words in [
            "Failed to connect socket to '/var/run/libvirt/libvirt-sock': No such file or directory",
            "Cannot recv data: root@kvm1: Permission denied (publickey).: Connection reset by peer",
            "Cannot recv data: Host key verification failed.: Connection reset by peer",
        ] {
            assert!(matches!(said(words), LibvirtError::NoConnection { .. }), "{words}");
        }
        let missing = refusal(String::new(), String::new(), "error: failed to get domain 'm1'".to_owned());
        assert!(missing.says("failed to get domain"));
        // A failed connection says nothing about the domain.
        assert!(!said("failed to get domain 'm1'").says("failed to get domain"));
    }

    #[test]
    fn ssh_never_prompts() {
        for (uri, unasked) in [
            ("qemu:///system", "qemu:///system"),
            ("qemu+ssh://root@kvm1/system", "qemu+ssh://root@kvm1/system?no_tty=1"),
            ("qemu+ssh://kvm1/system?keyfile=/k", "qemu+ssh://kvm1/system?keyfile=/k&no_tty=1"),
            ("qemu+ssh://kvm1/system?no_tty=0", "qemu+ssh://kvm1/system?no_tty=0"),
        ] {
            assert_eq!(unattended(uri), unasked);
        }
    }
}
