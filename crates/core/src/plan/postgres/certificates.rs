//! Certificates that nodes should have, certificates that they have → a cluster's CA to make, leaves to sign.

use super::super::pki::flaw;
use super::super::{Draft, Reason, Step, Waiting};
use crate::action::PostgresAction;
use crate::desired::{Node, Postgres};
use crate::observed::{NodePurpose, PostgresOnMachine};

/// A cluster's CA comes first: nothing can be signed without it.
pub(super) fn authorities(draft: &mut Draft<'_>) {
    for cluster in &draft.desired.postgres {
        match &draft.observed.ledger.of_postgres(&cluster.name).trust {
            None => {
                let action = PostgresAction::MakePostgresCa { cluster: cluster.name.clone() };
                draft.steps.push(Step::new(action, Reason::Missing));
            }
            Some(trust) if trust.current.not_after <= draft.now => {
                let authority = format!("PostgreSQL (`{}`)", cluster.name);
                draft.waiting.push(Waiting::AuthorityExpired { authority });
            }
            Some(_) => {}
        }
    }
}

/// Signs what a node lacks.
pub(super) fn leaves(draft: &mut Draft<'_>, cluster: &Postgres, node: &Node, seen: &PostgresOnMachine) {
    let Some(trust) = &draft.observed.ledger.of_postgres(&cluster.name).trust else { return };
    let signer = &trust.current;
    if signer.not_after <= draft.now {
        return;
    }
    for purpose in NodePurpose::ALL {
        let flaw = flaw(seen.certificates.get(&purpose), node.profile(purpose), None, signer, draft.now);
        if let Some(reason) = flaw {
            let action = PostgresAction::IssueNodeCertificate { machine: node.name.clone(), purpose };
            draft.steps.push(Step::new(action, reason));
        }
    }
}
