//! A step for scheduled backups → the settings and the certificate that a machine makes them with.

use raftsman_core::action::BackupAction;
use raftsman_core::desired::ClientAccess;
use raftsman_core::spec::{AuthMode, Name};

use super::pki::certify_client;
use super::{ActError, Executor};
use crate::delivery::backup_settings;

pub(super) async fn act(executor: Executor<'_>, action: &BackupAction) -> Result<(), ActError> {
    match action {
        BackupAction::ConfigureBackups { machine } => executor.configure_backups(machine).await,
    }
}

impl Executor<'_> {
    async fn configure_backups(self, machine: &Name) -> Result<(), ActError> {
        let cluster = self.cluster();
        let settings = backup_settings(cluster, self.lock).await.map_err(Box::new)?;
        if settings.order.is_some() && cluster.auth() != AuthMode::Password {
            certify_client(cluster, self.link(machine)?.as_ref(), self.generation(), ClientAccess::Open).await?;
        }
        if settings.drill_every_ms > 0 {
            self.install_tool(machine, cluster.desired.etcd.version).await?;
        }
        self.agent(machine).await?.set_backups(self.stamped(settings)).await?;
        Ok(())
    }
}
