//! `/proc` → the processes that carry a certain argument or hold a certain file. No pid file can be stale that way.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::unix::AsyncFd;

fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether this process runs and has exactly this argument. A zombie has none.
pub fn has_argument(pid: u32, argument: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).skip(1).any(|found| found == argument.as_bytes()))
}

/// The process that runs with exactly this argument.
pub fn with_argument(argument: &str) -> Option<u32> {
    pids().find(|pid| has_argument(*pid, argument))
}

/// The process that has a file open whose link in `/proc` reads so.
pub fn holding(link: &str) -> Option<u32> {
    pids().find(|pid| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == link))
    })
}

/// A handle on a process that never means another one, even when its number is used again.
#[derive(Debug)]
pub struct Handle {
    pid: u32,
    fd: AsyncFd<OwnedFd>,
}

impl Handle {
    /// The process with this number.
    pub fn open(pid: u32) -> io::Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = pidfd_open(number, PidfdFlags::NONBLOCK)?;
        Ok(Self { pid, fd: AsyncFd::register(fd)? })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal; fine when the process is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(self.fd.get_ref(), signal) {
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Returns once the process has ended.
    pub async fn ended(&self) -> io::Result<()> {
        self.fd.readable().await.map(drop)
    }
}
