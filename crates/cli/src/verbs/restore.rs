//! `raftsman restore`.

use std::process::ExitCode;

use raftsman_engine::backup::keys;
use raftsman_engine::ops::OpError;
use raftsman_engine::ops::backup::Progress;
use raftsman_engine::ops::restore::{Wish, mark, survey, try_out};
use serde_json::json;

use super::apply::carry_out;
use super::asked;
use super::backup::accepted;
use super::upkeep::{locked, tell};
use crate::args::{Common, Restore};
use crate::exit::{Failure, OK};
use crate::moving::Moving;
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Restore) -> Result<ExitCode, Failure> {
    let wish = match (&args.backup, args.revision, args.at) {
        (Some(name), _, _) => Wish::Backup(name.parse()?),
        (None, Some(revision), _) => Wish::Revision(revision),
        (None, None, Some(moment)) => Wish::Moment(moment),
        (None, None, None) => Wish::Newest,
    };
    let (fleet, lock) = locked(common, "restore")?;
    let keys = keys(&args.key).map_err(OpError::from)?;
    let from = args.from.as_deref();
    let accepted = accepted(&args.accept)?;
    let found = survey(&fleet, args.cluster.as_deref(), from, &accepted, wish, &keys).await?;
    if args.json {
        view::print_json_line(&json!({ "event": "survey", "survey": found }));
        view::print_json_line(&json!({ "event": "plan", "plan": found.plan }));
    } else {
        view::print(&view::restore::survey(&found, Paint::of_stdout()));
    }
    if args.show {
        return Ok(OK);
    }
    let question = format!("\nAll that `{}` holds now is replaced. Type the cluster's name to go on: ", found.cluster);
    if !args.yes && asked(&question).as_deref() != Some(found.cluster.as_str()) {
        return Err(Failure::other("nothing was done: type the cluster's name, or give --yes"));
    }
    let moving = Moving::new(args.json);
    let watch = |checked, total| moving.hear(Progress { received: 0, stored: 0, checked, total });
    let tried = try_out(&fleet, &lock, &found, from, &keys, &watch).await;
    moving.end();
    let tried = tried?;
    match args.json {
        true => view::print_json_line(&json!({ "event": "tried", "tried": tried.rehearsed })),
        false => view::print(&view::restore::tried(&tried.rehearsed)),
    }
    mark(&fleet, &lock, &found, &tried).await?;
    let only = [found.cluster];
    carry_out(&fleet, &lock, &only, args.timeout, tell(args.json)).await
}
