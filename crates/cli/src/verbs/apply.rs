//! `raftsman apply`.

use std::process::ExitCode;

use raftsman_engine::ops::apply::{Execution, run as apply};
use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::plan::FleetPlan;
use tokio::sync::Notify;

use super::maintenance::on_event;
use super::{DECLINED, approved, confirmed, ended};
use crate::args::{Apply, Common};
use crate::context::{context, judge_file, stacks};
use crate::exit::Failure;
use crate::interrupt::interruptible_once;
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Apply) -> Result<ExitCode, Failure> {
    let spec = judge_file(common)?;
    let only = stacks(&spec, &args.clusters)?;
    let (context, begun) = (context(common)?, Notify::new());
    let show = |plan: &FleetPlan| match args.json {
        true => view::print_json_line(&serde_json::json!({ "event": "plan", "plan": plan })),
        false => view::print(&view::plan::render(plan, Paint::of_stdout())),
    };
    let approve = |_: &FleetPlan| approved(&begun, args.yes, || confirmed("\nCarry this out? [y/N] "), DECLINED);
    interruptible_once(&begun, on_event(args.json), async |report, interrupt| {
        let execution = Execution { timeout: args.timeout, report, interrupt };
        let consent = Consent { show: &show, approve: &approve };
        ended(&Box::pin(apply(spec, &context, &only, consent, execution)).await?)
    })
    .await
}
