//! What a key of the file means → the text of `raftsman explain`.

use raftsman_core::spec::explain::{Entry, Explanation};

use super::{Paint, Table};

/// The whole text.
pub(crate) fn render(found: &Explanation, paint: Paint) -> String {
    let name = if found.key.is_empty() { "raftsman.yaml" } else { &found.key };
    let mut out = format!("{}   {}\n", paint.bold(name), found.kind);
    out.push_str(&format!("  {}\n", found.meaning));
    if let Some(default) = &found.default {
        out.push_str(&format!("  default: {default}\n"));
    }
    for (title, entries) in [("Words:", &found.values), ("Keys:", &found.keys)] {
        out.push_str(&list(title, entries, paint));
    }
    out.push_str("\nExample:\n");
    for line in found.example.lines() {
        out.push_str(&format!("  {line}\n"));
    }
    out
}

fn list(title: &str, entries: &[Entry], paint: Paint) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let mut table = Table::indented(2);
    for entry in entries {
        table.row([paint.bold(&entry.name), entry.meaning.clone()]);
    }
    format!("\n{title}\n{}", table.render())
}
