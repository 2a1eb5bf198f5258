//! A file → its SHA-256, and the version it says it is.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use raftsman_core::spec::EtcdVersion;

use super::ArtifactError;

/// Far more than etcd needs even on a slow, busy computer.
const RETRY_FOR: Duration = Duration::from_secs(20);

/// Within this time nearly every program has answered.
const USUAL: Duration = Duration::from_millis(200);

/// `ENOEXEC`, for which the standard library has no name.
const NOT_A_PROGRAM_HERE: i32 = 8;

pub(super) fn sha256(path: &Path) -> Result<String, ArtifactError> {
    let failed = |source| ArtifactError::Unreadable { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => break,
            count => context.update(&buffer[..count]),
        }
    }
    Ok(raftsman_api::hex::encode(context.finish().as_ref()))
}

/// What `etcd --version` says.
pub(super) fn version(path: &Path) -> Result<EtcdVersion, ArtifactError> {
    answer(path, RETRY_FOR)?
        .lines()
        .find_map(|line| EtcdVersion::parse(line.strip_prefix("etcd Version:")?).ok())
        .ok_or_else(|| {
            let said = "its answer has no line `etcd Version: …`".to_owned();
            ArtifactError::NotEtcd { path: path.to_owned(), said }
        })
}

/// Runs `--version`, in an empty environment: etcd takes every flag from variables too.
pub(super) fn answer(path: &Path, limit: Duration) -> Result<String, ArtifactError> {
    let mut child = start(path)?;
    let refused = |said: &str| ArtifactError::NotEtcd { path: path.to_owned(), said: said.to_owned() };
    let broken = |source| ArtifactError::CannotRun { path: path.to_owned(), source };
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(broken)? {
            break status;
        }
        if begin.elapsed() > limit {
            // It may have exited just now; then there is nothing to kill or to report.
            let _ = child.kill();
            let _ = child.wait();
            return Err(refused(&format!("no answer for {} seconds", limit.as_secs())));
        }
        // Most answer within 30 ms, and every command waits for it.
        thread::sleep(Duration::from_millis(if begin.elapsed() < USUAL { 2 } else { 50 }));
    };
    if !status.success() {
        return Err(refused(&status.to_string()));
    }
    let mut text = String::new();
    if let Some(out) = child.stdout.take() {
        // Output that is not text, or longer than this, is not etcd's answer.
        let _ = out.take(4096).read_to_string(&mut text);
    }
    Ok(text)
}

fn start(path: &Path) -> Result<Child, ArtifactError> {
    let mut tries = 0;
    // Another working directory, so that it leaves no files in the current one.
    let program =
        std::path::absolute(path).map_err(|source| ArtifactError::CannotRun { path: path.to_owned(), source })?;
    loop {
        let started = Command::new(&program)
            .arg("--version")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => return Ok(child),
            // A child that another thread is just forking may still hold a file open that was just unpacked.
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && tries < 50 => {
                tries += 1;
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) if error.raw_os_error() == Some(NOT_A_PROGRAM_HERE) => {
                let path = path.to_owned();
                let found = kind(&path);
                return Err(ArtifactError::WrongArchitecture { path, found, here: std::env::consts::ARCH });
            }
            Err(source) => return Err(ArtifactError::CannotRun { path: path.to_owned(), source }),
        }
    }
}

/// What a file is that the system does not run, from its ELF header.
fn kind(path: &Path) -> String {
    let mut header = [0; 20];
    if File::open(path).and_then(|mut file| file.read_exact(&mut header)).is_err() || !header.starts_with(b"\x7fELF") {
        return "no Linux program".to_owned();
    }
    // Byte 5 tells the order of the bytes; 18 and 19 the machine.
    let machine = match header[5] {
        2 => u16::from_be_bytes([header[18], header[19]]),
        _ => u16::from_le_bytes([header[18], header[19]]),
    };
    match machine {
        3 => "for x86".to_owned(),
        21 => "for powerpc64".to_owned(),
        22 => "for s390x".to_owned(),
        40 => "for arm".to_owned(),
        62 => "for x86_64".to_owned(),
        183 => "for aarch64".to_owned(),
        243 => "for riscv".to_owned(),
        other => format!("for an unknown machine (ELF machine {other})"),
    }
}
