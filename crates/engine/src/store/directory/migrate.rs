//! A state of an earlier format → one of the current format, with a copy of the earlier one.

use std::path::Path;

use super::lock::Held;
use super::{CLUSTERS, FLEET, HISTORY, PRIVATE, RECIPIENT, SHELVES, files, fleet_of, format_of, path};
use crate::store::state::{Key, KeyName};
use crate::store::{FORMAT, Fleet, StoreError, ledgers};

/// The prefix of the copies' names.
const BEFORE: &str = "before-format-";

/// The format that the state has now.
pub(super) fn format(dir: &Path) -> Result<u32, StoreError> {
    let path = dir.join(FLEET);
    let bytes = files::read(&path)?.ok_or_else(|| StoreError::Missing { dir: dir.to_owned() })?;
    format_of(path.as_path(), &bytes)
}

/// Migrates a state of an earlier format to the current one, under the lock of the whole fleet. The format is written
/// last, so that a killed migration is repeated.
pub(super) fn migrate(dir: &Path, _held: &Held) -> Result<(), StoreError> {
    let path = dir.join(FLEET);
    let bytes = files::read(&path)?.ok_or_else(|| StoreError::Missing { dir: dir.to_owned() })?;
    let fleet = fleet_of(path.as_path(), &bytes)?;
    // Another process may have been faster.
    if fleet.format >= FORMAT {
        return Ok(());
    }
    copy(dir)?;
    files::make_directory(&dir.join(HISTORY.directory))?;
    if fleet.format < 2 {
        for cluster in CLUSTERS.names(dir)? {
            give_version(dir, cluster)?;
        }
    }
    files::write(&path, &Fleet { format: FORMAT, ..fleet }.text(path.as_path())?, PRIVATE)
}

/// Gives a ledger of an earlier format a version.
fn give_version(dir: &Path, cluster: KeyName) -> Result<(), StoreError> {
    let ledger = path(dir, &Key::Ledger(cluster.clone()));
    let Some(bytes) = files::read(&ledger)? else { return Ok(()) };
    if let Some((number, text)) = ledgers::with_version(&cluster, &ledger, &bytes)? {
        files::write_unsynced(&path(dir, &Key::History(cluster, number)), &text, HISTORY.mode)?;
        files::write(&ledger, &text, CLUSTERS.mode)?;
    }
    Ok(())
}

/// Copies what a migration may change. An existing copy stays: a killed migration has made it from the earlier state.
///
/// The generation is not in it: agents would refuse every change of an older generation. Nor is the identity: it does
/// not change, and one copy of it is enough to protect.
fn copy(dir: &Path) -> Result<(), StoreError> {
    let target = dir.join(format!("{BEFORE}{FORMAT}"));
    if target.exists() {
        return Ok(());
    }
    let making = files::unfinished_directory(dir)?;
    for file in [FLEET, RECIPIENT] {
        if let Some(bytes) = files::read(&dir.join(file))? {
            files::write(&making.join(file), &bytes, PRIVATE)?;
        }
    }
    for shelf in SHELVES {
        files::make_directory(&making.join(shelf.directory))?;
        for name in shelf.names(dir)? {
            if let Some(bytes) = files::read(&shelf.path(dir, name.as_str()))? {
                files::write(&shelf.path(&making, name.as_str()), &bytes, shelf.mode)?;
            }
        }
    }
    std::fs::rename(&making, &target).map_err(StoreError::io("rename", &making))?;
    files::sync_parent(&target)
}

/// Deletes the copies.
pub(super) fn remove_copies(dir: &Path) -> Result<(), StoreError> {
    for path in files::list(dir)? {
        let is_copy = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(BEFORE));
        if is_copy.is_some_and(|format| format.parse::<u32>().is_ok()) {
            files::remove_tree(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use raftsman_core::observed::Ledger;

    use super::*;
    use crate::store::fixture::of_format_2;
    use crate::store::{IdentitySource, Kept, LockInfo, LockScope, Store};

    fn info() -> LockInfo {
        LockInfo::new("apply", "alice", "desk")
    }

    fn main() -> LockScope {
        LockScope::Stacks(["main".to_owned()].into())
    }

    #[tokio::test]
    async fn a_state_of_format_2_is_read_as_it_is_and_migrated_once_by_the_first_writer() {
        let (_scratch, dir) = of_format_2();
        let store = Store::open(&dir, "lab").await.unwrap();
        let read = async || store.get_cluster::<Ledger>("main").await.unwrap().unwrap();
        let before: Kept<Ledger> = read().await;
        assert_eq!((before.version.number(), before.value.etcd.members.len()), (7, 1));
        let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
        let secret = async || secrets.get("main-peers").await.unwrap().is_some();
        assert!(secret().await && !dir.join("before-format-3").exists(), "reading changes nothing");
        let generation: u64 = fs::read_to_string(dir.join("generation")).unwrap().trim().parse().unwrap();

        let lock = store.lock_for(&main(), info()).await.unwrap();
        assert_eq!((read().await, secret().await), (before, true));
        assert!(lock.generation() > generation);
        assert!(fs::read_to_string(dir.join(FLEET)).unwrap().contains("\"format\": 3"));
        let copy = dir.join("before-format-3");
        assert!(fs::read_to_string(copy.join(FLEET)).unwrap().contains("\"format\": 2"));
        for file in ["clusters/main.json", "secrets/main-peers.age", "certificates/fleet.pem"] {
            assert_eq!(fs::read(copy.join(file)).unwrap(), fs::read(dir.join(file)).unwrap(), "{file}");
        }
        assert!(!copy.join("generation").exists() && !copy.join("identity.txt").exists());
        store.put_cluster(&lock, "main", &read().await.version, &read().await.value).await.unwrap();
        drop(lock);

        fs::remove_dir_all(&copy).unwrap();
        drop(store.lock_for(&main(), info()).await.unwrap());
        assert!(!copy.exists(), "it is migrated once");
    }

    #[tokio::test]
    async fn a_killed_migration_is_done_again_and_keeps_the_first_copy() {
        let (_scratch, dir) = of_format_2();
        let store = Store::open(&dir, "lab").await.unwrap();
        let before = fs::read(dir.join(FLEET)).unwrap();
        fs::create_dir(dir.join(".tmp-half")).unwrap();
        fs::write(dir.join(".tmp-half/fleet.json"), "{").unwrap();
        drop(store.lock(info()).await.unwrap());
        // Killed before the format was written.
        fs::write(dir.join(FLEET), &before).unwrap();
        fs::write(dir.join("before-format-3/mark"), "the first").unwrap();
        drop(store.lock(info()).await.unwrap());
        assert!(dir.join("before-format-3/mark").exists() && !dir.join(".tmp-half").exists());
        let lock = store.lock(info()).await.unwrap();
        let left = store.remove(lock).await.unwrap().left;
        assert_eq!(left, Vec::<PathBuf>::new());
    }

    #[tokio::test]
    async fn a_state_that_a_newer_raftsman_migrated_meanwhile_is_not_changed() {
        let (_scratch, dir) = of_format_2();
        let store = Store::open(&dir, "lab").await.unwrap();
        let text = fs::read_to_string(dir.join(FLEET)).unwrap();
        fs::write(dir.join(FLEET), text.replace("\"format\": 2", "\"format\": 4")).unwrap();
        let refused = store.lock_for(&main(), info()).await.unwrap_err();
        assert!(matches!(refused, StoreError::NewerFormat { found: 4, known: 3, .. }), "{refused}");
    }
}
