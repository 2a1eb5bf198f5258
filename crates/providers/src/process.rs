//! a machine's directory → the processes that are provably its own.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

/// Whether an agent runs: it holds its lock as long as it runs.
pub(crate) fn is_locked(lock: &Path) -> io::Result<bool> {
    let file = match File::open(lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// A process that was proved to be ours; the handle never refers to another one.
pub(crate) struct Proved {
    pub(crate) pid: u32,
    handle: OwnedFd,
}

impl Proved {
    /// Opens the process, then checks whether it is ours: in that order, so that the check is about the opened process.
    pub(crate) fn open(pid: u32, is_ours: impl FnOnce(&[Vec<u8>]) -> bool) -> io::Result<Option<Self>> {
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let handle = match pidfd_open(number, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            opened => opened?,
        };
        let arguments = arguments(pid);
        Ok((!arguments.is_empty() && is_ours(&arguments)).then_some(Self { pid, handle }))
    }

    /// Kills it; succeeds when it is gone.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// Sends it a signal; succeeds when it is gone.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Whether it has released everything. Its arguments and locks are gone, and its first thread is a zombie, a moment
    /// before its ports are free: only the handle shows when the last of its threads has ended.
    pub(crate) fn has_ended(&self) -> io::Result<bool> {
        match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&Timespec::default())) {
            Err(rustix::io::Errno::INTR) => Ok(false),
            ready => Ok(ready? > 0),
        }
    }
}

/// A process' arguments; none for one that is gone or a zombie.
pub(crate) fn arguments(pid: u32) -> Vec<Vec<u8>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).filter(|argument| !argument.is_empty()).map(<[u8]>::to_vec).collect()
}

/// The numbers of all processes.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// All processes with exactly this argument that run this program, or one from below this directory, as this user.
pub(crate) fn with_argument(argument: &[u8], programs: &Path) -> Vec<u32> {
    all()
        .filter(|pid| arguments(*pid).iter().skip(1).any(|found| found == argument) && is_ours(*pid, programs))
        .collect()
}

/// Whether this process runs this program, or one from below this directory, as this user: an argument alone proves nothing,
/// because every local user can start a process with it. A program that was replaced since is identified by its former
/// path.
pub(crate) fn is_ours(pid: u32, programs: &Path) -> bool {
    let Ok(programs) = programs.canonicalize() else { return false };
    let own = geteuid();
    let user = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    // An agent that runs as root may run etcd as another user.
    user.is_ok_and(|user| own.is_root() || user == own.as_raw())
        && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| former(&program).starts_with(programs))
}

/// The path of a program without the mark that it was replaced since.
fn former(program: &Path) -> &Path {
    let bytes = program.as_os_str().as_encoded_bytes();
    bytes.strip_suffix(b" (deleted)").map_or(program, |path| Path::new(OsStr::from_bytes(path)))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The process that the other test kills: it has many threads and much memory, and listens.
    #[test]
    #[ignore = "it is started by another test"]
    fn listens_until_it_is_killed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let memory: Vec<u8> = vec![1; 64 << 20];
        for _ in 0..64 {
            thread::spawn(|| {
                loop {
                    thread::yield_now()
                }
            });
        }
        println!("port={}", listener.local_addr().expect("its address").port());
        thread::sleep(Duration::from_secs(60));
        drop(memory);
    }

    #[test]
    fn what_has_ended_holds_no_port() {
        let this = std::env::current_exe().expect("this program");
        for round in 0..20 {
            let mut child = Command::new(&this)
                .args(["--exact", "process::tests::listens_until_it_is_killed", "--ignored", "--nocapture"])
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program starts");
            let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
            let port = lines.map_while(Result::ok).find_map(|line| line.split_once("port=")?.1.parse::<u16>().ok());
            let port = port.expect("its port");
            let process = Proved::open(child.id(), |_| true).expect("looked at").expect("it lives");
            assert!(!process.has_ended().expect("looked at"), "round {round}: it lives");
            process.kill().expect("killed");
            while !process.has_ended().expect("looked at") {
                thread::yield_now();
            }
            TcpListener::bind(("127.0.0.1", port))
                .unwrap_or_else(|error| panic!("round {round}: port {port}: {error}"));
            child.wait().expect("it ended");
        }
    }
}
