//! `raftsman recover`.

use std::process::ExitCode;

use raftsman_core::spec::Name;
use raftsman_engine::ops::apply::Execution;
use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::recover::{RecoverRequest, Survey, run as recover};
use tokio::sync::Notify;

use super::maintenance::on_event;
use super::{NOT_NAMED, approved, asked, ended};
use crate::args::{Common, Recover};
use crate::context::{context, read_file};
use crate::exit::Failure;
use crate::interrupt::interruptible_once;
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Recover) -> Result<ExitCode, Failure> {
    let member = |name: &String| {
        Name::parse(name).map_err(|_| Failure::other(format!("`{name}` is no member: look at `raftsman status`")))
    };
    let request = RecoverRequest {
        cluster: args.cluster.clone(),
        from: args.from.as_ref().map(member).transpose()?,
        lost: args.lost.iter().map(member).collect::<Result<_, _>>()?,
    };
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let approve = |found: &Survey| {
        let answered = || {
            let survivor = found.remains.outcome.as_ref().map(|proposal| proposal.survivor.to_string());
            let question = format!("\nWhat the others had and `{}` has not is lost. ", survivor.unwrap_or_default());
            let question = format!("{question}Type the cluster's name to continue: ");
            asked(&question).as_deref() == Some(found.cluster.as_str())
        };
        // A recovery that is under way was approved when it began.
        approved(&begun, args.yes || found.under_way, answered, NOT_NAMED)
    };
    interruptible_once(&begun, on_event(args.json), async |report, interrupt| {
        let execution = Execution { timeout: args.timeout, report, interrupt };
        let consent = Consent { show: &|found: &Survey| show(found, args.json), approve: &approve };
        ended(&Box::pin(recover(spec, &context, &request, args.show, consent, execution)).await?)
    })
    .await
}

fn show(found: &Survey, json: bool) {
    if !json {
        return view::print(&view::recover::survey(found, Paint::of_stdout()));
    }
    view::print_json_line(&serde_json::json!({ "event": "survey", "survey": found }));
    if let Some(plan) = &found.plan {
        view::print_json_line(&serde_json::json!({ "event": "plan", "plan": plan }));
    }
}
