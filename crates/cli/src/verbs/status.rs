//! `raftsman status`.

use std::process::ExitCode;
use std::time::Duration;

use raftsman_engine::ops::status::{FleetStatus, status};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Common, Status};
use crate::context::{context, open, read_file, stacks};
use crate::exit::{CHANGES, Failure, OK};
use crate::view::{self, Paint};

/// Every observation queries all members: a shorter interval would add load.
const LEAST: Duration = Duration::from_secs(1);

pub(super) async fn run(common: &Common, args: &Status) -> Result<ExitCode, Failure> {
    if let Some(every) = args.watch {
        return watch(common, args, every.max(LEAST)).await;
    }
    let status = look(common, args).await?;
    if args.json {
        view::print_json(&status)?;
    } else {
        view::print(&view::status::render(&status, jiff::Timestamp::now(), Paint::of_stdout()));
    }
    Ok(if status.settled() { OK } else { ExitCode::from(CHANGES) })
}

/// One observation. The file and the state are read for each: both may change during `--watch`.
async fn look(common: &Common, args: &Status) -> Result<FleetStatus, Failure> {
    let spec = read_file(common)?;
    let only = stacks(&spec, &args.clusters)?;
    Ok(status(&open(spec, context(common)?).await?, &only).await?)
}

/// Repeats it, until Ctrl-C or until the reader of the output is gone. The exit code is that of the last observation.
async fn watch(common: &Common, args: &Status, every: Duration) -> Result<ExitCode, Failure> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let (mut last, json) = (OK, args.json);
    loop {
        let looked = tokio::select! {
            looked = Box::pin(look(common, args)) => looked?,
            _ = interrupted.recv() => return Ok(last),
        };
        last = if looked.settled() { OK } else { ExitCode::from(CHANGES) };
        if json {
            view::print_json_line(&looked);
        } else {
            let now = jiff::Timestamp::now();
            let text = view::status::render(&looked, now, Paint::of_stdout());
            view::print(&view::refreshed(&format!("{}\n{text}", now.strftime("%Y-%m-%d %H:%M:%S UTC"))));
        }
        if !view::is_read() {
            return Ok(last);
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = interrupted.recv() => return Ok(last),
        }
    }
}
