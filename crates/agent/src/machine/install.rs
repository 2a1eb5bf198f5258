//! Boot data → this machine with an agent under systemd; a machine of the fleet → one without anything of raftsman.
//!
//! Root runs both from outside of the agent's own unit: at the first boot, over SSH, or the agent itself does as a
//! transient unit when its fleet releases the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use raftsman_core::boot::Boot;
use raftsman_core::render::patroni::UNIT_SOCKETS;
use raftsman_core::render::systemd::{
    AGENT_PROGRAM, ROOT, agent_unit, etcd_unit, haproxy_unit, keepalived_unit, patroni_unit,
};
use tokio::process::Command;

use crate::files::{self, FileError};
use crate::machine::boot::{self, BootError};
use crate::machine::metrics;
use crate::machine::upgrade;
use crate::postgres::running;
use crate::root::Root;
use crate::supervisor::launch::Launcher;
use crate::supervisor::program::Program;
use crate::supervisor::systemd::{self, AGENT_UNIT, ETCD_USER, Owner, Systemd, SystemdError};

const UNITS: &str = "/etc/systemd/system";
const LEAVE_UNIT: &str = "raftsman-leave.service";
const PROGRAMS_UNIT: &str = "raftsman-programs.service";

/// Why the machine could not be installed or cleaned.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Not root.
    #[error("this needs root: run it with sudo")]
    NotRoot,
    /// Something else runs the machine.
    #[error("systemd does not run this machine: raftsman needs it on machines other than its own computer")]
    NoSystemd,
    /// The input is not boot data.
    #[error("the boot data that was given is malformed: it is one line of JSON, made by raftsman")]
    Given(#[source] serde_json::Error),
    /// The machine is another fleet's.
    #[error(
        "this machine belongs to the fleet {fleet} ({id}) as {machine}: have that fleet leave it first \
         (`raftsman destroy`), or run `sudo {AGENT_PROGRAM} uninstall` on it if that fleet is gone"
    )]
    Foreign {
        /// The fleet's name.
        fleet: String,
        /// Its id.
        id: String,
        /// The machine's name there.
        machine: String,
    },
    /// The same fleet knows it by another name.
    #[error(
        "this machine is {found} of this fleet already, and should become {wanted}: give each machine its own address"
    )]
    OtherMachine {
        /// What it is.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// What is there already cannot be read.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// systemd.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// A program of the system's.
    #[error("{program} failed: {words}")]
    Program {
        /// Which.
        program: &'static str,
        /// What it said.
        words: String,
    },
}

/// Installs the agent for this boot data and starts it. Existing data is kept: a machine that was rebuilt around its
/// data disk is the same machine.
pub async fn install(given: &str) -> Result<(), InstallError> {
    fit()?;
    let boot: Boot = serde_json::from_str(given).map_err(InstallError::Given)?;
    let claimed = check(&boot)?;
    lay_out().await?;
    if !claimed {
        let text = serde_json::to_vec_pretty(&boot).map_err(InstallError::Given)?;
        files::write(&Path::new(ROOT).join("agent/boot.json"), &text, 0o600)?;
    }
    put_program()?;
    files::write(&unit_file(AGENT_UNIT), agent_unit().as_bytes(), 0o644)?;
    write_units()?;
    let systemd = Systemd::connect().await?;
    systemd.reload().await?;
    systemd.enable(AGENT_UNIT).await?;
    // A running one may run an older program, or wait with boot data whose token was lost.
    systemd.stop(AGENT_UNIT).await?;
    // The program that is installed now replaces any earlier upgrade.
    upgrade::forget(Path::new(ROOT))?;
    systemd.start(AGENT_UNIT).await?;
    Ok(())
}

