//! How a command ends → its exit code and its last words.

use std::process::ExitCode;

use raftsman_engine::error_chain;

use crate::view::Paint;

/// All went well.
pub(crate) const OK: ExitCode = ExitCode::SUCCESS;
/// `plan --detailed-exitcode`: there is something to do. `status`: something is not as it should be.
pub(crate) const CHANGES: u8 = 2;

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    /// Printed already: nothing more to say.
    said: bool,
}

impl Failure {
    pub(crate) fn other(message: impl Into<String>) -> Self {
        Self { message: message.into(), said: false }
    }

    /// The output has said why.
    pub(crate) fn said() -> Self {
        Self { message: String::new(), said: true }
    }
}

impl<E: std::error::Error + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::other(error_chain(&error))
    }
}

#[allow(clippy::print_stderr, reason = "this is where errors are printed")]
pub(crate) fn fail(failure: &Failure) -> ExitCode {
    if !failure.said {
        let paint = Paint::of_stderr();
        eprintln!("{} {}", paint.red("error:"), failure.message);
    }
    ExitCode::FAILURE
}
