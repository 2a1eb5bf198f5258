//! `raftsman state check` and `raftsman state repair`.

use std::process::ExitCode;

use raftsman_engine::ops::begin::Consent;
use raftsman_engine::ops::state::{LedgerState, check, run_repair};
use serde_json::json;

use super::{DECLINED, confirmed};
use crate::args::{Common, State};
use crate::context::{clusters, context, open, read_file};
use crate::exit::{Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &State) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let context = context(common)?;
    match args {
        State::Check { clusters: names, json } => {
            let only = clusters(&spec, names)?;
            let found = check(&open(spec, context).await?, &only).await?;
            match json {
                true => view::print_json(&json!({ "ledgers": found }))?,
                false => view::print(&view::state::check(&found, Paint::of_stdout())),
            }
            Ok(if found.iter().any(|one| one.problem.is_some()) { ExitCode::FAILURE } else { OK })
        }
        State::Repair { clusters: names, yes, json } => {
            let only = clusters(&spec, names)?;
            let show = |found: &Vec<LedgerState>| {
                if !json {
                    view::print(&view::state::check(found, Paint::of_stdout()));
                }
            };
            let approve = |_: &Vec<LedgerState>| match *yes || confirmed("\nBring these back? [y/N] ") {
                true => Ok(()),
                false => Err(DECLINED.to_owned()),
            };
            let consent = Consent { show: &show, approve: &approve };
            let done = run_repair(spec, &context, &only, consent).await?;
            match json {
                true => view::print_json(&json!({ "repaired": done }))?,
                false if done.is_empty() => {}
                false => view::print(&view::state::repaired(&done)),
            }
            Ok(OK)
        }
    }
}
