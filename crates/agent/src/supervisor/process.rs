//! `/proc` → the agent's own processes, and those that hold a certain file. This avoids stale pid files.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use crate::root::Root;
use crate::supervisor::binaries::Binary;
use crate::supervisor::program::{PYTHON, Program, Source};
use crate::supervisor::systemd;

fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The process of a program that the agent started.
pub fn of(root: &Root, program: Program) -> Option<Handle> {
    ours(root, program, &program.known_by(root))
}

/// All processes of a program that the agent started: HAProxy has a worker, and more of them after a reload.
pub fn all_of(root: &Root, program: Program) -> Vec<Handle> {
    let argument = program.known_by(root);
    let Some(binaries) = binaries(root, program) else { return Vec::new() };
    let is_ours = |pid: u32| is_ours(pid, program, &binaries, &argument);
    let handles = pids().filter(|pid| is_ours(*pid)).filter_map(|pid| Handle::open(pid).ok());
    // A process id could have been reused before its handle was opened, so it is checked once more.
    handles.filter(|handle| is_ours(handle.pid())).collect()
}

/// A process that runs one of a program's binaries as the agent's own user or as the program's, with exactly this
/// argument. The argument alone proves nothing: every local user can start a process with it. Of several, the one that
/// the others are children of: HAProxy's master, whose workers have the same arguments.
pub fn ours(root: &Root, program: Program, argument: &str) -> Option<Handle> {
    let binaries = binaries(root, program)?;
    let is_ours = |pid: u32| is_ours(pid, program, &binaries, argument);
    let found: Vec<u32> = pids().filter(|pid| is_ours(*pid)).collect();
    let pid = *found.iter().find(|pid| parent(**pid).is_none_or(|parent| !found.contains(&parent)))?;
    match Handle::open(pid) {
        // The process id could have been reused before the handle was opened, so it is checked once more.
        Ok(handle) => is_ours(pid).then_some(handle),
        Err(error) => {
            tracing::warn!(pid, %error, "a process of ours ended before it could be watched");
            None
        }
    }
}

/// All processes that run as the agent's own user or as the program's, and have an argument of this kind.
pub fn with_argument(program: Program, is_it: impl Fn(&str) -> bool) -> Vec<Handle> {
    let is_ours = |pid: u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = line.split(|byte| *byte == 0).skip(1);
        arguments.any(|found| std::str::from_utf8(found).is_ok_and(&is_it)) && is_trusted(pid, program)
    };
    let handles = pids().filter(|pid| is_ours(*pid)).filter_map(|pid| Handle::open(pid).ok());
    // A process id could have been reused before its handle was opened, so it is checked once more.
    handles.filter(|handle| is_ours(handle.pid())).collect()
}

/// The directory below which a program's binaries are, or its only binary.
fn binaries(root: &Root, program: Program) -> Option<PathBuf> {
    match program.source() {
        // Its interpreter, by the beginning of its name: Debian may have brought another version since.
        Source::Pinned(Binary::Patroni) => Some(PathBuf::from(PYTHON)),
        Source::Pinned(Binary::Etcd | Binary::Etcdutl) => program.files(root).versions().canonicalize().ok(),
        Source::Package(package) => Path::new(package.program).canonicalize().ok(),
    }
}

fn is_ours(pid: u32, program: Program, binaries: &Path, argument: &str) -> bool {
    // patronictl, which has Patroni's file as an argument too, has others beside it.
    let is_alone = || match program {
        Program::Patroni => arguments(pid).len() == 5,
        Program::Etcd | Program::Haproxy | Program::Keepalived => true,
    };
    has_argument(pid, argument) && runs_from(pid, binaries) && is_trusted(pid, program) && is_alone()
}

/// Whether the binary that this process runs is this one, or one from below this directory. It may have been replaced
/// since: its link then ends in ` (deleted)`.
fn runs_from(pid: u32, binaries: &Path) -> bool {
    let Ok(binary) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let former = binary.as_os_str().as_encoded_bytes().strip_suffix(b" (deleted)");
    let binary = former.map_or(&*binary, |former| Path::new(OsStr::from_bytes(former)));
    let is_python = || {
        let (found, known) = (binary.as_os_str().as_encoded_bytes(), PYTHON.as_bytes());
        found.strip_prefix(known).is_some_and(|version| version.iter().all(|b| b".0123456789".contains(b)))
    };
    if binaries == Path::new(PYTHON) { is_python() } else { binary.starts_with(binaries) }
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Whether this process runs as the agent's own user, or as the one that the agent runs this program as.
fn is_trusted(pid: u32, program: Program) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let users: Vec<u32> = users.into_iter().flat_map(str::split_whitespace).filter_map(|id| id.parse().ok()).collect();
    let own = geteuid().as_raw();
    let service = || program.user().and_then(|name| systemd::owner(name).ok().flatten()).map(|owner| owner.user);
    !users.is_empty() && users.iter().all(|user| *user == own || Some(*user) == service())
}

fn arguments(pid: u32) -> Vec<Vec<u8>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).filter(|argument| !argument.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Whether this process runs and has exactly this argument. A zombie has none.
fn has_argument(pid: u32, argument: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).skip(1).any(|found| found == argument.as_bytes()))
}

/// The process that has a file open with this link in `/proc`.
pub fn holding(link: &str) -> Option<u32> {
    pids().find(|pid| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == link))
    })
}

/// A handle on a process that never refers to another one, even when its process id is reused.
#[derive(Debug)]
pub struct Handle {
    pid: u32,
    fd: Arc<OwnedFd>,
    ended: watch::Receiver<bool>,
}

impl Handle {
    /// The process with this number.
    pub fn open(pid: u32) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = Arc::new(pidfd_open(number, PidfdFlags::empty())?);
        let (report, ended) = watch::channel(false);
        let watched = Arc::clone(&fd);
        // A thread that blocks until the end: tokio's own way to wait for a descriptor needs unsafe code.
        thread::Builder::new().name("watch a program".to_owned()).stack_size(64 * 1024).spawn(move || {
            loop {
                match poll(&mut [PollFd::new(&*watched, PollFlags::IN)], None) {
                    Err(Errno::INTR) => {}
                    Err(error) => {
                        // Memory is short: retry soon, because a missed exit is worse.
                        tracing::warn!(%error, "cannot watch a process");
                        thread::sleep(Duration::from_millis(200));
                    }
                    Ok(_) => break,
                }
            }
            report.send_replace(true);
        })?;
        Ok(Self { pid, fd, ended })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal; succeeds when the process is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&*self.fd, signal) {
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Returns once the process has ended.
    pub async fn ended(&self) {
        // The thread ends only after it reported the exit, so an error means the same.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }
}
