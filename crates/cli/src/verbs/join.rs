//! `raftsman join`.

use std::process::ExitCode;

use raftsman_engine::ops::join::{Invitation, run as join};

use crate::args::{Common, Join};
use crate::context::{context, read_file};
use crate::exit::{Failure, OK};
use crate::view;

pub(super) async fn run(common: &Common, args: &Join) -> Result<ExitCode, Failure> {
    let invitation = join(read_file(common)?, &context(common)?, &args.host, args.valid_for).await?;
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
