//! The commands and real etcd on this computer → what the commands promise.

mod adopt;
mod backup;
mod backup_store;
mod balancer;
mod cli;
mod deadlines;
mod drill;
mod fence;
mod interrupted;
mod killed;
mod lifecycle;
mod load;
mod matrix;
mod members;
mod notice;
mod pki;
mod preflight;
mod recovery;
mod refusals;
mod refusals_agent;
mod restore;
mod secrets;
mod state;
mod upkeep;
mod users;
mod versions;
