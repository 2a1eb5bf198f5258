//! `raftsman preflight`.

use std::process::ExitCode;

use raftsman_engine::ops::preflight::run as preflight;

use crate::args::{Common, Preflight};
use crate::context::{clusters, context, read_file};
use crate::exit::{CHANGES, Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Preflight) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let found = Box::pin(preflight(spec, &context(common)?, &only, args.save)).await?;
    if args.json {
        view::print_json(&found)?;
    } else {
        view::print(&view::preflight::render(&found, Paint::of_stdout()));
    }
    Ok(if found.iter().any(|one| one.is_unsafe()) { ExitCode::from(CHANGES) } else { OK })
}
