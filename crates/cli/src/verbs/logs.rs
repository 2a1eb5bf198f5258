//! `raftsman logs`.

use std::process::ExitCode;
use std::time::Duration;

use raftsman_engine::ops::logs::{Source, added, logs};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Common, Logs};
use crate::context::{context, open, read_file};
use crate::exit::{Failure, OK, say};
use crate::view;

/// How often new lines are requested.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The number of last lines that are compared with those of the previous request.
const WINDOW: u32 = 1000;

pub(super) async fn run(common: &Common, args: &Logs) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let fleet = open(spec, context(common)?).await?;
    let of = match (args.agent, args.balancer) {
        (true, _) => Source::Agent,
        (false, true) => Source::Balancer,
        (false, false) => Source::Machine,
    };
    let first = if args.follow { WINDOW.max(args.lines) } else { args.lines };
    let mut seen = logs(&fleet, &args.machine, of, first).await?;
    let shown = seen.len().saturating_sub(usize::try_from(args.lines).unwrap_or(usize::MAX));
    print(&seen[shown..]);
    let mut silent = false;
    // One for all of it: a signal during a request counts, too.
    let mut interrupted = signal(SignalKind::interrupt())?;
    while args.follow && view::is_read() {
        let look = async {
            tokio::time::sleep(LOOK_AGAIN).await;
            logs(&fleet, &args.machine, of, first).await
        };
        let looked = tokio::select! {
            looked = look => looked,
            _ = interrupted.recv() => break,
        };
        match looked {
            Ok(now) => {
                print(&now[added(&seen, &now)..]);
                (seen, silent) = (now, false);
            }
            // The machine may come back: printed once.
            Err(error) if !silent => {
                silent = true;
                say(&format!("{} does not answer, retrying: {error}\n", args.machine));
            }
            Err(_) => {}
        }
    }
    Ok(OK)
}

fn print(lines: &[String]) {
    if !lines.is_empty() {
        view::print(&format!("{}\n", lines.join("\n")));
    }
}
