//! A step on auth or its superuser → what it costs, or why it must not be done.

use super::{Case, Cost, Refusal, otherwise};
use crate::action::AuthAction;
use crate::observed::Root;
use crate::spec::AuthMode;

pub(super) fn judge(case: &Case<'_>, action: &AuthAction) -> Result<Cost, Refusal> {
    case.with_quorum()?;
    let (wanted, answering) = (case.desired.etcd.auth, &case.view.answering);
    let judged = match action {
        AuthAction::CreateRoot => Ok(()),
        AuthAction::DisableAuth if wanted == AuthMode::None => Ok(()),
        AuthAction::DisableAuth => Err(otherwise("the file wants auth")),
        AuthAction::ChangeRootPassword => {
            let outdated = wanted == AuthMode::Password
                && answering.values().any(|e| e.root == Root::Outdated && e.auth == Some(true));
            if outdated { Ok(()) } else { Err(Refusal::NotSeen("that `root` has another password")) }
        }
        AuthAction::EnableAuth => {
            let ready = answering.values().any(|e| e.root == Root::Ready);
            if ready { Ok(()) } else { Err(Refusal::NotSeen("the superuser `root` with its role")) }
        }
    };
    judged.map(|()| case.unharmed)
}
