//! The cluster's superuser and auth.

use etcd_client::UserAddOptions;
use jiff::Timestamp;
use raftsman_etcd::EtcdError;
use secrecy::ExposeSecret;

use super::{ActError, Hands};

impl Hands<'_> {
    pub(super) async fn create_root(self, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.leader(now).await?;
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
        let mut client = self.leader(now).await?;
        tolerate(client.auth_enable().await)?;
        Ok(())
    }

    pub(super) async fn disable_auth(self, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.leader(now).await?;
        client.auth_disable().await.map_err(EtcdError::from)?;
        Ok(())
    }
}

/// A killed run may have done it already.
pub(super) fn tolerate<T>(outcome: Result<T, etcd_client::Error>) -> Result<(), EtcdError> {
    match outcome.map_err(EtcdError::from) {
        Ok(_) => Ok(()),
        Err(error) if error.already_there() => Ok(()),
        Err(error) => Err(error),
    }
}
