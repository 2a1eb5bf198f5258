//! Raftsman's hands: it gathers what core plans from, and carries out what core decides.
//!
//! | room | input → output |
//! |---|---|
//! | [`fleet`] | a file and its state → everything that a verb needs at hand |
//! | [`fleet_access`] | who signs for agents, and whom they accept |
//! | [`cluster`], [`authorities`] | one cluster of a fleet → its credentials and memory; its certificate authorities |
//! | [`observe`] | world → `Observed` |
//! | [`act`] | one `Action` → the world |
//! | [`adopt`] | a cluster that others run → all that can be seen of it |
//! | [`apply`] | observe, plan, act, observe again |
//! | [`ops`] | one verb of the command line each |
//! | [`pki`] | authorities and certificates |
//! | [`store`] | the state directory: secrets, lock, generation, journal (owns `.raftsman/`) |
//! | [`delivery`] | what the file says of secrets on machines → files for each of them |
//! | [`secrets`], [`artifacts`] | what the file refers to: secrets, etcd binaries |
//! | [`backup`], [`rehearsal`] | the store of the file; a point in it → whether it can be restored |
//! | [`arriving`] | bytes that come → a file that is there once all of them are |
//! | [`interrupt`] | an operator's request to end → no further step |
//! | [`tokens`] | a machine that is to join → its join token |
//! | [`journal`] | what a run does → the audit trail |

pub mod act;
pub mod adopt;
pub mod apply;
pub mod arriving;
pub mod artifacts;
pub mod authorities;
pub mod backup;
pub mod cluster;
pub mod delivery;
pub mod fleet;
pub mod fleet_access;
pub mod interrupt;
pub mod journal;
pub mod machines;
pub mod observe;
pub mod ops;
pub mod pki;
pub mod rehearsal;
pub mod secrets;
pub mod store;
pub mod tokens;

/// An error with everything that caused it, in one line.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        // Some errors repeat their source in their own words.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = source.source();
    }
    text
}
