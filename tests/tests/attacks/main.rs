//! What an attacker or a careless program tries → a refusal, and nothing has changed.

mod access;
mod backup;
mod bootstrap;
mod certs;
