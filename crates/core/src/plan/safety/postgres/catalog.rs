//! A step on roles and databases of PostgreSQL → that it costs nothing, or why it must not be done.

#![warn(clippy::wildcard_enum_match_arm)]

use super::super::{Case, Cost, Refusal, otherwise};
use super::{named, settled};
use crate::action::PostgresAction;
use crate::desired::Postgres;
use crate::observed::Catalog;
use crate::spec::Name;
use crate::spec::postgres::{Database, is_reserved};

pub(super) fn judge(case: &Case<'_>, action: &PostgresAction) -> Result<Cost, Refusal> {
    match action {
        PostgresAction::SetPostgresRole { cluster, role, .. } => {
            let (cluster, catalog) = seen(case, cluster)?;
            let wanted = cluster.section.roles.as_ref().and_then(|roles| roles.get(role));
            let wanted = wanted.ok_or_else(|| otherwise("the file has no such role"))?;
            if is_reserved(role) {
                return Err(otherwise("it is PostgreSQL's or raftsman's own role"));
            }
            match wanted.member_of.iter().find(|of| !catalog.has_role(of)) {
                Some(missing) => Err(Refusal::Otherwise(format!("there is no role {missing} yet"))),
                None => Ok(case.unharmed),
            }
        }
        PostgresAction::DropPostgresRole { cluster, role } => {
            let (cluster, catalog) = seen(case, cluster)?;
            let listed = cluster.section.roles.as_ref().ok_or_else(|| otherwise("the file lists no roles"))?;
            if listed.contains_key(role) || is_reserved(role) {
                return Err(otherwise("the role is to stay"));
            }
            let owns = |database: &Database| database.owner == *role;
            if cluster.section.databases.iter().flatten().any(|(_, database)| owns(database)) {
                return Err(otherwise("a database of the file belongs to it"));
            }
            match catalog.roles.contains_key(role) {
                true => Ok(case.unharmed),
                false => Err(otherwise("there is no such role")),
            }
        }
        // It waits for no standby: without it, one may not be let in.
        PostgresAction::SetNodePassword { cluster, role } => {
            let cluster = named(case, cluster)?;
            if cluster.node_password(role).is_none() {
                return Err(otherwise("the file has no password of this role"));
            }
            match crate::plan::situation::postgres::seen(cluster, case.observed)?.primary() {
                Some(_) => Ok(case.unharmed),
                None => Err(Refusal::NotSeen("the primary")),
            }
        }
        PostgresAction::SetDatabase { cluster, database } => {
            let (cluster, catalog) = seen(case, cluster)?;
            let wanted = cluster.section.databases.as_ref().and_then(|databases| databases.get(database));
            let wanted = wanted.ok_or_else(|| otherwise("the file has no such database"))?;
            match catalog.has_role(&wanted.owner) {
                true => Ok(case.unharmed),
                false => Err(otherwise("its owner is not there yet")),
            }
        }
        PostgresAction::MakePostgresCa { .. }
        | PostgresAction::IssueNodeCertificate { .. }
        | PostgresAction::InstallPatroni { .. }
        | PostgresAction::ConfigurePatroni { .. }
        | PostgresAction::StartPatroni { .. }
        | PostgresAction::ReloadPatroni { .. }
        | PostgresAction::RestartPatroni { .. }
        | PostgresAction::RestartPostgres { .. }
        | PostgresAction::ReinitializeNode { .. }
        | PostgresAction::StopPatroni { .. }
        | PostgresAction::Switchover { .. }
        | PostgresAction::SetPatroni { .. } => Err(otherwise("it is no step on roles and databases")),
    }
}

/// The cluster and its catalog, where a commit waits for no standby that is missing.
fn seen<'a>(case: &Case<'a>, cluster: &Name) -> Result<(&'a Postgres, &'a Catalog), Refusal> {
    let cluster = named(case, cluster)?;
    settled(case, cluster, None)?;
    let seen = case.observed.postgres.get(&cluster.name).and_then(|seen| seen.catalog.as_ref());
    let catalog = seen.and_then(|seen| seen.as_ref().ok()).ok_or(Refusal::NotSeen("its roles and databases"))?;
    Ok((cluster, catalog))
}
