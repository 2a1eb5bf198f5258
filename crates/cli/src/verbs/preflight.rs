//! `raftsman preflight`.

use std::process::ExitCode;

use raftsman_engine::ops::preflight::preflight;

use super::upkeep::locked;
use crate::args::{Common, Preflight};
use crate::exit::{CHANGES, Failure, OK};
use crate::setting::{clusters, read_file};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Preflight) -> Result<ExitCode, Failure> {
    let only = clusters(&read_file(common)?, &args.clusters)?;
    let (fleet, lock) = locked(common, "preflight")?;
    let found = preflight(&fleet, &lock, &only, args.save).await?;
    if args.json {
        view::print_json(&found)?;
    } else {
        view::print(&view::preflight::render(&found, Paint::of_stdout()));
    }
    Ok(if found.iter().any(|one| one.is_unsafe()) { ExitCode::from(CHANGES) } else { OK })
}
