//! Progress of a transfer to or from a store → a bar on a terminal, lines in a pipe, JSON lines for programs.

use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use raftsman_engine::ops::backup::Progress;
use serde_json::json;

use crate::view::{bytes, print, print_json_line};

/// The interval of progress lines in a pipe.
const REMIND: Duration = Duration::from_secs(10);

/// Shows progress.
pub(crate) enum TransferView {
    /// On a terminal.
    Live(ProgressBar),
    /// In a pipe.
    Plain(Mutex<Instant>),
    /// For programs.
    Json,
}

impl TransferView {
    /// The right one for where the output goes.
    pub(crate) fn new(json: bool) -> Self {
        if json {
            return Self::Json;
        }
        if !std::io::stdout().is_terminal() || !std::io::stderr().is_terminal() {
            return Self::Plain(Mutex::new(Instant::now()));
        }
        let bar = ProgressBar::no_length();
        let template = "{msg} {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self::Live(bar)
    }

    /// Shows new progress.
    pub(crate) fn on_progress(&self, progress: Progress) {
        let (what, done, total) = match progress {
            // The object has as many bytes as were stored, and all of them are read back.
            Progress { received, stored, checked, .. } if received > 0 && checked > 0 => {
                ("reads back", checked, stored)
            }
            Progress { received, total, .. } if received > 0 => ("stores", received, total),
            // A copy receives nothing from a member.
            Progress { stored, checked, total, .. } if stored > 0 && checked > 0 => ("reads back", checked, total),
            Progress { stored, total, .. } if stored > 0 => ("stores", stored, total),
            Progress { checked, total, .. } => ("reads", checked, total),
        };
        match self {
            Self::Live(bar) => {
                bar.set_message(what);
                bar.set_length(total.max(done));
                bar.set_position(done);
            }
            Self::Plain(last) => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                if last.elapsed() >= REMIND {
                    *last = Instant::now();
                    let shown = |many: u64| bytes(i64::try_from(many).unwrap_or(i64::MAX));
                    print(&format!("{what}: {} of {}\n", shown(done), shown(total)));
                }
            }
            Self::Json => print_json_line(&json!({ "event": "progress", "progress": progress })),
        }
    }

    /// Ends the view.
    pub(crate) fn end(&self) {
        if let Self::Live(bar) = self {
            bar.finish_and_clear();
        }
    }
}
