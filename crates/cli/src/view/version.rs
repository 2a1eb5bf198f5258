//! Versions → the text of `raftsman version`.

use super::Table;
use crate::verbs::version::Versions;

/// The whole text.
pub(crate) fn render(versions: &Versions) -> String {
    let commit = versions.commit.map(|commit| format!(", commit {commit}")).unwrap_or_default();
    let mut out = format!("raftsman {}{commit}, {}\n", versions.version, versions.target);
    let mut table = Table::indented(2);
    for agent in versions.agents.iter().flatten() {
        let version = match (&agent.version, &agent.error) {
            (Some(version), _) if agent.shipped == Some(false) => {
                format!("{version}, not the one that this raftsman ships")
            }
            (Some(version), _) => version.clone(),
            (None, error) => format!("unknown: {}", error.as_deref().unwrap_or_default()),
        };
        table.row([agent.machine.to_string(), "agent".to_owned(), version]);
    }
    out.push_str(&table.render());
    if let Some(error) = &versions.agents_error {
        out.push_str(&format!("  agents could not be queried: {error}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use raftsman_core::spec::Name;
    use raftsman_engine::ops::version::AgentVersion;

    use super::*;

    #[test]
    fn a_silent_agent_has_no_version_and_another_program_is_told_apart() {
        let agent = |name: &str, version: Option<&str>, error: Option<&str>| AgentVersion {
            cluster: Name::parse("main").unwrap(),
            machine: Name::parse(name).unwrap(),
            version: version.map(str::to_owned),
            sha256: None,
            shipped: version.map(|version| version == "0.1.0"),
            error: error.map(str::to_owned),
        };
        let agents = vec![
            agent("main-1", Some("0.1.0"), None),
            agent("main-2", None, Some("connection refused")),
            agent("main-3", Some("0.0.9"), None),
        ];
        let target = "x86_64-linux-gnu".to_owned();
        let versions =
            Versions { version: "0.1.0", commit: Some("5fe09f3"), target, agents: Some(agents), agents_error: None };
        assert_eq!(
            render(&versions),
            "raftsman 0.1.0, commit 5fe09f3, x86_64-linux-gnu\n  main-1  agent  0.1.0\n  main-2  agent  unknown: \
             connection refused\n  main-3  agent  0.0.9, not the one that this raftsman ships\n"
        );
    }
}
