//! A step on etcd where it runs → what is remembered of it.

#![warn(clippy::wildcard_enum_match_arm)]

use super::Ledger;
use crate::action::{EtcdAction, StartData};
use crate::desired::Stack;
use crate::observed::Observed;

pub(super) fn ahead(ledger: &mut Ledger, desired: &Stack, observed: &Observed, action: &EtcdAction) {
    match action {
        EtcdAction::StartEtcd { data: StartData::Alone(_), .. } => {
            ledger.reshaped = true;
            if let Some(recovery) = ledger.recovery_mut() {
                recovery.alone = true;
            }
        }
        EtcdAction::StartEtcd { machine, .. } => {
            if ledger.founders.is_empty() {
                ledger.founders = desired.etcd.members.iter().map(|m| (m.name.clone(), m.peer_url())).collect();
                ledger.members.extend(ledger.founders.clone());
                ledger.auth = Some(desired.etcd.auth);
            }
            if let Some(report) = observed.report(machine) {
                ledger.started.insert(machine.clone(), report.incarnation.clone());
            }
        }
        EtcdAction::ClearData { machine, member } => {
            if let Some(recovery) = ledger.recovery_mut().filter(|recovery| recovery.survivor == *machine) {
                recovery.member = *member;
            }
        }
        // The next observation tells whether it was done.
        EtcdAction::InstallEtcd { .. }
        | EtcdAction::ConfigureEtcd { .. }
        | EtcdAction::RestartEtcd { .. }
        | EtcdAction::RestartTogether { .. }
        | EtcdAction::StopEtcd { .. } => {}
    }
}
