//! The command line's own definition → shell completions and manual pages.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;
use raftsman_core::spec::postgres::Nodes;
use raftsman_core::spec::{self, Balancer, EtcdCluster, Instances, Members, Name, PostgresCluster};

use crate::args::{Arguments, Common};
use crate::context::file_text;
use crate::exit::{Failure, OK};
use crate::view;

pub(super) fn completions(shell: Shell) {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "raftsman", &mut text);
    view::print(&with_names(shell, &String::from_utf8_lossy(&text)));
}

/// Verbs that take members of the file; `logs` takes every machine.
const MEMBERS: [&str; 3] = ["logs", "move-leader", "replace"];
/// Verbs that take clusters of the file.
const CLUSTERS: [&str; 14] = [
    "apply",
    "backup",
    "compact",
    "defrag",
    "destroy",
    "drill",
    "env",
    "journal",
    "plan",
    "preflight",
    "recover",
    "restore",
    "status",
    "verify",
];

/// Verbs that take PostgreSQL clusters of the file.
const POSTGRES: [&str; 3] = ["psql", "rotate-user", "switchover"];
/// Verbs of clusters that take PostgreSQL clusters, too.
const BOTH: [&str; 4] = ["apply", "env", "plan", "status"];

/// The option that takes balancers of the file.
const VIA: &str = "--via";
/// The option of `switchover` that takes nodes of PostgreSQL clusters of the file.
const TO: &str = "--to";

/// The names in the file that a verb takes, one per line. A file that cannot be read has none.
pub(super) fn names(common: &Common, verb: &str) -> Result<ExitCode, Failure> {
    let Some(spec) = file_text(&common.file).ok().and_then(|text| spec::read(&text).spec) else { return Ok(OK) };
    let names: Vec<String> = if MEMBERS.contains(&verb) {
        let of = |(cluster, etcd): (&Name, &EtcdCluster)| match &etcd.members {
            Members::Count(count) => (1..=*count).map(|n| format!("{cluster}-{n}")).collect::<Vec<_>>(),
            Members::List(list) => list.iter().map(|member| member.name.to_string()).collect(),
        };
        let instances = |(name, balancer): (&Name, &Balancer)| match &balancer.instances {
            Instances::Count(count) => (1..=*count).map(|n| format!("{name}-{n}")).collect::<Vec<_>>(),
            Instances::List(list) => list.iter().map(|instance| instance.name.to_string()).collect(),
            Instances::Beside(_) => Vec::new(),
        };
        let logs = verb == "logs";
        let nodes = spec.postgres.iter().filter(|_| logs).flat_map(|(name, cluster)| nodes(name, cluster));
        let machines = spec.balancers.iter().filter(|_| logs).flat_map(instances);
        spec.etcd.iter().flat_map(of).chain(nodes).chain(machines).collect()
    } else if CLUSTERS.contains(&verb) || verb == "versions" {
        let postgres = spec.postgres.keys().filter(|_| BOTH.contains(&verb));
        spec.etcd.keys().chain(postgres).map(ToString::to_string).collect()
    } else if POSTGRES.contains(&verb) {
        spec.postgres.keys().map(ToString::to_string).collect()
    } else if verb == TO {
        spec.postgres.iter().flat_map(|(name, cluster)| nodes(name, cluster)).collect()
    } else if verb == VIA {
        spec.balancers.keys().map(ToString::to_string).collect()
    } else {
        Vec::new()
    };
    names.iter().for_each(|name| view::print(&format!("{name}\n")));
    Ok(OK)
}

/// The names of a PostgreSQL cluster's nodes.
fn nodes(name: &Name, cluster: &PostgresCluster) -> Vec<String> {
    match &cluster.nodes {
        Nodes::Count(count) => (1..=*count).map(|number| format!("{name}-{number}")).collect(),
        Nodes::List(list) => list.iter().map(|node| node.name.to_string()).collect(),
    }
}

/// clap's completions only know static words: `raftsman names` completes the file's names.
fn with_names(shell: Shell, text: &str) -> String {
    match shell {
        Shell::Bash => format!("{text}{}", include_str!("completions.bash")),
        Shell::Fish => {
            let line = |verb: &&str| {
                let names = format!("(raftsman names {verb} 2>/dev/null)");
                format!("complete -c raftsman -f -n \"__fish_seen_subcommand_from {verb}\" -a \"{names}\"\n")
            };
            let lines: String = MEMBERS.iter().chain(&CLUSTERS).chain(&POSTGRES).map(line).collect();
            let of_option = |verb: &str, option: &str| {
                let names = format!("(raftsman names -- --{option} 2>/dev/null)");
                format!(
                    "complete -c raftsman -n \"__fish_seen_subcommand_from {verb}\" -l {option} -x -a \"{names}\"\n"
                )
            };
            format!("{text}{lines}{}{}", of_option("env", "via"), of_option("switchover", "to"))
        }
        Shell::Zsh => {
            let named = |line: &str| {
                let here = line.trim_start();
                ["'*::clusters", "'::cluster", "':member", "':machine"].iter().any(|name| here.starts_with(name))
            };
            let option = |line: &str, option: &str| line.trim_start().starts_with(&format!("'{option}="));
            let line = |line: &str| match (named(line), option(line, VIA), option(line, TO)) {
                (true, _, _) => format!("{}\n", line.replace(":_default'", ":_raftsman_names'")),
                (false, true, _) => format!("{}\n", line.replace(":_default'", ":_raftsman_balancers'")),
                // Where a backup is copied to has another completion.
                (false, false, true) => format!("{}\n", line.replace(":_default'", ":_raftsman_nodes'")),
                (false, false, false) => format!("{line}\n"),
            };
            let lines: String = text.lines().map(line).collect();
            // The function precedes its first use, after the line that names the completed program.
            let (first, rest) = lines.split_once('\n').unwrap_or((&lines, ""));
            format!("{first}\n\n{}{rest}", include_str!("completions.zsh"))
        }
        // Elvish, PowerShell and future shells: words only.
        _ => text.to_owned(),
    }
}

pub(super) fn pages(directory: &Path) -> Result<ExitCode, Failure> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Arguments::command(), directory)?;
    Ok(OK)
}
