//! a staged program → this process running it on trial, watched by a process that brings the old program back.
//!
//! The new program replaces this very process, so that systemd and providers keep its process id, and etcd stays its
//! child. A guardian, which is the old program in a process of its own, ends it when it is not confirmed in time; then
//! the old program runs again: started by systemd, or in the guardian's process where there is none.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, getppid, pidfd_open, pidfd_send_signal, waitpid};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::{
    PROGRAM, Program, Reason, Trial, UpgradeError, revert, reverting_file, serving_file, take_trial, trial_file,
    write_down,
};
use crate::LaunchMode;
use crate::files;
use crate::root::Root;
use crate::status::describe;
use crate::supervisor::systemd;

/// A new program that no client had an answer from for so long is reverted. The caller asks at once; an agent serves
/// some 50 ms after its start. The old program is back within 30 s also where systemd waits a second before it starts
/// it.
pub const LIMIT: Duration = Duration::from_secs(15);
/// The program on trial reverts itself so much later, where its guardian is gone.
const OWN_LIMIT: Duration = Duration::from_secs(18);
const POLL: Duration = Duration::from_millis(50);
const KILL_LIMIT: Duration = Duration::from_secs(5);
const SELF: &str = "/proc/self/exe";
const READY: &str = "ready";
const LAST_LINES: usize = 20;
/// The old program is not kept waiting for what the new one said.
const JOURNAL_LIMIT: Duration = Duration::from_secs(2);

/// The program that takes over this process.
#[derive(Debug)]
pub enum Next {
    /// One that was confirmed before.
    Confirmed(Program),
    /// A new one.
    OnTrial(Program),
}

impl Next {
    /// Takes over. Returns only if no program could be run at all.
    pub fn run(self, root: &Path, mode: LaunchMode) -> UpgradeError {
        match Root::open(root) {
            Ok(root) => match self {
                Self::Confirmed(program) => exec(&program.path(&root), &root, mode, None),
                Self::OnTrial(program) => begin(&root, program, mode),
            },
            Err(error) => error.into(),
        }
    }
}

/// The trial is on the disk before the program runs: whatever happens, the next start finds it.
fn begin(root: &Root, program: Program, mode: LaunchMode) -> UpgradeError {
    let path = program.path(root);
    let id = Timestamp::now().as_nanosecond().to_string();
    let trial = Trial { program, id, back: own_program() };
    let begun = super::write(&trial_file(root), &trial).and_then(|()| guardian(root, mode));
    let failed = match begun {
        Ok(guardian) => exec(&path, root, mode, Some(guardian)),
        Err(error) => error,
    };
    // The guardian sees that there is no trial any more, and ends.
    let reason = match failed {
        UpgradeError::NoGuardian => Reason::Unwatched,
        other => Reason::NotRun(describe(&other)),
    };
    if let Err(error) = revert(root, &trial, &reason) {
        tracing::error!(error = describe(&error), "a failed upgrade of the agent cannot be recorded");
    }
    exec(Path::new(SELF), root, mode, None)
}

/// Where this program is, or was before it was replaced.
fn own_program() -> PathBuf {
    let link = fs::read_link(SELF).unwrap_or_else(|_| PathBuf::from(SELF));
    PathBuf::from(link.to_string_lossy().trim_end_matches(" (deleted)"))
}

/// Starts the process that watches this one; its number, once it watches.
fn guardian(root: &Root, mode: LaunchMode) -> Result<u32, UpgradeError> {
    let mut command = Command::new(SELF);
    command.arg0(PROGRAM).arg("guard").arg("--root").arg(root.path());
    if mode == LaunchMode::Systemd {
        command.arg("--systemd");
    }
    // A process group of its own: a signal to this one does not reach it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|source| UpgradeError::Exec { path: PathBuf::from(SELF), source })?;
    let mut line = String::new();
    let read = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    match read {
        Some(Ok(_)) if line.trim() == READY => Ok(child.id()),
        Some(_) | None => {
            let _ = child.kill();
            let _ = child.wait();
            Err(UpgradeError::NoGuardian)
        }
    }
}

/// Runs a program in the place of this one. Returns only if it cannot be run.
fn exec(path: &Path, root: &Root, mode: LaunchMode, guardian: Option<u32>) -> UpgradeError {
    let mut command = Command::new(path);
    command.arg0(PROGRAM).arg("--root").arg(root.path());
    command.arg(match mode {
        LaunchMode::Systemd => "--systemd",
        LaunchMode::Child => "--detach",
    });
    if let Some(guardian) = guardian {
        command.arg("--guardian").arg(guardian.to_string());
    }
    // The guardian's own output was for the process that started it.
    if let Ok(errors) = io::stderr().as_fd().try_clone_to_owned() {
        command.stdout(errors);
    }
    let source = command.exec();
    UpgradeError::Exec { path: path.to_path_buf(), source }
}

