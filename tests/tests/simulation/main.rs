//! Seeded random worlds and faults → the rules hold, and what is broken on purpose is caught.

mod access;
mod addresses;
mod agents;
mod backup;
mod balancer;
mod lives;
mod maintenance;
mod members;
mod pki;
mod recovery;
mod shape;
mod state;
mod trace;
mod users;
mod versions;
mod zones;
