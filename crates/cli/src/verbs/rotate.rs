//! `raftsman cert rotate`.

use std::process::ExitCode;

use raftsman_core::observed::Side;
use raftsman_engine::ops::apply::preflight;
use raftsman_engine::ops::rotate::{Wish, mark, survey};

use super::apply::carry_out;
use super::confirmed;
use super::upkeep::{locked, tell};
use crate::args::{Common, Rotate, RotateSide};
use crate::exit::Failure;
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Rotate) -> Result<ExitCode, Failure> {
    let side = match args.side {
        RotateSide::Peers => Side::Peers,
        RotateSide::Clients => Side::Clients,
    };
    let wish = Wish { side, finish: args.finish, now: args.now };
    let (fleet, lock) = locked(common, "cert rotate")?;
    let what = survey(&fleet, args.cluster.as_deref(), wish).await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "plan", "plan": what.plan }));
    } else {
        view::print(&view::plan::render(&what.plan, Paint::of_stdout()));
    }
    if !args.yes && !confirmed("\nCarry this out? [y/N] ") {
        return Err(Failure::other("nothing was done: answer `yes`, or give --yes"));
    }
    let only = [what.cluster];
    preflight(&fleet, &only).await?;
    mark(&fleet, &lock, &only[0], wish)?;
    let done = carry_out(&fleet, &lock, &only, args.timeout, tell(args.json)).await?;
    if side == Side::Clients && !args.finish && !args.now && !args.json {
        view::print(view::cert::CLIENTS_NEXT);
    }
    Ok(done)
}
