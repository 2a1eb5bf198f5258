//! A step on auth → what is remembered of it.

#![warn(clippy::wildcard_enum_match_arm)]

use super::EtcdLedger;
use crate::action::AuthAction;
use crate::desired::Stack;

pub(super) fn ahead(ledger: &mut EtcdLedger, desired: &Stack, action: &AuthAction) {
    match action {
        AuthAction::EnableAuth | AuthAction::DisableAuth => ledger.auth = Some(desired.etcd.auth),
        // The next observation tells whether it was done.
        AuthAction::CreateRoot | AuthAction::ChangeRootPassword => {}
    }
}
