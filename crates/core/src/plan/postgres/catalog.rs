//! Roles and databases of the file, those that PostgreSQL has → what differs, and the steps that correct it.
//!
//! First every role is as it should be, each after those that it is a member of; then the databases, which have owners;
//! and only then do roles go that the file does not list. A database is never removed.

use indexmap::IndexMap;

use super::super::report::Report;
use super::super::{Draft, PostgresWaiting, Reason, Step, Waiting};
use crate::action::{Account, PostgresAction};
use crate::desired::Postgres;
use crate::observed::{Catalog, CatalogDatabase, CatalogRole, Password, PostgresView, RoleAttribute, elements};
use crate::spec::postgres::{PgRole, is_reserved};

/// Plans what the file says of roles and databases, where nothing else is to do.
pub(in crate::plan) fn manage(draft: &mut Draft<'_>) -> Report {
    let (desired, observed) = (draft.desired, draft.observed);
    for cluster in desired.postgres.iter().filter(|cluster| cluster.has_catalog()) {
        let Some(seen) = PostgresView::seen(cluster, observed) else { continue };
        // A commit would wait for the standby that is missing. It is said at the end of the plan.
        if seen.settled(cluster.synchronous_standbys()).is_err() {
            continue;
        }
        let unknown =
            |error: &str| PostgresWaiting::CatalogUnknown { cluster: cluster.name.clone(), error: error.to_owned() };
        match observed.postgres.get(&cluster.name).and_then(|seen| seen.catalog.as_ref()) {
            Some(Ok(catalog)) => of_one(draft, cluster, catalog),
            Some(Err(error)) => draft.wait(unknown(error).into()),
            None => draft.wait(unknown("the primary was not asked yet").into()),
        }
    }
    Report::Looked
}

/// Changes the passwords that nodes log in with. Those who are connected stay so, and one that connects anew is not let in
/// until it has taken the new password up: so files of nodes follow at once.
pub(in crate::plan) fn change_node_passwords(draft: &mut Draft<'_>) -> Report {
    let (desired, observed) = (draft.desired, draft.observed);
    for cluster in &desired.postgres {
        let Some(Ok(catalog)) = observed.postgres.get(&cluster.name).and_then(|seen| seen.catalog.as_ref()) else {
            continue;
        };
        for role in cluster.node_passwords() {
            let reason = match catalog.roles.get(role).map(|has| &has.password) {
                Some(Password::Other | Password::None) => Reason::OtherPassword,
                Some(Password::Unknown(error)) => {
                    draft.wait(Waiting::PasswordUnknown { user: role.to_owned(), error: error.clone() });
                    continue;
                }
                Some(Password::Right | Password::Untried) | None => continue,
            };
            let action = PostgresAction::SetNodePassword { cluster: cluster.name.clone(), role: role.to_owned() };
            draft.steps.push(Step::new(action, reason));
            return Report::Looked;
        }
    }
    Report::Looked
}

fn of_one(draft: &mut Draft<'_>, cluster: &Postgres, catalog: &Catalog) {
    for phase in [set_roles, set_databases, drop_roles] {
        let (steps, waiting) = phase(cluster, catalog);
        waiting.into_iter().for_each(|waiting| draft.wait(waiting));
        if !steps.is_empty() {
            draft.steps.extend(steps);
            return;
        }
    }
}

/// What a phase plans, and what it waits for.
type Phase = (Vec<Step>, Vec<Waiting>);

fn set_roles(cluster: &Postgres, catalog: &Catalog) -> Phase {
    let (mut steps, mut waiting) = Phase::default();
    for (name, role) in cluster.section.roles.iter().flatten() {
        let has = catalog.roles.get(name);
        if let Some(Password::Unknown(error)) = has.map(|has| &has.password) {
            waiting.push(Waiting::PasswordUnknown { user: name.clone(), error: error.clone() });
        }
        // Those that it is a member of are there by another step first.
        if role.member_of.iter().all(|of| catalog.has_role(of))
            && let Some((account, reason)) = difference(role, has)
        {
            let (cluster, role) = (cluster.name.clone(), name.clone());
            steps.push(Step::new(PostgresAction::SetPostgresRole { cluster, role, account }, reason));
        }
    }
    (steps, waiting)
}

