//! The cluster's superuser and auth.

use etcd_client::{Client, UserAddOptions};
use jiff::Timestamp;
use secrecy::ExposeSecret;

use super::{ActError, Hands};
use crate::etcd::{EtcdError, bounded};

impl Hands<'_> {
    pub(super) async fn create_root(self, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.any_member(now).await?;
        let password = self.cluster().root_password()?;
        let added = match &password {
            Some(password) => client.user_add("root", password.expose_secret(), None).await,
            None => client.user_add("root", "", Some(UserAddOptions::new().with_no_pwd())).await,
        };
        tolerate(added)?;
        tolerate(client.user_grant_role("root", "root").await)?;
        Ok(())
    }

    pub(super) async fn enable_auth(self, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.any_member(now).await?;
        tolerate(client.auth_enable().await)?;
        Ok(())
    }

    /// A member that answers; changes go through the log, so that any will do.
    async fn any_member(self, now: Timestamp) -> Result<Client, ActError> {
        let credentials = self.observer.credentials(now).await?.ok_or(ActError::NobodyAnswers)?;
        for member in &self.cluster().desired.members {
            let Some(link) = self.observer.etcd(&member.name) else { continue };
            let Ok(mut client) = link.client(&credentials).await else { continue };
            let answered = bounded(async { Ok(client.status().await?) }).await;
            if answered.is_ok_and(|status| status.leader() != 0) {
                return Ok(client);
            }
        }
        Err(ActError::NobodyAnswers)
    }
}

/// A killed run may have done it already.
fn tolerate<T>(outcome: Result<T, etcd_client::Error>) -> Result<(), EtcdError> {
    match outcome.map_err(EtcdError::from) {
        Ok(_) => Ok(()),
        Err(error) if error.already_there() => Ok(()),
        Err(error) => Err(error),
    }
}
