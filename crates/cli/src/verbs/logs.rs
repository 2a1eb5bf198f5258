//! `raftsman logs`.

use std::process::ExitCode;

use raftsman_engine::ops::logs::logs;

use crate::args::{Common, Logs};
use crate::exit::{Failure, OK};
use crate::setting::{open, read_file, setting};
use crate::view;

pub(super) async fn run(common: &Common, args: &Logs) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let fleet = open(spec, setting(common)?)?;
    for line in logs(&fleet, &args.machine, args.agent, args.lines).await? {
        view::print(&format!("{line}\n"));
    }
    Ok(OK)
}
