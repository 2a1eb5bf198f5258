//! any text → a YAML scalar that every reader of YAML 1.1 or 1.2 reads as exactly this text.

use std::fmt::Write as _;

/// A string in double quotes, plain ASCII. JSON's form will not do: readers of YAML take some characters that JSON
/// leaves as they are for line breaks, and pairs of surrogates for two characters.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => out.push(c),
            c => {
                let code = u32::from(c);
                let _ = if code > 0xffff { write!(out, "\\U{code:08x}") } else { write!(out, "\\u{code:04x}") };
            }
        }
    }
    out.push('"');
    out
}

/// A file's contents as the value of a key: its lines as they are, below it and indented, where YAML gives them back
/// unchanged; in quotes otherwise.
pub fn block(text: &str, indent: usize) -> String {
    let body = text.strip_suffix('\n').unwrap_or_default();
    let plain = body.chars().all(|c| matches!(c, ' '..='~' | '\n'));
    // A first line that is indented or empty would shift all others, and lines at the end that are empty would be lost.
    if !plain || body.is_empty() || body.starts_with([' ', '\n']) || body.ends_with('\n') {
        return quoted(text);
    }
    let mut out = String::with_capacity(text.len() + 256);
    out.push('|');
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            let _ = write!(out, "{:indent$}{line}", "");
        }
    }
    out
}

/// Texts on one line: `["a", "b"]`.
pub fn list<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| quoted(item.as_ref())).collect();
    format!("[{}]", items.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::scalars;

    const TEXTS: [&str; 20] = [
        "",
        "a",
        "a\n",
        "\na\n",
        " a\nb\n",
        "a\n\n",
        "a\n\nb\n",
        "a\n  b\n   \nc\n",
        "# a\n---\n...\n",
        "a: b\n- c\n\"d\n",
        "key: |\n",
        "%YAML 1.1\n",
        "tab\there\n",
        "\tfirst\n",
        "a\r\nb\r\n",
        "\u{7f}\u{85}\u{a0}\u{2028}\u{2029}\u{feff}\u{fffd}",
        "ä😀\n",
        "\\n \" ' ${x} {{ y }} `z` $(a)\n",
        "null",
        "\u{1}\u{1f}\u{0}",
    ];

    #[test]
    fn what_is_written_is_read() {
        for text in TEXTS {
            let yaml = format!("a:\n  b: {}\n  c: {}\n", quoted(text), block(text, 4));
            let read = scalars(&yaml).unwrap_or_else(|| panic!("no YAML: {yaml}"));
            assert_eq!((read["a.b"].as_str(), read["a.c"].as_str()), (text, text), "{yaml}");
        }
    }

    #[test]
    fn ordinary_files_stay_readable() {
        assert_eq!(block("a\n\n  b\n", 2), "|\n  a\n\n    b");
        assert!(block("a\u{2028}\n", 2).starts_with('"'));
    }
}
