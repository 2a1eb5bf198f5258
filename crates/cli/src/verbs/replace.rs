//! `raftsman replace`.

use std::process::ExitCode;

use raftsman_engine::ops::apply::preflight;
use raftsman_engine::ops::replace::{mark, survey};

use super::apply::carry_out;
use super::confirmed;
use super::upkeep::{locked, tell};
use crate::args::{Common, Replace};
use crate::exit::{Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Replace) -> Result<ExitCode, Failure> {
    let (fleet, lock) = locked(common, "replace")?;
    let what = survey(&fleet, &args.member).await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "plan", "plan": what.plan }));
    } else {
        view::print(&view::upkeep::replacement(&what, Paint::of_stdout()));
    }
    let question = format!("\nGive `{}` up with the data that it has? [y/N] ", what.member);
    if !args.yes && !confirmed(&question) {
        return Err(Failure::other("nothing was done: answer `yes`, or give --yes"));
    }
    if !args.mark_only {
        preflight(&fleet, std::slice::from_ref(&what.cluster)).await?;
    }
    let (cluster, member) = mark(&fleet, &lock, &args.member).await?;
    if args.mark_only {
        if args.json {
            view::print_json_line(&serde_json::json!({ "event": "marked", "cluster": cluster, "member": member }));
        } else {
            view::print(&format!("{member} is marked: the next `raftsman apply {cluster}` replaces it\n"));
        }
        return Ok(OK);
    }
    let only = [cluster];
    carry_out(&fleet, &lock, &only, args.timeout, tell(args.json)).await
}
