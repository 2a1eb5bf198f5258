//! a configuration, how etcd is about to start → the lines at the file's end that only this start needs.
//!
//! etcd uses `initial-cluster` and related settings only while it has no data, so they are not part of the
//! configuration or of its digest: they are in a section of their own, which every start writes again.

const BOOTSTRAP: &str = "# raftsman: birth\n";
const DATA: &str = "# raftsman: data\n";
const STATE: &str = "initial-cluster-state:";

/// Why etcd does not start without data.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// Neither the configuration nor the call says which cluster.
    #[error(
        "etcd has no data, and the call does not say how to bootstrap it: send the bootstrap settings, or configure \
         `initial-cluster-state`"
    )]
    Missing,
    /// Both the configuration and the call name a cluster.
    #[error(
        "the configuration has `initial-cluster-state` already: configure it without, or send no bootstrap settings"
    )]
    Twice,
}

/// How etcd is about to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start<'a> {
    /// Without data. The lines name the cluster that it joins; empty lines mean those of an earlier try.
    Bootstrap(&'a str),
    /// On a member's data.
    Data {
        /// `force-new-cluster`: drop all other members and continue as the only one.
        alone: bool,
    },
}

/// A file's configured text, and the section after it.
pub fn split(file: &str) -> (&str, &str) {
    let at = [BOOTSTRAP, DATA]
        .iter()
        .filter_map(|mark| file.match_indices(mark).map(|(at, _)| at).find(|at| file[..*at].ends_with('\n')))
        .min()
        .unwrap_or(file.len());
    file.split_at(at)
}

/// The file with another configuration before the same section.
pub fn reconfigured(configured: &str, old_file: &str) -> String {
    let (_, section) = split(old_file);
    // A setting of the configuration must not occur twice.
    if has_state(configured) { configured.to_owned() } else { joined(configured, section) }
}

/// The file as this start needs it.
pub fn prepared(file: &str, start: Start<'_>) -> Result<String, BootstrapError> {
    let (configured, section) = split(file);
    let own = has_state(configured);
    let section = match start {
        Start::Bootstrap("") if own => String::new(),
        Start::Bootstrap("") if section.starts_with(BOOTSTRAP) => section.to_owned(),
        // etcd's default would be to bootstrap a new cluster of one member.
        Start::Bootstrap("") => return Err(BootstrapError::Missing),
        Start::Bootstrap(_) if own => return Err(BootstrapError::Twice),
        Start::Bootstrap(lines) => format!("{BOOTSTRAP}{}\n", lines.trim_end()),
        // So that a directory that is lost under a running agent can never bootstrap a cluster.
        Start::Data { alone } => {
            let mut lines = String::new();
            if !own {
                lines.push_str("initial-cluster-state: existing\n");
            }
            if alone {
                lines.push_str("force-new-cluster: true\n");
            }
            if lines.is_empty() { lines } else { format!("{DATA}{lines}") }
        }
    };
    Ok(joined(configured, &section))
}

fn joined(configured: &str, section: &str) -> String {
    let newline = if section.is_empty() || configured.ends_with('\n') { "" } else { "\n" };
    format!("{configured}{newline}{section}")
}

fn has_state(configured: &str) -> bool {
    configured.lines().any(|line| line.starts_with(STATE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "# raftsman: config 00\nname: a\n";
    const OLD: &str = "# raftsman: config 00\nname: a\ninitial-cluster-state: new\n";
    const LINES: &str = "initial-cluster: a=b\ninitial-cluster-state: new";

    fn prepare(file: &str, start: Start<'_>) -> String {
        prepared(file, start).expect("prepared")
    }

    #[test]
    fn every_start_writes_its_own_section() {
        let started = prepare(CONFIG, Start::Bootstrap(LINES));
        assert_eq!(started, format!("{CONFIG}# raftsman: birth\n{LINES}\n"));
        assert_eq!(split(&started).0, CONFIG);
        assert_eq!(prepare(&started, Start::Bootstrap("")), started, "an earlier try");
        let grown = prepare(&started, Start::Data { alone: false });
        assert_eq!(grown, format!("{CONFIG}# raftsman: data\ninitial-cluster-state: existing\n"));
        let alone = prepare(&grown, Start::Data { alone: true });
        assert_eq!(alone, format!("{grown}force-new-cluster: true\n"));
        assert_eq!(prepare(&alone, Start::Data { alone: false }), grown);
        assert_eq!(prepare(&alone, Start::Bootstrap(LINES)), started);
        assert!(matches!(prepared(&grown, Start::Bootstrap("")), Err(BootstrapError::Missing)));
        assert!(matches!(prepared(CONFIG, Start::Bootstrap("")), Err(BootstrapError::Missing)));
    }

    #[test]
    fn a_configuration_that_tells_its_own_birth_is_left_alone() {
        assert_eq!(prepare(OLD, Start::Bootstrap("")), OLD);
        assert_eq!(prepare(OLD, Start::Data { alone: false }), OLD);
        assert!(matches!(prepared(OLD, Start::Bootstrap(LINES)), Err(BootstrapError::Twice)));
        let alone = prepare(OLD, Start::Data { alone: true });
        assert_eq!(alone, format!("{OLD}# raftsman: data\nforce-new-cluster: true\n"));
        assert_eq!(prepare(&alone, Start::Data { alone: false }), OLD);
    }

    #[test]
    fn another_configuration_keeps_the_section() {
        let started = prepare(CONFIG, Start::Bootstrap(LINES));
        assert_eq!(reconfigured("name: b\n", &started), format!("name: b\n# raftsman: birth\n{LINES}\n"));
        assert_eq!(reconfigured("name: b", &started), format!("name: b\n# raftsman: birth\n{LINES}\n"));
        assert_eq!(reconfigured(OLD, &started), OLD);
        assert_eq!(reconfigured(CONFIG, ""), CONFIG);
    }
}
