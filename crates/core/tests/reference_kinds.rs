//! The kinds of actions, reasons and waitings in the source → each is in the documents, and no other.

#![allow(clippy::disallowed_methods, reason = "the rule is for core itself")]

use std::collections::BTreeSet;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The variants of an enum as they are written in JSON.
fn kinds(source: &str, head: &str) -> BTreeSet<String> {
    let body = source.split_once(head).expect("the enum").1;
    let lines = body.lines().take_while(|line| *line != "}").filter_map(|line| line.strip_prefix("    "));
    let variants = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    let found: BTreeSet<String> = variants
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
    assert!(found.len() > 10, "{head}: {found:?}");
    found
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
    let actions = kinds(&read("src/action.rs"), "pub enum Action {");
    let reasons = kinds(&read("src/plan/step.rs"), "pub enum Reason {");
    assert_eq!((missing(&actions, plan), missing(&reasons, plan)), (Vec::new(), Vec::new()));
    let waiting = kinds(&read("src/plan/waiting.rs"), "pub enum Waiting {");
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
