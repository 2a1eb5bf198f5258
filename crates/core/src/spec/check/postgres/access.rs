//! Roles, databases and rules of access → names that are taken or unknown, roles that could not log in, replication.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use super::super::super::diagnostic::Path;
use super::super::super::fault::nearest;
use super::super::super::postgres::{OUR_ROLES, PgRole, PostgresCluster, is_as_superuser, is_predefined, is_reserved};
use super::super::super::units::{Name, quoted};
use super::super::{Finding, Findings};
use super::at;

/// Since this version, a role that creates roles changes only those that it has made.
const OWN_ROLES_ONLY: u32 = 16;
const OUR_DATABASES: [&str; 3] = ["postgres", "template0", "template1"];
/// PostgreSQL cuts off longer names.
const LONGEST: usize = 63;

pub(super) fn check(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    for (key, role) in
        [("superuser", &cluster.superuser), ("replicator", &cluster.replicator), ("rewind", &cluster.rewind)]
    {
        if let Some(password) = &role.password {
            findings.secret(|| at(name, &[key, "password"]), password);
        }
    }
    for (role, settings) in cluster.roles.iter().flatten() {
        one_role(findings, name, cluster, role, settings);
    }
    circle(findings, name, cluster);
    for (database, settings) in cluster.databases.iter().flatten() {
        let here = |key: &[&str]| key.iter().fold(at(name, &["databases", database]), |path, key| path.key(key));
        if identifier(findings, here(&[]), database, "a database") && OUR_DATABASES.contains(&database.as_str()) {
            findings.add(
                Finding::error(
                    "postgres-database-taken",
                    here(&[]),
                    format!("`{database}` is PostgreSQL's own database"),
                )
                .on_key()
                .help("use another name"),
            );
        }
        known_role(findings, here(&["owner"]), name, cluster, &settings.owner);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
        for (key, text) in [("encoding", &settings.encoding), ("locale", &settings.locale)] {
            if text.is_empty() || text.len() > LONGEST || !text.chars().all(plain) {
                findings.add(
                    Finding::error(
                        "postgres-locale-invalid",
                        here(&[key]),
                        format!("{} cannot be the {key} of a database", quoted(text)),
                    )
                    .help("leave it out: `UTF8` and `C.UTF-8` are the defaults"),
                );
            }
        }
        for (index, extension) in settings.extensions.iter().enumerate() {
            identifier(findings, here(&["extensions"]).index(index), extension, "an extension");
        }
    }
    rules(findings, name, cluster);
}

fn one_role(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster, role: &str, settings: &PgRole) {
    let here = |keys: &[&str]| keys.iter().fold(at(name, &["roles", role]), |path, key| path.key(key));
    if identifier(findings, here(&[]), role, "a role") && is_reserved(role) {
        findings.add(
            Finding::error(
                "postgres-role-taken",
                here(&[]),
                format!("`{role}` is PostgreSQL's or raftsman's own role"),
            )
            .on_key()
            .why("its password is under `superuser`, `replicator` or `rewind`; names with `pg_` are PostgreSQL's")
            .help("use another name"),
        );
    }
    match &settings.password {
        Some(password) => findings.secret(|| here(&["password"]), password),
        None if settings.login => findings.add(
            Finding::error("postgres-role-without-password", here(&[]), format!("{} has no password", quoted(role)))
                .on_key()
                .uses(here(&["password"]))
                .uses(here(&["login"]))
                .why("clients log in with a password over TLS, and in no other way")
                .help("refer to one: `password: { file: app.password }`; or `login: false` for a group"),
        ),
        None => {}
    }
    if settings.replication && cluster.synchronous.mode.keeps_commits() {
        findings.add(
            Finding::error(
                "postgres-role-replication",
                here(&["replication"]),
                format!("a receiver of {} could pass for a synchronous standby", quoted(role)),
            )
            .uses(at(name, &["synchronous", "mode"]))
            .why(
                "after a promotion Patroni takes any receiver for a synchronous standby (`synchronous_standby_names = '*'`): \
                 a commit could be acknowledged that no node has",
            )
            .help("remove it: nodes replicate as `replicator`"),
        );
    }
    if settings.createrole && cluster.version.major < OWN_ROLES_ONLY {
        findings.add(
            Finding::error(
                "postgres-role-superuser",
                here(&["createrole"]),
                format!("{} could do everything that PostgreSQL can", quoted(role)),
            )
            .uses(at(name, &["version"]))
            .why(format!(
                "before version {OWN_ROLES_ONLY}, a role that creates roles makes itself a member of any other, such as \
                 `pg_execute_server_program`"
            ))
            .help("remove it, and list all roles in the file"),
        );
    }
    for (index, of) in settings.member_of.iter().enumerate() {
        let path = here(&["member_of"]).index(index);
        if of == role {
            findings.add(
                Finding::error("postgres-role-unknown", path, format!("{} is a member of itself", quoted(role)))
                    .help("remove it"),
            );
        } else if is_as_superuser(of) {
            findings.add(
                Finding::error(
                    "postgres-role-superuser",
                    path,
                    format!("a member of `{of}` can do everything that PostgreSQL can"),
                )
                .why("it runs programs, or reads and writes files of the node")
                .help("remove it"),
            );
        } else if !is_predefined(of) {
            known_role(findings, path, name, cluster, of);
        }
    }
}

