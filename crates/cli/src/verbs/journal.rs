//! `raftsman journal`.

use std::process::ExitCode;

use raftsman_engine::store::{Filter, Store};

use crate::args::{Common, Journal};
use crate::context::{context, read_file};
use crate::exit::{Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Journal) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let context = context(common)?;
    let store = Store::open(&context.state_dir(&spec), spec.fleet.as_str()).await?;
    let entries = store.journal(&Filter { cluster: args.cluster.clone(), last: Some(args.last) }).await?;
    if args.json {
        entries.iter().for_each(view::print_json_line);
    } else {
        view::print(&view::journal::render(&entries, Paint::of_stdout()));
    }
    Ok(OK)
}
