//! Journal entries → the text of `raftsman journal`.

use raftsman_core::action::Action;
use raftsman_engine::store::Entry;

use super::{Paint, Table};

/// The whole text.
pub(crate) fn render(entries: &[Entry], paint: Paint) -> String {
    let mut table = Table::default();
    for entry in entries {
        let step: Option<Action> = entry.event.get("step").and_then(|s| serde_json::from_value(s.clone()).ok());
        let what = match &step {
            Some(action) => {
                let machine = action.machine().map_or_else(String::new, |m| format!(" {m}"));
                format!("{}{machine}", action.verb())
            }
            None => String::new(),
        };
        let error = entry.event.get("error").and_then(|e| e.as_str()).unwrap_or_default();
        let kind = match entry.kind.as_str() {
            "failed" | "stopped" => paint.red(&entry.kind),
            "done" | "converged" => paint.green(&entry.kind),
            _ => entry.kind.clone(),
        };
        table.row([
            entry.at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
            entry.who.clone(),
            entry.run.clone(),
            entry.cluster.clone().unwrap_or_else(|| "-".to_owned()),
            kind,
            format!("{what}{}{error}", if what.is_empty() || error.is_empty() { "" } else { ": " }),
        ]);
    }
    table.render()
}