/// The roles that a role is a member of, directly or by way of others.
fn above<'a>(roles: &'a IndexMap<String, PgRole>, role: &'a str) -> BTreeSet<&'a str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![role]);
    while let Some(role) = next.pop() {
        let of = roles.get(role).into_iter().flat_map(|role| &role.member_of).map(String::as_str);
        next.extend(of.filter(|of| reached.insert(*of)));
    }
    reached
}

/// Roles that are members of each other, which PostgreSQL refuses: the first of them is shown.
fn circle(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    let Some(roles) = &cluster.roles else { return };
    // One that is a member of itself alone is a finding of its own.
    let found = roles
        .iter()
        .find(|(role, settings)| !settings.member_of.contains(role) && above(roles, role).contains(role.as_str()));
    if let Some((role, _)) = found {
        findings.add(
            Finding::error(
                "postgres-role-circle",
                at(name, &["roles", role, "member_of"]),
                format!("{} is a member of a role that is a member of it", quoted(role)),
            )
            .on_key()
            .help("decide which of them has what the other may do"),
        );
    }
}

/// A role that the file has, where it lists them.
fn known_role(findings: &mut Findings<'_>, path: Path, name: &Name, cluster: &PostgresCluster, role: &str) {
    let Some(roles) = &cluster.roles else {
        identifier(findings, path, role, "a role");
        return;
    };
    if roles.contains_key(role) || role == OUR_ROLES[0] {
        return;
    }
    let known: Vec<&str> = roles.keys().map(String::as_str).collect();
    findings.add(
        Finding::error("postgres-role-unknown", path, format!("there is no role {}", quoted(role)))
            .uses(at(name, &["roles"]))
            .help(match nearest(role, &known) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "add it under `roles`".to_owned(),
            }),
    );
}

fn rules(findings: &mut Findings<'_>, name: &Name, cluster: &PostgresCluster) {
    for (index, rule) in cluster.access.iter().enumerate() {
        let here = |key: &str| at(name, &["access"]).index(index).key(key);
        for (key, none) in
            [("databases", rule.databases.is_empty()), ("users", rule.users.is_empty()), ("from", rule.from.is_empty())]
        {
            if none {
                findings.add(
                    Finding::error(
                        "postgres-access-nothing",
                        here(key),
                        format!("`{key}` is empty: the rule lets nothing in"),
                    )
                    .on_key()
                    .help("list at least one, or remove the rule"),
                );
            }
        }
        for (at, database) in rule.databases.iter().enumerate() {
            let path = || here("databases").index(at);
            if database == "replication" {
                findings.add(
                    Finding::error(
                        "postgres-access-replication",
                        path(),
                        "replication is for the cluster's nodes only",
                    )
                    .why("another receiver could pass for a synchronous standby: commits that no node has")
                    .help("remove it: raftsman writes the rules for the nodes"),
                );
            } else if database != "all" {
                identifier(findings, path(), database, "a database");
            }
        }
        for (at, user) in rule.users.iter().enumerate() {
            let path = || here("users").index(at);
            if OUR_ROLES[1..].contains(&user.as_str()) {
                findings.add(
                    Finding::error(
                        "postgres-access-replication",
                        path(),
                        format!("`{user}` is for the cluster's nodes only"),
                    )
                    .help("remove it: raftsman writes the rules for the nodes"),
                );
            } else if user != "all" && identifier(findings, path(), user, "a role") {
                known_role(findings, path(), name, cluster, user);
            }
        }
    }
}

/// Whether this is a name that `pg_hba.conf` and SQL take as it is; where it is not, that is a finding.
fn identifier(findings: &mut Findings<'_>, path: Path, text: &str, what: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    let valid = text.len() <= LONGEST
        && text.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && text.chars().all(plain);
    if !valid {
        findings.add(
            Finding::error("postgres-name-invalid", path, format!("{} cannot be the name of {what}", quoted(text)))
                .why("a name with other characters means something else in `pg_hba.conf`: a file, a group, a pattern")
                .help("1 to 63 lower-case letters, digits, `_` and `-`, a letter first"),
        );
    }
    valid
}
