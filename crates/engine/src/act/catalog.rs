//! A step on roles and databases of a PostgreSQL cluster → the agent of its primary, which checks that it is one.

use raftsman_api::v1::{
    DatabaseEntry, DropPostgresRoleRequest, PostgresRoleSettings, SetDatabaseRequest, SetNodePasswordRequest,
    SetPostgresRoleRequest,
};
use raftsman_core::action::Account;
use raftsman_core::observed::{CatalogRole, RoleAttribute};
use raftsman_core::spec::Name;

use super::{ActError, Executor};
use crate::observe::AgentCalls;
use crate::scram;
use crate::secrets::SecretError;
use crate::stack::StackError;

impl Executor<'_> {
    pub(super) async fn set_postgres_role(self, cluster: &Name, role: &str, account: Account) -> Result<(), ActError> {
        let of = self.postgres(cluster)?;
        let wanted = of.section.roles.as_ref().and_then(|roles| roles.get(role));
        let wanted = CatalogRole::from(wanted.ok_or_else(|| not_in_file(cluster, role))?);
        let verifier = match account {
            Account::Keep => None,
            Account::Make | Account::Password | Account::Remake => {
                let password = self.cluster().role_password(of, role)?;
                let made = password.map(|password| scram::verifier(&password)).transpose();
                Some(made.map_err(|_| StackError::from(SecretError::Random))?.unwrap_or_default())
            }
        };
        let may = |attribute| wanted.attributes.contains(&attribute);
        let settings = PostgresRoleSettings {
            name: role.to_owned(),
            login: may(RoleAttribute::Login),
            createdb: may(RoleAttribute::Createdb),
            createrole: may(RoleAttribute::Createrole),
            replication: may(RoleAttribute::Replication),
            connection_limit: wanted.connection_limit,
            member_of: wanted.member_of.into_iter().collect(),
            parameters: wanted.settings.into_iter().collect(),
        };
        let request = SetPostgresRoleRequest { settings: Some(settings), verifier };
        self.primary(cluster).await?.set_postgres_role(self.stamped(request)).await?;
        Ok(())
    }

    /// PostgreSQL first, then the state: where the second is not seen, both are done again.
    pub(super) async fn set_node_password(self, cluster: &Name, role: &str) -> Result<(), ActError> {
        let of = self.postgres(cluster)?;
        let password = self.cluster().role_password(of, role)?.ok_or_else(|| not_in_file(cluster, role))?;
        let verifier = scram::verifier(&password).map_err(|_| StackError::from(SecretError::Random))?;
        let request = SetNodePasswordRequest { role: role.to_owned(), verifier };
        self.primary(cluster).await?.set_node_password(self.stamped(request)).await?;
        Ok(self.cluster().keep_node_password(self.lock, of, role, &password).await?)
    }

    pub(super) async fn drop_postgres_role(self, cluster: &Name, role: &str) -> Result<(), ActError> {
        let request = DropPostgresRoleRequest { name: role.to_owned() };
        self.primary(cluster).await?.drop_postgres_role(self.stamped(request)).await?;
        Ok(())
    }

    pub(super) async fn set_database(self, cluster: &Name, database: &str) -> Result<(), ActError> {
        let databases = self.postgres(cluster)?.section.databases.as_ref();
        let wanted = databases.and_then(|databases| databases.get(database));
        let wanted = wanted.ok_or_else(|| not_in_file(cluster, database))?.clone();
        let entry = DatabaseEntry {
            name: database.to_owned(),
            owner: wanted.owner,
            encoding: wanted.encoding,
            locale: wanted.locale,
            extensions: wanted.extensions,
        };
        let request = SetDatabaseRequest { database: Some(entry) };
        self.primary(cluster).await?.set_database(self.stamped(request)).await?;
        Ok(())
    }

    /// The agent of the node that was the primary in the last observation.
    async fn primary(self, cluster: &Name) -> Result<AgentCalls, ActError> {
        let machine = self.observer.primary_of(self.postgres(cluster)?).await;
        self.agent(&machine.ok_or_else(|| ActError::NoPrimary(cluster.clone()))?).await
    }
}

fn not_in_file(cluster: &Name, name: &str) -> ActError {
    ActError::NotInCatalog { cluster: cluster.clone(), name: name.to_owned() }
}
