//! What the tests share: files to start from, seeded dice, the simulator, the lab of real servers.

pub mod bare;
pub mod dice;
pub mod fixtures;
pub mod lab;
pub mod sim;
pub mod story;
