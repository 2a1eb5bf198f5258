//! `raftsman defrag`, `raftsman compact`, `raftsman move-leader`, `raftsman verify`.

use std::process::ExitCode;
use std::sync::Arc;

use raftsman_engine::fleet::Fleet;
use raftsman_engine::ops::apply::{Tell, begin};
use raftsman_engine::ops::upkeep::{Drop, Whose, compact, defrag, move_leader, verify};
use raftsman_engine::store::Lock;

use super::plan::is_new;
use crate::args::{Common, Compact, Defrag, MoveLeader, Verify};
use crate::exit::{CHANGES, Failure, OK};
use crate::progress::Progress;
use crate::setting::{clusters, open, read_file, setting};
use crate::view::{self, Paint};

pub(super) async fn run_defrag(common: &Common, args: &Defrag) -> Result<ExitCode, Failure> {
    let (fleet, lock) = locked(common, "defrag")?;
    let tell = tell(args.json);
    let whose = match &args.member {
        Some(member) => Whose::Member(member),
        None if args.all => Whose::All,
        None => Whose::Large,
    };
    let done = defrag(&fleet, &lock, args.cluster.as_deref(), whose, &tell).await?;
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "defragmented", "members": done }));
    } else if done.is_empty() {
        view::print("Nothing to do: no file has much room in it. `--all` rewrites them all the same.\n");
    } else {
        view::print(&view::upkeep::defragmented(&done, Paint::of_stdout()));
    }
    Ok(OK)
}

pub(super) async fn run_compact(common: &Common, args: &Compact) -> Result<ExitCode, Failure> {
    let (fleet, lock) = locked(common, "compact")?;
    let what = match (args.revision, args.keep) {
        (Some(revision), _) => Drop::Before(revision),
        (None, keep) => Drop::AllBut(keep.unwrap_or(0)),
    };
    let done = compact(&fleet, &lock, args.cluster.as_deref(), what, &tell(args.json)).await?;
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
    let (fleet, lock) = locked(common, "move-leader")?;
    let leader = move_leader(&fleet, &lock, &args.member, &tell(args.json)).await?;
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
    let found = verify(&open(spec, setting(common)?)?, &only).await?;
    if args.json {
        view::print_json(&found)?;
    } else {
        view::print(&view::upkeep::verified(&found, Paint::of_stdout()));
    }
    Ok(match () {
        () if found.iter().any(|one| one.verdict == "differ") => ExitCode::FAILURE,
        () if found.iter().any(|one| one.verdict != "same") => ExitCode::from(CHANGES),
        () => OK,
    })
}

/// The fleet, once nobody else changes it.
pub(super) fn locked(common: &Common, verb: &str) -> Result<(Arc<Fleet>, Lock), Failure> {
    let spec = read_file(common)?;
    let setting = setting(common)?;
    if is_new(&spec, &setting)? {
        return Err(Failure::other("this fleet was never applied: run `raftsman apply` first"));
    }
    let (_, lock) = begin(&spec, &setting, verb)?;
    Ok((open(spec, setting)?, lock))
}

pub(super) fn tell(json: bool) -> Tell {
    let progress = Progress::new(json);
    Arc::new(move |cluster, event| progress.hear(cluster, &event))
}
