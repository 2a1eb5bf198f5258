//! Patroni's file as raftsman writes it → its keys and values. Only for texts in which [`foreign_line`] finds nothing, and
//! for such a text with its placeholders filled in.
//!
//! [`foreign_line`]: super::foreign_line

use std::collections::BTreeSet;
use std::net::SocketAddr;

/// A key with its value, or an item of a list, and where it is.
pub struct Line<'a> {
    /// From 1.
    pub number: usize,
    /// The sections that it is in, from the outermost, with `/` between them.
    pub section: String,
    /// None for an item of a list.
    pub key: Option<&'a str>,
    /// As it is written; nothing where a section begins.
    value: &'a str,
}

impl Line<'_> {
    /// Its value; empty where a section begins.
    pub fn text(&self) -> String {
        string(self.value)
    }
}

/// Every line that says something.
pub fn lines(text: &str) -> Vec<Line<'_>> {
    let mut open: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        let rest = line.trim_start_matches(' ');
        if rest.is_empty() || rest.starts_with('#') {
            continue;
        }
        open.truncate((line.len() - rest.len()) / 2);
        let (section, number) = (open.join("/"), index + 1);
        if let Some(value) = rest.strip_prefix("- ") {
            found.push(Line { number, section, key: None, value });
            continue;
        }
        let split = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once("\":"),
            None => rest.split_once(':'),
        };
        let Some((key, value)) = split else { continue };
        let value = value.strip_prefix(' ').unwrap_or(value);
        if value.is_empty() {
            open.push(key);
        }
        found.push(Line { number, section, key: Some(key), value });
    }
    found
}

/// The value of a key.
pub fn value(text: &str, section: &str, key: &str) -> Option<String> {
    let line = lines(text).into_iter().find(|line| line.section == section && line.key == Some(key))?;
    Some(line.text())
}

/// The members of etcd.
pub fn hosts(text: &str) -> BTreeSet<SocketAddr> {
    let found = lines(text).into_iter().filter(|line| line.section == "etcd3/hosts" && line.key.is_none());
    found.filter_map(|line| line.text().parse().ok()).collect()
}

/// A scalar's text: what `render::yaml::quoted` has put in quotes, or anything else as it is.
fn string(yaml: &str) -> String {
    let Some(inner) = yaml.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return yaml.to_owned() };
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let length = match rest.next() {
            Some('n') => {
                out.push('\n');
                continue;
            }
            Some('r') => {
                out.push('\r');
                continue;
            }
            Some('t') => {
                out.push('\t');
                continue;
            }
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(other) => {
                out.push(other);
                continue;
            }
            None => break,
        };
        let digits: String = rest.by_ref().take(length).collect();
        out.extend(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::yaml::quoted;

    #[test]
    fn a_text_in_quotes_is_read_as_it_was() {
        for text in ["", "plain", "\"\\\n\r\t{root}\u{7f}é\u{2028}😀", "\\x7b", " a # b: c"] {
            assert_eq!(string(&quoted(text)), text);
            assert_eq!(string(&quoted(text).replace('{', "\\x7b")), text);
        }
    }
}
