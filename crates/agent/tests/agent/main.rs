//! the agent's binary, as a workstation sees it → every promise of its protocol, kept.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod access;
mod admission;
mod balancer;
mod bootstrap;
mod claim;
mod data;
mod etcd;
mod harness;
mod measure;
mod pins;
mod postgres;
mod programs;
mod supervise;
mod trust;
mod upgrade;
