//! What the engine found → text for people.

pub(crate) mod adopt;
pub(crate) mod backup;
mod balancer;
pub(crate) mod cert;
pub(crate) mod drill;
pub(crate) mod explain;
pub(crate) mod journal;
pub(crate) mod maintenance;
pub(crate) mod plan;
pub(crate) mod postgres;
pub(crate) mod preflight;
pub(crate) mod recover;
pub(crate) mod restore;
pub(crate) mod state;
pub(crate) mod status;
mod table;
mod timing;
pub(crate) mod version;
pub(crate) mod versions;

use std::io::IsTerminal as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use raftsman_core::observed::{Tolerance, Zones};
use raftsman_core::plan::WaitKind;

pub(crate) use table::Table;
pub(crate) use timing::timings;

use crate::args::When;

static WHEN: OnceLock<When> = OnceLock::new();

/// Colours, where they are wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Stores the colour option of the command line.
    pub(crate) fn choose(when: When) {
        let _ = WHEN.set(when);
    }

    /// No colours at all.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self { on: false }
    }

    /// Colours of standard output.
    pub(crate) fn of_stdout() -> Self {
        Self::of(std::io::stdout().is_terminal())
    }

    /// Colours of standard error.
    pub(crate) fn of_stderr() -> Self {
        Self::of(std::io::stderr().is_terminal())
    }

    fn of(terminal: bool) -> Self {
        let on = match WHEN.get().copied().unwrap_or(When::Auto) {
            When::Always => true,
            When::Never => false,
            When::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        };
        Self { on }
    }

    /// Whether there are colours.
    pub(crate) fn on(self) -> bool {
        self.on
    }

    fn styled(self, style: Style, text: &str) -> String {
        if self.on { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.styled(AnsiColor::Red.on_default().bold(), text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.styled(AnsiColor::Yellow.on_default(), text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.styled(AnsiColor::Green.on_default(), text)
    }

    /// The label of a step that is not taken.
    pub(crate) fn kind(self, kind: WaitKind) -> String {
        match kind {
            WaitKind::Transient => self.yellow("waits:"),
            WaitKind::Blocked => self.red("blocked:"),
            WaitKind::Informational => self.dim("note:"),
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.styled(Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.styled(Style::new().dimmed(), text)
    }
}

/// The first error of standard output.
static LOST: OnceLock<std::io::Error> = OnceLock::new();
/// Whether the reader of standard output went away.
static GONE: AtomicBool = AtomicBool::new(false);

/// Prints a text that ends with a line break. A reader that closes the pipe, as `head` does, is no error; every other
/// failure is recorded, and `lost_output` makes the command fail at its end: an apply continues when the disk of its
/// log is full.
pub(crate) fn print(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => GONE.store(true, Ordering::Relaxed),
        Err(error) => {
            let _ = LOST.set(error);
        }
    }
}

/// Whether the output still has a reader: otherwise `--watch` can stop.
pub(crate) fn is_read() -> bool {
    !GONE.load(Ordering::Relaxed) && LOST.get().is_none()
}

/// The first failure to write to standard output.
pub(crate) fn lost_output() -> Option<&'static std::io::Error> {
    LOST.get()
}

/// Prints a warning on standard error; the command continues.
#[allow(clippy::print_stderr, reason = "what is printed may be read by a program")]
pub(crate) fn warn(text: &str) {
    eprintln!("{} {text}", Paint::of_stderr().yellow("warning:"));
}

/// A text that replaces the one before: on a terminal the screen is cleared for it.
pub(crate) fn refreshed(text: &str) -> String {
    if std::io::stdout().is_terminal() { format!("\u{1b}[2J\u{1b}[H{text}") } else { text.to_owned() }
}

/// Prints a value as JSON.
pub(crate) fn print_json<T: serde::Serialize>(value: &T) -> Result<(), crate::exit::Failure> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?));
    Ok(())
}

/// Prints a value as one line of JSON.
pub(crate) fn print_json_line<T: serde::Serialize>(value: &T) {
    match serde_json::to_string(value) {
        Ok(line) => print(&format!("{line}\n")),
        Err(error) => {
            let _ = LOST.set(error.into());
        }
    }
}

/// What a cluster can lose, as text.
pub(crate) fn tolerance(tolerance: Tolerance) -> String {
    match tolerance {
        Tolerance::NoQuorum => "no quorum".to_owned(),
        Tolerance::CanLose(n) => format!("can lose {n}"),
    }
}

/// What a cluster can lose, in members and, where it has zones, in zones.
pub(crate) fn tolerances(members: Tolerance, zones: Option<&Zones>) -> String {
    let count = |n: u32, what: &str| match n {
        0 => format!("no {what}"),
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    match (members, zones.map(|zones| zones.tolerance)) {
        (Tolerance::CanLose(members), Some(Tolerance::CanLose(zones))) => {
            let joined = if zones == 0 { "," } else { " or" };
            format!("can lose {}{joined} {}", count(members, "member"), count(zones, "zone"))
        }
        (members, _) => tolerance(members),
    }
}

/// A time span in the two largest units that matter.
pub(crate) fn span(seconds: i64) -> String {
    let (sign, seconds) = if seconds < 0 { ("-", -seconds) } else { ("", seconds) };
    match seconds {
        0..120 => format!("{sign}{seconds} s"),
        120..7200 => format!("{sign}{} min", seconds / 60),
        7200..172_800 => format!("{sign}{} h", seconds / 3600),
        _ => format!("{sign}{} d", seconds / 86_400),
    }
}

/// Bytes as people write them.
pub(crate) fn bytes(bytes: i64) -> String {
    raftsman_core::observed::size(bytes.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn what_can_be_lost_is_said_in_members_and_in_zones() {
        let zones = |n| Zones { tolerance: Tolerance::CanLose(n), members: BTreeMap::new(), down: BTreeSet::new() };
        assert_eq!(tolerances(Tolerance::CanLose(1), None), "can lose 1");
        assert_eq!(tolerances(Tolerance::CanLose(2), Some(&zones(1))), "can lose 2 members or 1 zone");
        assert_eq!(tolerances(Tolerance::CanLose(1), Some(&zones(0))), "can lose 1 member, no zone");
        assert_eq!(tolerances(Tolerance::NoQuorum, Some(&zones(0))), "no quorum");
    }
}
