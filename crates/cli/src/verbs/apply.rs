//! `raftsman apply`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use raftsman_core::spec::Name;
use raftsman_engine::fleet::Fleet;
use raftsman_engine::ops::apply::{Begun, Tell, apply, preflight, withdraw};
use raftsman_engine::ops::plan::{Detail, plan, plan_of_new};
use raftsman_engine::store::Lock;

use super::confirmed;
use super::plan::{complain, is_new};
use crate::args::{Apply, Common};
use crate::exit::{Failure, OK};
use crate::interrupt::interruptible;
use crate::progress::Progress;
use crate::setting::{begin, clusters, judge_file, open, open_locked, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Apply) -> Result<ExitCode, Failure> {
    let spec = judge_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let setting = setting(common)?;
    // Ask before anything is made, even the state.
    let new = is_new(&spec, &setting)?;
    let mut forecast = match new {
        true => plan_of_new(&spec, &setting, &only, Detail::default())?,
        false => plan(&open(spec.clone(), setting.clone())?, &only, Detail::default()).await?,
    };
    if !new && !forecast.obstacles().is_empty() {
        // A port that is taken may be one that another command has just given to a machine: where one holds the lock, it
        // is named, or waited for.
        drop(begin(&spec, &setting, "apply")?);
        forecast = plan(&open(spec.clone(), setting.clone())?, &only, Detail::default()).await?;
    }
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "plan", "plan": forecast }));
    } else {
        view::print(&view::plan::render(&forecast, Paint::of_stdout()));
    }
    if !forecast.has_steps() && forecast.converges() {
        return Ok(OK);
    }
    complain(&forecast.obstacles())?;
    if !args.yes && !confirmed("\nCarry this out? [y/N] ") {
        return Err(Failure::other("nothing was done: answer `yes`, or give --yes"));
    }
    let Begun { store, lock, made } = begin(&spec, &setting, "apply")?;
    let checked: Result<_, Failure> = async {
        let fleet = open_locked(spec, setting.clone(), &lock)?;
        preflight(&fleet, &only).await?;
        Ok(fleet)
    }
    .await;
    let fleet: Arc<Fleet> = match checked {
        Ok(fleet) => fleet,
        Err(failure) => {
            if made {
                withdraw(store, &setting, lock)?;
            }
            return Err(failure);
        }
    };
    let progress = Progress::new(args.json);
    let tell: Tell = Arc::new(move |cluster, event| progress.hear(cluster, &event));
    carry_out(&fleet, &lock, &only, args.timeout, tell).await
}

/// Applies until all is done, or an operator interrupts it.
pub(super) async fn carry_out(
    fleet: &Arc<Fleet>,
    lock: &Lock,
    only: &[Name],
    timeout: Duration,
    tell: Tell,
) -> Result<ExitCode, Failure> {
    interruptible(tell, async |tell, interrupt| {
        let outcomes = apply(fleet, lock, only, timeout, tell, &interrupt).await?;
        if outcomes.iter().any(|o| o.error.is_some()) { Err(Failure::said()) } else { Ok(OK) }
    })
    .await
}
