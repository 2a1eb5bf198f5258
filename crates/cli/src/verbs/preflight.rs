//! `raftsman preflight`.

use std::process::ExitCode;

use raftsman_engine::ops::begin::locked;
use raftsman_engine::ops::preflight::preflight;

use crate::args::{Common, Preflight};
use crate::context::{clusters, context, read_file};
use crate::exit::{CHANGES, Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Preflight) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let (fleet, lock) = locked(spec, &context(common)?, "preflight", &only)?;
    let found = preflight(&fleet, &lock, &only, args.save).await?;
    if args.json {
        view::print_json(&found)?;
    } else {
        view::print(&view::preflight::render(&found, Paint::of_stdout()));
    }
    Ok(if found.iter().any(|one| one.is_unsafe()) { ExitCode::from(CHANGES) } else { OK })
}
