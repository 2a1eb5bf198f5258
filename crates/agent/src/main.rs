//! arguments → the agent, with its log on standard error.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use raftsman_agent::service::told;
use tracing_subscriber::EnvFilter;

/// Raftsman's agent: runs etcd on this machine as its fleet's operators say.
#[derive(Parser)]
#[command(name = "raftsman-agent", version)]
struct Arguments {
    /// The directory below which everything of this machine lives.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Leave the session of whoever started it, so that it outlives them.
    #[arg(long)]
    detach: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("info"))
        .with_ansi(false)
        .with_target(false)
        .with_writer(std::io::stderr)
        .init();
    if arguments.detach
        && let Err(error) = rustix::process::setsid()
    {
        // It leads a process group already, so that its starter's end does not reach it either.
        tracing::debug!(%error, "no session of its own");
    }
    // Two workers, so that a slow disk under one does not hold up the report.
    let ended = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| format!("the runtime cannot be started: {error}"))
        .and_then(|runtime| runtime.block_on(raftsman_agent::run(&arguments.root)).map_err(|error| told(&error)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error, "the agent ends");
            ExitCode::FAILURE
        }
    }
}
