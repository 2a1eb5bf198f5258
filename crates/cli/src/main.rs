//! The command line: arguments → one verb of the engine → text, JSON or an exit code.

mod args;
mod context;
mod exit;
mod interrupt;
mod progress;
mod transfer;
mod verbs;
mod view;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return exit::explain(&error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return exit::end(Err(exit::Failure::other(format!("cannot start: {error}")))),
    };
    let outcome = runtime.block_on(verbs::run(arguments));
    // A task that still waits for a silent machine must not delay the answer.
    runtime.shutdown_background();
    exit::end(outcome)
}