/// Removes all that [`install`] and the agent made: programs with their data, units, users, files. An agent that `leaves` has
/// stopped etcd and is removed last: once it does not serve any more, nothing is left. Any other agent would start etcd
/// again, so it is removed first.
pub async fn uninstall(fleet: Option<&str>, leaves: bool) -> Result<(), InstallError> {
    fit()?;
    if let (Some(fleet), Some((_, found))) = (fleet, installed()?)
        && found.fleet_id != fleet
    {
        return Err(foreign(found));
    }
    let bus = match systemd::owner(ETCD_USER)? {
        Some(_) => Some(Systemd::connect().await?),
        // Nothing was installed, or all of it was removed but for some files.
        None => None,
    };
    if let Some(bus) = &bus {
        bus.disable(AGENT_UNIT).await?;
        if !leaves {
            bus.stop(AGENT_UNIT).await?;
        }
        for program in Program::ALL.into_iter().rev() {
            bus.stop(program.unit()).await?;
        }
        if let Ok(root) = Root::open(Path::new(ROOT)) {
            running::end_rest(&root, &Launcher::Unit(bus.clone())).await;
        }
        files::remove_dir(Path::new(UNIT_SOCKETS))?;
    }
    remove_root(Path::new(ROOT))?;
    // Not before: without its root the agent writes no more metrics.
    files::remove(&metrics::path())?;
    for unit in units() {
        files::remove(&unit_file(unit))?;
    }
    let program = Path::new(AGENT_PROGRAM);
    files::remove(program)?;
    // Only an empty directory: files that are not raftsman's stay.
    let _ = program.parent().map(fs::remove_dir);
    let Some(bus) = bus else { return Ok(()) };
    // etcd's last: without it, a removal that was interrupted would be taken for complete.
    for user in Program::ALL.into_iter().rev().filter_map(Program::user) {
        if systemd::owner(user)?.is_some() {
            run("userdel", &[user]).await?;
        }
    }
    bus.reload().await?;
    bus.stop(AGENT_UNIT).await?;
    for unit in units() {
        bus.forget_failure(unit).await;
    }
    Ok(())
}

/// Runs [`uninstall`] outside of the agent's unit, which it ends.
pub async fn leave(bus: &Systemd) -> Result<(), SystemdError> {
    bus.run_apart(LEAVE_UNIT, "Raftsman leaves this machine", &own_program()?, &["uninstall", "--leaving"]).await
}

/// The program that runs: an upgraded agent knows of programs that the installed one does not.
fn own_program() -> Result<String, SystemdError> {
    let own = Path::new("/proc/self/exe");
    Ok(fs::read_link(own).map_err(FileError::of("read", own))?.display().to_string())
}

/// Whether a program has its unit and user. An agent that was upgraded may know programs that the installed one did not.
pub fn is_laid_out(program: Program) -> Result<bool, FileError> {
    let has_user = match program.user() {
        Some(user) => systemd::owner(user)?.is_some(),
        None => true,
    };
    Ok(has_user && unit_file(program.unit()).is_file())
}

/// Adds the users and units of all programs.
pub async fn lay_out_programs() -> Result<(), InstallError> {
    fit()?;
    lay_out().await?;
    write_units()?;
    Ok(Systemd::connect().await?.reload().await?)
}

/// Runs [`lay_out_programs`] outside of the agent's unit, which may not write there, and waits for it.
pub async fn lay_out_apart(bus: &Systemd, program: Program) -> Result<(), SystemdError> {
    bus.run_apart(PROGRAMS_UNIT, "Raftsman adds users and units of programs", &own_program()?, &["add-programs"])
        .await?;
    bus.wait_for_end(PROGRAMS_UNIT).await?;
    if is_laid_out(program)? {
        return Ok(());
    }
    let how = "the users and units of programs could not be added".to_owned();
    Err(SystemdError::NotStarted { unit: PROGRAMS_UNIT.to_owned(), how })
}

fn write_units() -> Result<(), FileError> {
    for program in Program::ALL {
        files::write(&unit_file(program.unit()), unit_of(program).as_bytes(), 0o644)?;
    }
    Ok(())
}

