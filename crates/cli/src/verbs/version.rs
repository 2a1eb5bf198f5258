//! `raftsman version`.

use std::process::ExitCode;

use raftsman_engine::fleet::Context;
use raftsman_engine::ops::begin::{is_new, open};
use raftsman_engine::ops::version::{AgentVersion, agents};
use serde::Serialize;

use crate::args::{Common, Version};
use crate::context::{context, read_file};
use crate::exit::{Failure, OK};
use crate::view;

/// This program, and the agents of the fleet.
#[derive(Debug, Serialize)]
pub(crate) struct Versions {
    /// Its version.
    pub(crate) version: &'static str,
    /// The commit that it was built from, where the build named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<&'static str>,
    /// What it was built for, such as `x86_64-linux-gnu`.
    pub(crate) target: String,
    /// Every agent's version, where there is a file whose fleet was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agents: Option<Vec<AgentVersion>>,
    /// Why agents could not be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) agents_error: Option<String>,
}

pub(super) async fn run(common: &Common, args: &Version) -> Result<ExitCode, Failure> {
    let (agents, agents_error) = match common.file.exists() {
        true => match of_agents(common).await {
            Ok(agents) => (agents, None),
            Err(failure) => {
                let error = failure.message().unwrap_or("the file has errors: `raftsman check` shows them");
                (None, Some(error.to_owned()))
            }
        },
        false => (None, None),
    };
    let versions = Versions {
        version: env!("CARGO_PKG_VERSION"),
        // Set by the build, so that it needs no git.
        commit: option_env!("RAFTSMAN_COMMIT"),
        target: target(),
        agents,
        agents_error,
    };
    if args.json {
        view::print_json(&versions)?;
    } else {
        view::print(&view::version::render(&versions));
    }
    Ok(OK)
}

/// Nothing where the fleet has no state yet.
async fn of_agents(common: &Common) -> Result<Option<Vec<AgentVersion>>, Failure> {
    let spec = read_file(common)?;
    // A version query must not ask for a passphrase.
    let context = Context { ask_passphrase: None, ..context(common)? };
    if is_new(&spec, &context).await? {
        return Ok(None);
    }
    Ok(Some(agents(&open(spec, context).await?).await?))
}

fn target() -> String {
    let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    format!("{}-{}-{libc}", std::env::consts::ARCH, std::env::consts::OS)
}
