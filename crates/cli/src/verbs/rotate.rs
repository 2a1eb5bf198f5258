//! `raftsman cert rotate`.

use std::process::ExitCode;

use raftsman_core::observed::TrustDomain;
use raftsman_engine::fleet_access::Phase;
use raftsman_engine::ops::apply::Execution;
use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::fleet_access::{run_revocation, run_rotation};
use raftsman_engine::ops::rotate::{RotateRequest, Rotation, run as rotate};
use tokio::sync::Notify;

use super::maintenance::on_event;
use super::{DECLINED, approved, confirmed, ended};
use crate::args::{Common, Revoke, Rotate, RotateSide};
use crate::context::{context, read_file};
use crate::exit::{Failure, OK};
use crate::interrupt::{interruptible, interruptible_once};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Rotate) -> Result<ExitCode, Failure> {
    let side = match args.side {
        RotateSide::Peers => TrustDomain::Peers,
        RotateSide::Clients => TrustDomain::Clients,
        RotateSide::Fleet => return fleet(common, args).await,
    };
    let request = RotateRequest { side, finish: args.finish, now: args.now };
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let show = |what: &Rotation| match args.json {
        true => view::print_json_line(&serde_json::json!({ "event": "plan", "plan": what.plan })),
        false => view::print(&view::plan::render(&what.plan, Paint::of_stdout())),
    };
    let approve = |_: &Rotation| approved(&begun, args.yes, || confirmed("\nCarry this out? [y/N] "), DECLINED);
    let done = interruptible_once(&begun, on_event(args.json), async |report, interrupt| {
        let execution = Execution { timeout: args.timeout, report, interrupt };
        let consent = Consent { show: &show, approve: &approve };
        ended(&Box::pin(rotate(spec, &context, args.cluster.as_deref(), request, consent, execution)).await?)
    })
    .await?;
    if side == TrustDomain::Clients && !args.finish && !args.now && !args.json {
        view::print(view::cert::CLIENTS_NEXT);
    }
    Ok(done)
}

async fn fleet(common: &Common, args: &Rotate) -> Result<ExitCode, Failure> {
    if args.finish || args.now || args.cluster.is_some() {
        return Err(Failure::other(
            "the fleet's CA is changed for all clusters, in one go: give neither --cluster, --finish nor --now",
        ));
    }
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let approve = |phase: &Phase| {
        let answered = || confirmed("Change the CA of all agents and operators of this fleet? [y/N] ");
        // A rotation that is under way was approved when it began.
        approved(&begun, args.yes || *phase != Phase::Settled, answered, DECLINED)
    };
    interruptible_once(&begun, on_event(args.json), async |report, interrupt| {
        let execution = Execution { timeout: args.timeout, report, interrupt };
        let consent = Consent { show: &|_: &Phase| {}, approve: &approve };
        Ok(Box::pin(run_rotation(spec, &context, consent, &|phase| say(args.json, phase), execution)).await?)
    })
    .await?;
    Ok(OK)
}

fn say(json: bool, phase: Phase) {
    if json {
        return view::print_json_line(&serde_json::json!({ "event": "phase", "phase": phase }));
    }
    view::print(match phase {
        Phase::Trusting => "1/3 every agent trusts the next CA beside the one that signs\n",
        Phase::Signing => "2/3 the next CA signs: every agent gets a new certificate\n",
        Phase::Distrusting => "3/3 the old CA is distrusted, and its key is deleted\n",
        Phase::Settled => {
            "The fleet has a new CA. Certificates of `cert issue --agent-role` that the old one signed are refused: issue them again.\n"
        }
    });
}

/// `raftsman cert revoke`.
pub(super) async fn revoke(common: &Common, args: &Revoke) -> Result<ExitCode, Failure> {
    let (spec, context) = (read_file(common)?, context(common)?);
    let key = interruptible(on_event(args.json), async |report, interrupt| {
        let execution = Execution { timeout: args.timeout, report, interrupt };
        Ok(Box::pin(run_revocation(spec, &context, &args.certificate, execution)).await?)
    })
    .await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "revoked", "key": key }));
    } else {
        view::print(&format!("every agent refuses the certificate with the key {key}\n"));
    }
    Ok(OK)
}
