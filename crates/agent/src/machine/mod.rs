//! the machine → its boot data, disk, firewall, delivered files, metrics; the agent installed on it, upgraded or removed.

pub mod addresses;
pub mod boot;
pub mod delivery;
pub mod disk;
pub mod firewall;
pub mod install;
pub mod measure;
pub mod metrics;
pub mod upgrade;
