//! `raftsman versions`.

use std::process::ExitCode;

use raftsman_engine::ops::versions::all;

use crate::args::{Common, Versions};
use crate::context::{clusters, context, open, read_file};
use crate::exit::{CHANGES, Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Versions) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let only = clusters(&spec, &args.clusters)?;
    let fleet = open(spec, context(common)?).await?;
    let versions = all(&fleet, &only).await?;
    if args.json {
        view::print_json(&versions)?;
    } else {
        view::print(&view::versions::render(&versions, Paint::of_stdout()));
    }
    let there = versions.iter().all(|c| c.way.is_empty() && c.refused.is_none() && c.unmet.is_none());
    Ok(if there { OK } else { ExitCode::from(CHANGES) })
}
