//! a call about Patroni or PostgreSQL → the module of its topic, and this machine's Patroni.

use std::sync::Arc;

use raftsman_api::v1;
use tonic::{Response, Status};

use crate::postgres::catalog::{Catalog, CatalogError};
use crate::postgres::config::{self, PatroniConfigError, Sent};
use crate::postgres::data::{self, Data};
use crate::postgres::login;
use crate::postgres::prestart::{self, PostgresPrestartError};
use crate::postgres::rest::{Rest, RestError, Role, SwitchedOver};
use crate::server::{Server, Turn, finish};
use crate::status::Coded;
use crate::supervisor::program::{Expected, Program};
use crate::supervisor::service::{ServiceError, State};

impl Server {
    /// Writes Patroni's file, with its secrets, and etcd's CA certificates.
    pub(super) async fn configure_node(
        &self,
        turn: Turn,
        request: v1::ConfigurePatroniRequest,
    ) -> Result<Response<v1::ConfigurePatroniReply>, Status> {
        let v1::ConfigurePatroniRequest { config, digest, secrets, etcd_trust_pem, stamp } = request;
        let sent = Sent { config, digest, secrets, etcd_trust: etcd_trust_pem, stamp };
        self.change(turn, move |agent| {
            config::write(&agent.root, &agent.launcher, agent.claim.boot().address, &sent)?;
            tracing::info!(digest = sent.digest, "Patroni configured");
            Ok::<_, PatroniConfigError>(v1::ConfigurePatroniReply {})
        })
        .await
    }

    /// Logs in to members of etcd as Patroni. One call at a time: etcd computes for each login on purpose.
    pub(super) async fn log_in(&self) -> Result<Response<v1::LogInToEtcdReply>, Status> {
        let _one = self.logins.lock().await;
        login::test(&self.agent.root).await.map(Response::new).map_err(|error| error.status())
    }

    /// Has this machine's Patroni do something, to its end, even when the caller disconnects in the middle.
    async fn order<R, F>(
        &self,
        turn: Turn,
        what: &'static str,
        order: impl FnOnce(Rest) -> F + Send + 'static,
    ) -> Result<R, Status>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, RestError>> + Send + 'static,
    {
        if !matches!(self.agent.supervisor.of(Program::Patroni).view().state, State::Running(_)) {
            return Err(ServiceError::NotRunning(Program::Patroni).status());
        }
        let agent = Arc::clone(&self.agent);
        let done = finish(tokio::spawn(async move {
            let _turn = turn;
            let done = order(Rest::open(&agent.root)?).await?;
            tracing::info!("{what} by Patroni");
            Ok::<_, RestError>(done)
        }));
        Ok(done.await?.into_inner())
    }

    /// Restarts PostgreSQL, if the node has this role.
    pub(super) async fn restart_postgres_as(&self, turn: Turn, role: v1::PostgresRole) -> Result<(), Status> {
        let role = match role {
            v1::PostgresRole::Primary => Role::Primary,
            v1::PostgresRole::Replica => Role::Replica,
            v1::PostgresRole::Unspecified => {
                return Err(Status::invalid_argument("say what the node must be: primary or replica"));
            }
        };
        self.order(turn, "PostgreSQL was restarted", move |rest| async move { rest.restart(role).await }).await
    }

    /// Has a standby's data deleted, and the primary's copied.
    pub(super) async fn reinitialize(&self, turn: Turn, system: u64) -> Result<(), Status> {
        let found = data::look(&data::dir(&self.agent.root));
        if !matches!(&found, Data::Present { system: own, .. } if system != 0 && *own == system) {
            let expected = format!("data with the system identifier {system}");
            return Err(PostgresPrestartError::OtherData { expected, found }.status());
        }
        self.order(turn, "the standby is made anew", |rest| async move { rest.reinitialize().await }).await
    }

    /// Hands the primary's place over.
    pub(super) async fn switch(&self, turn: Turn, from: String, to: String) -> Result<v1::SwitchOverReply, Status> {
        if from.is_empty() || to.is_empty() || from == to {
            return Err(Status::invalid_argument("say from which node to which other one: from, to"));
        }
        let switched = self
            .order(turn, "a switchover was asked for", move |rest| async move { rest.switch_over(&from, &to).await })
            .await?;
        Ok(v1::SwitchOverReply { undetermined: switched == SwitchedOver::Undetermined })
    }

    /// Has this machine's PostgreSQL do something to roles or databases, to its end, even when the caller disconnects in the
    /// middle.
    pub(super) async fn in_catalog<F>(
        &self,
        turn: Turn,
        what: String,
        change: impl FnOnce(Catalog) -> F + Send + 'static,
    ) -> Result<(), Status>
    where
        F: Future<Output = Result<(), CatalogError>> + Send + 'static,
    {
        let catalog = Catalog::of(&self.agent.root, &self.agent.launcher);
        let done = finish(tokio::spawn(async move {
            let _turn = turn;
            change(catalog).await?;
            tracing::info!("{what}");
            Ok::<_, CatalogError>(())
        }));
        done.await.map(Response::into_inner)
    }

    /// Reads roles and databases. One call at a time: each is a session of PostgreSQL's superuser, and a reader that asked
    /// often enough at once would leave no session for anyone else.
    pub(super) async fn catalog(&self, extensions_of: &[String], admin: bool) -> Result<v1::ReadCatalogReply, Status> {
        let _one = self.catalog_reads.lock().await;
        let catalog = Catalog::of(&self.agent.root, &self.agent.launcher);
        catalog.read(extensions_of, admin).await.map_err(|error| error.status())
    }

    /// Changes Patroni's settings of the whole cluster.
    pub(super) async fn set(&self, turn: Turn, settings: Vec<v1::PatroniSetting>) -> Result<(), Status> {
        if settings.is_empty() {
            return Err(Status::invalid_argument("say which settings are changed"));
        }
        let settings: Vec<(String, String)> =
            settings.into_iter().map(|v1::PatroniSetting { path, json }| (path, json)).collect();
        self.order(turn, "settings were changed", move |rest| async move { rest.set(&settings).await }).await
    }
}

/// What a call expects of PostgreSQL's data.
pub(super) fn postgres_expected(expected: v1::PostgresExpected) -> Result<Expected, Status> {
    let system = expected.system_id;
    match expected.data() {
        v1::DataState::Empty => Ok(prestart::Expected::Empty { copied: Some(system).filter(|system| *system != 0) }),
        v1::DataState::Present if system == 0 => {
            Err(Status::invalid_argument("say which cluster the data must belong to: system_id"))
        }
        v1::DataState::Present => Ok(prestart::Expected::System(system)),
        v1::DataState::Unspecified | v1::DataState::Unreadable => {
            Err(Status::invalid_argument("say what data of PostgreSQL is expected: empty or present"))
        }
    }
    .map(Expected::Patroni)
}
