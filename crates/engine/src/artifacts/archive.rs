//! A release archive and its SHA-256 → the binaries that are needed of it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;
use raftsman_core::spec::EtcdVersion;
use tar::{Archive, EntryType};

use super::ArtifactError;

/// No release of etcd is near this size; a larger entry is not unpacked.
const LARGEST: u64 = 1024 * 1024 * 1024;

/// Unpacks etcd into the cache, unless it is there, and beside it the tool that restores snapshots, where the release
/// has it. No name out of the archive is ever used as a path.
pub(super) fn unpack(
    path: &Path,
    sha256: &str,
    version: EtcdVersion,
    cache_dir: &Path,
) -> Result<PathBuf, ArtifactError> {
    let target = unpacked(sha256, version, cache_dir)?;
    if target.exists() {
        return Ok(target);
    }
    // Read once, so that what is unpacked is what was hashed.
    let bytes = read(path, sha256)?;
    // etcd comes last: where it exists, everything is unpacked.
    extract(&bytes, path, "etcdutl", &tool_beside(&target), cache_dir)?;
    if extract(&bytes, path, "etcd", &target, cache_dir)? {
        return Ok(target);
    }
    Err(ArtifactError::NotInArchive { path: path.to_owned() })
}

/// Whether etcd can be unpacked of this archive. Nothing is written.
pub(super) fn check(path: &Path, sha256: &str) -> Result<(), ArtifactError> {
    let unreadable = |source| ArtifactError::Archive { path: path.to_owned(), source };
    let bytes = read(path, sha256)?;
    for entry in Archive::new(GzDecoder::new(bytes.as_slice())).entries().map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if entry.header().entry_type() == EntryType::Regular && is("etcd", &entry.path().map_err(unreadable)?) {
            return Ok(());
        }
    }
    Err(ArtifactError::NotInArchive { path: path.to_owned() })
}

/// The archive, if it is the right one.
pub(super) fn read(path: &Path, sha256: &str) -> Result<Vec<u8>, ArtifactError> {
    let bytes = fs::read(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => ArtifactError::NoSuchFile { path: path.to_owned() },
        _ => ArtifactError::Unreadable { path: path.to_owned(), source },
    })?;
    let (found, wanted) = (raftsman_api::hex::sha256(&bytes), sha256.trim().to_ascii_lowercase());
    match found == wanted {
        true => Ok(bytes),
        false => Err(ArtifactError::HashMismatch { path: path.to_owned(), found, wanted }),
    }
}

/// Writes a program of the archive; returns whether the archive has one.
fn extract(bytes: &[u8], path: &Path, program: &str, target: &Path, cache_dir: &Path) -> Result<bool, ArtifactError> {
    let unreadable = |source| ArtifactError::Archive { path: path.to_owned(), source };
    let mut archive = Archive::new(GzDecoder::new(bytes));
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        if entry.header().entry_type() != EntryType::Regular || !is(program, &entry.path().map_err(unreadable)?) {
            continue;
        }
        if entry.size() > LARGEST {
            let large = format!("{program} in it is larger than 1 GiB");
            return Err(unreadable(io::Error::new(io::ErrorKind::InvalidData, large)));
        }
        write(&mut entry, target, cache_dir, unreadable)?;
        return Ok(true);
    }
    Ok(false)
}

/// Where the tool that restores snapshots is, as releases have it: beside etcd, and called alike.
pub(super) fn tool_beside(etcd: &Path) -> PathBuf {
    let name = etcd.file_name().unwrap_or_default().to_string_lossy().replacen("etcd", "etcdutl", 1);
    etcd.with_file_name(name)
}

/// Where the binary out of an archive is, or will be. The archive's hash is in the name: another archive of the same
/// version is not taken for this one.
pub(super) fn unpacked(sha256: &str, version: EtcdVersion, cache_dir: &Path) -> Result<PathBuf, ArtifactError> {
    let wanted = sha256.trim().to_ascii_lowercase();
    if wanted.len() != 64 || !wanted.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(ArtifactError::NotAHash { sha256: sha256.to_owned() });
    }
    Ok(cache_dir.join(format!("etcd-{version}-{}", &wanted[..16])))
}

/// `etcd-v3.6.15-linux-amd64/etcd`, with or without `./` before it.
fn is(program: &str, path: &Path) -> bool {
    let mut parts = path.components().filter(|part| *part != Component::CurDir);
    matches!(parts.next(), Some(Component::Normal(_)))
        && parts.next() == Some(Component::Normal(program.as_ref()))
        && parts.next().is_none()
}

fn write(
    entry: &mut impl io::Read,
    target: &Path,
    cache_dir: &Path,
    unreadable: impl FnOnce(io::Error) -> ArtifactError,
) -> Result<(), ArtifactError> {
    let failed = |source| ArtifactError::Unwritable { path: target.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(cache_dir).map_err(failed)?;
    let mut file = tempfile::Builder::new()
        .prefix(".tmp-")
        .permissions(Permissions::from_mode(0o700))
        .tempfile_in(cache_dir)
        .map_err(failed)?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = match entry.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) => return Err(unreadable(error)),
        };
        io::Write::write_all(&mut file, &buffer[..count]).map_err(failed)?;
    }
    file.as_file().sync_all().map_err(failed)?;
    file.persist(target).map_err(|error| failed(error.error))?;
    fs::File::open(cache_dir).and_then(|dir| dir.sync_all()).map_err(failed)
}
