//! `raftsman defrag`, `raftsman compact`, `raftsman move-leader`, `raftsman verify`.

use std::process::ExitCode;
use std::sync::Arc;

use raftsman_engine::ops::apply::OnEvent;
use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::maintenance::{CompactTarget, Compacted, DefragScope, compact, defrag, move_leader, verify};
use tokio::sync::Notify;

use super::{NOT_NAMED, approved, asked};
use crate::args::{Common, Compact, Defrag, MoveLeader, Verify};
use crate::context::{clusters, context, open, read_file};
use crate::exit::{CHANGES, Failure, OK};
use crate::interrupt::interruptible_once;
use crate::progress::Progress;
use crate::view::{self, Paint};

pub(super) async fn run_defrag(common: &Common, args: &Defrag) -> Result<ExitCode, Failure> {
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let cluster = args.cluster.as_deref();
    let scope = match &args.member {
        Some(member) => DefragScope::Member(member),
        None if args.all => DefragScope::All,
        None => DefragScope::Large,
    };
    let done = interruptible_once(&begun, on_event(args.json), async |on_event, interrupt| {
        let locked = || begun.notify_one();
        Ok(Box::pin(defrag(spec, &context, cluster, scope, &locked, &on_event, &interrupt)).await?)
    })
    .await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "defragmented", "members": done }));
    } else if done.is_empty() {
        view::print("Nothing to do: no file has enough free space in it. `--all` rewrites them anyway.\n");
    } else {
        view::print(&view::maintenance::defragmented(&done, Paint::of_stdout()));
    }
    Ok(OK)
}

pub(super) async fn run_compact(common: &Common, args: &Compact) -> Result<ExitCode, Failure> {
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let what = match (args.revision, args.keep) {
        (Some(revision), _) => CompactTarget::Before(revision),
        (None, keep) => CompactTarget::AllBut(keep.unwrap_or(0)),
    };
    let approve = |goes: &Compacted| {
        let question = format!(
            "etcd {}: history before revision {} goes, of {} in all; it can no longer be read or watched\n\
             Type the cluster's name to continue: ",
            goes.cluster, goes.revision, goes.newest
        );
        let answered = || asked(&question).as_deref() == Some(goes.cluster.as_str());
        approved(&begun, args.yes, answered, NOT_NAMED)
    };
    let done = interruptible_once(&begun, on_event(args.json), async |on_event, _| {
        let consent = Consent { show: &|_: &Compacted| {}, approve: &approve };
        Ok(Box::pin(compact(spec, &context, args.cluster.as_deref(), what, consent, &on_event)).await?)
    })
    .await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "compacted", "compacted": done }));
    } else {
        view::print(&format!(
            "{}: history before revision {} is gone; the newest is {}\n",
            done.cluster, done.revision, done.newest
        ));
    }
    Ok(OK)
}

pub(super) async fn run_move_leader(common: &Common, args: &MoveLeader) -> Result<ExitCode, Failure> {
    let (spec, context, begun) = (read_file(common)?, context(common)?, Notify::new());
    let leader = interruptible_once(&begun, on_event(args.json), async |on_event, _| {
        let locked = || begun.notify_one();
        Ok(Box::pin(move_leader(spec, &context, &args.member, &locked, &on_event)).await?)
    })
    .await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "leads", "member": leader }));
    } else {
        view::print(&format!("{leader} leads\n"));
    }
    Ok(OK)
}

pub(super) async fn run_verify(common: &Common, args: &Verify) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let found = verify(&open(spec, context(common)?).await?, &only).await?;
    if args.json {
        view::print_json(&found)?;
    } else {
        view::print(&view::maintenance::verified(&found, Paint::of_stdout()));
    }
    Ok(match () {
        () if found.iter().any(|one| one.verdict == "differ") => ExitCode::FAILURE,
        () if found.iter().any(|one| one.verdict != "same") => ExitCode::from(CHANGES),
        () => OK,
    })
}

pub(super) fn on_event(json: bool) -> OnEvent {
    let progress = Progress::new(json);
    Arc::new(move |cluster, event| progress.on_event(cluster, &event))
}
