//! The file of the agent that this raftsman ships → its version, its digest and its size.

use std::fs;
use std::path::Path;
use std::time::Duration;

use raftsman_core::desired::{AgentVersion, Shipped};

use super::probe;

/// Every command waits for it.
const LIMIT: Duration = Duration::from_secs(5);

/// The program that every machine should run. None where the file is missing: agents keep their program then, and a
/// step that needs the file reports what is wrong with it.
///
/// All of it is read: some 20 ms for 30 MB. Once for each command, whatever the number of clusters.
pub(super) fn shipped(path: &Path) -> Option<Shipped> {
    let size = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
    let answer = probe::answer(path, LIMIT).ok()?;
    let version = AgentVersion::parse(answer.lines().next()?.strip_prefix("raftsman-agent ")?.trim())?;
    Some(Shipped { version, digest: probe::sha256(path).ok()?, size })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_an_agent_is_shipped() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("raftsman-agent");
        let put = |text: &str| {
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
        };
        assert_eq!(shipped(&path), None, "nothing there");
        put("#!/bin/sh\necho etcd Version: 3.6.15\n");
        assert_eq!(shipped(&path), None, "another program");
        let text = "#!/bin/sh\necho raftsman-agent 1.2.3\n";
        put(text);
        let version = AgentVersion::parse("1.2.3").expect("a version");
        let digest = raftsman_api::hex::sha256(text.as_bytes());
        assert_eq!(shipped(&path), Some(Shipped { version, digest, size: text.len() as u64 }));
    }
}
