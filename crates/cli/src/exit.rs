//! How a command ends → its exit code and its last message.

use std::error::Error;
use std::process::ExitCode;

use raftsman_engine::error_chain;
use raftsman_engine::ops::OpError;

use crate::view::{self, Paint};

/// Success.
pub(crate) const OK: ExitCode = ExitCode::SUCCESS;
/// `plan --detailed-exitcode`: there is something to do. `status`: a cluster is not converged.
pub(crate) const CHANGES: u8 = 2;
/// The command line is wrong. `EX_USAGE` of sysexits.h, because 2, which clap would choose, means changes.
const USAGE: u8 = 64;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    /// Printed already: nothing more to say.
    said: bool,
    /// Another process holds the lock: of this stack, or of the whole fleet.
    locked: Option<Option<String>>,
    code: u8,
}

impl Failure {
    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self { message: message.into(), said: false, locked: None, code: 1 }
    }

    /// The value of an option is invalid, which clap could not check.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: USAGE, ..Self::other(message) }
    }

    /// A failure with a cause that was printed already.
    pub(crate) fn said() -> Self {
        Self { said: true, ..Self::other(String::new()) }
    }

    /// Its message; nothing where it was printed already.
    pub(crate) fn message(&self) -> Option<&str> {
        (!self.said).then_some(&self.message)
    }

    /// Why it has to wait, and for the lock of which stack, where another process holds it.
    pub(crate) fn waits(&self) -> Option<(&str, Option<&str>)> {
        self.locked.as_ref().map(|stack| (self.message.as_str(), stack.as_deref()))
    }

    /// The same with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let failure = Self::other(error_chain(&error));
        let Some(error) = (&error as &(dyn Error + 'static)).downcast_ref::<OpError>() else { return failure };
        let locked = error.locked().map(|stack| stack.map(str::to_owned));
        // The cause of each cluster was printed as it happened.
        let said = matches!(error, OpError::NotConverged(_));
        Self { locked, said, ..failure }
    }
}

/// The exit code of a command, after its last message: output counts only if it was written.
pub(crate) fn end(outcome: Result<ExitCode, Failure>) -> ExitCode {
    match (outcome, view::lost_output()) {
        (Err(failure), _) => fail(&failure),
        (Ok(_), Some(error)) => {
            fail(&Failure::other(format!("cannot write to standard output: {error}: the output is incomplete")))
        }
        (Ok(code), None) => code,
    }
}

fn fail(failure: &Failure) -> ExitCode {
    if !failure.said {
        say(&format!("{} {}\n", Paint::of_stderr().red("error:"), failure.message));
    }
    ExitCode::from(failure.code)
}

/// clap's message: help and the version on standard output, a wrong command line on standard error.
pub(crate) fn explain(error: &clap::Error) -> ExitCode {
    let render = |paint: Paint| match paint.on() {
        true => error.render().ansi().to_string(),
        false => error.render().to_string(),
    };
    if error.use_stderr() {
        say(&render(Paint::of_stderr()));
        return ExitCode::from(USAGE);
    }
    view::print(&render(Paint::of_stdout()));
    end(Ok(OK))
}

/// Prints to standard error. A closed or full one is no reason to panic: the exit code says the same.
pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
