//! Roles and users: etcd's own calls, each through the leader, and idempotent: a killed run may have made them.

use etcd_client::{Client, Permission, PermissionType, RoleRevokePermissionOptions, UserAddOptions};
use jiff::Timestamp;
use raftsman_core::action::{Account, UserAction};
use raftsman_core::observed::Granted;
use raftsman_core::spec::{KeySpan, Level};
use raftsman_etcd::{EtcdError, bounded};
use secrecy::{ExposeSecret as _, SecretString};

use super::{ActError, Executor};

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &UserAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        UserAction::SetRole { role, set, revoke } => Box::pin(executor.set_role(role, set, revoke, now)).await,
        UserAction::DeleteRole { role } => Box::pin(executor.delete_role(role, now)).await,
        UserAction::SetUser { user, account, grant, revoke } => {
            Box::pin(executor.set_user(user, *account, grant, revoke, now)).await
        }
        UserAction::DeleteUser { user } => Box::pin(executor.delete_user(user, now)).await,
    }
}

impl Executor<'_> {
    async fn set_role(self, role: &str, set: &[Granted], revoke: &[KeySpan], now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        let done = async {
            call(async { Ok(client.role_add(role).await.map(drop)?) }, "already exists").await?;
            for granted in set {
                let permission = permission(granted);
                call(async { Ok(client.role_grant_permission(role, permission).await.map(drop)?) }, "\0").await?;
            }
            for keys in revoke {
                let options = RoleRevokePermissionOptions::new().with_range_end(keys.end.clone());
                let (key, options) = (keys.key.clone(), Some(options).filter(|_| !keys.end.is_empty()));
                let revoked = async { Ok(client.role_revoke_permission(role, key, options).await.map(drop)?) };
                call(revoked, "permission is not granted").await?;
            }
            Ok::<_, EtcdError>(())
        };
        let done = done.await;
        self.observer.forget_access().await;
        Ok(done?)
    }

    async fn delete_role(self, role: &str, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        let done = call(async { Ok(client.role_delete(role).await.map(drop)?) }, "role name not found").await;
        self.observer.forget_access().await;
        Ok(done?)
    }

    async fn set_user(
        self,
        user: &str,
        account: Account,
        grant: &[String],
        revoke: &[String],
        now: Timestamp,
    ) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        let password = match self.cluster().patronis_user(user) {
            Some((cluster, slot)) => Some(self.cluster().make_etcd_password(self.lock, cluster, slot).await?),
            None => self.cluster().user_password(user)?,
        };
        let done = async {
            match account {
                Account::Keep => {}
                Account::Make => add(&mut client, user, password.as_ref()).await?,
                Account::Password => {
                    let word = password.as_ref().map_or("", |word| word.expose_secret());
                    call(async { Ok(client.user_change_password(user, word).await.map(drop)?) }, "\0").await?;
                }
                Account::Remake => {
                    delete(&mut client, user).await?;
                    add(&mut client, user, password.as_ref()).await?;
                }
            }
            for role in grant {
                call(async { Ok(client.user_grant_role(user, role.as_str()).await.map(drop)?) }, "\0").await?;
            }
            for role in revoke {
                let revoked = async { Ok(client.user_revoke_role(user, role.as_str()).await.map(drop)?) };
                call(revoked, "role is not granted").await?;
            }
            Ok::<_, EtcdError>(())
        };
        let done = done.await;
        self.observer.forget_password(user).await;
        self.observer.forget_access().await;
        Ok(done?)
    }

    async fn delete_user(self, user: &str, now: Timestamp) -> Result<(), ActError> {
        let mut client = self.changing(now).await?;
        let done = delete(&mut client, user).await;
        self.observer.forget_access().await;
        done?;
        Ok(self.cluster().forget_etcd_password(self.lock, user).await?)
    }
}

async fn add(client: &mut Client, user: &str, password: Option<&SecretString>) -> Result<(), EtcdError> {
    let added = async {
        Ok(match password {
            Some(password) => client.user_add(user, password.expose_secret(), None).await,
            None => client.user_add(user, "", Some(UserAddOptions::new().with_no_pwd())).await,
        }
        .map(drop)?)
    };
    call(added, "already exists").await
}

async fn delete(client: &mut Client, user: &str) -> Result<(), EtcdError> {
    call(async { Ok(client.user_delete(user).await.map(drop)?) }, "user name not found").await
}

/// One call. These words in its error say that it was made before.
async fn call(request: impl Future<Output = Result<(), EtcdError>> + Send, before: &str) -> Result<(), EtcdError> {
    match bounded(request).await {
        Err(EtcdError::Call(etcd_client::Error::GRpcStatus(status))) if status.message().contains(before) => Ok(()),
        other => other,
    }
}

fn permission(granted: &Granted) -> Permission {
    let kind = match granted.level {
        Level::Read => PermissionType::Read,
        Level::Write => PermissionType::Write,
        Level::Readwrite => PermissionType::Readwrite,
    };
    let KeySpan { key, end } = granted.keys.clone();
    match end.is_empty() {
        true => Permission::new(kind, key),
        false => Permission::new(kind, key).with_range_end(end),
    }
}
