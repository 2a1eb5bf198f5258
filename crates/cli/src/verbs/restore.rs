//! `raftsman restore`.

use std::process::ExitCode;

use raftsman_engine::backup::keys;
use raftsman_engine::ops::OpError;
use raftsman_engine::ops::apply::Execution;
use raftsman_engine::ops::backup::Progress;
use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::restore::{Request, RestoreTarget, Survey, Watch, run as restore};
use raftsman_engine::restore_test::RestoreTestResult;
use serde_json::json;
use tokio::sync::Notify;

use super::backup::accepted;
use super::maintenance::on_event;
use super::{NOT_NAMED, approved, asked, ended};
use crate::args::{Common, Restore};
use crate::context::{context, read_file};
use crate::exit::Failure;
use crate::interrupt::interruptible_once;
use crate::transfer::TransferView;
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Restore) -> Result<ExitCode, Failure> {
    let request = Request {
        cluster: args.cluster.clone(),
        from: args.from.clone(),
        accepted: accepted(&args.accept)?,
        target: match (&args.backup, args.revision, args.at) {
            (Some(name), _, _) => RestoreTarget::Backup(name.parse()?),
            (None, Some(revision), _) => RestoreTarget::Revision(revision),
            (None, None, Some(moment)) => RestoreTarget::Moment(moment),
            (None, None, None) => RestoreTarget::Newest,
        },
        keys: keys(&args.key).map_err(OpError::from)?,
        show: args.show,
    };
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let show = |found: &Survey| match args.json {
        true => {
            view::print_json_line(&json!({ "event": "survey", "survey": found }));
            view::print_json_line(&json!({ "event": "plan", "plan": found.plan }));
        }
        false => view::print(&view::restore::survey(found, Paint::of_stdout())),
    };
    let approve = |found: &Survey| {
        let cluster = found.cluster.as_str();
        let question = format!("\nAll that `{cluster}` holds now is replaced. Type the cluster's name to continue: ");
        approved(&begun, args.yes, || asked(&question).as_deref() == Some(cluster), NOT_NAMED)
    };
    let transfer = TransferView::new(args.json);
    let progress = |checked, total| transfer.on_progress(Progress { received: 0, stored: 0, checked, total });
    let tried = |tested: &RestoreTestResult| {
        transfer.end();
        match args.json {
            true => view::print_json_line(&json!({ "event": "tested", "tested": tested })),
            false => view::print(&view::restore::tried(tested)),
        }
    };
    let done = interruptible_once(&begun, on_event(args.json), async |report, interrupt| {
        let execution = Execution { timeout: args.timeout, report, interrupt };
        let (consent, watch) =
            (Consent { show: &show, approve: &approve }, Watch { progress: &progress, tried: &tried });
        ended(&Box::pin(restore(spec, &context, request, consent, watch, execution)).await?)
    })
    .await;
    transfer.end();
    done
}