/// What is to be done to a role, and what differs; nothing where it is as the file says.
fn difference(role: &PgRole, has: Option<&CatalogRole>) -> Option<(Account, Reason)> {
    let wanted = CatalogRole::from(role);
    let Some(has) = has else {
        return Some((Account::Make, Reason::Access { missing: true, lacks: Vec::new(), has: Vec::new() }));
    };
    let words = |attributes: &mut dyn Iterator<Item = &RoleAttribute>| -> Vec<String> {
        attributes.map(ToString::to_string).collect()
    };
    let mut lacks = words(&mut wanted.attributes.difference(&has.attributes));
    let mut surplus = words(&mut has.attributes.difference(&wanted.attributes));
    let of = |role: &String| format!("member of {role}");
    lacks.extend(wanted.member_of.difference(&has.member_of).map(of));
    surplus.extend(has.member_of.difference(&wanted.member_of).map(of));
    let limit = |limit: u32| format!("connection_limit {limit}");
    if wanted.connection_limit != has.connection_limit {
        lacks.extend(wanted.connection_limit.map(limit));
        surplus.extend(has.connection_limit.filter(|_| wanted.connection_limit.is_none()).map(limit));
    }
    for (key, value) in &wanted.settings {
        let same = has.settings.get(key).is_some_and(|there| elements(key, there) == elements(key, value));
        if !same {
            lacks.push(key.clone());
        }
    }
    surplus.extend(has.settings.keys().filter(|key| !wanted.settings.contains_key(*key)).cloned());
    let account = match (&wanted.password, &has.password) {
        (Password::None, Password::None) => Account::Keep,
        (Password::None, _) => {
            surplus.push("a password".to_owned());
            Account::Password
        }
        (_, Password::Other | Password::None) => {
            lacks.push("its password".to_owned());
            Account::Password
        }
        // One that was not looked at is right until an admin looks and finds otherwise.
        (_, Password::Right | Password::Untried | Password::Unknown(_)) => Account::Keep,
    };
    let differs = !lacks.is_empty() || !surplus.is_empty();
    differs.then_some((account, Reason::Access { missing: false, lacks, has: surplus }))
}

fn set_databases(cluster: &Postgres, catalog: &Catalog) -> Phase {
    let (mut steps, mut waiting) = Phase::default();
    for (name, database) in cluster.section.databases.iter().flatten() {
        let wanted = CatalogDatabase::from(database);
        if !catalog.has_role(&wanted.owner) {
            // One of the file is made first.
            if !cluster.section.roles.as_ref().is_some_and(|roles| roles.contains_key(&wanted.owner)) {
                let (cluster, database, owner) = (cluster.name.clone(), name.clone(), wanted.owner);
                waiting.push(PostgresWaiting::OwnerMissing { cluster, database, owner }.into());
            }
            continue;
        }
        let reason = match catalog.databases.get(name) {
            None => Reason::Missing,
            Some(has) => {
                let fixed = has.fixed_differences(&wanted);
                if !fixed.is_empty() {
                    let (cluster, database, how) = (cluster.name.clone(), name.clone(), fixed.join("; "));
                    waiting.push(PostgresWaiting::DatabaseDiffers { cluster, database, how }.into());
                    continue;
                }
                let mut lacks: Vec<String> = wanted.extensions.difference(&has.extensions).cloned().collect();
                let mut surplus = Vec::new();
                if has.owner != wanted.owner {
                    lacks.push(format!("owner {}", wanted.owner));
                    surplus.push(format!("owner {}", has.owner));
                }
                if lacks.is_empty() {
                    continue;
                }
                Reason::Access { missing: false, lacks, has: surplus }
            }
        };
        let (cluster, database) = (cluster.name.clone(), name.clone());
        steps.push(Step::new(PostgresAction::SetDatabase { cluster, database }, reason));
    }
    (steps, waiting)
}

fn drop_roles(cluster: &Postgres, catalog: &Catalog) -> Phase {
    let (mut steps, mut waiting) = Phase::default();
    let Some(listed): Option<&IndexMap<String, PgRole>> = cluster.section.roles.as_ref() else {
        return (steps, waiting);
    };
    let surplus = |(name, _): &(&String, &CatalogRole)| !listed.contains_key(*name) && !is_reserved(name);
    for (name, role) in catalog.roles.iter().filter(surplus) {
        let (cluster, role_name) = (cluster.name.clone(), name.clone());
        if role.needed && !role.attributes.contains(&RoleAttribute::Login) {
            waiting.push(PostgresWaiting::RoleNeeded { cluster, role: role_name }.into());
        } else {
            steps.push(Step::new(PostgresAction::DropPostgresRole { cluster, role: role_name }, Reason::NotInFile));
        }
    }
    (steps, waiting)
}
