//! `raftsman status`.

use std::process::ExitCode;

use raftsman_engine::ops::status::status;

use crate::args::{Common, Status};
use crate::exit::{CHANGES, Failure, OK};
use crate::setting::{clusters, open, read_file, setting};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Status) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let fleet = open(spec, setting(common)?)?;
    let status = status(&fleet, &only).await?;
    if args.json {
        view::print_json(&status)?;
    } else {
        view::print(&view::status::render(&status, jiff::Timestamp::now(), Paint::of_stdout()));
    }
    Ok(if status.settled() { OK } else { ExitCode::from(CHANGES) })
}
