//! One verb per file, a thin layer over the engine's.

mod adopt;
mod apply;
mod backup;
mod cert;
mod check;
mod destroy;
mod drill;
mod env;
mod explain;
mod init;
mod join;
mod journal;
mod logs;
mod maintenance;
mod manual;
mod plan;
mod preflight;
mod psql;
mod recover;
mod replace;
mod restore;
mod rotate;
mod rotate_user;
mod state;
mod status;
mod switchover;
pub(crate) mod version;
mod versions;

use std::process::ExitCode;
use std::time::Instant;

use raftsman_core::spec;
use raftsman_engine::apply::Outcome;
use tokio::sync::Notify;

use crate::args::{Arguments, Common, Verb};
use crate::context::unlocked;
use crate::exit::{Failure, OK, say};
use crate::view::{self, Paint};

/// Runs the verb. After a wait for the lock it starts again: what was read, shown and asked before may have changed.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let Arguments { common, verb } = arguments;
    Paint::choose(common.color);
    let limit = common.lock_timeout.unwrap_or_default();
    let (until, mut said) = (Instant::now() + limit, false);
    loop {
        let outcome = once(&common, &verb).await;
        match outcome.as_ref().err().and_then(Failure::waits) {
            Some((error, stack)) if Instant::now() < until => {
                if !said {
                    let limit = spec::Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
                    say(&format!("waits up to {limit} for the lock: {error}\n"));
                }
                said = true;
                unlocked(&common, stack, until).await?;
            }
            _ => return outcome,
        }
    }
}

async fn once(common: &Common, verb: &Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Init(args) => init::run(common, args).await,
        Verb::Adopt(args) => adopt::run(common, args).await,
        Verb::Check(args) => check::run(common, args),
        Verb::Schema => {
            view::print_json(&spec::schema())?;
            Ok(OK)
        }
        Verb::Explain(args) => explain::run(args),
        Verb::Plan(args) => plan::run(common, args).await,
        Verb::Apply(args) => apply::run(common, args).await,
        Verb::Status(args) => status::run(common, args).await,
        Verb::Preflight(args) => Box::pin(preflight::run(common, args)).await,
        Verb::Versions(args) => versions::run(common, args).await,
        Verb::Version(args) => Box::pin(version::run(common, args)).await,
        Verb::State(args) => state::run(common, args).await,
        Verb::Destroy(args) => destroy::run(common, args).await,
        Verb::Defrag(args) => maintenance::run_defrag(common, args).await,
        Verb::Compact(args) => maintenance::run_compact(common, args).await,
        Verb::MoveLeader(args) => maintenance::run_move_leader(common, args).await,
        Verb::Switchover(args) => Box::pin(switchover::run(common, args)).await,
        Verb::RotateUser(args) => Box::pin(rotate_user::run(common, args)).await,
        Verb::Verify(args) => maintenance::run_verify(common, args).await,
        Verb::Replace(args) => Box::pin(replace::run(common, args)).await,
        Verb::Recover(args) => Box::pin(recover::run(common, args)).await,
        Verb::Drill(args) => Box::pin(drill::run(common, args)).await,
        Verb::Restore(args) => Box::pin(restore::run(common, args)).await,
        Verb::Journal(args) => journal::run(common, args).await,
        Verb::Env(args) => env::run(common, args).await,
        Verb::Psql(args) => Box::pin(psql::run(common, args)).await,
        Verb::Join(args) => join::run(common, args).await,
        Verb::Cert(args) => cert::run(common, args).await,
        Verb::Backup(args) => Box::pin(backup::run(common, args)).await,
        Verb::Logs(args) => logs::run(common, args).await,
        Verb::Completions { shell } => {
            manual::completions(*shell);
            Ok(OK)
        }
        Verb::Names { verb } => manual::names(common, verb),
        Verb::Man { directory } => manual::pages(directory),
    }
}

/// Whether the operator approves, by `--yes` or by an answer; signals are obeyed from then on.
fn approved(begun: &Notify, yes: bool, answered: impl FnOnce() -> bool, declined: &str) -> Result<(), String> {
    if !yes && !answered() {
        return Err(declined.to_owned());
    }
    begun.notify_one();
    Ok(())
}

/// The message where the operator's answer is not `yes`.
const DECLINED: &str = "nothing was done: answer `yes`, or give --yes";
/// The message where the operator's answer is not the cluster's name.
const NOT_NAMED: &str = "nothing was done: type the cluster's name, or give --yes";

/// The exit code of an operation that applies: the cause of each failed cluster was printed as it happened. It is
/// computed inside the interruptible part, so that an interruption has its own code.
fn ended(outcomes: &[Outcome]) -> Result<ExitCode, Failure> {
    if outcomes.iter().any(|outcome| outcome.error.is_some()) { Err(Failure::said()) } else { Ok(OK) }
}

/// Asks a question that needs `yes`. Without a terminal the answer is no.
fn confirmed(question: &str) -> bool {
    asked(question).is_some_and(|answer| matches!(answer.as_str(), "y" | "yes"))
}

/// The answer to a question; none without a terminal.
fn asked(question: &str) -> Option<String> {
    use std::io::{BufRead as _, IsTerminal as _};
    if !std::io::stdin().is_terminal() {
        return None;
    }
    // On standard error: standard output may be JSON that a program reads.
    say(question);
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).ok()?;
    Some(answer.trim().to_owned())
}
