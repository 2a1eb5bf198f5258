//! A scripted world → the planner's steps, until planning again changes nothing.

mod access;
mod addresses;
mod adopted;
mod agents;
mod balancer;
mod catalog;
mod changes;
mod delivery;
mod faults;
mod first_start;
mod maintenance;
mod pki;
mod postgres;
mod preflight;
mod problems;
mod recovery;
mod restore;
mod safety;
mod shape;
mod status;
mod users;
mod versions;
mod zones;
