//! `raftsman apply`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use raftsman_core::spec::Name;
use raftsman_engine::fleet::Fleet;
use raftsman_engine::ops::apply::{Tell, apply, begin, preflight, withdraw};
use raftsman_engine::ops::plan::{plan, plan_of_new};
use raftsman_engine::store::Lock;

use super::{confirmed, plan::is_new};
use crate::args::{Apply, Common};
use crate::exit::{Failure, OK};
use crate::progress::Progress;
use crate::setting::{clusters, open, read_file, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Apply) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let setting = setting(common)?;
    // Ask before anything is made, even the state.
    let new = is_new(&spec, &setting)?;
    let forecast = if new {
        let mut forecast = plan_of_new(&spec)?;
        forecast.clusters.retain(|c| only.is_empty() || only.contains(&c.cluster));
        forecast
    } else {
        plan(&open(spec.clone(), setting.clone())?, &only).await?
    };
    if args.json {
        view::print_json_line(&serde_json::json!({ "event": "plan", "plan": forecast }));
    } else {
        view::print(&view::plan::render(&forecast, Paint::of_stdout()));
    }
    if !forecast.has_steps() && forecast.converges() {
        return Ok(OK);
    }
    if !args.yes && !confirmed("\nCarry this out? [y/N] ") {
        return Err(Failure::other("nothing was done: answer `yes`, or give --yes"));
    }
    let (store, lock) = begin(&spec, &setting, "apply")?;
    let checked: Result<_, Failure> = async {
        let fleet = open(spec, setting.clone())?;
        preflight(&fleet, &only).await?;
        Ok(fleet)
    }
    .await;
    let fleet: Arc<Fleet> = match checked {
        Ok(fleet) => fleet,
        Err(failure) => {
            if new {
                withdraw(store, &setting, lock)?;
            }
            return Err(failure);
        }
    };
    let progress = Progress::new(args.json);
    let tell: Tell = Arc::new(move |cluster, event| progress.hear(cluster, &event));
    carry_out(&fleet, &lock, &only, args.timeout, tell).await
}

/// Applies until all is done, or somebody interrupts it.
pub(super) async fn carry_out(
    fleet: &Arc<Fleet>,
    lock: &Lock,
    only: &[Name],
    timeout: Duration,
    tell: Tell,
) -> Result<ExitCode, Failure> {
    let outcomes = tokio::select! {
        outcomes = apply(fleet, lock, only, timeout, tell) => outcomes?,
        _ = tokio::signal::ctrl_c() => {
            return Err(Failure::other("interrupted: the next `raftsman apply` goes on from the world as it is then"));
        }
    };
    if outcomes.iter().any(|o| o.error.is_some()) { Err(Failure::said()) } else { Ok(OK) }
}
