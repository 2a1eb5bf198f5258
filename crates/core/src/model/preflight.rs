//! Machines that measure, on the simulated world → what is remembered of it.

use std::collections::BTreeMap;

use super::{Impossible, World};
use crate::action::PreflightAction;
use crate::desired::Stack;
use crate::observed::{Measured, Measurement, Preflight};
use crate::plan::preflight;

/// What disks and network take in a simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latency {
    /// A durable write, in microseconds.
    pub write_us: u32,
    /// A round trip between any two machines, in microseconds.
    pub round_trip_us: u32,
}

impl Latency {
    /// What a forecast assumes: a data centre.
    pub const USUAL: Self = Self { write_us: 2_000, round_trip_us: 500 };
}

pub(super) fn act(world: &mut World, desired: &Stack, action: &PreflightAction) -> Result<(), Impossible> {
    match action {
        PreflightAction::Measure => world.measure(desired),
    }
}

impl World {
    /// Every machine that can be asked measures.
    fn measure(&mut self, desired: &Stack) -> Result<(), Impossible> {
        let observed = self.observe(desired);
        let (names, needed) = preflight::answering(desired, &observed);
        if names.len() < needed {
            return Err(Impossible("too few agents answer".to_owned()));
        }
        let Latency { write_us, round_trip_us } = self.latency;
        let members = names.iter().map(|name| {
            let others = names.iter().filter(|other| other != &name);
            let measured = Measured {
                fsync_p50_us: write_us,
                fsync_p99_us: write_us,
                samples: 100,
                round_trips: others.map(|other| ((*other).clone(), round_trip_us)).collect(),
                unreached: BTreeMap::new(),
            };
            ((*name).clone(), measured)
        });
        let measurement = Measurement { at: self.now, members: members.collect() };
        self.ledger.etcd.preflight = Some(Preflight::after(self.ledger.etcd.preflight.as_ref(), measurement));
        Ok(())
    }
}
