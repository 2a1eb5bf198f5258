//! What can be wrong with the state → messages that say what to do.

use std::io;
use std::path::PathBuf;

use super::{LockInfo, Place};

/// Why the state cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is none.
    #[error("there is no state in {dir}; `raftsman init` or the first `raftsman apply` makes it", dir = dir.display())]
    Missing {
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// Its creation or its removal was interrupted.
    #[error(
        "the state in {dir} is unfinished: its making or its removal was cut short, and nothing of value is in it; \
         run `raftsman init` to complete it, or `raftsman destroy` to clear it away",
        dir = dir.display()
    )]
    Unfinished {
        /// Where it is.
        dir: PathBuf,
    },
    /// There is one already.
    #[error("there is a state in {dir} already; use it, or name another directory with `state:` in the file", dir = dir.display())]
    Exists {
        /// Where it is.
        dir: PathBuf,
    },
    /// It is another fleet's.
    #[error(
        "the state in {dir} belongs to the fleet `{found}`, but the file says `fleet: {expected}`; correct the name, or \
         name another directory with `state:`",
        dir = dir.display()
    )]
    OtherFleet {
        /// Where it is.
        dir: PathBuf,
        /// The fleet in the file.
        expected: String,
        /// The fleet in the state.
        found: String,
    },
    /// A newer raftsman wrote it.
    #[error(
        "the state in {dir} has format {found}, this raftsman knows formats up to {known}; use the newer raftsman that \
         wrote it",
        dir = dir.display()
    )]
    NewerFormat {
        /// Where it is.
        dir: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// Other users can read or change it.
    #[error(
        "{path} is open to other users (mode {mode:04o}); close it: chmod {wanted:o} {path}",
        path = path.display()
    )]
    Permissions {
        /// What is too open.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// The mode it should have.
        wanted: u32,
    },
    /// A file is not what raftsman wrote.
    #[error("{place} is damaged: {detail}; restore the state's directory from a backup")]
    Damaged {
        /// Where it is.
        place: Place,
        /// What is wrong.
        detail: String,
    },
    /// A ledger is not what raftsman wrote.
    #[error(
        "the ledger of cluster `{cluster}` is damaged ({place}: {detail}); nothing is changed without it: `raftsman state \
         check` says what can be brought back, `raftsman state repair` does it"
    )]
    LedgerDamaged {
        /// The cluster.
        cluster: String,
        /// Where it is.
        place: Place,
        /// What is wrong.
        detail: String,
    },
    /// A ledger is gone.
    #[error(
        "the ledger of cluster `{cluster}` is missing, though there is {trace}: this is not a new cluster; nothing is \
         changed without it: `raftsman state check` says what can be brought back, `raftsman state repair` does it"
    )]
    LedgerMissing {
        /// The cluster.
        cluster: String,
        /// What shows that it was there.
        trace: String,
    },
    /// A ledger was replaced since it was read.
    #[error(
        "the ledger of cluster `{cluster}` has changed since it was read (version {newest}, read was {read}): nothing was \
         written; run the command again"
    )]
    LedgerChanged {
        /// The cluster.
        cluster: String,
        /// The version that was read.
        read: u64,
        /// The newest one.
        newest: u64,
    },
    /// The lock is of another state.
    #[error("the lock of {} does not cover {}: please report this as a bug of raftsman", locked.display(), dir.display())]
    OtherLock {
        /// The state that is locked.
        locked: PathBuf,
        /// The state that was to be written to.
        dir: PathBuf,
    },
    /// The state's directory is another user's.
    #[error(
        "{dir} belongs to user {owner}, and you are user {user}: run raftsman as its owner, or name another directory \
         with `state:` in the file",
        dir = dir.display()
    )]
    OtherOwner {
        /// The directory.
        dir: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The state's directory is a symbolic link, which may point elsewhere later.
    #[error("{dir} is a symbolic link: name the directory itself with `state:` in the file", dir = dir.display())]
    Link {
        /// The link.
        dir: PathBuf,
    },
    /// It is not locked: a bug of ours.
    #[error("{what} is not locked by this process: please report this as a bug of raftsman")]
    NotLocked {
        /// What was to be written.
        what: String,
    },
    /// The lock was lost after it was taken.
    #[error(
        "this process has lost its lock: {path} was removed or replaced meanwhile, so that another process may change \
         the same; nothing was written: see that no other raftsman runs, then run the command again",
        path = path.display()
    )]
    LockLost {
        /// The lock's file.
        path: PathBuf,
    },
    /// A value is not the one that was to be replaced.
    #[error("`{key}` in the state has changed since it was read: nothing was written; run the command again")]
    Changed {
        /// Its key.
        key: String,
    },
    /// Another process holds the lock.
    #[error("{}", held(stack.as_deref(), holder.as_deref()))]
    Locked {
        /// Of which stack; nothing where it is all of the state.
        stack: Option<String>,
        /// The process that holds it, if the lock records one.
        holder: Option<Box<LockInfo>>,
    },
    /// A name that cannot be a key of the state.
    #[error(
        "`{name}` cannot be a name in the state: small letters, digits, `-`, `_` and `.` only, a letter or digit first"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The state holds no identity, and none was given.
    #[error(
        "{dir} holds no identity to decrypt the secrets with; if you keep it elsewhere, name its file: \
         RAFTSMAN_IDENTITY=<file>",
        dir = dir.display()
    )]
    NoIdentity {
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// The file of the identity is not there.
    #[error("the identity file {path} does not exist; RAFTSMAN_IDENTITY must name the file that `raftsman init` made", path = path.display())]
    IdentityMissing {
        /// The file.
        path: PathBuf,
    },
    /// The file holds no identity.
    #[error(
        "{path} holds no age identity (a line that begins with AGE-SECRET-KEY-1); bring the right one back, or name its \
         file: RAFTSMAN_IDENTITY=<file>",
        path = path.display()
    )]
    IdentityUnreadable {
        /// The file.
        path: PathBuf,
    },
    /// The identity is encrypted and no passphrase was given.
    #[error("the identity in {path} is protected by a passphrase; give it when asked, on a terminal", path = path.display())]
    PassphraseNeeded {
        /// The file.
        path: PathBuf,
    },
    /// Not the passphrase.
    #[error("wrong passphrase for {path}; try again", path = path.display())]
    WrongPassphrase {
        /// The file.
        path: PathBuf,
    },
    /// Not the identity of this state.
    #[error(
        "the identity in {path} is not the one of this state: it opens {found}, the secrets are encrypted to \
         {expected}; bring the right one back, or name its file: RAFTSMAN_IDENTITY=<file>",
        path = path.display()
    )]
    WrongIdentity {
        /// The file of the identity.
        path: PathBuf,
        /// The state's recipient.
        expected: String,
        /// The identity's recipient.
        found: String,
    },
    /// A secret cannot be encrypted.
    #[error("`{name}` cannot be encrypted: {source}")]
    Encrypt {
        /// Its name.
        name: String,
        /// Why.
        source: Box<age::EncryptError>,
    },
    /// A secret cannot be decrypted.
    #[error("{place} cannot be decrypted: {source}; restore it from a backup of the state's directory")]
    Decrypt {
        /// Where it is.
        place: Place,
        /// Why.
        source: Box<age::DecryptError>,
    },
    /// A value cannot be written as JSON.
    #[error("{place} cannot be written: {source}; please report this as a bug of raftsman")]
    Encode {
        /// Where it was to be.
        place: Place,
        /// Why.
        source: serde_json::Error,
    },
    /// A file operation failed.
    #[error("cannot {doing} {path}: {source}{hint}", path = path.display(), hint = hint(source))]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// No random numbers.
    #[error("the system gives no random numbers; nothing secret can be made on this computer")]
    Random,
}

impl StoreError {
    pub(super) fn damaged(place: impl Into<Place>, detail: impl Into<String>) -> Self {
        Self::Damaged { place: place.into(), detail: detail.into() }
    }

    pub(super) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}

fn held(stack: Option<&str>, holder: Option<&LockInfo>) -> String {
    let what = stack.map_or_else(|| "this state".to_owned(), |stack| format!("cluster `{stack}`"));
    match holder {
        Some(LockInfo { verb, user, host, pid, since }) => format!(
            "{user}@{host} is running `raftsman {verb}` on {what} since {since} (process {pid}); wait until it is done"
        ),
        None => format!("another raftsman is changing {what}; wait until it is done"),
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "; free some space on that file system, then run the same command again",
        io::ErrorKind::QuotaExceeded => {
            "; your disk quota is used up: free some space, then run the same command again"
        }
        io::ErrorKind::PermissionDenied => "; run raftsman as the user that owns the state's directory",
        io::ErrorKind::ReadOnlyFilesystem => {
            "; the file system is mounted read-only: the state must be on one that can be written"
        }
        _ => "",
    }
}
