//! a program other than the agent → how it is run: as the unprivileged user, without the agent's environment or files.
//!
//! On machines with systemd the agent runs as root, and only the agent may: a program that reads a snapshot, or was
//! installed by a call, runs as etcd's user and inherits the restrictions of the agent's unit (no new privileges, a
//! read-only system, no devices, the system calls of a service). On this computer everything runs as raftsman's user.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;

use crate::files::{self, FileError};
use crate::root::Root;
use crate::supervisor::program::PATH;
use crate::supervisor::systemd::Owner;

/// A command that runs a program as this user: a clean environment, a process group of its own, no standard input,
/// killed when it is dropped.
pub fn command(program: &Path, dir: &Path, user: Option<Owner>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).current_dir(dir).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    if let Some(Owner { user, group }) = user {
        // The group first; the supplementary groups are dropped with the user.
        command.gid(group).uid(user);
    }
    command
}

/// A directory of its own for such a program, beside etcd's. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct Workspace {
    dir: PathBuf,
    user: Option<Owner>,
}

impl Workspace {
    /// A new one.
    pub fn new(root: &Root, name: &str, user: Option<Owner>) -> Result<Self, FileError> {
        let dir = files::beside(&root.etcd().join(name));
        files::make_dir(&dir, 0o700)?;
        let workspace = Self { dir, user };
        workspace.give(&workspace.dir)?;
        Ok(workspace)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Gives a file in it to the program's user.
    pub fn give(&self, path: &Path) -> Result<(), FileError> {
        match self.user {
            Some(Owner { user, group }) => {
                chown(path, Some(user), Some(group)).map_err(FileError::of("change the owner of", path))
            }
            None => Ok(()),
        }
    }

    /// A command that runs a program in it.
    pub fn command(&self, program: &Path) -> Command {
        command(program, &self.dir, self.user)
    }

    /// Moves a directory out of it that the program made: nothing else, and no link to elsewhere.
    pub fn take_out(&self, made: &Path, target: &Path) -> Result<(), FileError> {
        let is_dir = fs::symlink_metadata(made).map_err(FileError::of("look at", made))?.is_dir();
        if !is_dir {
            return Err(FileError::of("take out what is not a directory at", made)(
                std::io::ErrorKind::InvalidData.into(),
            ));
        }
        fs::rename(made, target).map_err(FileError::of("put the data in place at", target))
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // A leftover does no harm: the agent's next start removes it.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNPRIVILEGED: Owner = Owner { user: 65534, group: 65534 };

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().expect("dir");
        // The user must be able to enter it.
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).expect("mode");
        let root = Root::open(dir.path()).expect("root");
        root.prepare().expect("prepare");
        fs::set_permissions(root.etcd(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).expect("mode");
        (dir, root)
    }

    /// What a program that an operator installed on a machine can find out about itself.
    const LOOK: &str = "id -u; id -g; id -G; pwd; env | sort; ps -o pgid= -p $$ | tr -d ' '; echo $$; \
                        grep -E '^Cap(Eff|Prm)' /proc/self/status; touch here && echo wrote; \
                        touch ../outside 2>/dev/null && echo escaped; true";

    #[tokio::test]
    async fn a_program_runs_without_roots_powers() {
        assert!(
            rustix::process::geteuid().is_root(),
            "only root can run something as another user: run the tests as root"
        );
        let (_dir, root) = root();
        let workspace = Workspace::new(&root, "work", Some(UNPRIVILEGED)).expect("a workspace");
        let output = workspace.command(Path::new("/bin/sh")).args(["-c", LOOK]).output().await.expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[..4], ["65534", "65534", "65534", &workspace.path().display().to_string()], "{said}");
        let environment: Vec<&str> = lines.iter().filter(|line| line.contains('=')).copied().collect();
        let known = ["PATH=", "PWD=", "OLDPWD=", "SHLVL=", "_="];
        assert!(environment.iter().all(|line| known.iter().any(|it| line.starts_with(it))), "{said}");
        assert_eq!(
            lines.iter().filter(|line| line.ends_with("0000000000000000")).count(),
            2,
            "no capabilities: {said}"
        );
        assert!(lines.contains(&"wrote") && !lines.contains(&"escaped"), "{said}");
        let numbers: Vec<&&str> = lines.iter().filter(|line| line.bytes().all(|b| b.is_ascii_digit())).collect();
        assert_eq!(numbers[numbers.len() - 2], numbers[numbers.len() - 1], "a process group of its own: {said}");
    }

    #[tokio::test]
    async fn a_link_is_not_taken_out() {
        let (_dir, root) = root();
        let workspace = Workspace::new(&root, "work", None).expect("a workspace");
        let made = workspace.path().join("data");
        std::os::unix::fs::symlink("/etc", &made).expect("a link");
        workspace.take_out(&made, &root.data()).expect_err("refused");
        assert!(fs::symlink_metadata(root.data()).is_err());
        let dir = workspace.path().to_owned();
        drop(workspace);
        assert!(!dir.exists() && Path::new("/etc/passwd").exists());
    }
}
