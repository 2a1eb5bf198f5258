//! An etcd cluster with passwords → PostgreSQL on it by hand, clients that write to it, and what they and each node saw.

pub mod bare;
mod clients;
mod connect;
pub mod forks;
pub mod ledger;
pub mod operations;
mod stack;
pub mod watch;

pub use bare::{BarePostgres, Dcs, Timers};
pub use clients::Clients;
pub use ledger::Ledger;
pub use stack::{APPLY, Stack, balancer, catalog, file, psql, section, write_password};
pub use watch::Watch;
