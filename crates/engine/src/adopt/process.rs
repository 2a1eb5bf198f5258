//! An address on this computer → the process that listens there, and the settings that it was started with.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use raftsman_core::adopt::Process;
use raftsman_core::spec::{self, EtcdVersion};

const PROC: &str = "/proc";

/// The settings of the member that listens at this address, in the file's words, as far as they can be seen.
pub(crate) fn settings_of(at: SocketAddr, quota: Option<u64>, version: EtcdVersion) -> BTreeMap<String, String> {
    let process = listening_at(at);
    raftsman_core::adopt::seen(process.as_ref().map(|process| &process.settings), quota, version)
}

/// The process that listens there, when it is an etcd of this computer that we may look at.
pub(super) fn listening_at(at: SocketAddr) -> Option<Process> {
    let inodes = ["net/tcp", "net/tcp6"]
        .iter()
        .filter_map(|table| std::fs::read_to_string(Path::new(PROC).join(table)).ok())
        .flat_map(|table| listeners(&table, at))
        .collect::<Vec<String>>();
    if inodes.is_empty() {
        return None;
    }
    let pid = std::fs::read_dir(PROC).ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let mut open = std::fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        let holds = |fd: std::fs::DirEntry| {
            let link = std::fs::read_link(fd.path()).ok()?;
            inodes.iter().any(|inode| link.to_str() == Some(inode)).then_some(())
        };
        open.find_map(holds).map(|()| pid)
    })?;
    let dir = Path::new(PROC).join(pid.to_string());
    let strings = |file: &str| -> Vec<String> {
        let bytes = std::fs::read(dir.join(file)).unwrap_or_default();
        bytes.split(|byte| *byte == 0).filter(|s| !s.is_empty()).map(|s| String::from_utf8_lossy(s).into()).collect()
    };
    let program = std::fs::read_link(dir.join("exe")).ok()?;
    // Another process may proxy connections to etcd: its arguments say nothing about etcd's.
    if program.file_name().is_none_or(|name| !name.to_string_lossy().starts_with("etcd")) {
        return None;
    }
    let base = std::fs::read_link(dir.join("cwd")).unwrap_or_else(|_| "/".into());
    let (source, settings) = settings(&strings("cmdline"), &strings("environ"), &base)?;
    Some(Process { pid, program: Some(program.to_string_lossy().into_owned()), source, settings })
}

/// Sockets of a table of the kernel that listen for this address, as links to them are called.
fn listeners(table: &str, at: SocketAddr) -> Vec<String> {
    const LISTEN: &str = "0A";
    let one = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (address, port) = columns.get(1)?.split_once(':')?;
        let address = address_of(address)?;
        let here = (address == at.ip() || address.is_unspecified()) && u16::from_str_radix(port, 16).ok()? == at.port();
        (*columns.get(3)? == LISTEN && here).then(|| Some(format!("socket:[{}]", columns.get(9)?)))?
    };
    table.lines().skip(1).filter_map(one).collect()
}

/// The kernel writes addresses as words in its own byte order.
fn address_of(hex: &str) -> Option<IpAddr> {
    let word = |text: &str| Some(u32::from_str_radix(text, 16).ok()?.to_ne_bytes());
    match hex.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(hex)?))),
        32 => {
            let mut octets = [0; 16];
            for (index, chunk) in octets.chunks_mut(4).enumerate() {
                chunk.copy_from_slice(&word(hex.get(index * 8..index * 8 + 8)?)?);
            }
            Some(Ipv6Addr::from(octets).to_canonical())
        }
        _ => None,
    }
}

/// Where etcd takes its settings from: a configuration file alone, else its arguments before its environment.
fn settings(arguments: &[String], environment: &[String], base: &Path) -> Option<(String, BTreeMap<String, String>)> {
    let given = flags(arguments.get(1..).unwrap_or_default());
    let variables: BTreeMap<String, String> = environment
        .iter()
        .filter_map(|line| line.strip_prefix("ETCD_")?.split_once('='))
        .map(|(name, value)| (name.to_ascii_lowercase().replace('_', "-"), value.to_owned()))
        .collect();
    if let Some(file) = given.get("config-file").or_else(|| variables.get("config-file")) {
        let text = std::fs::read_to_string(base.join(file)).ok()?;
        return Some((format!("the file {file}"), spec::scalars(&text)?));
    }
    let source = if variables.is_empty() { "its arguments" } else { "its arguments and its environment" };
    let mut all = variables;
    all.extend(given);
    Some((source.to_owned(), all))
}

/// `--name=value`, `--name value`, and `--name` alone for yes.
fn flags(arguments: &[String]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        let Some(flag) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else { continue };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match rest.next_if(|next| !next.starts_with('-')) {
                Some(value) => (flag, value.clone()),
                None => (flag, "true".to_owned()),
            },
        };
        found.insert(name.to_owned(), value);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn flags_are_read_as_etcd_reads_them() {
        let line =
            strings(&["etcd", "--name=a", "-heartbeat-interval", "200", "--client-cert-auth", "--pre-vote=false"]);
        let environment = strings(&["ETCD_ELECTION_TIMEOUT=2000", "ETCD_NAME=b", "HOME=/root"]);
        let (source, settings) = settings(&line, &environment, Path::new("/")).expect("settings");
        assert_eq!(source, "its arguments and its environment");
        let described: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let wanted =
            ["client-cert-auth=true", "election-timeout=2000", "heartbeat-interval=200", "name=a", "pre-vote=false"];
        assert_eq!(described, wanted);
    }

    #[test]
    fn a_configuration_file_is_all_that_counts() {
        let dir = tempfile::TempDir::new().expect("a directory");
        let text = "name: c\nheartbeat-interval: 150\nclient-transport-security:\n  client-cert-auth: true\nlog-outputs: [stderr]\n";
        std::fs::write(dir.path().join("etcd.yaml"), text).expect("a file");
        let line = strings(&["etcd", "--config-file", "etcd.yaml", "--name=a"]);
        let (source, settings) = settings(&line, &[], dir.path()).expect("settings");
        assert_eq!(source, "the file etcd.yaml");
        assert_eq!(settings.get("name").map(String::as_str), Some("c"));
        assert_eq!(settings.get("client-transport-security.client-cert-auth").map(String::as_str), Some("true"));
    }

    #[test]
    fn who_listens_is_found_in_the_kernels_table() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the table");
        assert_eq!(listeners(&table, at).len(), 1);
        // It is no etcd.
        assert_eq!(listening_at(at), None);
    }
}
