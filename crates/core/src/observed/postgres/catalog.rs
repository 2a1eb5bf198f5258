//! What a primary's catalog says of roles and databases → comparable with what the file says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::observed::Password;
use crate::spec::FlagValue;
use crate::spec::postgres::{Database, PgRole, is_reserved};

/// Parameters whose value is a list of names: PostgreSQL writes each of them in its own quotes.
const LISTS: [&str; 4] = ["local_preload_libraries", "search_path", "session_preload_libraries", "temp_tablespaces"];

/// The roles and databases of a PostgreSQL cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// Every role but those that PostgreSQL comes with (`pg_…`).
    pub roles: BTreeMap<String, CatalogRole>,
    /// Every database that is no template.
    pub databases: BTreeMap<String, CatalogDatabase>,
}

/// A role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogRole {
    /// What it may do.
    pub attributes: BTreeSet<RoleAttribute>,
    /// How many connections it may have at a time; none: any number.
    pub connection_limit: Option<u32>,
    /// The roles that it is a member of.
    pub member_of: BTreeSet<String>,
    /// Parameters for its sessions in all databases.
    pub settings: BTreeMap<String, String>,
    /// Its password.
    pub password: Password,
    /// Whether it owns something, or has rights on something: it cannot be removed then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needed: bool,
}

/// What a role may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoleAttribute {
    /// It can log in.
    Login,
    /// It can create databases.
    Createdb,
    /// It can create roles.
    Createrole,
    /// It can start replication.
    Replication,
    /// It can do everything.
    Superuser,
    /// Policies of rows do not apply to it.
    Bypassrls,
    /// Its password ends at some time.
    Expiring,
}

/// A database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogDatabase {
    /// The role that owns it.
    pub owner: String,
    /// Its encoding.
    pub encoding: String,
    /// Its locale.
    pub locale: String,
    /// The extensions that are in it, as far as the file wants some in it.
    pub extensions: BTreeSet<String>,
}

impl fmt::Display for RoleAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Login => "login",
            Self::Createdb => "createdb",
            Self::Createrole => "createrole",
            Self::Replication => "replication",
            Self::Superuser => "superuser",
            Self::Bypassrls => "bypassrls",
            Self::Expiring => "a password that ends",
        })
    }
}

impl Catalog {
    /// Whether there is such a role: PostgreSQL's own and raftsman's are always there.
    pub fn has_role(&self, name: &str) -> bool {
        is_reserved(name) || self.roles.contains_key(name)
    }
}

/// The role that the file describes.
impl From<&PgRole> for CatalogRole {
    fn from(role: &PgRole) -> Self {
        let given = [
            (RoleAttribute::Login, role.login),
            (RoleAttribute::Createdb, role.createdb),
            (RoleAttribute::Createrole, role.createrole),
            (RoleAttribute::Replication, role.replication),
        ];
        Self {
            attributes: given.into_iter().filter(|(_, given)| *given).map(|(attribute, _)| attribute).collect(),
            connection_limit: role.connection_limit,
            member_of: role.member_of.iter().cloned().collect(),
            settings: role.settings.iter().map(|(key, value)| (key.clone(), text(value))).collect(),
            password: if role.password.is_some() { Password::Right } else { Password::None },
            needed: false,
        }
    }
}

/// The database that the file describes.
impl From<&Database> for CatalogDatabase {
    fn from(database: &Database) -> Self {
        let Database { owner, encoding, locale, extensions } = database;
        Self {
            owner: owner.clone(),
            encoding: encoding.clone(),
            locale: locale.clone(),
            extensions: extensions.iter().cloned().collect(),
        }
    }
}

impl CatalogDatabase {
    /// What differs and cannot change any more.
    pub fn fixed_differences(&self, wanted: &Self) -> Vec<String> {
        let plain = |text: &str| text.replace(['-', '_'], "").to_ascii_lowercase();
        [("encoding", &self.encoding, &wanted.encoding), ("locale", &self.locale, &wanted.locale)]
            .into_iter()
            .filter(|(_, has, wanted)| plain(has) != plain(wanted))
            .map(|(what, has, wanted)| format!("its {what} is {has}, not {wanted}"))
            .collect()
    }
}

/// A value as PostgreSQL takes it.
fn text(value: &FlagValue) -> String {
    match value {
        FlagValue::Bool(true) => "on".to_owned(),
        FlagValue::Bool(false) => "off".to_owned(),
        FlagValue::Integer(number) => number.to_string(),
        FlagValue::Text(text) => text.clone(),
    }
}

/// What a parameter's value consists of: the names of a list, or itself.
pub fn elements(parameter: &str, value: &str) -> Vec<String> {
    if !LISTS.contains(&parameter) {
        return vec![value.to_owned()];
    }
    let bare = |element: &str| {
        let element = element.trim();
        let quoted = element.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        quoted.map_or_else(|| element.to_owned(), |inner| inner.replace("\"\"", "\""))
    };
    value.split(',').map(bare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_compared_by_their_elements() {
        assert_eq!(elements("search_path", "\"$user\", app"), ["$user", "app"]);
        assert_eq!(elements("search_path", "$user,app"), ["$user", "app"]);
        assert_eq!(elements("application_name", "a, b"), ["a, b"]);
    }

    #[test]
    fn a_locale_has_several_spellings() {
        let database = |encoding: &str, locale: &str| CatalogDatabase {
            owner: "app".to_owned(),
            encoding: encoding.to_owned(),
            locale: locale.to_owned(),
            extensions: BTreeSet::new(),
        };
        let wanted = database("UTF8", "C.UTF-8");
        assert!(database("utf-8", "C.utf8").fixed_differences(&wanted).is_empty());
        assert_eq!(
            database("UTF8", "en_US.UTF-8").fixed_differences(&wanted),
            ["its locale is en_US.UTF-8, not C.UTF-8"]
        );
    }
}
