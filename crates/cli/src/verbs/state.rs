//! `raftsman state check` and `raftsman state repair`.

use std::process::ExitCode;

use raftsman_engine::ops::state::{check, repair};
use serde_json::json;

use super::confirmed;
use crate::args::{Common, State};
use crate::exit::{Failure, OK};
use crate::setting::{begin, clusters, open, open_locked, read_file, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &State) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let setting = setting(common)?;
    match args {
        State::Check { clusters: names, json } => {
            let only = clusters(&spec, names)?;
            let found = check(&open(spec, setting)?, &only).await?;
            match json {
                true => view::print_json(&json!({ "ledgers": found }))?,
                false => view::print(&view::state::check(&found, Paint::of_stdout())),
            }
            Ok(if found.iter().any(|one| one.problem.is_some()) { ExitCode::FAILURE } else { OK })
        }
        State::Repair { clusters: names, yes, json } => {
            let only = clusters(&spec, names)?;
            let lock = begin(&spec, &setting, "state repair")?.lock;
            let fleet = open_locked(spec, setting, &lock)?;
            let found = check(&fleet, &only).await?;
            if !json {
                view::print(&view::state::check(&found, Paint::of_stdout()));
            }
            if found.iter().all(|one| one.problem.is_none()) {
                if *json {
                    view::print_json(&json!({ "repaired": [] }))?;
                }
                return Ok(OK);
            }
            if !yes && !confirmed("\nBring these back? [y/N] ") {
                return Err(Failure::other("nothing was done: answer `yes`, or give --yes"));
            }
            let done = repair(&fleet, &lock, &found).await?;
            match json {
                true => view::print_json(&json!({ "repaired": done }))?,
                false => view::print(&view::state::repaired(&done)),
            }
            Ok(OK)
        }
    }
}
