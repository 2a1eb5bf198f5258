//! `raftsman drill`.

use std::process::ExitCode;

use raftsman_engine::backup::keys;
use raftsman_engine::ops::OpError;
use raftsman_engine::ops::backup::Progress;
use raftsman_engine::ops::drill::{history, run as drill};
use serde_json::json;

use super::backup::accepted;
use crate::args::{Common, Drill};
use crate::context::{context, open, read_file};
use crate::exit::{Failure, OK};
use crate::transfer::TransferView;
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Drill) -> Result<ExitCode, Failure> {
    if args.history {
        let fleet = open(read_file(common)?, context(common)?).await?;
        let drills = history(&fleet, args.cluster.as_deref(), args.from.as_deref()).await?;
        match args.json {
            true => view::print_json(&json!({ "drills": drills }))?,
            false => view::print(&view::drill::history(&drills, Paint::of_stdout())),
        }
        return Ok(OK);
    }
    let (spec, context) = (read_file(common)?, context(common)?);
    let keys = keys(&args.key).map_err(OpError::from)?;
    let transfer = TransferView::new(args.json);
    let watch = |checked, total| transfer.on_progress(Progress { received: 0, stored: 0, checked, total });
    let accepted = accepted(&args.accept)?;
    let (cluster, from) = (args.cluster.as_deref(), args.from.as_deref());
    let done = Box::pin(drill(spec, &context, cluster, from, &accepted, &keys, &watch)).await;
    transfer.end();
    let done = done?;
    match args.json {
        true => view::print_json_line(&json!({ "event": "drilled", "drill": done })),
        false => view::print(&view::drill::report(&done, Paint::of_stdout())),
    }
    Ok(OK)
}
