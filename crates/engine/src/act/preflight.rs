//! Machines that can be asked → the measured latency of their disks and of the network between them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use raftsman_api::v1::{MeasureReply, MeasureRequest, Target};
use raftsman_core::action::PreflightAction;
use raftsman_core::observed::{Measured, Measurement, Preflight};
use raftsman_core::plan::preflight;
use raftsman_core::spec::Name;

use super::{ActError, Executor};

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &PreflightAction) -> Result<(), ActError> {
    match action {
        PreflightAction::Measure => Box::pin(executor.measure()).await,
    }
}

impl Executor<'_> {
    /// Measures, and remembers what follows from it.
    async fn measure(self) -> Result<(), ActError> {
        let (measurement, silent) = self.measurement().await?;
        let cluster = self.cluster();
        let (ready, needed) = (measurement.members.len(), preflight::needed(&cluster.desired, &cluster.ledger()));
        if ready < needed {
            let why = silent.values().next().cloned().unwrap_or_default();
            return Err(ActError::TooFewMeasured { ready, needed, why });
        }
        cluster
            .remember(self.lock, |ledger| {
                ledger.etcd.preflight = Some(Preflight::after(ledger.etcd.preflight.as_ref(), measurement));
            })
            .await?;
        Ok(())
    }

    /// Has every machine of the file measure, and names those that could not be asked.
    ///
    /// One after the other: machines may share a disk or a computer, and writes of one must not distort the measurement
    /// of another.
    pub async fn measurement(self) -> Result<(Measurement, BTreeMap<Name, String>), ActError> {
        let names = self.cluster().desired.etcd.members.iter().map(|m| &m.name);
        let places: BTreeMap<&Name, IpAddr> =
            names.map(|name| Ok((name, self.link(name)?.address()))).collect::<Result<_, ActError>>()?;
        let (mut members, mut silent) = (BTreeMap::new(), BTreeMap::new());
        for name in places.keys() {
            let others = places.iter().filter(|(other, _)| other != &name);
            let targets = others.map(|(other, ip)| Target { name: other.to_string(), address: ip.to_string() });
            match self.measured_by(name, targets.collect()).await {
                Ok(measured) => drop(members.insert((*name).clone(), measured)),
                Err(error) => drop(silent.insert((*name).clone(), error.to_string())),
            }
        }
        Ok((Measurement { at: Timestamp::now(), members }, silent))
    }

    async fn measured_by(self, machine: &Name, targets: Vec<Target>) -> Result<Measured, ActError> {
        let mut agent = self.agent(machine).await?;
        Ok(taken(agent.measure(self.stamped(MeasureRequest { targets })).await?.into_inner()))
    }
}

fn taken(reply: MeasureReply) -> Measured {
    let MeasureReply { fsync_p50_us, fsync_p99_us, samples, round_trips } = reply;
    let mut measured = Measured { fsync_p50_us, fsync_p99_us, samples, ..Measured::default() };
    for trip in round_trips {
        let Ok(name) = Name::parse(&trip.name) else { continue };
        if trip.median_us > 0 {
            measured.round_trips.insert(name, trip.median_us);
        } else {
            measured.unreached.insert(name, trip.error);
        }
    }
    measured
}
