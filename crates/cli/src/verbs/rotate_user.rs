//! `raftsman rotate-user`.

use std::process::ExitCode;

use raftsman_engine::ops::apply::Execution;
use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::rotate_user::{UserRotation, run as rotate};
use tokio::sync::Notify;

use super::maintenance::on_event;
use super::{DECLINED, approved, confirmed, ended};
use crate::args::{Common, RotateUser};
use crate::context::{context, read_file};
use crate::exit::Failure;
use crate::interrupt::interruptible_once;
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &RotateUser) -> Result<ExitCode, Failure> {
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let show = |what: &UserRotation| match args.json {
        true => view::print_json_line(&serde_json::json!({ "event": "plan", "plan": what.plan })),
        false => view::print(&view::plan::render(&what.plan, Paint::of_stdout())),
    };
    let approve = |_: &UserRotation| approved(&begun, args.yes, || confirmed("\nCarry this out? [y/N] "), DECLINED);
    interruptible_once(&begun, on_event(args.json), async |report, interrupt| {
        let execution = Execution { timeout: args.timeout, report, interrupt };
        let consent = Consent { show: &show, approve: &approve };
        ended(&Box::pin(rotate(spec, &context, args.cluster.as_deref(), consent, execution)).await?)
    })
    .await
}
