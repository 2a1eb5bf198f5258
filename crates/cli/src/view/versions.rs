//! Running and desired versions → the text of `raftsman versions`.

use std::collections::BTreeMap;

use raftsman_core::spec::EtcdVersion;
use raftsman_engine::ops::versions::ClusterVersions;

use super::{Paint, Table};

/// The whole text.
pub(crate) fn render(clusters: &[ClusterVersions], paint: Paint) -> String {
    let mut table = Table::indented(0);
    table.row(["CLUSTER", "RUNS", "FILE", "WAY"].map(|h| paint.dim(h)));
    for cluster in clusters {
        table.row([cluster.cluster.to_string(), running(cluster), cluster.wanted.to_string(), way(cluster, paint)]);
    }
    let mut out = table.render();
    for cluster in clusters {
        if let Some(no) = &cluster.refused {
            let label = paint.red("refused:");
            out.push_str(&format!("\n{label} {}: {}\n    → {}\n", cluster.cluster, no.message, no.next));
        }
        if let Some(unmet) = &cluster.unmet {
            out.push_str(&format!("\n{} {}: {unmet}\n", paint.red("blocked:"), cluster.cluster));
        }
        if let Some(line) = cluster.downgrade {
            out.push_str(&format!("\n{}: a downgrade to {line} is enabled\n", cluster.cluster));
        }
    }
    out
}

/// Each version with its number of members, where they differ.
fn running(cluster: &ClusterVersions) -> String {
    let mut counts: BTreeMap<EtcdVersion, usize> = BTreeMap::new();
    for version in cluster.running.values() {
        *counts.entry(*version).or_default() += 1;
    }
    match counts.len() {
        0 => "-".to_owned(),
        1 => counts.keys().map(ToString::to_string).collect(),
        _ => counts.iter().map(|(version, count)| format!("{version} ({count})")).collect::<Vec<_>>().join(", "),
    }
}

fn way(cluster: &ClusterVersions, paint: Paint) -> String {
    let way: Vec<String> = cluster.way.iter().map(|v| format!("→ {v}")).collect();
    match (&cluster.refused, way.is_empty()) {
        (Some(_), _) => paint.red("none"),
        (None, true) if cluster.running.is_empty() => "-".to_owned(),
        (None, true) => paint.green("there"),
        (None, false) => way.join(" "),
    }
}
