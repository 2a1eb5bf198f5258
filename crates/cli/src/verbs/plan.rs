//! `raftsman plan`.

use std::process::ExitCode;

use raftsman_engine::fleet::Setting;
use raftsman_engine::ops::plan::{FleetPlan, plan, plan_of_new};
use raftsman_engine::store::{Store, StoreError};

use crate::args::{Common, Plan};
use crate::exit::{CHANGES, Failure, OK};
use crate::setting::{clusters, open, read_file, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Plan) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let setting = setting(common)?;
    let mut plan =
        if is_new(&spec, &setting)? { plan_of_new(&spec)? } else { plan(&open(spec, setting)?, &only).await? };
    plan.clusters.retain(|c| only.is_empty() || only.contains(&c.cluster));
    show(&plan, args.json)?;
    Ok(match args.detailed_exitcode {
        true if plan.has_steps() => ExitCode::from(CHANGES),
        true if !plan.converges() => ExitCode::FAILURE,
        _ => OK,
    })
}

/// Whether this fleet has no state yet.
pub(super) fn is_new(spec: &raftsman_core::spec::Spec, setting: &Setting) -> Result<bool, Failure> {
    match Store::open(&setting.state_dir(spec), spec.fleet.as_str()) {
        Ok(_) => Ok(false),
        Err(StoreError::Missing { .. } | StoreError::Unfinished { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn show(plan: &FleetPlan, json: bool) -> Result<(), Failure> {
    if json {
        return view::print_json(plan);
    }
    view::print(&view::plan::render(plan, Paint::of_stdout()));
    Ok(())
}
