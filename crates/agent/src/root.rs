//! the root directory → the path of each file of the agent below it.

use std::path::{Path, PathBuf};

use crate::files::{self, FileError};
use crate::postgres;
use crate::supervisor::program::{Program, Source};

/// Where an image carries binaries, beside the agent's own (tools/image-tree).
const IMAGE_ARTIFACTS: &str = "/usr/local/lib/raftsman/artifacts";

/// The directory below which everything of one machine lives.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The root at this directory, which must exist. Its path is made absolute, because it goes into etcd's
    /// configuration and identifies the agent's own etcd process.
    pub fn open(dir: &Path) -> Result<Self, FileError> {
        dir.canonicalize().map(Self).map_err(FileError::of("open the root", dir))
    }

    /// Makes the directories that always exist.
    pub fn prepare(&self) -> Result<(), FileError> {
        let programs = Program::ALL.into_iter().flat_map(|program| {
            let files = program.files(self);
            let versions = match program.source() {
                Source::Pinned(_) => Some(files.versions()),
                Source::Package(_) => None,
            };
            std::iter::once(files.dir().to_path_buf()).chain(versions).map(|dir| (dir, files::DIR_FOR_PROGRAM))
        });
        let own = [self.0.join("agent"), self.agent_tls()].map(|dir| (dir, 0o700));
        for (dir, mode) in own.into_iter().chain(programs).chain([(self.etcd().join("tls"), files::DIR_FOR_PROGRAM)]) {
            if !dir.is_dir() {
                files::make_dir(&dir, mode)?;
            }
        }
        // Leftovers of a killed agent; etcd and PostgreSQL handle their own data.
        let programs = Program::ALL.map(|program| program.files(self).dir().to_path_buf());
        for dir in programs.into_iter().chain([self.0.join("agent")]) {
            files::remove_unfinished(&dir, &[&self.data(), &postgres::data::dir(self)])?;
        }
        Ok(())
    }

    /// The root itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Held locked while an agent runs.
    pub fn lock(&self) -> PathBuf {
        self.0.join("agent.lock")
    }

    /// The agent's log, written by the process that started it.
    pub fn agent_log(&self) -> PathBuf {
        self.0.join("agent.log")
    }

    /// The boot data of the machine.
    pub fn boot(&self) -> PathBuf {
        self.0.join("agent/boot.json")
    }

    /// The machine's incarnation: a rebuilt machine has another.
    pub fn incarnation(&self) -> PathBuf {
        self.0.join("agent/incarnation")
    }

    /// The newest generation obeyed.
    pub fn generation(&self) -> PathBuf {
        self.0.join("agent/generation")
    }

    /// Which clients the agent accepts, where that is not what the boot data says.
    pub fn access(&self) -> PathBuf {
        self.0.join("agent/access.json")
    }

    /// The SHA-256 of the binaries that may be run.
    pub fn pins(&self) -> PathBuf {
        self.0.join("agent/pinned.json")
    }

    /// The agent's own key and certificate.
    pub fn agent_tls(&self) -> PathBuf {
        self.0.join("agent/tls")
    }

    /// The client certificate of this agent for etcd.
    pub fn client_tls(&self) -> PathBuf {
        self.0.join("agent/etcd-client")
    }

    /// The settings of scheduled backups on this machine.
    pub fn backups(&self) -> PathBuf {
        self.0.join("agent/backups")
    }

    /// A binary that was put on the machine when it was made.
    pub fn artifact(&self, program: &str, version: &str) -> PathBuf {
        self.0.join("artifacts").join(format!("{program}-{version}"))
    }

    /// A binary that is in the machine's image. It is not below the root, where a data disk would hide it.
    pub fn image_artifact(program: &str, version: &str) -> PathBuf {
        Path::new(IMAGE_ARTIFACTS).join(format!("{program}-{version}"))
    }

    /// All of etcd's.
    pub fn etcd(&self) -> PathBuf {
        self.0.join("etcd")
    }

    /// etcd's key and certificate towards other members.
    pub fn peer_tls(&self) -> PathBuf {
        self.0.join("etcd/tls/peer")
    }

    /// etcd's key and certificate towards clients.
    pub fn server_tls(&self) -> PathBuf {
        self.0.join("etcd/tls/server")
    }

    /// etcd's data.
    pub fn data(&self) -> PathBuf {
        self.0.join("etcd/data")
    }

    /// The data that was moved away last.
    pub fn removed(&self) -> PathBuf {
        self.0.join("etcd/removed")
    }

    /// A root of a test's own, prepared, gone with the directory.
    #[cfg(test)]
    pub(crate) fn scratch() -> (tempfile::TempDir, Self) {
        let dir = tempfile::tempdir().expect("dir");
        let root = Self::open(dir.path()).expect("root");
        root.prepare().expect("prepare");
        (dir, root)
    }
}
