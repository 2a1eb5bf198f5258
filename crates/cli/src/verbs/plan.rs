//! `raftsman plan`.

use std::process::ExitCode;

use raftsman_engine::fleet::{Fleet, Setting};
use raftsman_engine::ops::needs::Unmet;
use raftsman_engine::ops::plan::{Detail, FleetPlan, plan, plan_of_new};
use raftsman_engine::store::{Store, StoreError};

use crate::args::{Common, Plan};
use crate::exit::{CHANGES, Failure, OK};
use crate::setting::{clusters, judge_file, open, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Plan) -> Result<ExitCode, Failure> {
    let spec = judge_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let setting = setting(common)?;
    let detail = Detail { diffs: args.diff, explain: args.explain };
    let plan = match is_new(&spec, &setting)? {
        true => plan_of_new(&spec, &setting, &only, detail)?,
        false => plan(&open(spec, setting)?, &only, detail).await?,
    };
    show(&plan, args.json)?;
    complain(&plan.unmet.iter().collect::<Vec<_>>())?;
    Ok(match args.detailed_exitcode {
        true if plan.has_steps() => ExitCode::from(CHANGES),
        true if !plan.converges() => ExitCode::FAILURE,
        _ => OK,
    })
}

/// Whether this fleet has no state yet, or one whose making was cut short.
pub(super) fn is_new(spec: &raftsman_core::spec::Spec, setting: &Setting) -> Result<bool, Failure> {
    Ok(match state(spec, setting)? {
        Some(store) => !Fleet::is_complete(&store)?,
        None => true,
    })
}

/// The state of this fleet; none where there is none yet, or not even its identity was finished.
pub(super) fn state(spec: &raftsman_core::spec::Spec, setting: &Setting) -> Result<Option<Store>, Failure> {
    match Store::open(&setting.state_dir(spec), spec.fleet.as_str()) {
        Ok(store) => Ok(Some(store)),
        Err(StoreError::Missing { .. } | StoreError::Unfinished { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Fails where `apply` needs something that is not there.
pub(super) fn complain(unmet: &[&Unmet]) -> Result<(), Failure> {
    match unmet {
        [] => Ok(()),
        [one] => Err(Failure::other(one.message.clone())),
        [one, rest @ ..] => Err(Failure::other(format!("{}, and {} more: see above", one.message, rest.len()))),
    }
}

fn show(plan: &FleetPlan, json: bool) -> Result<(), Failure> {
    if json {
        return view::print_json(plan);
    }
    view::print(&view::plan::render(plan, Paint::of_stdout()));
    Ok(())
}
