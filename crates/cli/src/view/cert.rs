//! Certificates → the text of `raftsman cert list`.

use jiff::Timestamp;
use raftsman_engine::ops::cert::Certificate;

use super::{Paint, Table, span};

/// What operators do while the rotation waits for clients.
pub(crate) const CLIENTS_NEXT: &str = "\
Both the new and the old clients CA are trusted now. Give every client a new certificate and ca.crt
(`raftsman cert issue`), then: `raftsman cert rotate clients --finish`
";

/// The whole text.
pub(crate) fn render(certificates: &[Certificate], silent: &[String], now: Timestamp, paint: Paint) -> String {
    let mut table = Table::default();
    table.row(["CLUSTER", "WHAT", "HOLDER", "UNTIL", "LEFT", "RENEWAL"].map(|h| paint.dim(h)));
    for c in certificates {
        let left = c.not_after.duration_since(now).as_secs();
        let left = if left < 0 { paint.red("expired") } else { span(left) };
        table.row([
            c.cluster.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            c.standing.map_or_else(|| c.what.to_owned(), |standing| format!("{} ({standing})", c.what)),
            c.holder.clone(),
            c.not_after.strftime("%Y-%m-%d %H:%M").to_string(),
            left,
            c.renewal.map_or_else(|| "-".to_owned(), |r| r.strftime("%Y-%m-%d").to_string()),
        ]);
    }
    let mut out = table.render();
    if certificates.iter().any(|c| c.what == "clients CA" && c.standing == Some("still trusted")) {
        out.push_str(&format!("{} {CLIENTS_NEXT}", paint.yellow("note:")));
    }
    if !silent.is_empty() {
        out.push_str(&format!("{} without those that do not answer: {}\n", paint.yellow("note:"), silent.join(", ")));
    }
    out
}
