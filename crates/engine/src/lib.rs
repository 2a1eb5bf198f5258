//! Placeholder.

pub mod artifacts;
pub mod pki;
pub mod secrets;
pub mod store;
