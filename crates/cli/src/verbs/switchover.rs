//! `raftsman switchover`.

use std::process::ExitCode;

use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::switchover::{Patience, Switched, Switchover as Foreseen, run as switch};
use tokio::sync::Notify;

use super::maintenance::on_event;
use super::{DECLINED, approved, confirmed};
use crate::args::{Common, Switchover};
use crate::context::{context, read_file};
use crate::exit::{Failure, OK};
use crate::interrupt::interruptible_once;
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Switchover) -> Result<ExitCode, Failure> {
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let (cluster, to) = (args.cluster.as_deref(), args.to.as_deref());
    let show = |foreseen: &Foreseen| match args.json {
        true => view::print_json_line(&serde_json::json!({ "event": "switchover", "switchover": foreseen })),
        false => view::print(&view::postgres::switchover(foreseen, Paint::of_stdout())),
    };
    let approve = |_: &Foreseen| {
        let answered = || confirmed("\nSwitch over? [y/N] ");
        approved(&begun, args.yes, answered, DECLINED)
    };
    let switched = interruptible_once(&begun, on_event(args.json), async |on_event, interrupt| {
        let consent = Consent { show: &show, approve: &approve };
        let patience = Patience { limit: args.timeout, interrupt: &interrupt };
        Ok(Box::pin(switch(spec, &context, cluster, to, patience, consent, &on_event)).await?)
    })
    .await?;
    let (primary, already) = match &switched {
        Switched::Already(primary) => (primary, true),
        Switched::Done(done) => (&done.to, false),
    };
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "leads", "node": primary, "already": already }));
    } else {
        view::print(&format!("{primary} is the primary{}\n", if already { " already" } else { "" }));
    }
    Ok(OK)
}
