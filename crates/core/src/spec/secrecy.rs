//! A file's text → the places in it that no message may show.

use super::document::{Kind, Node, Span};

/// Keys whose value is a secret, in this format.
const KEYS: [&str; 5] = ["root_password", "console_password", "shared_key", "password", "key"];

/// Whether a value under this key is, or was meant to be, a secret: misspelt keys count.
pub(super) fn is_secret_key(key: &str) -> bool {
    let key = key.trim().to_ascii_lowercase();
    if key.len() > 64 {
        return false;
    }
    let telling = ["pass", "secret", "private", "credential"];
    telling.iter().any(|word| key.contains(word))
        || key.ends_with("key")
        || KEYS[..4].iter().any(|known| known.len().abs_diff(key.len()) <= 2 && strsim::osa_distance(known, &key) <= 2)
}

/// Whether this can be the name of an environment variable. If not, it may be the secret itself.
pub(super) fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The places of all secrets written into the file, in order. A reference to a file or a variable is none.
pub(super) fn places(root: &Node, text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    walk(root, false, &mut found);
    found.sort_by_key(|span| span.start);
    // What stands in comments, or was swallowed by another value, is in no key of the tree.
    let apart = |span: &Span| {
        let next = found.partition_point(|known| known.end <= span.start);
        found.get(next).is_none_or(|known| known.start >= span.end)
    };
    let others: Vec<Span> = places_in_text(text).into_iter().filter(apart).collect();
    found.extend(others);
    found.sort_by_key(|span| span.start);
    found
}

fn walk(node: &Node, secret: bool, found: &mut Vec<Span>) {
    match &node.kind {
        Kind::Scalar { text, .. } => {
            if (secret || text.contains("PRIVATE KEY")) && !node.span.is_empty() {
                found.push(node.span.clone());
            }
        }
        Kind::List(items) => items.iter().for_each(|item| walk(item, secret, found)),
        Kind::Map(map) => {
            for entry in &map.entries {
                let reference = secret
                    && match (entry.key.as_str(), &entry.value.kind) {
                        ("file", Kind::Scalar { .. }) => true,
                        ("env", Kind::Scalar { text, .. }) => is_variable(text),
                        _ => false,
                    };
                if secret && !matches!(entry.key.as_str(), "file" | "env") && !is_secret_key(&entry.key) {
                    // `password: { hunter2: }`: the key itself may be the secret.
                    found.push(entry.key_span.clone());
                }
                walk(&entry.value, !reference && (secret || is_secret_key(&entry.key)), found);
            }
        }
    }
}

/// The same for a text that is not YAML: line by line, and in doubt it hides more.
pub(super) fn places_in_text(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    let mut at = 0;
    // The indentation of the secret's key while the lines below it are its value.
    let mut inside: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        let body = line.trim_end();
        let indent = body.len() - body.trim_start().len();
        if inside.is_some_and(|outer| indent <= outer && !body.is_empty()) {
            inside = None;
        }
        if inside.is_some() && !body.is_empty() {
            let reference = ["file:", "env:"].iter().any(|key| body.trim_start().starts_with(key));
            if !reference {
                found.push(at + indent..at + body.len());
            }
        } else if let Some(from) = secret_value(body) {
            inside = Some(indent);
            let value = body[from..].trim_start();
            let reference = ["{file:", "{env:"].iter().any(|open| value.replace(' ', "").starts_with(open));
            if !value.is_empty() && !reference {
                found.push(at + body.len() - value.len()..at + body.len());
            }
        }
        let hidden = found.last().map_or(0..0, Span::clone);
        let others = credentials(body).into_iter().map(|span| at + span.start..at + span.end);
        found.extend(others.filter(|span| span.end <= hidden.start || span.start >= hidden.end));
        at += line.len();
    }
    found.sort_by_key(|span| span.start);
    found
}

/// Where, in a line, URLs have a user and a password in them, or a secret key of age stands.
fn credentials(line: &str) -> Vec<Span> {
    const AGE: &str = "AGE-SECRET-KEY-";
    let upper = line.to_ascii_uppercase();
    let key = |(start, _)| {
        let end = line[start..].find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        start..end.map_or(line.len(), |end| start + end)
    };
    let keys = upper.match_indices(AGE).map(key);
    let starts = line.match_indices("://").map(|(at, mark)| at + mark.len());
    let place = |start: usize| {
        let rest = &line[start..];
        let end = rest.find(|c: char| c == '/' || c.is_whitespace() || c == '"').unwrap_or(rest.len());
        rest[..end].rfind('@').filter(|at| *at > 0).map(|at| start..start + at)
    };
    starts.filter_map(place).chain(keys).collect()
}

/// Where, in a line, the value of a key that names a secret starts. One line may hold several keys.
fn secret_value(line: &str) -> Option<usize> {
    let separators = |c: char| c.is_whitespace() || matches!(c, '{' | '[' | ',' | '-' | '"' | '\'' | '?' | ':' | '=');
    line.match_indices([':', '=']).find_map(|(colon, _)| {
        let before = line[..colon].trim_end_matches(['"', '\'', ' ']);
        // A key may hold a hyphen, so only what stands before it is cut off.
        let start = before
            .rfind(|c: char| separators(c) && c != '-')
            .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        is_secret_key(&before[start..]).then_some(colon + 1)
    })
}
