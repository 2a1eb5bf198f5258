//! Raftsman's pure decisions: no I/O, no clock, no randomness, no async.
//!
//! ```text
//! raftsman.yaml ── spec ──► Spec ── desired ──► Desired ─┐
//!                                                        ├─ plan ──► Plan { steps, waiting }
//! what the engine saw ──────────── observed ──► Observed ─┘              │
//!                                                    model ◄── action ◄──┘
//! ```
//!
//! | module | input → output |
//! |---|---|
//! | [`spec`] | the text of `raftsman.yaml` → a valid [`spec::Spec`], or diagnostics that point at the line |
//! | [`desired`] | Spec and the fleet's identity → every choice made |
//! | [`observed`] | facts with their age → the cluster as a whole |
//! | [`ledger`] | the state's memory of a cluster → what no observation can tell |
//! | [`plan`] | (Desired, Observed, now) → what to do next, and for all that is not done, why not |
//! | [`action`] | the closed list of actions |
//! | [`model`] | an action on a simulated world → its effect; the forecast |
//! | [`versions`] | the versions that run and the wanted one → the next hop, or why there is none |
//! | [`render`] | Desired → the text of files |
//! | [`boot`] | the boot data of a new machine |
//! | [`backup`] | the objects of a backup store → what can be restored from them, and what may be deleted |
//! | [`adopt`] | a cluster that raftsman did not make → the file that describes it, and findings about it |
//!
//! The engine gathers `Observed` and carries out `Action`s; nothing here does I/O.

pub mod action;
pub mod adopt;
pub mod backup;
pub mod boot;
pub mod desired;
pub mod ledger;
pub mod model;
pub mod observed;
pub mod plan;
pub mod render;
pub mod spec;
pub mod versions;
