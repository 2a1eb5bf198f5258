//! a machine's directory → the processes that are provably its own.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Whether an agent lives: it holds its lock for life.
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

/// A process that was proved to be ours; the handle never means another one.
pub(crate) struct Proved {
    pub(crate) pid: u32,
    handle: OwnedFd,
}

impl Proved {
    /// Opens the process, then asks whether it is ours: in that order, so that the answer is about what was opened.
    pub(crate) fn open(pid: u32, is_ours: impl FnOnce(&[Vec<u8>]) -> bool) -> io::Result<Option<Self>> {
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let handle = match pidfd_open(number, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            opened => opened?,
        };
        let arguments = arguments(pid);
        Ok((!arguments.is_empty() && is_ours(&arguments)).then_some(Self { pid, handle }))
    }

    /// Kills it; fine when it is gone.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Whether it has let go of all that it held: its arguments and locks are gone a moment before its ports are.
    pub(crate) fn has_ended(&self) -> io::Result<bool> {
        match pidfd_send_signal(&self.handle, Signal::KILL) {
            Err(rustix::io::Errno::SRCH) => return Ok(true),
            sent => sent?,
        }
        // Nobody may have asked yet how it ended: then it is a zombie, which holds nothing.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
        Ok(matches!(state, None | Some('Z' | 'X')))
    }
}

/// A process' arguments; none for one that is gone or a zombie.
pub(crate) fn arguments(pid: u32) -> Vec<Vec<u8>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).filter(|argument| !argument.is_empty()).map(<[u8]>::to_vec).collect()
}

/// All processes with exactly this argument.
pub(crate) fn with_argument(argument: &[u8]) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| arguments(*pid).iter().skip(1).any(|found| found == argument))
        .collect()
}
