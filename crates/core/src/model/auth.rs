//! A step on auth or its superuser, on the simulated world → what the members have agreed upon then.

#![warn(clippy::wildcard_enum_match_arm)]

use super::effects::Impossible;
use super::{World, users};
use crate::action::AuthAction;
use crate::observed::Root;

pub(super) fn act(world: &mut World, action: &AuthAction) -> Result<(), Impossible> {
    match action {
        AuthAction::CreateRoot => world.agree(|agreed| {
            agreed.root = Root::Ready;
            users::create_root(&mut agreed.access);
        }),
        AuthAction::ChangeRootPassword => world.agree(|agreed| agreed.root = Root::Ready),
        AuthAction::EnableAuth => {
            let mut without_root = false;
            world.agree(|agreed| {
                without_root = agreed.root != Root::Ready;
                agreed.auth |= !without_root;
            })?;
            if without_root { Err(Impossible("there is no root user".to_owned())) } else { Ok(()) }
        }
        AuthAction::DisableAuth => world.agree(|agreed| agreed.auth = false),
    }
}
