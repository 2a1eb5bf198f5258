//! The engine: it observes what core plans from, and executes what core decides.
//!
//! | module | input → output |
//! |---|---|
//! | [`fleet`] | a file and its state → the context of a verb |
//! | [`fleet_access`] | the authority that signs for agents, and the certificates that agents accept |
//! | [`stack`], [`authorities`] | one stack of a fleet → its credentials and ledger; its certificate authorities |
//! | [`observe`] | world → `Observed` |
//! | [`act`] | one `Action` → the world |
//! | [`adopt`] | a cluster that is not raftsman's → all that can be observed of it |
//! | [`apply`] | observe, plan, act, observe again |
//! | [`ops`] | one verb of the command line each |
//! | [`pki`] | authorities and certificates |
//! | [`store`] | the state directory: secrets, lock, generation, journal (owns `.raftsman/`) |
//! | [`delivery`] | the file's secrets for machines → files for each of them |
//! | [`secrets`], [`artifacts`] | what the file refers to: secrets, etcd binaries |
//! | [`backup`], [`restore_test`] | the store of the file; a point in it → whether it can be restored |
//! | [`arriving`] | bytes that arrive → a file that exists once it is complete |
//! | [`interrupt`] | an operator's interrupt → no further step |
//! | [`tokens`] | a machine that is to join → its join token |
//! | [`journal`] | what a run does → the audit trail |

pub mod act;
pub mod adopt;
pub mod apply;
pub mod arriving;
pub mod artifacts;
pub mod authorities;
pub mod backup;
pub mod delivery;
pub mod fleet;
pub mod fleet_access;
pub mod interrupt;
pub mod journal;
pub mod machines;
pub mod observe;
pub mod ops;
pub mod pki;
mod postgres;
pub mod restore_test;
mod scram;
pub mod secrets;
pub mod stack;
pub mod store;
pub mod tokens;

/// An error with everything that caused it, in one line.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        // Some errors repeat their source in their own message.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = source.source();
    }
    text
}
