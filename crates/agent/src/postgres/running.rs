//! Patroni's process → whether it can be signalled and has taken up its file; what it leaves behind → ended and removed.
//!
//! The postmaster is no child of Patroni's: it outlives a Patroni that is killed, which adopts it when it is started again.
//! Where both should be stopped, this is what ends the rest.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Signal, geteuid};
use tokio::time::{Instant, sleep, timeout};

use crate::files::FileError;
use crate::postgres::{config, data};
use crate::root::Root;
use crate::supervisor::launch::Launcher;
use crate::supervisor::process::{self, Handle};
use crate::supervisor::program::Program;

const POLL: Duration = Duration::from_millis(50);
/// Python reads some hundred files before it knows a signal: a second, on a busy computer many.
const SIGNAL_LIMIT: Duration = Duration::from_secs(30);
/// PostgreSQL that ends at once writes nothing; then it is killed.
const QUIT_LIMIT: Duration = Duration::from_secs(10);
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Waits until the process handles SIGHUP, which would end it before.
pub async fn knows_hangup(process: &Handle) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // The first bit is SIGHUP's.
        if caught.is_some_and(|mask| mask & 1 == 1) {
            return Ok(());
        }
        if timeout(POLL, process.ended()).await.is_ok() {
            return Err("it ended".to_owned());
        }
        if begun.elapsed() > SIGNAL_LIMIT {
            return Err(format!("it was not ready for it within {} s", SIGNAL_LIMIT.as_secs()));
        }
    }
}

/// What Patroni's log since a SIGHUP says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reload {
    /// Nothing yet: Patroni takes its file up when its next round begins.
    Pending,
    /// All of it is taken up.
    Done,
    /// It is not.
    Failed(String),
}

/// Whether Patroni has taken up its file. It does so between two rounds, the user of etcd last; what it logs next comes from
/// the round that follows.
pub fn reloaded(log: &[String]) -> Reload {
    const BEGUN: &str = "INFO: Reloading PostgreSQL configuration.";
    const ASIDE: &str = "seem to be changed bypassing Patroni config";
    let failed = |line: &&String| {
        line.contains("Exception when reloading local configuration") || line.contains("Failed to reload config_file")
    };
    if let Some(line) = log.iter().find(failed) {
        return Reload::Failed(line.clone());
    }
    let mut after = log.iter().skip_while(|line| !line.contains(BEGUN)).skip(1);
    if after.any(|line| line.contains(" INFO: ") && !line.contains(ASIDE)) { Reload::Done } else { Reload::Pending }
}

/// Makes the directory of PostgreSQL's socket, where systemd does not. It is in a directory that every user may write to.
pub fn make_sockets(root: &Root, launcher: &Launcher) -> Result<(), FileError> {
    if let Launcher::Unit(_) = launcher {
        return Ok(());
    }
    let sockets = config::sockets(root, launcher);
    let path = Path::new(&sockets);
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map_err(FileError::of("make the directory", path)),
    }
    let found = fs::symlink_metadata(path).map_err(FileError::of("look at", path))?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let reason = io::Error::other("another user made it, or may write to it: remove it");
    Err(FileError::of("use the directory of PostgreSQL's socket", path)(reason))
}

/// Ends what outlived Patroni: PostgreSQL, and programs that make or copy its data. Removes its socket.
pub async fn end_rest(root: &Root, launcher: &Launcher) {
    for left in left(root) {
        if is_postmaster(root, left.pid()) {
            // At once, but so that it removes its shared memory; its children end with it.
            tracing::warn!(pid = left.pid(), "PostgreSQL outlived Patroni: ended");
            let _ = left.signal(Signal::QUIT);
            if timeout(QUIT_LIMIT, left.ended()).await.is_ok() {
                continue;
            }
        }
        tracing::warn!(pid = left.pid(), "a process of PostgreSQL's is left: killed");
        let _ = left.signal(Signal::KILL);
        let _ = timeout(KILL_LIMIT, left.ended()).await;
    }
    let begun = Instant::now();
    while !left(root).is_empty() && begun.elapsed() < KILL_LIMIT {
        for left in left(root) {
            let _ = left.signal(Signal::KILL);
        }
        sleep(POLL).await;
    }
    if let Launcher::Child = launcher {
        let sockets = config::sockets(root, launcher);
        // Another user's is left to him: it is not removed by a user that is not root, and root's would not be his.
        let own = fs::symlink_metadata(&sockets).is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
        if own {
            let _ = fs::remove_dir_all(&sockets);
        }
    }
}

/// Processes of this node: the user's own or PostgreSQL's, with the data directory in an argument.
pub fn left(root: &Root) -> Vec<Handle> {
    let data = data::dir(root).display().to_string();
    process::with_argument(Program::Patroni, move |argument| {
        argument.strip_suffix(data.as_str()).is_some_and(|before| before.is_empty() || before.ends_with('='))
    })
}

/// PostgreSQL's first process on this node's data.
pub fn postmaster(root: &Root) -> Option<Handle> {
    // Without its file there is none, and the list of processes need not be read.
    let pid = postmaster_pid(root)?;
    left(root).into_iter().find(|left| left.pid() == pid)
}

fn is_postmaster(root: &Root, pid: u32) -> bool {
    postmaster_pid(root) == Some(pid)
}

/// What PostgreSQL wrote: another process may have the number since.
fn postmaster_pid(root: &Root) -> Option<u32> {
    let text = fs::read_to_string(data::dir(root).join("postmaster.pid")).ok()?;
    text.lines().next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_is_done_when_the_next_round_begins() {
        let log = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let before = "2026-11-18 10:00:00,000 INFO: no action. I am (pg-1), the leader with the lock";
        let begun = "2026-11-18 10:00:01,000 INFO: Reloading PostgreSQL configuration.";
        let aside = "2026-11-18 10:00:02,000 INFO: PostgreSQL configuration parameters requiring restart (x) seem to be \
                     changed bypassing Patroni config. Setting 'Pending restart' flag";
        assert_eq!(reloaded(&log(&[])), Reload::Pending);
        assert_eq!(reloaded(&log(&[before, begun, "server signaled", aside])), Reload::Pending);
        assert_eq!(reloaded(&log(&[before, begun, "server signaled", aside, before])), Reload::Done);
        let failed = "2026-11-18 10:00:01,000 ERROR: Exception when reloading local configuration from x";
        assert_eq!(reloaded(&log(&[failed, begun, before])), Reload::Failed(failed.to_owned()));
    }
}
