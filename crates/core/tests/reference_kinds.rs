//! The kinds of actions, reasons and waitings in the source → each is in the documents, and no other; what the documents
//! refer to → it exists.

#![allow(clippy::disallowed_methods, reason = "the rule is for core itself")]

use std::collections::BTreeSet;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The lines in which the variants of an enum begin.
fn variants<'a>(source: &'a str, head: &str) -> impl Iterator<Item = &'a str> {
    let body = source.split_once(head).unwrap_or_else(|| panic!("no `{head}`")).1;
    let lines = body.lines().take_while(|line| *line != "}").filter_map(|line| line.strip_prefix("    "));
    lines.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// The variants of an enum as they are written in JSON.
fn kinds(source: &str, head: &str) -> BTreeSet<String> {
    let found: BTreeSet<String> = variants(source, head)
        .map(|line| {
            let name = line.split([' ', ',', '(']).next().unwrap_or_default();
            name.chars().fold(String::new(), |mut snake, c| {
                if c.is_ascii_uppercase() && !snake.is_empty() {
                    snake.push('_');
                }
                snake.push(c.to_ascii_lowercase());
                snake
            })
        })
        .collect();
    assert!(!found.is_empty(), "{head}");
    found
}

/// The actions of all topics.
fn actions() -> BTreeSet<String> {
    let all = read("src/action/mod.rs");
    let modules = all.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let sources: Vec<String> = modules.map(|topic| read(&format!("src/action/{topic}.rs"))).collect();
    let mut found = BTreeSet::new();
    for topic in variants(&all, "pub enum Action {") {
        let name = topic.split(['(', ')']).nth(1).unwrap_or_else(|| panic!("{topic}: no topic"));
        let head = format!("pub enum {name} {{");
        let source = sources.iter().find(|source| source.contains(&head)).unwrap_or_else(|| panic!("no `{head}`"));
        for kind in kinds(source, &head) {
            assert!(found.insert(kind.clone()), "two topics have an action `{kind}`");
        }
    }
    assert!(found.len() > 40, "{found:?}");
    found
}

/// Every path that a contributor is sent to exists, and so does the function that is named behind it.
#[test]
fn the_contributors_map_names_what_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let is_path = |word: &str| {
        ["crates/", "tests/", "docs/", "tools/"].iter().any(|start| word.starts_with(start))
            && !word.contains(['{', '<', '*', ' '])
    };
    let mut checked = 0;
    for document in ["CONTRIBUTING.md", "ARCHITECTURE.md"] {
        for line in read(&format!("../../{document}")).lines() {
            let mut file = None;
            for (before, word) in
                line.split('`').collect::<Vec<_>>().chunks(2).filter_map(|c| Some((*c.first()?, *c.get(1)?)))
            {
                if is_path(word) {
                    assert!(root.join(word).exists(), "{document} names `{word}`, which is not there");
                    checked += 1;
                    file = word.ends_with(".rs").then(|| read(&format!("../../{word}")));
                } else if let Some(source) = &file
                    && (before == " (" || before == ", ")
                    && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
                {
                    assert!(source.contains(&format!("fn {word}")), "{document}: no function `{word}`: {line}");
                    checked += 1;
                } else {
                    file = None;
                }
            }
        }
    }
    assert!(checked > 80, "{checked}");
}

/// Every link between documents leads to a file, and to a heading of it.
#[test]
fn links_between_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = Vec::new();
    let mut folders = vec![root.clone(), root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a directory") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true if folder != root => folders.push(path),
                true => {}
                false if path.extension().is_some_and(|e| e == "md") => documents.push(path),
                false => {}
            }
        }
    }
    let prose = |path: &Path| {
        let text = std::fs::read_to_string(path).expect("a document");
        text.split("```").step_by(2).collect::<String>()
    };
    let anchor = |heading: &str| {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect::<String>()
    };
    let mut checked = 0;
    for document in &documents {
        for link in prose(document).split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.starts_with("http") {
                continue;
            }
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { document.clone() } else { document.with_file_name("").join(path) };
            assert!(target.exists(), "{}: {link} leads nowhere", document.display());
            let headings = |text: &str| {
                text.lines().any(|l| l.starts_with('#') && anchor(l.trim_start_matches('#').trim()) == heading)
            };
            let found = heading.is_empty() || headings(&prose(&target));
            assert!(found, "{}: {link}: no such heading", document.display());
            checked += 1;
        }
    }
    assert!(checked > 150, "{checked}");
}

/// Words between backticks.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn missing(kinds: &BTreeSet<String>, text: &str) -> Vec<String> {
    let quoted = quoted(text);
    kinds.iter().filter(|kind| !quoted.contains(kind.as_str())).cloned().collect()
}

#[test]
fn the_reference_names_every_kind() {
    let json = read("../../docs/reference/json.md");
    let plan = json.split_once("\n## plan\n").and_then(|(_, rest)| rest.split_once("\n## ")).expect("a chapter").0;
    let actions = actions();
    let reasons = kinds(&read("src/plan/step.rs"), "pub enum Reason {");
    assert!(reasons.len() > 10, "{reasons:?}");
    assert_eq!((missing(&actions, plan), missing(&reasons, plan)), (Vec::new(), Vec::new()));
    let mut waiting = kinds(&read("src/plan/waiting.rs"), "pub enum Waiting {");
    // Its kinds are those of PostgreSQL.
    waiting.remove("postgres");
    waiting.extend(kinds(&read("src/plan/waiting/postgres.rs"), "pub enum PostgresWaiting {"));
    assert!(waiting.len() > 10, "{waiting:?}");
    let chapter = json.split_once("\n## What is waited for\n").expect("a chapter").1;
    assert_eq!(missing(&waiting, chapter), Vec::<String>::new());
    // A kind has two words; fields with two are these.
    let fields = ["offset_ms", "made_for", "last_exit", "in_use", "filled_by"];
    let unknown = quoted(chapter).into_iter().filter(|w| w.contains('_') && !fields.contains(w));
    let unknown: Vec<&str> = unknown.filter(|w| !waiting.contains(*w)).collect();
    assert_eq!(unknown, Vec::<&str>::new(), "no such kind");
    let help = read("../../docs/operate/when-something-is-wrong.md");
    assert_eq!(missing(&waiting, &help), Vec::<String>::new());
}

#[test]
fn the_stored_actions_are_of_every_kind() {
    let stored = read("tests/stored/actions.jsonl");
    let stored: BTreeSet<String> =
        stored.lines().filter_map(|line| line.split('"').nth(3).map(str::to_owned)).collect();
    assert_eq!(actions(), stored);
}
