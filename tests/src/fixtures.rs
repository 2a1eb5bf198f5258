//! A few words → a valid file and what follows from it.

use jiff::Timestamp;
use raftsman_core::desired::{Cluster, Desired, Identity, LoopbackNetwork, resolve};
use raftsman_core::spec::{self, Spec};

/// The moment at which scripted worlds begin.
pub fn epoch() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().expect("a timestamp")
}

/// Reads a file that must be valid.
pub fn spec(text: &str) -> Spec {
    let reading = spec::read(text);
    let rendered = reading.render("raftsman.yaml", text, false);
    reading.spec.unwrap_or_else(|| panic!("the fixture is wrong:\n{rendered}"))
}

/// What should be, by that file.
pub fn desired(text: &str) -> Desired {
    let identity = Identity { id: "f1ee7".to_owned(), network: Some(LoopbackNetwork::new(0, 42)) };
    resolve(&spec(text), &identity).expect("a resolvable file")
}

/// One cluster `main` with so many members, and further lines of its section.
pub fn cluster(members: usize, further: &[&str]) -> Cluster {
    let mut text = format!("fleet: lab\netcd:\n  main:\n    members: {members}\n");
    for line in further {
        text.push_str(&format!("    {line}\n"));
    }
    desired(&text).clusters.remove(0)
}
