//! A PostgreSQL cluster → the secrets that the state keeps for it.

use raftsman_core::desired::{Postgres, UserSlot};
use secrecy::SecretString;

use crate::secrets::random_password;
use crate::stack::{StackError, StackHandle};
use crate::store::Lock;

/// The name in the state of the password that Patroni logs in to etcd with.
fn etcd_password_name(cluster: &Postgres, slot: UserSlot) -> String {
    format!("{}-patroni-etcd-{slot}", cluster.name)
}

impl StackHandle {
    /// The PostgreSQL cluster whose Patroni has this user of etcd.
    pub(crate) fn patronis_user(&self, user: &str) -> Option<(&Postgres, UserSlot)> {
        let slots = |cluster| UserSlot::BOTH.map(|slot| (cluster, slot));
        let mut all = self.desired.postgres.iter().flat_map(slots);
        all.find(|(cluster, slot): &(&Postgres, UserSlot)| cluster.etcd_user(*slot) == user)
    }

    /// The password that Patroni logs in to etcd with, made where there is none yet.
    pub(crate) async fn make_etcd_password(
        &self,
        lock: &Lock,
        cluster: &Postgres,
        slot: UserSlot,
    ) -> Result<SecretString, StackError> {
        let name = etcd_password_name(cluster, slot);
        Ok(self.fleet.secrets.get_or_put(lock, &name, random_password()?).await?)
    }
}
