//! `raftsman plan`.

use std::process::ExitCode;

use raftsman_engine::ops::OpError;
use raftsman_engine::ops::begin::is_new;
use raftsman_engine::ops::plan::{Detail, FleetPlan, plan, plan_of_new};

use crate::args::{Common, Plan};
use crate::context::{context, judge_file, open, stacks};
use crate::exit::{CHANGES, Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Plan) -> Result<ExitCode, Failure> {
    let spec = judge_file(common)?;
    let only = stacks(&spec, &args.clusters)?;
    let context = context(common)?;
    let detail = Detail { diffs: args.diff, explain: args.explain };
    let plan = match is_new(&spec, &context).await? {
        true => plan_of_new(&spec, &context, &only, detail)?,
        false => plan(&open(spec, context).await?, &only, detail).await?,
    };
    show(&plan, args.json)?;
    if !plan.unmet.is_empty() {
        return Err(OpError::Unmet(plan.unmet).into());
    }
    Ok(match args.detailed_exitcode {
        true if plan.has_steps() => ExitCode::from(CHANGES),
        true if !plan.converges() => ExitCode::FAILURE,
        _ => OK,
    })
}

fn show(plan: &FleetPlan, json: bool) -> Result<(), Failure> {
    if json {
        return view::print_json(plan);
    }
    view::print(&view::plan::render(plan, Paint::of_stdout()));
    Ok(())
}
