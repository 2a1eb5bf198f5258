//! Arguments and environment → the paths, the user and the host of a command.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use raftsman_core::spec::{self, Name, Reading, Spec};
use raftsman_engine::authorities::public_key;
use raftsman_engine::fleet::{Context, Fleet, directory_of};
use raftsman_engine::ops::begin;
use secrecy::SecretString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::args::Common;
use crate::exit::{Failure, say};
use crate::view::Paint;

/// Reads the file; its errors are printed.
pub(crate) fn read_file(common: &Common) -> Result<Spec, Failure> {
    read_spec(&common.file)
}

/// Reads the file for a verb that checks it, `plan` or `apply`: its warnings are printed too, unless `--quiet` is
/// given.
pub(crate) fn judge_file(common: &Common) -> Result<Spec, Failure> {
    read(&common.file, !common.quiet)
}

/// The same as `read_file`, of another file.
pub(crate) fn read_spec(file: &Path) -> Result<Spec, Failure> {
    read(file, false)
}

fn read(file: &Path, warnings: bool) -> Result<Spec, Failure> {
    let text = file_text(file)?;
    let reading = read_text(file, &text);
    let reading = if warnings { reading } else { reading.errors_only() };
    if !reading.diagnostics.is_empty() {
        let name = file.display().to_string();
        let rendered = reading.render(&name, &text, Paint::of_stderr().on());
        say(&format!("{}\n", rendered.trim_end()));
    }
    reading.spec.ok_or_else(Failure::said)
}

/// Reads the text of this file, and the public keys of the certificates that it names.
pub(crate) fn read_text(file: &Path, text: &str) -> Reading {
    let base = directory_of(file);
    spec::read_with_keys(text, &|certificate| public_key(&base.join(certificate)))
}

/// Reads no more than the size limit of a file: a device or a disk image costs neither memory nor time.
pub(crate) fn file_text(file: &Path) -> Result<String, Failure> {
    let read = || {
        let mut bytes = Vec::new();
        let most = u64::try_from(spec::LARGEST_FILE).unwrap_or(u64::MAX);
        std::fs::File::open(file)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error: std::io::Error| {
        let path = file.display();
        Failure::other(match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("there is no {path} here: `raftsman init` writes one, `--file` names another")
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("cannot read {path}: {error}: its owner can give you access with chmod")
            }
            _ => format!("cannot read {path}: {error}"),
        })
    })?;
    if bytes.len() > spec::LARGEST_FILE {
        return Err(Failure::other(format!(
            "{} is larger than {} MiB, and was not read: split the fleet into several files",
            file.display(),
            spec::LARGEST_FILE >> 20
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
        Failure::other(format!("{}:{line}: this is not UTF-8 text: save the file as UTF-8", file.display()))
    })
}

/// Everything but the file.
pub(crate) fn context(common: &Common) -> Result<Context, Failure> {
    let passphrase = match &common.passphrase_file {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::other(format!("cannot read {}: {error}", path.display())))?;
            Some(SecretString::from(text.trim_end_matches(['\n', '\r']).to_owned()))
        }
        None => None,
    };
    let uname = rustix::system::uname();
    Ok(Context {
        file: common.file.clone(),
        agent: agent(common)?,
        registry: registry(),
        identity: common.identity.clone(),
        passphrase,
        ask_passphrase: Some(ask_passphrase),
        user: std::env::var("USER")
            .or_else(|_| std::env::var("LOGNAME"))
            .unwrap_or_else(|_| format!("uid {}", rustix::process::getuid().as_raw())),
        host: uname.nodename().to_string_lossy().into_owned(),
        examined: Default::default(),
    })
}

/// Opens the fleet of the file to read it, and asks for the passphrase where it needs one.
pub(crate) async fn open(spec: Spec, context: Context) -> Result<Arc<Fleet>, Failure> {
    Ok(begin::open(spec, context).await?)
}