fn fit() -> Result<(), InstallError> {
    if !rustix::process::geteuid().is_root() {
        return Err(InstallError::NotRoot);
    }
    if Path::new(systemd::RUNS).is_dir() { Ok(()) } else { Err(InstallError::NoSystemd) }
}

/// Whether the machine belongs to this fleet and is claimed already; an error when it belongs to another one.
fn check(wanted: &Boot) -> Result<bool, InstallError> {
    let Some((root, found)) = installed()? else { return Ok(false) };
    if found.fleet_id != wanted.fleet_id {
        return Err(foreign(found));
    }
    if found.machine != wanted.machine {
        return Err(InstallError::OtherMachine { found: found.machine, wanted: wanted.machine.clone() });
    }
    Ok(root.agent_tls().join("current").exists())
}

/// What was installed here before.
fn installed() -> Result<Option<(Root, Boot)>, InstallError> {
    let Ok(root) = Root::open(Path::new(ROOT)) else { return Ok(None) };
    match boot::read(&root) {
        Ok(found) => Ok(Some((root, found))),
        Err(BootError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn foreign(found: Boot) -> InstallError {
    InstallError::Foreign { fleet: found.fleet, id: found.fleet_id, machine: found.machine }
}

fn unit_of(program: Program) -> String {
    match program {
        Program::Etcd => etcd_unit(),
        Program::Haproxy => haproxy_unit(),
        Program::Keepalived => keepalived_unit(),
        Program::Patroni => patroni_unit(),
    }
}

fn units() -> impl Iterator<Item = &'static str> {
    std::iter::once(AGENT_UNIT).chain(Program::ALL.map(Program::unit))
}

/// A program's user, with the program's directory as its home.
async fn add_user(user: &'static str, home: &Path) -> Result<Owner, InstallError> {
    if systemd::owner(user)?.is_none() {
        let home = home.display().to_string();
        let arguments =
            ["--system", "--user-group", "--no-create-home", "--home-dir", &home, "--shell", "/usr/sbin/nologin", user];
        run("useradd", &arguments).await?;
    }
    Ok(systemd::user(user)?)
}

/// Makes the directories, and the users that programs run as. They traverse the root; the directories in it have modes of
/// their own.
async fn lay_out() -> Result<(), InstallError> {
    let path = Path::new(ROOT);
    files::make_dir(path, 0o711)?;
    files::make_dir(&path.join("agent"), 0o700)?;
    let root = Root::open(path)?;
    for program in Program::ALL {
        let Some(user) = program.user() else { continue };
        let dir = program.files(&root).dir().to_path_buf();
        let owner = add_user(user, &dir).await?;
        files::make_dir(&dir, files::DIR_FOR_PROGRAM)?;
        std::os::unix::fs::chown(&dir, None, Some(owner.group)).map_err(FileError::of("change the group of", &dir))?;
    }
    Ok(())
}

/// Puts the running program where its unit expects it.
fn put_program() -> Result<(), InstallError> {
    let target = Path::new(AGENT_PROGRAM);
    let own = Path::new("/proc/self/exe");
    let dir = target.parent().unwrap_or(Path::new("/"));
    files::make_dir(dir, 0o755)?;
    let bytes = fs::read(own).map_err(FileError::of("read", own))?;
    if fs::read(target).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    Ok(files::write(target, &bytes, 0o755)?)
}

fn unit_file(name: &str) -> PathBuf {
    Path::new(UNITS).join(name)
}

/// If a data disk is mounted there, it is emptied, and stays.
fn remove_root(root: &Path) -> Result<(), FileError> {
    match files::remove_dir(root) {
        Err(error) if error.source.kind() == io::ErrorKind::ResourceBusy => Ok(()),
        removed => removed,
    }
}

async fn run(program: &'static str, arguments: &[&str]) -> Result<(), InstallError> {
    let ended = Command::new(program).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output().await;
    match ended {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(InstallError::Program { program, words })
        }
        Err(error) => Err(InstallError::Program { program, words: error.to_string() }),
    }
}
