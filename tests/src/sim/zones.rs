//! Files that name other zones for members → which members are in the wrong one, and whether the loss of a zone costs quorum.

use std::collections::BTreeMap;

use raftsman_core::desired::Stack;
use raftsman_core::model::{MachineModel, World};
use raftsman_core::observed::quorum;
use raftsman_core::spec::Name;

use crate::fixtures;

/// The zones of three members, and of five: in one, in two, in three, and in others.
pub(super) const PLACES: [&[&str]; 2] = [&["aab", "abc", "aaa", "bca"], &["aabbc", "abcab", "aaabb", "ccbba"]];

/// A cluster whose members are in these zones, one letter each.
pub(super) fn placed(zones: &str) -> Stack {
    let member = |(i, zone): (usize, char)| format!("{{ name: m{}, zone: {zone} }}", i + 1);
    let members: Vec<String> = zones.chars().enumerate().map(member).collect();
    let three = "zones: { a: { incus: { target: a } }, b: { incus: { target: b } }, c: { incus: { target: c } } }";
    fixtures::machines_of(&[three], &[&format!("members: [{}]", members.join(", "))])
}

fn wanted<'a>(desired: &'a Stack, name: &Name) -> Option<&'a Name> {
    desired.machine(name)?.place.zone.as_ref()
}

/// Whether the file names another zone for this member.
pub(super) fn misplaced(desired: &Stack, name: &Name, machine: Option<&MachineModel>) -> bool {
    let found = machine.and_then(|machine| machine.zone.as_ref());
    found.zip(wanted(desired, name)).is_some_and(|(found, wanted)| found != wanted)
}

/// Whether the members that are in no zone but one are a majority, whichever that one is.
fn survives<'a>(zones: impl Iterator<Item = Option<&'a Name>>) -> bool {
    let mut counts: BTreeMap<Option<&Name>, usize> = BTreeMap::new();
    zones.for_each(|zone| *counts.entry(zone).or_default() += 1);
    let members: usize = counts.values().sum();
    counts.values().all(|lost| members - lost >= quorum(members))
}

/// The zones as they are, where the loss of one would cost quorum and would not with the file's.
pub(super) fn broken(desired: &Stack, world: &World) -> Option<String> {
    let names = || desired.etcd.members.iter().map(|member| &member.name);
    let found = |name: &Name| {
        let machine = world.machines.get(name);
        machine.and_then(|machine| machine.zone.as_ref()).or_else(|| wanted(desired, name))
    };
    let known = names().any(|name| wanted(desired, name).is_some());
    if !known || !survives(names().map(|name| wanted(desired, name))) || survives(names().map(found)) {
        return None;
    }
    let zones: Vec<&str> = names().map(|name| found(name).map_or("none", |zone| zone.as_str())).collect();
    Some(format!("members are in the zones {}", zones.join(", ")))
}
