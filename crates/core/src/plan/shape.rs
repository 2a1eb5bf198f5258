//! Machines that differ from what the file says by now → made anew, one at a time.
//!
//! Where etcd's data has a disk of its own, the machine is rebuilt around it, and the same member restarts. Elsewhere
//! the member is removed first, and joins again from its new machine as a learner.

use super::report::{Because, Report};
use super::{Draft, Reason, Step, Waiting, members, safety};
use crate::action::{Action, MachineAction};
use crate::spec::{Name, Shape};

impl Draft<'_> {
    /// What would have to change of this machine, in words.
    pub(super) fn outdated(&self, machine: &Name) -> Option<String> {
        let shape = self.shapes(machine).and_then(|(found, wanted)| found.change_to(wanted));
        let zone = self.zones(machine).map(|(found, wanted)| format!("zone: {found} → {wanted}"));
        let changes: Vec<String> = zone.into_iter().chain(shape).collect();
        (!changes.is_empty()).then(|| changes.join(", "))
    }

    /// The zone that it is in, and the other one that the file names for it.
    fn zones(&self, machine: &Name) -> Option<(&Name, &Name)> {
        let found = self.observed.machine(machine)?.zone.as_ref()?;
        let place = &self.desired.machine(machine)?.place;
        // Where the file names none, a machine stays where it is.
        let wanted = place.zone.as_ref().filter(|wanted| place.pinned && *wanted != found)?;
        Some((found, wanted))
    }

    /// What it is made of, and what it should be made of, where both are known.
    fn shapes(&self, machine: &Name) -> Option<(&Shape, &Shape)> {
        let found = self.observed.machine(machine)?.shape.as_ref()?;
        Some((found, self.desired.machine(machine)?.shape.as_ref()?))
    }
}

/// The next machine that is made anew, once all else is as it should be: the leader's last.
pub(super) fn renew(draft: &mut Draft<'_>) -> Report {
    let names = draft.desired.etcd.members.iter().map(|member| member.name.clone());
    let mut outdated: Vec<(Name, String)> = names.filter_map(|name| draft.outdated(&name).map(|c| (name, c))).collect();
    outdated.sort_by_key(|(name, _)| draft.view.leader == Some(name));
    let Some((name, change)) = outdated.first().cloned() else { return Report::Looked };
    // A learner is promoted first: no machine is replaced while one catches up.
    let listed = draft.view.listed.unwrap_or_default();
    let Some(entry) = draft.entry(&name).cloned().filter(|_| listed.iter().all(|member| !member.learner)) else {
        return Report::Left(Because::Learner);
    };
    let unhealthy = draft.unhealthy_beside(None);
    if !unhealthy.is_empty() {
        draft.wait(Waiting::HealFirst { change: format!("rebuilding the machine of `{name}`"), unhealthy });
        return Report::Looked;
    }
    let reason = Reason::OtherShape { change };
    // A data disk does not leave its zone.
    let around_data = draft.shapes(&name).is_some_and(|(found, wanted)| found.keeps_data() && wanted.keeps_data());
    if around_data && draft.zones(&name).is_none() {
        let action = Action::from(MachineAction::RebuildMachine { machine: name.clone() });
        match safety::judge(draft.desired, draft.observed, &[&action], &action) {
            Ok(_) => draft.steps.push(Step::new(action, reason)),
            Err(refusal) => draft.wait(safety::refused(&action, refusal)),
        }
    } else if draft.view.leader == Some(&name) {
        members::hand_over(draft, &name);
    } else {
        members::remove(draft, &entry, reason);
    }
    for (machine, _) in outdated.into_iter().skip(1) {
        draft.wait(Waiting::Turn { machine, verb: "rebuild machine".to_owned() });
    }
    Report::Looked
}
