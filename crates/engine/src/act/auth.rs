//! The cluster's superuser and auth.

use etcd_client::UserAddOptions;
use jiff::Timestamp;
use raftsman_core::action::AuthAction;
use raftsman_etcd::{EtcdError, bounded};
use secrecy::ExposeSecret;

use super::{ActError, Executor};

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &AuthAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        AuthAction::CreateRoot => executor.create_root(now).await,
        AuthAction::ChangeRootPassword => executor.change_root_password(now).await,
        AuthAction::EnableAuth => executor.enable_auth(now).await,
        AuthAction::DisableAuth => executor.disable_auth(now).await,
    }
}

impl Executor<'_> {
    async fn create_root(self, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        // Also where the authorities were made before the file asked for passwords.
        self.cluster().make_root_password(self.lock).await?;
        let password = self.cluster().root_password().await?;
        let added = bounded(async {
            Ok(match &password {
                Some(password) => client.user_add("root", password.expose_secret(), None).await,
                None => client.user_add("root", "", Some(UserAddOptions::new().with_no_pwd())).await,
            }?)
        });
        tolerate(added.await)?;
        tolerate(bounded(async { Ok(client.user_grant_role("root", "root").await?) }).await)?;
        Ok(self.cluster().keep_root_password(self.lock).await?)
    }

    /// With the password that is in force: the connection is the one that it got.
    async fn change_root_password(self, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        self.cluster().announce_root_password(self.lock).await?;
        if let Some(password) = self.cluster().root_password().await? {
            let word = password.expose_secret();
            bounded(async { Ok(client.user_change_password("root", word).await?) }).await?;
        }
        Ok(self.cluster().keep_root_password(self.lock).await?)
    }

    async fn enable_auth(self, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        tolerate(bounded(async { Ok(client.auth_enable().await?) }).await)?;
        Ok(())
    }

    async fn disable_auth(self, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        bounded(async { Ok(client.auth_disable().await?) }).await?;
        Ok(())
    }
}

/// A killed run may have done it already.
pub(super) fn tolerate<T>(outcome: Result<T, EtcdError>) -> Result<(), EtcdError> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) if error.already_there() => Ok(()),
        Err(error) => Err(error),
    }
}
