//! `raftsman adopt`.

use std::process::ExitCode;

use raftsman_core::spec::Name;
use raftsman_engine::ops::adopt::{Choices, adopt};

use crate::args::{Adopt, Common};
use crate::context::context;
use crate::exit::{Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Adopt) -> Result<ExitCode, Failure> {
    let named = |option: &str, text: &str| Name::parse(text).map_err(|e| Failure::usage(format!("{option}: {e}")));
    let choices = Choices {
        endpoints: args.endpoints.clone(),
        ca: args.cacert.clone(),
        certificate: args.cert.clone().zip(args.key.clone()),
        password: args.password_file.clone(),
        ca_key: args.ca_key.clone(),
        peers: args.peer_cacert.clone().zip(args.peer_ca_key.clone()),
        fleet: named("--fleet", &args.fleet)?,
        cluster: named("--name", &args.name)?,
    };
    let mut context = context(common)?;
    if let Some(output) = &args.output {
        context.file.clone_from(output);
    }
    let adoption = Box::pin(adopt(&choices, &context)).await?;
    if args.json {
        view::print_json(&adoption)?;
    } else {
        view::print(&view::adopt::render(&adoption, Paint::of_stdout()));
    }
    Ok(OK)
}
