//! `raftsman replace`.

use std::process::ExitCode;

use raftsman_engine::ops::apply::Execution;
use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::replace::{Replacement, run as replace};
use tokio::sync::Notify;

use super::maintenance::on_event;
use super::{DECLINED, approved, confirmed, ended};
use crate::args::{Common, Replace};
use crate::context::{context, read_file};
use crate::exit::{Failure, OK};
use crate::interrupt::interruptible_once;
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Replace) -> Result<ExitCode, Failure> {
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let show = |what: &Replacement| match args.json {
        true => view::print_json_line(&serde_json::json!({ "event": "plan", "plan": what.plan })),
        false => view::print(&view::maintenance::replacement(what, Paint::of_stdout())),
    };
    let approve = |what: &Replacement| {
        let question = format!("\nRemove `{}` and the data that it has? [y/N] ", what.member);
        approved(&begun, args.yes, || confirmed(&question), DECLINED)
    };
    let done = interruptible_once(&begun, on_event(args.json), async |report, interrupt| {
        let execution = Execution { timeout: args.timeout, report, interrupt };
        let consent = Consent { show: &show, approve: &approve };
        let replaced = replace(spec, &context, &args.member, args.mark_only, consent, execution);
        let (what, outcomes) = Box::pin(replaced).await?;
        ended(&outcomes).map(|_| what)
    });
    let Replacement { cluster, member, .. } = done.await?;
    if args.mark_only && args.json {
        view::print_json_line(&serde_json::json!({ "event": "marked", "cluster": cluster, "member": member }));
    } else if args.mark_only {
        view::print(&format!("{member} is marked: the next `raftsman apply {cluster}` replaces it\n"));
    }
    Ok(OK)
}
