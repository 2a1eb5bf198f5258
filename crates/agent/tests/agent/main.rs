//! the agent's binary, as a workstation sees it → every promise of its protocol, kept.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod admission;
mod birth;
mod claim;
mod data;
mod etcd;
mod harness;
mod measure;
mod supervise;
mod trust;
