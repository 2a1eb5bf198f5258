//! This machine's PostgreSQL, by its socket → its roles and databases, read and changed.
//!
//! The agent is its superuser there, without a password. A database's owner decides what is in it: nothing that a name in it
//! could stand for is used, and what passwords are checked by is in no log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use postgres_protocol::escape::{escape_identifier, escape_literal};
use raftsman_api::v1;
use raftsman_core::desired::POSTGRES_PORT;
use raftsman_core::observed::elements;
use raftsman_core::render::patroni::{REPLICATOR, REWIND, SUPERUSER};
use raftsman_core::spec::postgres::{is_as_superuser, is_reserved};
use tokio::time::timeout;
use tokio_postgres::{Client, Config, NoTls, Row, Transaction};

use crate::postgres::config::sockets;
use crate::root::Root;
use crate::supervisor::launch::Launcher;

/// The server's own limits are below this one.
const LIMIT: Duration = Duration::from_secs(80);
/// Of every session: only PostgreSQL's own functions, no wait without an end, and nothing of it in a log.
const SESSION: &str = "-c search_path=pg_catalog -c lock_timeout=10000 -c statement_timeout=60000 \
                       -c log_statement=none -c log_min_duration_statement=-1 -c log_min_error_statement=panic \
                       -c pgaudit.log=none -c standard_conforming_strings=on";
/// What passwords are checked by.
const SCRAM: &str = "SCRAM-SHA-256$";