/// Watches the process that started this one until its program is confirmed; otherwise ends it, and has the old program
/// run again.
pub fn guard(root: &Path, mode: LaunchMode) -> Result<(), UpgradeError> {
    let root = Root::open(root)?;
    let parent = getppid().ok_or(UpgradeError::NoGuardian)?;
    let watched = pidfd_open(parent, PidfdFlags::empty()).map_err(|error| UpgradeError::Process(error.into()))?;
    let Some(trial) = super::read::<Trial>(&trial_file(&root))? else { return Ok(()) };
    // The parent may have ended, and its process id been reused, before the handle was opened.
    if getppid() != Some(parent) {
        return Err(UpgradeError::NoGuardian);
    }
    let log = Log::open(&root, mode).map_err(UpgradeError::Process)?;
    let mut out = io::stdout();
    writeln!(out, "{READY}").and_then(|()| out.flush()).map_err(UpgradeError::Process)?;
    let begun = Instant::now();
    let reason = loop {
        // Confirmed, or another trial already.
        if super::read::<Trial>(&trial_file(&root)).is_ok_and(|found| found.as_ref() != Some(&trial)) {
            return Ok(());
        }
        if has_ended(&watched, POLL)? {
            break Reason::Ended(log.last_words(&root));
        }
        if begun.elapsed() > LIMIT {
            break if serving_file(&root).exists() { Reason::NotAsked } else { Reason::Silent };
        }
    };
    if !take_trial(&root, &reverting_file(&root))? {
        return Ok(());
    }
    match pidfd_send_signal(&watched, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(error) => return Err(UpgradeError::Process(error.into())),
    }
    let killed = Instant::now();
    while !has_ended(&watched, POLL)? && killed.elapsed() < KILL_LIMIT {}
    // After it has ended, the files that it wrote are removed: it may have filled the disk.
    write_down(&root, &trial, &reason);
    match mode {
        // It starts the unit again.
        LaunchMode::Systemd => Ok(()),
        LaunchMode::Child => Err(exec(Path::new(SELF), &root, mode, None)),
    }
}

fn has_ended(process: &OwnedFd, within: Duration) -> Result<bool, UpgradeError> {
    let within = Timespec { tv_sec: 0, tv_nsec: i64::from(within.subsec_nanos()) };
    match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&within)) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready.map_err(|error| UpgradeError::Process(error.into()))? > 0),
    }
}

/// Where the program on trial logs, and from where on.
enum Log {
    /// The agent's file, from this offset.
    File(u64),
    /// The journal, from this moment.
    Journal(Timestamp, Runtime),
}

impl Log {
    /// When the agent's process has ended, systemd sends SIGTERM to what is left of its unit: to the guardian, too,
    /// which first has to record why it ended. Once tokio has taken the signal, it has no effect any more.
    fn open(root: &Root, mode: LaunchMode) -> io::Result<Self> {
        match mode {
            LaunchMode::Child => Ok(Self::File(fs::metadata(root.agent_log()).map_or(0, |log| log.len()))),
            LaunchMode::Systemd => {
                let runtime = Builder::new_current_thread().enable_all().build()?;
                let entered = runtime.enter();
                let _ = signal(SignalKind::terminate())?;
                drop(entered);
                Ok(Self::Journal(Timestamp::now(), runtime))
            }
        }
    }

    /// The last error that was logged.
    fn last_words(&self, root: &Root) -> Option<String> {
        let is_error =
            |line: &&String| line.contains("ERROR") || line.starts_with("error:") || line.contains("panicked");
        let last = |lines: Vec<String>| lines.iter().rev().find(is_error).map(|line| line.chars().take(300).collect());
        match self {
            Self::File(from) => last(files::tail(&root.agent_log(), LAST_LINES, 16 * 1024, *from).ok()?),
            // The signal may end the program that reads the journal.
            Self::Journal(since, runtime) => (0..2).find_map(|_| {
                let read = systemd::journal_since(systemd::AGENT_UNIT, *since, LAST_LINES);
                last(runtime.block_on(async { timeout(JOURNAL_LIMIT, read).await }).ok()?.ok()?)
            }),
        }
    }
}

/// For the program on trial: reaps the guardian when it ends, and reverts where it ended too early.
pub fn watch_guardian(root: Root, mode: LaunchMode, guardian: u32) {
    let watch = move || {
        if let Some(pid) = i32::try_from(guardian).ok().and_then(Pid::from_raw) {
            // It is this process' child, because the program before started it in this very process.
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
        let begun = Instant::now();
        while let Ok(Some(trial)) = super::read::<Trial>(&trial_file(&root)) {
            if begun.elapsed() > OWN_LIMIT {
                let reverted = revert(&root, &trial, &Reason::NotAsked);
                if reverted.is_ok_and(|reverted| reverted) {
                    let failed = exec(&trial.back, &root, mode, None);
                    tracing::error!(error = describe(&failed), "the old agent cannot be run again");
                    std::process::exit(1);
                }
                return;
            }
            thread::sleep(POLL);
        }
    };
    if let Err(error) = thread::Builder::new().name("guardian".to_owned()).stack_size(256 * 1024).spawn(watch) {
        tracing::warn!(%error, "the process that watches this trial is not watched itself");
    }
}
