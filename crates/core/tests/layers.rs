//! The imports of the planner's files → they point in one direction.

#![allow(clippy::disallowed_methods, reason = "the rule is for core itself")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The modules of `plan` that this text imports by one of these paths.
fn imports(source: &str, paths: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for statement in source.split("\nuse ").skip(1).filter_map(|rest| rest.split_once(';')).map(|(path, _)| path) {
        let Some(path) = paths.iter().find_map(|start| statement.strip_prefix(start)) else { continue };
        let names = match path.strip_prefix('{') {
            Some(list) => list.trim_end_matches('}').split(',').collect(),
            None => vec![path],
        };
        let names = names.into_iter().map(|name| name.trim().split("::").next().unwrap_or_default());
        found.extend(names.filter(|name| name.starts_with(char::is_lowercase)).map(str::to_owned));
    }
    found
}

#[test]
fn the_planners_files_import_each_other_in_one_direction() {
    let plan = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/plan");
    let mut left: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut folders = vec![plan.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let below = path.strip_prefix(&plan).expect("below").with_extension("");
            let module = below.iter().next().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let source = std::fs::read_to_string(&path).expect("a file");
            let top = folder == plan;
            let paths: &[&str] = if top { &["super::", "crate::plan::"] } else { &["crate::plan::"] };
            let of_others = imports(&source, paths).into_iter().filter(|name| *name != module);
            left.entry(module.clone()).or_default().extend(of_others);
        }
    }
    // `mod.rs` is what they all are in.
    left.remove("mod");
    assert!(left.contains_key("passes") && left["passes"].contains("situation"), "{left:?}");
    while !left.is_empty() {
        let modules: BTreeSet<String> = left.keys().cloned().collect();
        left.retain(|_, imported| imported.iter().any(|name| modules.contains(name)));
        assert!(left.len() < modules.len(), "these import each other in a circle: {left:?}");
    }
}
