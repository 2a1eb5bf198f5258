//! The users of etcd that a PostgreSQL cluster has → the one that Patroni logs in as, and the other one away.
//!
//! A changed password of the user in use demotes the primary within seconds. So a second user takes the place of the
//! first: it is made, taken up by every node, seen to work from each of them, and only then the first one goes.

use super::super::report::{Because, Report};
use super::super::users::{lacking, looked, newest};
use super::super::{Draft, Reason, Step};
use crate::action::{Account, UserAction};
use crate::observed::Password;
use crate::plan::safety::{Case, Refusal, interlock};
use crate::plan::situation::postgres::{has_role, is_right};

/// Makes the role and the user that Patroni logs in as.
pub(in crate::plan) fn make_users(draft: &mut Draft<'_>) -> Report {
    if newest(&draft.view).and_then(|etcd| etcd.auth) != Some(true) {
        return Report::Left(Because::NoAuth);
    }
    let Some(Ok(seen)) = looked(&draft.view) else { return Report::Left(Because::Awaited) };
    let desired = draft.desired;
    for cluster in &desired.postgres {
        let (role, wanted) = cluster.etcd_role();
        let slot = draft.observed.ledger.of_postgres(&cluster.name).user;
        let user = cluster.etcd_user(slot);
        if !has_role(seen, cluster) {
            let set = lacking(&wanted, seen.roles.get(&role));
            let reason = Reason::Access { missing: true, lacks: Vec::new(), has: Vec::new() };
            draft.steps.push(Step::new(UserAction::SetRole { role, set, revoke: Vec::new() }, reason));
        } else if !is_right(seen, cluster, slot) {
            let account = match seen.users.get(&user).map(|user| &user.password) {
                None => Account::Make,
                Some(Password::Other) => Account::Password,
                Some(Password::None) => Account::Remake,
                Some(Password::Right | Password::Untried | Password::Unknown(_)) => Account::Keep,
            };
            let reason = Reason::Access { missing: account == Account::Make, lacks: Vec::new(), has: Vec::new() };
            let action = UserAction::SetUser { user, account, grant: vec![role], revoke: Vec::new() };
            draft.steps.push(Step::new(action, reason));
        }
    }
    Report::Looked
}

/// Deletes the user that no node uses any more.
pub(in crate::plan) fn discard_users(draft: &mut Draft<'_>) -> Report {
    let Some(Ok(seen)) = looked(&draft.view) else { return Report::Left(Because::Awaited) };
    let (desired, observed) = (draft.desired, draft.observed);
    for cluster in &desired.postgres {
        let slot = observed.ledger.of_postgres(&cluster.name).user.other();
        let user = cluster.etcd_user(slot);
        if !seen.users.contains_key(&user) {
            continue;
        }
        let action = UserAction::DeleteUser { user };
        let case = Case::of(desired, observed, &draft.view);
        let step = Step::new(action, Reason::NotNeeded);
        match interlock::check(&case, &[&step.action], &step.action) {
            Ok(()) => draft.steps.push(step),
            Err(Refusal::Held(waiting)) => draft.wait(waiting.into()),
            // A node that still has it takes the other one up first.
            Err(_) => return Report::Left(Because::Awaited),
        }
        return Report::Looked;
    }
    Report::Looked
}
