//! `raftsman recover`.

use std::process::ExitCode;

use raftsman_core::spec::Name;
use raftsman_engine::ops::recover::{Wishes, mark, survey};

use super::apply::carry_out;
use super::asked;
use super::upkeep::{locked, tell};
use crate::args::{Common, Recover};
use crate::exit::{Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Recover) -> Result<ExitCode, Failure> {
    let (fleet, lock) = locked(common, "recover")?;
    let member = |name: &String| {
        Name::parse(name).map_err(|_| Failure::other(format!("`{name}` is no member: look at `raftsman status`")))
    };
    let wishes = Wishes {
        cluster: args.cluster.clone(),
        from: args.from.as_ref().map(member).transpose()?,
        lost: args.lost.iter().map(member).collect::<Result<_, _>>()?,
    };
    let found = survey(&fleet, &wishes).await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "survey", "survey": found }));
        if let Some(plan) = &found.plan {
            view::print_json_line(&serde_json::json!({ "event": "plan", "plan": plan }));
        }
    } else {
        view::print(&view::recover::survey(&found, Paint::of_stdout()));
    }
    if !found.under_way {
        let proposal = match &found.remains.outcome {
            Ok(proposal) => proposal,
            Err(unclear) => return Err(Failure::other(unclear.to_string())),
        };
        if args.show {
            return Ok(OK);
        }
        let question = format!("\nWhat the others had and `{}` has not is lost. ", proposal.survivor);
        let question = format!("{question}Type the cluster's name to go on: ");
        if !args.yes && asked(&question).as_deref() != Some(found.cluster.as_str()) {
            return Err(Failure::other("nothing was done: type the cluster's name, or give --yes"));
        }
        mark(&fleet, &lock, &wishes, proposal).await?;
    } else if args.show {
        return Ok(OK);
    }
    let only = [found.cluster];
    carry_out(&fleet, &lock, &only, args.timeout, tell(args.json)).await
}