/// How often the lock is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Returns when no other process holds the lock any more, of this stack or of the whole fleet, or at the deadline.
pub(crate) async fn unlocked(common: &Common, stack: Option<&str>, until: Instant) -> Result<(), Failure> {
    let (spec, context) = (read_file(common)?, context(common)?);
    let held = async || match (begin::state(&spec, &context).await, stack) {
        (Ok(Some(store)), Some(stack)) => store.stack_holder(stack).await.is_ok_and(|holder| holder.is_some()),
        (Ok(Some(store)), None) => store.lock_holder().await.is_ok_and(|holder| holder.is_some()),
        // The verb itself reports any other error.
        (Ok(None) | Err(_), _) => false,
    };
    while Instant::now() < until && held().await {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

/// The names of etcd clusters on the command line, checked against the file.
pub(crate) fn clusters(spec: &Spec, names: &[String]) -> Result<Vec<Name>, Failure> {
    named(names, &spec.etcd.keys().map(|etcd| (etcd, etcd)).collect::<Vec<_>>())
}

/// The names of clusters, of etcd or of PostgreSQL, on the command line → the etcd clusters whose stacks they are in: both
/// are planned and shown together.
pub(crate) fn stacks(spec: &Spec, names: &[String]) -> Result<Vec<Name>, Failure> {
    let etcd = spec.etcd.keys().map(|etcd| (etcd, etcd));
    let postgres = spec.postgres.iter().filter_map(|(name, cluster)| Some((name, cluster.beneath()?)));
    let mut stacks = named(names, &etcd.chain(postgres).collect::<Vec<_>>())?;
    stacks.sort();
    stacks.dedup();
    Ok(stacks)
}

/// The second of each pair whose first is named.
fn named(names: &[String], known: &[(&Name, &Name)]) -> Result<Vec<Name>, Failure> {
    let find = |name: &String| {
        let found = known.iter().find(|(known, _)| known.as_str() == name).map(|(_, meant)| (*meant).clone());
        found.ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|(known, _)| known.as_str()).collect();
            Failure::other(format!("the file has no cluster `{name}`; it has: {}", known.join(", ")))
        })
    };
    names.iter().map(find).collect()
}

/// Asks for a secret on the terminal, without showing it.
pub(crate) fn ask_passphrase(prompt: &str) -> Result<SecretString, String> {
    use std::io::{BufRead as _, Write as _};
    let failed =
        |error: std::io::Error| format!("no terminal to ask for the passphrase ({error}): give --passphrase-file");
    let tty = std::fs::OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(failed)?;
    (&tty).write_all(prompt.as_bytes()).map_err(failed)?;
    let shown = rustix::termios::tcgetattr(&tty).map_err(|e| failed(e.into()))?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(rustix::termios::LocalModes::ECHO);
    let set = |modes| rustix::termios::tcsetattr(&tty, rustix::termios::OptionalActions::Now, modes);
    set(&hidden).map_err(|e| failed(e.into()))?;
    let mut line = String::new();
    let read = std::io::BufReader::new(&tty).read_line(&mut line);
    set(&shown).map_err(|e| failed(e.into()))?;
    let _ = (&tty).write_all(b"\n");
    read.map_err(failed)?;
    Ok(SecretString::from(line.trim_end_matches(['\n', '\r']).to_owned()))
}

fn agent(common: &Common) -> Result<PathBuf, Failure> {
    if let Some(agent) = &common.agent_binary {
        return Ok(agent.clone());
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("raftsman-agent")));
    if let Some(found) = beside.filter(|p| p.exists()) {
        return Ok(found);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("raftsman-agent")).find(|p| p.exists());
    found.ok_or_else(|| {
        Failure::other(
            "raftsman-agent is neither beside raftsman nor on the PATH: install both, or give --agent-binary",
        )
    })
}

/// Where this user's fleets register the loopback networks that they use.
fn registry() -> PathBuf {
    let base = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state")));
    base.unwrap_or_else(std::env::temp_dir).join("raftsman").join("networks")
}
