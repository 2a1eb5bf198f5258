//! What the engine found → text for people.

pub(crate) mod adopt;
pub(crate) mod backup;
pub(crate) mod cert;
pub(crate) mod drill;
pub(crate) mod journal;
pub(crate) mod plan;
pub(crate) mod preflight;
pub(crate) mod recover;
pub(crate) mod restore;
pub(crate) mod status;
mod table;
pub(crate) mod upkeep;
pub(crate) mod versions;

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use anstyle::{AnsiColor, Style};
use raftsman_core::observed::Tolerance;
use raftsman_core::plan::Patience;

pub(crate) use table::Table;

use crate::args::When;

static WHEN: OnceLock<When> = OnceLock::new();

/// Colours, where they are wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Remembers what the command line said about colours.
    pub(crate) fn choose(when: When) {
        let _ = WHEN.set(when);
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

    /// The word before what is not done.
    pub(crate) fn patience(self, patience: Patience) -> String {
        match patience {
            Patience::Soon => self.yellow("waits:"),
            Patience::Blocked => self.red("blocked:"),
            Patience::Note => self.dim("note:"),
        }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.styled(Style::new().bold(), text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.styled(Style::new().dimmed(), text)
    }
}

/// Prints a text that ends with a line break. A reader that went away, as `head` does, is no error.
pub(crate) fn print(text: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Prints a value as JSON.
pub(crate) fn print_json<T: serde::Serialize>(value: &T) -> Result<(), crate::exit::Failure> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?));
    Ok(())
}

/// Prints a value as one line of JSON.
pub(crate) fn print_json_line<T: serde::Serialize>(value: &T) {
    if let Ok(line) = serde_json::to_string(value) {
        print(&format!("{line}\n"));
    }
}

/// What a cluster can lose, in words.
pub(crate) fn tolerance(tolerance: Tolerance) -> String {
    match tolerance {
        Tolerance::NoQuorum => "no quorum".to_owned(),
        Tolerance::CanLose(n) => format!("can lose {n}"),
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
