//! One cluster's roles and users → what etcd refuses, what gives too much, and users that could never log in.

use std::collections::HashMap;

use super::super::diagnostic::Path;
use super::super::fault::nearest;
use super::super::types::{AuthMode, EtcdCluster};
use super::super::units::{Name, quoted};
use super::super::users::{KeySpan, Keys, Permission, User};
use super::{Finding, Findings};

/// The superuser and its role: etcd's own.
const ROOT: &str = "root";
/// A user's name is the common name of a certificate, which has room for no more.
const LONGEST: usize = 64;

pub(super) fn check(findings: &mut Findings<'_>, name: &Name, cluster: &EtcdCluster) {
    let at = |keys: &[&str]| keys.iter().fold(Path::of(&["etcd", name.as_str()]), |path, key| path.key(key));
    for (role, permissions) in cluster.roles.iter().flatten() {
        named(findings, at(&["roles", role]), "role", role);
        let mut seen: HashMap<KeySpan, usize> = HashMap::new();
        for (index, permission) in permissions.iter().enumerate() {
            let here = |index: usize| at(&["roles", role]).index(index);
            keys(findings, &here(index), permission);
            if let Some(first) = seen.insert(permission.parts().1.span(), index) {
                findings.add(
                    Finding::error("permission-twice", here(index), "the same keys are listed twice in this role")
                        .also(here(first), "also here")
                        .why("etcd keeps one permission for the same keys: the later would silently replace the other")
                        .help("keep one of them: `readwrite` allows both"),
                );
            }
        }
    }
    for (user, settings) in cluster.users.iter().flatten() {
        named(findings, at(&["users", user]), "user", user);
        if user != ROOT {
            roles(findings, &at, cluster, user, settings);
            password(findings, &at, cluster, user, settings);
        }
    }
}

fn named(findings: &mut Findings<'_>, path: Path, what: &str, name: &str) {
    if name == ROOT {
        findings.add(
            Finding::error("root-listed", path, format!("the {what} `root` cannot be in the file"))
                .on_key()
                .why("it is etcd's superuser: raftsman makes it with the cluster, works as it, and never removes it")
                .help("remove it; for another superuser give some user the role `root`"),
        );
    } else if name.is_empty()
        || name.chars().count() > LONGEST
        || name.contains(|c: char| c.is_whitespace() || c.is_control())
    {
        findings.add(
            Finding::error("access-name", path, format!("{} cannot be the name of a {what}", quoted(name)))
                .on_key()
                .why("a user's name is the common name of its certificate")
                .help("1 to 64 characters, without spaces"),
        );
    }
}

fn keys(findings: &mut Findings<'_>, path: &Path, permission: &Permission) {
    let (level, keys) = permission.parts();
    let here = |key: &str| path.clone().key(&level.to_string()).key(key);
    match keys {
        Keys::Key(key) if key.is_empty() => findings.add(
            Finding::error("key-empty", here("key"), "the key is empty")
                .why("etcd has no empty key")
                .help("write the key, or `prefix:` for all keys that begin alike"),
        ),
        Keys::Prefix(all) | Keys::From(all) if all.is_empty() => {
            let key = if matches!(keys, Keys::Prefix(_)) { "prefix" } else { "from" };
            findings.add(
                Finding::warning("prefix-everything", here(key), format!("this role may {level} every key"))
                    .why("an empty prefix stands for all keys, those of other applications among them")
                    .help("write the prefix that the application uses, such as `/app/`"),
            );
        }
        Keys::Range(range) if range.from >= range.to => findings.add(
            Finding::error(
                "range-backwards",
                here("range"),
                format!("the range from {} to {} holds no key", quoted(&range.from), quoted(&range.to)),
            )
            .why("keys are ordered by their bytes, and the second key is not part of the range")
            .help(match range.from > range.to && !range.to.is_empty() {
                true => format!("the other way round: {} first, then {}", quoted(&range.to), quoted(&range.from)),
                false => "for one key alone write `key:`; for all that begin alike, `prefix:`".to_owned(),
            }),
        ),
        Keys::Range(range) if range.from.is_empty() => findings.add(
            Finding::error("key-empty", here("range"), "the range begins with an empty key")
                .why("etcd has no empty key")
                .help("write the first key of the range"),
        ),
        Keys::Key(_) | Keys::Prefix(_) | Keys::From(_) | Keys::Range(_) => {}
    }
}

fn roles(
    findings: &mut Findings<'_>,
    at: &dyn Fn(&[&str]) -> Path,
    cluster: &EtcdCluster,
    user: &str,
    settings: &User,
) {
    for (index, role) in settings.roles.iter().enumerate() {
        let here = || at(&["users", user, "roles"]).index(index);
        let known = cluster.roles.as_ref().is_some_and(|roles| roles.contains_key(role));
        if settings.roles[..index].contains(role) {
            findings.add(
                Finding::warning("role-listed-twice", here(), format!("{} is listed twice", quoted(role)))
                    .help("remove one of them"),
            );
        } else if role == ROOT {
            findings.add(
                Finding::warning("user-is-superuser", here(), format!("{} may do everything", quoted(user)))
                    .why("the role `root` opens all keys, and lets its users change users, roles and members")
                    .help("give applications a role of their own"),
            );
        } else if !known {
            let names: Vec<&str> = cluster.roles.iter().flatten().map(|(name, _)| name.as_str()).collect();
            findings.add(
                Finding::error("role-unknown", here(), format!("there is no role {}", quoted(role)))
                    .uses(at(&["roles"]))
                    .help(match nearest(role, &names) {
                        Some(meant) => format!("did you mean `{meant}`?"),
                        None => "add it:\n\nroles:\n  app-reader:\n    - { read: { prefix: /app/ } }".to_owned(),
                    }),
            );
        }
    }
}

fn password(
    findings: &mut Findings<'_>,
    at: &dyn Fn(&[&str]) -> Path,
    cluster: &EtcdCluster,
    user: &str,
    settings: &User,
) {
    let here = || at(&["users", user, "password"]);
    match (&settings.password, cluster.auth.mode) {
        (None, AuthMode::Password) => findings.add(
            Finding::error("user-without-password", at(&["users", user]), format!("{} has no password", quoted(user)))
                .on_key()
                .uses(at(&["auth", "mode"]))
                .why("with `mode: password` members request no certificate: no client could log in as this user")
                .help("write the password to a file of its own, and refer to it: `password: { file: app.password }`"),
        ),
        (Some(_), AuthMode::Certificate) => findings.add(
            Finding::warning(
                "password-beside-certificate",
                here(),
                format!("{} needs no password here", quoted(user)),
            )
            .on_key()
            .uses(at(&["auth", "mode"]))
            .why("with `mode: certificate` members accept only clients with a certificate, and its common name is the \
                user already")
            .help("remove it, unless several users share one certificate and log in by password"),
        ),
        _ => {}
    }
    if let Some(password) = &settings.password {
        findings.secret(here, password);
    }
}
