//! `raftsman join`.

use std::process::ExitCode;

use raftsman_engine::ops::join::{Invitation, check, join};

use crate::args::{Common, Join};
use crate::exit::{Failure, OK};
use crate::setting::{begin, open_locked, read_file, setting};
use crate::view;

pub(super) fn run(common: &Common, args: &Join) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    check(&spec)?;
    let setting = setting(common)?;
    let lock = begin(&spec, &setting, "join")?.lock;
    let fleet = open_locked(spec, setting, &lock)?;
    let invitation = join(&fleet, &lock, &args.host, args.valid_for)?;
    if args.json {
        view::print_json(&invitation)?;
    } else {
        view::print(&command(&invitation)?);
    }
    Ok(OK)
}

/// One line for a shell. Neither names nor certificates have a quote in them.
fn command(invitation: &Invitation) -> Result<String, Failure> {
    let boot = serde_json::to_string(&invitation.boot).map_err(|error| Failure::other(error.to_string()))?;
    Ok(format!("printf '%s\\n' '{boot}' | sudo raftsman-agent install\n"))
}
