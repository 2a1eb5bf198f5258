//! A cluster that is built anew around one member → what is remembered of it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{EtcdLedger, Mode};
use crate::observed::{AgentReport, ClusterId, MemberId, Observed, View};
use crate::spec::Name;

/// A cluster that lost its majority for good, and the member around which it is built anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// The member whose data the new cluster has.
    pub survivor: Name,
    /// The cluster that lost its majority.
    pub of: ClusterId,
    /// When it was decided.
    pub since: Timestamp,
    /// Whether the survivor was started alone, without the other members.
    pub alone: bool,
    /// Whether it was seen to serve alone since: all that is committed in its log has been applied.
    pub settled: bool,
    /// Which member it was, once its data is put away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberId>,
}

impl EtcdLedger {
    /// Once the survivor has the data of a new cluster, that cluster is ours, and it has no other member.
    pub(super) fn rebuilt(&mut self, observed: &Observed, now: Timestamp) {
        let Mode::Recovering(recovery) = &mut self.mode else { return };
        recovery.settled |= recovery.alone && View::of(observed).is_alone(&recovery.survivor);
        let found = observed.report(&recovery.survivor).and_then(AgentReport::cluster_on_disk);
        let Some(cluster) = found.filter(|found| *found != recovery.of) else { return };
        let (survivor, parent) = (recovery.survivor.clone(), recovery.of);
        self.begin_history(cluster, Some(parent), None, now);
        self.cluster = Some(cluster);
        self.reshaped = true;
        self.members.retain(|name, _| *name == survivor);
        self.started.retain(|name, _| *name == survivor);
        self.down_since.clear();
        self.evicted.clear();
        (self.learner, self.space) = (None, None);
        self.mode = Mode::Normal;
        // Its log begins anew.
        self.log_renewed = None;
    }
}
