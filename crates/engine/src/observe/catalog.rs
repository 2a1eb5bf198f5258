//! The primary of a PostgreSQL cluster, through its agent → its roles and databases, and whether passwords are right.

use std::collections::BTreeMap;

use futures::future::join_all;
use raftsman_api::v1;
use raftsman_core::desired::Postgres;
use raftsman_core::observed::{Catalog, CatalogDatabase, CatalogRole, Observed, Password, PostgresView, RoleAttribute};
use raftsman_core::spec::Name;
use raftsman_core::spec::postgres::is_reserved;
use secrecy::{ExposeSecret as _, SecretString};

use super::{LinkError, Observer};
use crate::scram;

/// For each cluster and role: what PostgreSQL checks the password by, the password of the file, and whether one is of the
/// other. To find that out takes a while on purpose.
pub(super) type Compared = BTreeMap<(Name, String), (String, SecretString, bool)>;

impl Observer {
    /// The machine of the node that was the primary in the last observation.
    pub(crate) async fn primary_of(&self, cluster: &Postgres) -> Option<Name> {
        let before = self.before.lock().await;
        primary(cluster, before.as_ref()?)
    }

    /// Reads roles and databases of the clusters of which the file says something about them.
    pub(super) async fn look_into_catalogs(&self, observed: &mut Observed) {
        let clusters = self.cluster.desired.postgres.iter().filter(|cluster| cluster.has_catalog());
        let asked = clusters.filter_map(|cluster| Some((cluster, primary(cluster, observed)?)));
        let read = asked.map(|(cluster, machine)| async move {
            let catalog = match self.read_catalog(cluster, &machine).await {
                Ok(reply) => Ok(self.understand(cluster, reply).await),
                Err(error) => Err(crate::error_chain(&error)),
            };
            (cluster.name.clone(), catalog)
        });
        for (cluster, catalog) in join_all(read).await {
            if let Some(seen) = observed.postgres.get_mut(&cluster) {
                seen.catalog = Some(catalog);
            }
        }
    }

    async fn read_catalog(&self, cluster: &Postgres, machine: &Name) -> Result<v1::ReadCatalogReply, LinkError> {
        let databases = cluster.section.databases.iter().flatten();
        let extensions_of = databases.filter(|(_, database)| !database.extensions.is_empty());
        let request = v1::ReadCatalogRequest { extensions_of: extensions_of.map(|(name, _)| name.clone()).collect() };
        let link = self.agent(machine).ok_or_else(|| LinkError::NoMachine(machine.clone()))?;
        Ok(link.client().await?.read_catalog(request).await?.into_inner())
    }

    async fn understand(&self, cluster: &Postgres, reply: v1::ReadCatalogReply) -> Catalog {
        // Nodes are given what the state has.
        let unkept = self.cluster.unkept_node_passwords(cluster).await;
        let mut compared = self.compared.lock().await;
        let mut role = |entry: v1::PostgresRoleEntry| {
            let settings = entry.settings.clone().unwrap_or_default();
            let password = match self.password(cluster, &settings.name, &entry, &mut compared) {
                Password::Right if unkept.contains(&settings.name.as_str()) => Password::Other,
                password => password,
            };
            let attributes = [
                (RoleAttribute::Login, settings.login),
                (RoleAttribute::Createdb, settings.createdb),
                (RoleAttribute::Createrole, settings.createrole),
                (RoleAttribute::Replication, settings.replication),
                (RoleAttribute::Superuser, entry.superuser),
                (RoleAttribute::Bypassrls, entry.bypassrls),
                (RoleAttribute::Expiring, entry.expiring),
            ];
            let attributes = attributes.into_iter().filter(|(_, has)| *has).map(|(attribute, _)| attribute);
            let role = CatalogRole {
                attributes: attributes.collect(),
                connection_limit: settings.connection_limit,
                member_of: settings.member_of.into_iter().collect(),
                settings: settings.parameters.into_iter().collect(),
                password,
                needed: entry.needed,
            };
            (settings.name, role)
        };
        let database = |v1::DatabaseEntry { name, owner, encoding, locale, extensions }| {
            (name, CatalogDatabase { owner, encoding, locale, extensions: extensions.into_iter().collect() })
        };
        Catalog {
            roles: reply.roles.into_iter().map(&mut role).collect(),
            databases: reply.databases.into_iter().map(database).collect(),
        }
    }

    /// Whether a role has the password that the file refers to.
    fn password(
        &self,
        cluster: &Postgres,
        role: &str,
        entry: &v1::PostgresRoleEntry,
        compared: &mut Compared,
    ) -> Password {
        if !entry.has_password {
            return Password::None;
        }
        let wanted = match self.cluster.role_password(cluster, role) {
            Ok(Some(wanted)) => wanted,
            // What raftsman has made itself is not looked at.
            Ok(None) if is_reserved(role) => return Password::Untried,
            Ok(None) => return Password::Other,
            Err(error) => return Password::Unknown(crate::error_chain(&error)),
        };
        if entry.verifier.is_empty() {
            return Password::Untried;
        }
        let of = (cluster.name.clone(), role.to_owned());
        let known = compared.get(&of).filter(|(verifier, word, _)| {
            *verifier == entry.verifier && word.expose_secret() == wanted.expose_secret()
        });
        let right = match known {
            Some((_, _, right)) => *right,
            None => {
                let right = scram::is_of(&entry.verifier, &wanted);
                compared.insert(of, (entry.verifier.clone(), wanted, right));
                right
            }
        };
        if right { Password::Right } else { Password::Other }
    }
}

/// The machine of the primary; a node that is not in the file has its machine's name.
fn primary(cluster: &Postgres, observed: &Observed) -> Option<Name> {
    let seen = PostgresView::seen(cluster, observed)?;
    let primary = seen.primary()?;
    cluster.node_in_patroni(primary).map(|node| node.name.clone()).or_else(|| Name::parse(primary).ok())
}
