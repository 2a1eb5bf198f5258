//! Bytes → a program of the agent that the lab's raftsman ships from now on.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::{Lab, binary};

/// A program that does what the agent does, and is another: bytes after the end of an ELF file mean nothing.
pub fn another(mark: &str) -> Vec<u8> {
    let mut program = std::fs::read(binary("raftsman-agent")).expect("the agent");
    program.extend_from_slice(mark.as_bytes());
    program
}

/// A program that says that it is an agent of this version, and then does this.
pub fn pretender(version: &str, does: &str) -> Vec<u8> {
    format!("#!/bin/sh\n[ \"$1\" = --version ] && echo raftsman-agent {version} && exit\n{does}\n").into_bytes()
}

impl Lab {
    /// From now on the lab's raftsman ships this program.
    pub fn ship(&mut self, mark: &str, program: &[u8]) -> PathBuf {
        let path = self.path().join("agents").join(mark).join("raftsman-agent");
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(&path, program).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        self.use_agent(path.clone());
        path
    }

    /// Raftsman's own version, which is its agent's.
    pub fn version(&self) -> String {
        self.run(&["--version"]).ok().stdout.split_whitespace().last().expect("a version").to_owned()
    }
}
