//! `raftsman defrag`, `raftsman compact`, `raftsman move-leader`, `raftsman verify`.

use std::process::ExitCode;
use std::sync::Arc;

use raftsman_engine::ops::apply::OnEvent;
use raftsman_engine::ops::begin::{locked_cluster, locked_member};
use raftsman_engine::ops::maintenance::{
    CompactTarget, DefragScope, compact, compactable, defrag, move_leader, verify,
};

use super::{NOT_NAMED, asked};
use crate::args::{Common, Compact, Defrag, MoveLeader, Verify};
use crate::context::{clusters, context, open, read_file};
use crate::exit::{CHANGES, Failure, OK};
use crate::interrupt::interruptible;
use crate::progress::Progress;
use crate::view::{self, Paint};

pub(super) async fn run_defrag(common: &Common, args: &Defrag) -> Result<ExitCode, Failure> {
    let (spec, context, on_event) = (read_file(common)?, context(common)?, on_event(args.json));
    let cluster = args.cluster.as_deref();
    let (fleet, lock) = match &args.member {
        Some(member) => locked_member(spec, &context, "defrag", cluster, member)?,
        None => locked_cluster(spec, &context, "defrag", cluster)?,
    };
    let scope = match &args.member {
        Some(member) => DefragScope::Member(member),
        None if args.all => DefragScope::All,
        None => DefragScope::Large,
    };
    let done = interruptible(on_event, async |on_event, interrupt| {
        Ok(defrag(&fleet, &lock, args.cluster.as_deref(), scope, &on_event, &interrupt).await?)
    })
    .await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "defragmented", "members": done }));
    } else if done.is_empty() {
        view::print("Nothing to do: no file has much room in it. `--all` rewrites them all the same.\n");
    } else {
        view::print(&view::maintenance::defragmented(&done, Paint::of_stdout()));
    }
    Ok(OK)
}

pub(super) async fn run_compact(common: &Common, args: &Compact) -> Result<ExitCode, Failure> {
    let (fleet, lock) = locked_cluster(read_file(common)?, &context(common)?, "compact", args.cluster.as_deref())?;
    let what = match (args.revision, args.keep) {
        (Some(revision), _) => CompactTarget::Before(revision),
        (None, keep) => CompactTarget::AllBut(keep.unwrap_or(0)),
    };
    let goes = compactable(&fleet, args.cluster.as_deref(), what).await?;
    if !args.yes {
        let question = format!(
            "etcd {}: history before revision {} goes, of {} in all; it can no longer be read or watched\n\
             Type the cluster's name to go on: ",
            goes.cluster, goes.revision, goes.newest
        );
        if asked(&question).as_deref() != Some(goes.cluster.as_str()) {
            return Err(Failure::other(NOT_NAMED));
        }
    }
    // The revision that the operator approved, even if the cluster has newer ones meanwhile.
    let what = CompactTarget::Before(goes.revision);
    let done = interruptible(on_event(args.json), async |on_event, _| {
        Ok(compact(&fleet, &lock, args.cluster.as_deref(), what, &on_event).await?)
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
    let (fleet, lock) = locked_member(read_file(common)?, &context(common)?, "move-leader", None, &args.member)?;
    let leader = interruptible(on_event(args.json), async |on_event, _| {
        Ok(move_leader(&fleet, &lock, &args.member, &on_event).await?)
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
    let found = verify(&open(spec, context(common)?)?, &only).await?;
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
