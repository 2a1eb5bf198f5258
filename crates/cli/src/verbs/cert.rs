//! `raftsman cert list` and `raftsman cert issue`; `rotate` has a file of its own.

use std::process::ExitCode;

use raftsman_engine::ops::cert::{Existing, IssueRequest, Role, issue, issue_for_agents, list};
use serde_json::json;

use crate::args::{AgentRole, Cert, Common};
use crate::context::{clusters, context, open, read_file};
use crate::exit::{Failure, OK};
use crate::view::{self, Paint};

pub(super) async fn run(common: &Common, args: &Cert) -> Result<ExitCode, Failure> {
    let spec = read_file(common)?;
    match args {
        Cert::Rotate(args) => return super::rotate::run(common, args).await,
        Cert::Revoke(args) => return super::rotate::revoke(common, args).await,
        Cert::List { clusters: names, json } => {
            let only = clusters(&spec, names)?;
            let fleet = open(spec, context(common)?).await?;
            let (certificates, silent) = list(&fleet, &only).await?;
            if *json {
                view::print_json(&json!({ "certificates": certificates, "unreachable": silent }))?;
            } else {
                let now = jiff::Timestamp::now();
                view::print(&view::cert::render(&certificates, &silent, now, Paint::of_stdout()));
            }
        }
        Cert::Issue { user, agent_role, cluster, out, validity, force, json } => {
            let fleet = open(spec, context(common)?).await?;
            let existing = if *force { Existing::Replace } else { Existing::Keep };
            let request = IssueRequest { name: user, dir: out, validity: *validity, existing };
            let issued = match agent_role {
                Some(AgentRole::Reader) => issue_for_agents(&fleet, Role::Reader, request)?,
                Some(AgentRole::Operator) => issue_for_agents(&fleet, Role::Operator, request)?,
                None => issue(&fleet, cluster.as_deref(), request).await?,
            };
            for warning in &issued.warnings {
                view::warn(warning);
            }
            if *json {
                view::print_json(&issued)?;
            } else {
                view::print(&format!(
                    "wrote {}, {} and {}, valid until {}\n",
                    issued.certificate.display(),
                    issued.key.display(),
                    issued.ca.display(),
                    issued.not_after.strftime("%Y-%m-%d %H:%M"),
                ));
            }
        }
    }
    Ok(OK)
}
