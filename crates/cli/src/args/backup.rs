//! What may be written after `backup`, `restore` and `drill`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{duration, moment};

/// What is accepted beyond backups that are signed with the cluster's own key.
#[derive(Debug, Args)]
pub(crate) struct Accept {
    /// Accept backups that are signed with this key (`ed25519:…`), as `raftsman backup key` prints it in the fleet that made
    /// them. May be given several times.
    #[arg(long, value_name = "KEY")]
    pub(crate) trust: Vec<String>,
    #[command(flatten)]
    pub(crate) unsigned: Unsigned,
}

/// Whether backups without a signature are accepted.
#[derive(Debug, Args)]
pub(crate) struct Unsigned {
    /// Accept backups that are not signed with the cluster's key, or not encrypted: those from before backups were signed,
    /// in a store that no attacker can write to.
    #[arg(long)]
    pub(crate) trust_unsigned: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The backup is first restored into a temporary etcd on one of the machines and compared with what etcd reported when it
was made. Then all members are stopped, their data is moved aside on the machines, all are restored from one snapshot,
and clients are accepted once all members hold the same data.

Examples:
  raftsman restore --show                          what would be restored, and what would be lost
  raftsman restore                                 the newest backup, with all changes since
  raftsman restore --at 2026-11-16T07:00:00Z       as it was then
  raftsman restore --at 10m-ago                    as it was ten minutes ago
  raftsman restore --revision 4711                 everything up to this revision
  raftsman restore --from shop/main                the backups of another cluster in the same store")]
pub(crate) struct Restore {
    /// Which cluster; needed when the file has several.
    pub(crate) cluster: Option<String>,
    /// This full backup, as it is: no changes since. `raftsman backup list` shows their names.
    #[arg(long, value_name = "NAME", group = "wish")]
    pub(crate) backup: Option<String>,
    /// Everything up to this revision.
    #[arg(long, value_name = "REVISION", group = "wish", value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) revision: Option<i64>,
    /// Everything up to this moment: `2026-11-16T07:00:00Z`, or `10m-ago`.
    #[arg(long, value_name = "MOMENT", group = "wish", value_parser = moment)]
    pub(crate) at: Option<jiff::Timestamp>,
    /// The backups of another cluster: CLUSTER, or FLEET/CLUSTER.
    #[arg(long, value_name = "CLUSTER")]
    pub(crate) from: Option<String>,
    /// A file with an age identity that opens encrypted backups. May be given several times. It stays on this computer.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) accept: Accept,
    /// Only show what would be restored.
    #[arg(long, conflicts_with = "yes")]
    pub(crate) show: bool,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print JSON; what happens follows as JSON lines.
    #[arg(long)]
    pub(crate) json: bool,
    /// Give up when there was no progress for this long.
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The cluster itself is not changed: the backup is restored on one of its machines, beside its member, and removed right
after. The result is recorded in the store, and retention never removes the newest backup that passed.

Examples:
  raftsman drill                        restores the newest backup, with all changes since
  raftsman drill --key ops.key          one that is encrypted
  raftsman drill --from shop/main       that of another cluster, on a machine of this one
  raftsman drill --history              all drills so far")]
pub(crate) struct Drill {
    /// Which cluster; needed when the file has several.
    pub(crate) cluster: Option<String>,
    /// A file with an age identity that opens encrypted backups. May be given several times. It stays on this computer.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Vec<PathBuf>,
    /// The backups of another cluster in the same store: CLUSTER, or FLEET/CLUSTER. Its own machines are not used.
    #[arg(long, value_name = "CLUSTER")]
    pub(crate) from: Option<String>,
    #[command(flatten)]
    pub(crate) accept: Accept,
    /// Show the drills so far.
    #[arg(long, conflicts_with = "key")]
    pub(crate) history: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  raftsman backup now              a backup of the only cluster, to the store of the file
  raftsman backup list             all that there are
  raftsman backup verify --all     every byte of every one of them
  raftsman backup copy --to /mnt   the newest, with all changes since, to another disk
  raftsman backup prune --show     what the file does not keep any more
  raftsman backup key              what verifies the backups of this fleet elsewhere")]
pub(crate) enum Backup {
    /// Make one: the snapshot of a member that does not lead, compressed and encrypted as the file says, and read back.
    Now {
        /// Which cluster; may be left out when there is only one.
        cluster: Option<String>,
        /// Print what happens as JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// List them: name, time, size, whether they are valid.
    List {
        /// Which cluster; may be left out when there is only one.
        cluster: Option<String>,
        #[command(flatten)]
        unsigned: Unsigned,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show one in detail, and how to restore it without raftsman.
    Show {
        /// Its name, as `list` shows it; the newest by default.
        backup: Option<String>,
        /// Which cluster; may be left out when there is only one.
        #[arg(long)]
        cluster: Option<String>,
        #[command(flatten)]
        unsigned: Unsigned,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Copy one to another place, byte for byte, with all changes since, and read it back there.
    #[command(group(clap::ArgGroup::new("where").required(true)))]
    #[command(after_help = "\
What is there already is not sent twice: it can be interrupted and repeated.

Examples:
  raftsman backup copy --to /mnt/disk                  the newest, to a directory, which becomes a store
  raftsman backup copy --to-store-of other.yaml        the newest, to the store that another file names
  raftsman backup copy --snapshot snapshot.db          its snapshot alone, unpacked: what etcdutl restores")]
    Copy {
        /// Its name, as `list` shows it; the newest by default.
        backup: Option<String>,
        /// A directory.
        #[arg(long, value_name = "DIRECTORY", group = "where")]
        to: Option<PathBuf>,
        /// The store of another raftsman file: what stands there under `backups:`.
        #[arg(long, value_name = "FILE", group = "where")]
        to_store_of: Option<PathBuf>,
        /// A new file for the plain snapshot, without changes since.
        #[arg(long, value_name = "FILE", group = "where")]
        snapshot: Option<PathBuf>,
        /// Which cluster; may be left out when there is only one.
        #[arg(long)]
        cluster: Option<String>,
        /// A file with an age identity that opens what is encrypted, for `--snapshot`. May be given more than once.
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
        #[command(flatten)]
        unsigned: Unsigned,
        /// Print what happens as JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Read one from the first byte to the last: whether it is what etcd sent.
    Verify {
        /// Its name, as `list` shows it; the newest by default.
        backup: Option<String>,
        /// All of them.
        #[arg(long, conflicts_with = "backup")]
        all: bool,
        /// Which cluster; may be left out when there is only one.
        #[arg(long)]
        cluster: Option<String>,
        /// A file with an age identity that opens what is encrypted. May be given more than once.
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
        #[command(flatten)]
        unsigned: Unsigned,
        /// Print what happens as JSON lines.
        #[arg(long)]
        json: bool,
    },
    /// Remove what the file does not keep any more: what machines do by themselves unless it says `prune: operator`.
    #[command(after_help = "\
Only verified backups are considered, and only those are removed. The last ones always stay.

Examples:
  raftsman backup prune --show                     what would go
  raftsman backup prune --trust-unsigned           backups from before they were signed are considered as well")]
    Prune {
        /// Which cluster; may be left out when there is only one.
        cluster: Option<String>,
        /// Only show what would go.
        #[arg(long)]
        show: bool,
        #[command(flatten)]
        unsigned: Unsigned,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the public keys that verify the backups of this fleet: for `trust:` in the file of another one, and to be kept
    /// where the state is not.
    Key {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}