/// Why roles and databases were not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// It does not run, or does not let the agent in.
    #[error("PostgreSQL does not answer on its socket")]
    Connect(#[source] tokio_postgres::Error),
    /// Changes are for the primary.
    #[error("PostgreSQL on this machine takes no writes: ask the primary's agent")]
    NotPrimary,
    /// No call changes it.
    #[error("`{0}` is PostgreSQL's or raftsman's own role: nothing was changed")]
    Reserved(String),
    /// No node logs in as it.
    #[error("`{0}` is no role that nodes log in as: nothing was changed")]
    NotOfNodes(String),
    /// It would be as good as a superuser.
    #[error("a member of `{0}` can do everything that PostgreSQL can: nothing was changed")]
    AsSuperuser(String),
    /// A password in the clear, or a weaker digest.
    #[error("what a password is checked by has to be of SCRAM-SHA-256: nothing was changed")]
    NotScram,
    /// PostgreSQL says why not.
    #[error("PostgreSQL refused")]
    Refused(#[from] tokio_postgres::Error),
    /// It hangs.
    #[error("PostgreSQL did not answer within {} s", LIMIT.as_secs())]
    Silent,
}

/// Where this machine's PostgreSQL listens.
pub struct Catalog {
    sockets: String,
}

impl Catalog {
    /// Of the PostgreSQL that this agent's Patroni runs.
    pub fn of(root: &Root, launcher: &Launcher) -> Self {
        Self { sockets: sockets(root, launcher) }
    }

    /// Every role and every database. What passwords are checked by comes along only for an admin.
    pub async fn read(&self, extensions_of: &[String], verifiers: bool) -> Result<v1::ReadCatalogReply, CatalogError> {
        within(async {
            let client = self.primary().await?;
            let mut roles: Vec<v1::PostgresRoleEntry> = client
                .query(&format!("SELECT {NEEDED} AS needed, {ROLES}"), &[])
                .await?
                .iter()
                .map(role)
                .collect::<Result<_, _>>()?;
            if !verifiers {
                roles.iter_mut().for_each(|role| role.verifier.clear());
            }
            let mut databases = Vec::new();
            for row in client.query(DATABASES, &[]).await? {
                let mut found = database(&row)?;
                if extensions_of.contains(&found.name) {
                    let there = self.connect(&found.name).await?;
                    let rows = there.query("SELECT extname::text FROM pg_extension", &[]).await?;
                    found.extensions = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
                }
                databases.push(found);
            }
            Ok(v1::ReadCatalogReply { roles, databases })
        })
        .await
    }

    /// Creates a role, or gives it what it should have and takes what it should not.
    pub async fn set_role(
        &self,
        wanted: v1::PostgresRoleSettings,
        verifier: Option<String>,
    ) -> Result<(), CatalogError> {
        refuse_reserved(&wanted.name)?;
        if let Some(of) = wanted.member_of.iter().find(|of| is_as_superuser(of)) {
            return Err(CatalogError::AsSuperuser(of.clone()));
        }
        if verifier.as_ref().is_some_and(|verifier| !verifier.is_empty() && !verifier.starts_with(SCRAM)) {
            return Err(CatalogError::NotScram);
        }
        within(async {
            let mut client = self.primary().await?;
            let change = client.transaction().await?;
            let name = escape_identifier(&wanted.name);
            if change.query_opt("SELECT FROM pg_authid WHERE rolname = $1", &[&wanted.name]).await?.is_none() {
                change.batch_execute(&format!("CREATE ROLE {name} NOLOGIN")).await?;
            }
            change.batch_execute(&format!("ALTER ROLE {name} {}", options(&wanted, verifier.as_deref()))).await?;
            set_memberships(&change, &wanted).await?;
            set_parameters(&change, &wanted).await?;
            Ok(change.commit().await?)
        })
        .await
    }

    /// Gives a role that nodes log in as another password. It does not wait for a standby: one may not be let in until then.
    pub async fn set_node_password(&self, role: &str, verifier: &str) -> Result<(), CatalogError> {
        if ![REPLICATOR, REWIND].contains(&role) {
            return Err(CatalogError::NotOfNodes(role.to_owned()));
        }
        if !verifier.starts_with(SCRAM) {
            return Err(CatalogError::NotScram);
        }
        within(async {
            let client = self.primary().await?;
            let (name, verifier) = (escape_identifier(role), escape_literal(verifier));
            client.batch_execute("SET synchronous_commit = local").await?;
            Ok(client.batch_execute(&format!("ALTER ROLE {name} PASSWORD {verifier}")).await?)
        })
        .await
    }

    /// Takes a role's login away, ends its sessions, and removes it where nothing depends on it.
    pub async fn drop_role(&self, role: &str) -> Result<(), CatalogError> {
        refuse_reserved(role)?;
        within(async {
            let mut client = self.primary().await?;
            let change = client.transaction().await?;
            let found = format!("SELECT r.oid, {NEEDED} FROM pg_authid r WHERE r.rolname = $1");
            let Some(found) = change.query_opt(&found, &[&role]).await? else { return Ok(()) };
            let (id, needed): (u32, bool) = (found.try_get(0)?, found.try_get(1)?);
            let name = escape_identifier(role);
            let removed = if needed { format!("ALTER ROLE {name} NOLOGIN") } else { format!("DROP ROLE {name}") };
            change.batch_execute(&removed).await?;
            change.commit().await?;
            // Those that logged in before: another one cannot follow. Their role may have no name any more.
            client.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usesysid = $1", &[&id]).await?;
            Ok(())
        })
        .await
    }

    /// Creates a database, or changes its owner; creates the extensions that it lacks.
    pub async fn set_database(&self, wanted: &v1::DatabaseEntry) -> Result<(), CatalogError> {
        within(async {
            let client = self.primary().await?;
            let (name, owner) = (escape_identifier(&wanted.name), escape_identifier(&wanted.owner));
            let known = "SELECT pg_get_userbyid(datdba)::text FROM pg_database WHERE datname = $1";
            match client.query_opt(known, &[&wanted.name]).await? {
                None => {
                    let (encoding, locale) = (escape_literal(&wanted.encoding), escape_literal(&wanted.locale));
                    let create = format!(
                        "CREATE DATABASE {name} OWNER {owner} ENCODING {encoding} LOCALE {locale} TEMPLATE template0"
                    );
                    client.batch_execute(&create).await?;
                }
                Some(row) if row.try_get::<_, String>(0)? != wanted.owner => {
                    client.batch_execute(&format!("ALTER DATABASE {name} OWNER TO {owner}")).await?;
                }
                Some(_) => {}
            }
            if wanted.extensions.is_empty() {
                return Ok(());
            }
            let there = self.connect(&wanted.name).await?;
            for extension in &wanted.extensions {
                // Where it does not say itself where its objects are, they are where everybody finds them.
                let placed = "SELECT v.schema IS NOT NULL FROM pg_available_extensions e JOIN \
                              pg_available_extension_versions v ON v.name = e.name AND v.version = e.default_version \
                              WHERE e.name = $1";
                let placed: bool = match there.query_opt(placed, &[extension]).await? {
                    Some(row) => row.try_get(0)?,
                    None => false,
                };
                let schema = if placed { "" } else { " SCHEMA public" };
                let name = escape_identifier(extension);
                there.batch_execute(&format!("CREATE EXTENSION IF NOT EXISTS {name}{schema}")).await?;
            }
            Ok(())
        })
        .await
    }

    /// A session at the database `postgres` of a PostgreSQL that takes writes.
    async fn primary(&self) -> Result<Client, CatalogError> {
        let client = self.connect(SUPERUSER).await?;
        match client.query_one("SELECT pg_is_in_recovery()", &[]).await?.try_get(0)? {
            true => Err(CatalogError::NotPrimary),
            false => Ok(client),
        }
    }

    async fn connect(&self, database: &str) -> Result<Client, CatalogError> {
        let mut config = Config::new();
        config.host_path(&self.sockets).port(POSTGRES_PORT).user(SUPERUSER).dbname(database);
        config.application_name("raftsman").options(SESSION).connect_timeout(Duration::from_secs(5));
        let (client, connection) = config.connect(NoTls).await.map_err(CatalogError::Connect)?;
        // It ends with the client.
        tokio::spawn(async move { drop(connection.await) });
        Ok(client)
    }
}

async fn within<T>(work: impl Future<Output = Result<T, CatalogError>>) -> Result<T, CatalogError> {
    timeout(LIMIT, work).await.unwrap_or(Err(CatalogError::Silent))
}

fn refuse_reserved(role: &str) -> Result<(), CatalogError> {
    if is_reserved(role) { Err(CatalogError::Reserved(role.to_owned())) } else { Ok(()) }
}

/// Whether a role (`r`) cannot be removed. Since version 16 one cannot that has made others members of something.
const NEEDED: &str = "(EXISTS (SELECT FROM pg_shdepend d WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = r.oid \
                        AND d.classid <> 'pg_auth_members'::regclass) \
                      OR current_setting('server_version_num')::int >= 160000 AND EXISTS (SELECT FROM pg_auth_members m \
                        WHERE m.grantor = r.oid AND m.roleid <> r.oid AND m.member <> r.oid))";

const ROLES: &str = "r.rolname::text AS name, r.rolcanlogin, r.rolcreatedb, r.rolcreaterole, r.rolreplication, \
                     r.rolsuper, r.rolbypassrls, r.rolconnlimit, \
                     coalesce(r.rolvaliduntil <> 'infinity', false) AS expiring, r.rolpassword AS verifier, \
                     ARRAY(SELECT g.rolname::text FROM pg_auth_members m JOIN pg_authid g ON g.oid = m.roleid \
                       WHERE m.member = r.oid) AS member_of, \
                     coalesce((SELECT s.setconfig FROM pg_db_role_setting s WHERE s.setrole = r.oid \
                       AND s.setdatabase = 0), '{}') AS parameters \
                     FROM pg_authid r WHERE r.rolname !~ '^pg_' ORDER BY r.rolname";

const DATABASES: &str = "SELECT datname::text, pg_get_userbyid(datdba)::text, pg_encoding_to_char(encoding)::text, \
                         datcollate::text, datctype::text FROM pg_database WHERE NOT datistemplate ORDER BY 1";

fn role(row: &Row) -> Result<v1::PostgresRoleEntry, tokio_postgres::Error> {
    let verifier: Option<String> = row.try_get("verifier")?;
    let parameters: Vec<String> = row.try_get("parameters")?;
    let parameter = |text: &String| text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    Ok(v1::PostgresRoleEntry {
        settings: Some(v1::PostgresRoleSettings {
            name: row.try_get("name")?,
            login: row.try_get("rolcanlogin")?,
            createdb: row.try_get("rolcreatedb")?,
            createrole: row.try_get("rolcreaterole")?,
            replication: row.try_get("rolreplication")?,
            connection_limit: u32::try_from(row.try_get::<_, i32>("rolconnlimit")?).ok(),
            member_of: row.try_get("member_of")?,
            parameters: parameters.iter().filter_map(parameter).collect(),
        }),
        superuser: row.try_get("rolsuper")?,
        bypassrls: row.try_get("rolbypassrls")?,
        expiring: row.try_get("expiring")?,
        has_password: verifier.is_some(),
        verifier: verifier.unwrap_or_default(),
        needed: row.try_get("needed")?,
    })
}

fn database(row: &Row) -> Result<v1::DatabaseEntry, tokio_postgres::Error> {
    let (collate, ctype): (String, String) = (row.try_get(3)?, row.try_get(4)?);
    let locale = if collate == ctype { collate } else { format!("{collate} and {ctype}") };
    let (name, owner, encoding) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(v1::DatabaseEntry { name, owner, encoding, locale, extensions: Vec::new() })
}

/// A role's attributes in SQL, all of them.
fn options(wanted: &v1::PostgresRoleSettings, verifier: Option<&str>) -> String {
    let no = |given: bool| if given { "" } else { "NO" };
    let password = match verifier {
        None => String::new(),
        Some("") => " PASSWORD NULL".to_owned(),
        Some(verifier) => format!(" PASSWORD {}", escape_literal(verifier)),
    };
    format!(
        "NOSUPERUSER NOBYPASSRLS {}LOGIN {}CREATEDB {}CREATEROLE {}REPLICATION CONNECTION LIMIT {} VALID UNTIL 'infinity'\
         {password}",
        no(wanted.login),
        no(wanted.createdb),
        no(wanted.createrole),
        no(wanted.replication),
        wanted.connection_limit.map_or(-1, i64::from),
    )
}

async fn set_memberships(
    change: &Transaction<'_>,
    wanted: &v1::PostgresRoleSettings,
) -> Result<(), tokio_postgres::Error> {
    let known = "SELECT g.rolname::text, pg_get_userbyid(m.grantor)::text, \
                 current_setting('server_version_num')::int >= 160000 FROM pg_auth_members m JOIN pg_authid g \
                 ON g.oid = m.roleid JOIN pg_authid r ON r.oid = m.member WHERE r.rolname = $1";
    let name = escape_identifier(&wanted.name);
    let mut has = BTreeSet::new();
    for row in change.query(known, &[&wanted.name]).await? {
        let (of, grantor, by_grantor): (String, String, bool) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        if wanted.member_of.contains(&of) {
            has.insert(of);
            continue;
        }
        // Since version 16 each grantor's grant is one of its own.
        let by = if by_grantor { format!(" GRANTED BY {}", escape_identifier(&grantor)) } else { String::new() };
        change.batch_execute(&format!("REVOKE {} FROM {name}{by} CASCADE", escape_identifier(&of))).await?;
    }
    for of in wanted.member_of.iter().filter(|of| !has.contains(*of)) {
        change.batch_execute(&format!("GRANT {} TO {name}", escape_identifier(of))).await?;
    }
    Ok(())
}

async fn set_parameters(
    change: &Transaction<'_>,
    wanted: &v1::PostgresRoleSettings,
) -> Result<(), tokio_postgres::Error> {
    let name = escape_identifier(&wanted.name);
    change.batch_execute(&format!("ALTER ROLE {name} RESET ALL")).await?;
    let parameters: BTreeMap<&String, &String> = wanted.parameters.iter().collect();
    for (key, value) in parameters {
        let value: Vec<String> = elements(key, value).iter().map(|element| escape_literal(element)).collect();
        // An extension's own has a prefix.
        let key: Vec<String> = key.split('.').map(escape_identifier).collect();
        change.batch_execute(&format!("ALTER ROLE {name} SET {} TO {}", key.join("."), value.join(", "))).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_gets_every_attribute_at_once_and_no_other() {
        let wanted = v1::PostgresRoleSettings { name: "app".to_owned(), login: true, ..Default::default() };
        assert_eq!(
            options(&wanted, None),
            "NOSUPERUSER NOBYPASSRLS LOGIN NOCREATEDB NOCREATEROLE NOREPLICATION CONNECTION LIMIT -1 VALID UNTIL 'infinity'"
        );
        assert!(options(&wanted, Some("")).ends_with(" PASSWORD NULL"));
        assert!(options(&wanted, Some("SCRAM-SHA-256$'; DROP")).ends_with(" PASSWORD 'SCRAM-SHA-256$''; DROP'"));
    }
}
