//! `raftsman journal`.

use std::process::ExitCode;

use raftsman_engine::store::{Filter, Store};

use crate::args::{Common, Journal};
use crate::exit::{Failure, OK};
use crate::setting::{read_file, setting};
use crate::view::{self, Paint};

pub(super) fn run(common: &Common, args: &Journal) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    let setting = setting(common)?;
    let store = Store::open(&setting.state_dir(&spec), spec.fleet.as_str())?;
    let entries = store.journal(&Filter { cluster: args.cluster.clone(), last: Some(args.last) })?;
    if args.json {
        entries.iter().for_each(view::print_json_line);
    } else {
        view::print(&view::journal::render(&entries, Paint::of_stdout()));
    }
    Ok(OK)
}
