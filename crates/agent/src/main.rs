//! arguments → the agent, with its log on standard error.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use raftsman_agent::LaunchMode;
use raftsman_agent::machine::install;
use raftsman_agent::status::describe;
use tracing_subscriber::EnvFilter;

/// Raftsman's agent: runs etcd on this machine as its fleet's operators say.
#[derive(Parser)]
#[command(name = "raftsman-agent", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// The directory below which everything of this machine lives.
    #[arg(long, value_name = "DIR", required = true)]
    root: Option<PathBuf>,
    /// Leave the session of whoever started it, so that it outlives them.
    #[arg(long)]
    detach: bool,
    /// Run etcd as a unit of systemd, with a user of its own.
    #[arg(long, conflicts_with = "detach")]
    systemd: bool,
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Subcommand)]
enum Task {
    /// Install the agent on this machine, as a service of systemd that joins the fleet of the boot data.
    ///
    /// The boot data is what `raftsman` made for this machine, one line on standard input.
    Install,
    /// Remove the agent, etcd and its data from this machine.
    Uninstall {
        /// Only if this machine belongs to the fleet of this id.
        #[arg(long, value_name = "ID")]
        fleet: Option<String>,
        /// The agent itself asks for it: it goes last.
        #[arg(long, hide = true)]
        leaving: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let is_task = arguments.task.is_some();
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
        .and_then(|runtime| runtime.block_on(carry_out(arguments)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_task => {
            // For whoever runs it by hand or over SSH: no time, no level.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!(error, "the agent ends");
            ExitCode::FAILURE
        }
    }
}

async fn carry_out(arguments: Arguments) -> Result<(), String> {
    match (arguments.task, arguments.root) {
        (Some(Task::Install), _) => {
            let boot = std::io::read_to_string(std::io::stdin()).map_err(|error| describe(&error))?;
            install::install(&boot).await.map_err(|error| describe(&error))
        }
        (Some(Task::Uninstall { fleet, leaving }), _) => {
            install::uninstall(fleet.as_deref(), leaving).await.map_err(|error| describe(&error))
        }
        (None, Some(root)) => {
            let mode = if arguments.systemd { LaunchMode::Systemd } else { LaunchMode::Child };
            raftsman_agent::run(&root, mode).await.map_err(|error| describe(&error))
        }
        (None, None) => Err("say where everything of this machine lives: --root".to_owned()),
    }
}
