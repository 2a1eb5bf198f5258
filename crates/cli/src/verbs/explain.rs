//! `raftsman explain`.

use std::process::ExitCode;

use raftsman_core::spec::explain::explain;

use crate::args::Explain;
use crate::exit::{Failure, OK};
use crate::view::{self, Paint};

pub(super) fn run(args: &Explain) -> Result<ExitCode, Failure> {
    let found = explain(&args.key)?;
    if args.json {
        view::print_json(&found)?;
    } else {
        view::print(&view::explain::render(&found, Paint::of_stdout()));
    }
    Ok(OK)
}
