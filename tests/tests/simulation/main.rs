//! Seeded random worlds and faults → the rules hold, and what is broken on purpose is caught.

mod access;
mod addresses;
mod agents;
mod backup;
mod balancer;
mod interlock;
mod lives;
mod maintenance;
mod members;
mod pki;
mod postgres;
mod recovery;
mod rounds;
mod shape;
mod state;
mod trace;
mod users;
mod versions;
mod zones;
