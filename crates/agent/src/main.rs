//! arguments → the agent, with its log on standard error.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use raftsman_agent::LaunchMode;
use raftsman_agent::machine::install;
use raftsman_agent::machine::upgrade::trial;
use raftsman_agent::status::describe;
use tracing_subscriber::EnvFilter;

/// Raftsman's agent: runs etcd on this machine as its fleet's operators say.
#[derive(Parser)]
#[command(name = "raftsman-agent", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// The directory below which everything of this machine lives.
    #[arg(long, value_name = "DIR", required = true)]
    root: Option<PathBuf>,
    /// Leave the session of the parent process, so that the agent outlives it.
    #[arg(long)]
    detach: bool,
    /// Run etcd as a unit of systemd, with a user of its own.
    #[arg(long, conflicts_with = "detach")]
    systemd: bool,
    /// The process that watches this program while it is on trial.
    #[arg(long, value_name = "PID", hide = true)]
    guardian: Option<u32>,
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
    /// Add the users and units of all programs, which the agent's own unit may not.
    #[command(hide = true)]
    AddPrograms,
    /// Watch the process that started this one while it tries a new program of the agent.
    #[command(hide = true)]
    Guard {
        /// The directory below which everything of this machine lives.
        #[arg(long, value_name = "DIR")]
        root: PathBuf,
        /// systemd starts the agent again.
        #[arg(long)]
        systemd: bool,
    },
}

/// The runtime's threads end within this time before another program takes over.
const LAST_TASKS: Duration = Duration::from_secs(1);

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
    match carry_out(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_task => {
            // For an operator's terminal or SSH: no time, no level.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!(error, "the agent ends");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(arguments: Arguments) -> Result<(), String> {
    // Two workers, so that a slow disk in one does not delay the report.
    let runtime = || {
        let built = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        built.map_err(|error| format!("the runtime cannot be started: {error}"))
    };
    let mode = |systemd| if systemd { LaunchMode::Systemd } else { LaunchMode::Child };
    match (arguments.task, arguments.root) {
        (Some(Task::Install), _) => {
            let boot = std::io::read_to_string(std::io::stdin()).map_err(|error| describe(&error))?;
            runtime()?.block_on(install::install(&boot)).map_err(|error| describe(&error))
        }
        (Some(Task::Uninstall { fleet, leaving }), _) => {
            runtime()?.block_on(install::uninstall(fleet.as_deref(), leaving)).map_err(|error| describe(&error))
        }
        (Some(Task::AddPrograms), _) => {
            runtime()?.block_on(install::lay_out_programs()).map_err(|error| describe(&error))
        }
        (Some(Task::Guard { root, systemd }), _) => {
            trial::guard(&root, mode(systemd)).map_err(|error| describe(&error))
        }
        (None, Some(root)) => {
            let mode = mode(arguments.systemd);
            let runtime = runtime()?;
            let next = runtime.block_on(raftsman_agent::run(&root, mode, arguments.guardian));
            let Some(next) = next.map_err(|error| describe(&error))? else { return Ok(()) };
            runtime.shutdown_timeout(LAST_TASKS);
            Err(describe(&next.run(&root, mode)))
        }
        (None, None) => Err("give the machine's directory: --root".to_owned()),
    }
}
