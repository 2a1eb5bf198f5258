//! Which member is in which zone, which members are healthy → what the cluster can lose, in zones.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Observed, Tolerance, View};
use crate::desired::Stack;
use crate::spec::Name;

/// A cluster's zones, and how many of them it can lose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zones {
    /// How many zones the cluster can lose, whichever they are, and go on writing.
    pub tolerance: Tolerance,
    /// The members of each zone.
    pub members: BTreeMap<Name, BTreeSet<Name>>,
    /// Zones in which no member is healthy.
    pub down: BTreeSet<Name>,
}

impl Zones {
    /// Derives it from the facts; nothing where no member's zone is known.
    pub fn of(desired: &Stack, observed: &Observed, view: &View<'_>) -> Option<Self> {
        let mut members: BTreeMap<Name, BTreeSet<Name>> = BTreeMap::new();
        // Of members in no known zone the worst is assumed: they fail together.
        let mut elsewhere = 0;
        let all = observed.etcd.members.keys().chain(desired.etcd.members.iter().map(|member| &member.machine));
        let all: BTreeSet<&Name> = all.collect();
        for name in all {
            match zone_of(desired, observed, name) {
                Some(zone) => drop(members.entry(zone.clone()).or_default().insert(name.clone())),
                None => elsewhere += usize::from(view.healthy.contains(name)),
            }
        }
        if members.is_empty() {
            return None;
        }
        let healthy = |names: &BTreeSet<Name>| names.iter().filter(|name| view.healthy.contains(*name)).count();
        // Where no member is healthy it is the cluster that is down, or not there yet.
        let some = members.iter().filter(|_| !view.healthy.is_empty());
        let down = some.filter(|(_, names)| healthy(names) == 0).map(|(zone, _)| zone.clone()).collect();
        let mut counts: Vec<usize> =
            members.values().map(healthy).chain([elsewhere]).filter(|count| *count > 0).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        Some(Self { tolerance: tolerance(view, &counts), members, down })
    }

    /// The zone of this member.
    pub fn zone_of(&self, member: &Name) -> Option<&Name> {
        self.members.iter().find(|(_, names)| names.contains(member)).map(|(zone, _)| zone)
    }
}

/// How many of the zones can go, the largest first, before the rest is no majority.
fn tolerance(view: &View<'_>, largest_first: &[usize]) -> Tolerance {
    let mut left = view.healthy.len();
    if Tolerance::of(left, view.voters) == Tolerance::NoQuorum {
        return Tolerance::NoQuorum;
    }
    let mut lost = 0;
    for count in largest_first {
        left = left.saturating_sub(*count);
        if Tolerance::of(left, view.voters) == Tolerance::NoQuorum {
            break;
        }
        lost += 1;
    }
    Tolerance::CanLose(lost)
}

/// The zone of a member's machine: as its provider reports it, as the state remembers it, as the file has it.
fn zone_of<'a>(desired: &'a Stack, observed: &'a Observed, name: &Name) -> Option<&'a Name> {
    let reported = observed.machine(name).and_then(|machine| machine.zone.as_ref());
    let remembered = || observed.ledger.machines.zones.get(name);
    let wanted = || desired.machine(name).and_then(|machine| machine.place.zone.as_ref());
    reported.or_else(remembered).or_else(wanted)
}
