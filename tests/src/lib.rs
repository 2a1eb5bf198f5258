//! What the tests share: files to start from, seeded dice, the simulator, the lab of real servers,
//! the load on them, real machines.

pub mod balancer;
pub mod bare;
pub mod bulk;
pub mod ceph;
pub mod conformance;
pub mod dice;
pub mod figures;
pub mod files;
pub mod fixtures;
pub mod hand;
pub mod hosts;
pub mod incus;
pub mod lab;
pub mod libvirt;
pub mod load;
pub mod operations;
pub mod partition;
pub mod postgres;
pub mod proxy;
pub mod readers;
pub mod sim;
pub mod skew;
pub mod space;
pub mod story;
