//! The command line's own definition → shell completions and manual pages.

use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::args::Arguments;
use crate::exit::{Failure, OK};
use crate::view;

pub(super) fn completions(shell: clap_complete::Shell) {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "raftsman", &mut text);
    view::print(&String::from_utf8_lossy(&text));
}

pub(super) fn pages(directory: &Path) -> Result<ExitCode, Failure> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Arguments::command(), directory)?;
    Ok(OK)
}
