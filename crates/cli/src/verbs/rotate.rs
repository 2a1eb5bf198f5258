//! `raftsman cert rotate`.

use std::process::ExitCode;

use raftsman_core::observed::Side;
use raftsman_engine::fleet_access::Phase;
use raftsman_engine::ops::apply::preflight;
use raftsman_engine::ops::fleet_access::{advance, key_to_revoke, proven, revoke as write_down};
use raftsman_engine::ops::rotate::{Wish, mark, survey};

use super::apply::carry_out;
use super::confirmed;
use super::upkeep::{locked, tell};
use crate::args::{Common, Revoke, Rotate, RotateSide};
use crate::exit::{Failure, OK};
use crate::setting::{open_locked, read_file, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Rotate) -> Result<ExitCode, Failure> {
    let side = match args.side {
        RotateSide::Peers => Side::Peers,
        RotateSide::Clients => Side::Clients,
        RotateSide::Fleet => return fleet(common, args).await,
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

/// Phase by phase, each carried out on every machine and proven by every agent before the next begins.
async fn fleet(common: &Common, args: &Rotate) -> Result<ExitCode, Failure> {
    if args.finish || args.now || args.cluster.is_some() {
        return Err(Failure::other(
            "the fleet's CA is changed for all clusters, in one go: give neither --cluster, --finish nor --now",
        ));
    }
    let (mut fleet, lock) = locked(common, "cert rotate")?;
    let mut phase = fleet.access.phase();
    if phase == Phase::Settled {
        if !args.yes && !confirmed("Change the CA of all agents and operators of this fleet? [y/N] ") {
            return Err(Failure::other("nothing was done: answer `yes`, or give --yes"));
        }
        preflight(&fleet, &[]).await?;
        phase = advance(&fleet, &lock)?;
    }
    loop {
        say(args.json, phase);
        fleet = open_locked(read_file(common)?, setting(common)?, &lock)?;
        carry_out(&fleet, &lock, &[], args.timeout, tell(args.json)).await?;
        proven(&fleet).await?;
        if phase == Phase::Distrusting {
            say(args.json, Phase::Settled);
            return Ok(OK);
        }
        phase = advance(&fleet, &lock)?;
    }
}

fn say(json: bool, phase: Phase) {
    if json {
        return view::print_json_line(&serde_json::json!({ "event": "phase", "phase": phase }));
    }
    view::print(match phase {
        Phase::Trusting => "1/3 every agent trusts the next CA beside the one that signs\n",
        Phase::Signing => "2/3 the next CA signs: every agent gets a new certificate\n",
        Phase::Distrusting => "3/3 the old CA is trusted no more, and its key is deleted\n",
        Phase::Settled => {
            "The fleet has a new CA. Certificates of `cert issue --agent-role` that the old one signed are refused: issue them again.\n"
        }
    });
}

/// `raftsman cert revoke`.
pub(super) async fn revoke(common: &Common, args: &Revoke) -> Result<ExitCode, Failure> {
    let key = key_to_revoke(&args.certificate)?;
    let (fleet, lock) = locked(common, "cert revoke")?;
    write_down(&fleet, &lock, &key)?;
    let fleet = open_locked(read_file(common)?, setting(common)?, &lock)?;
    carry_out(&fleet, &lock, &[], args.timeout, tell(args.json)).await?;
    proven(&fleet).await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "revoked", "key": key }));
    } else {
        view::print(&format!("every agent refuses the certificate with the key {key}\n"));
    }
    Ok(OK)
}
