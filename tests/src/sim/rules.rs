//! The true world, what was observed, an action → the rule of members and machines that is broken; whether done is done.

use std::collections::BTreeSet;

use raftsman_core::action::{Action, EtcdAction, MachineAction, MaintenanceAction, MemberAction};
use raftsman_core::model::MachineModel;
use raftsman_core::observed::{Fact, ListedMember, Observed, Power, View};
use raftsman_core::spec::Name;

use super::{Run, Violation, agents, balancer, maintenance, pki, postgres, shape, users, zones};

impl Run {
    /// Nothing is planned any more: everything must be as the file says.
    pub(super) fn settled(&mut self) -> Result<(), Violation> {
        let observed = self.world.observe(&self.desired);
        let again = (self.planner)(&self.desired, &observed, self.world.now);
        if !again.steps.is_empty() {
            return Err(self.violation("re-planning changes nothing", format!("{again:?}")));
        }
        if !self.desired.is_placed() {
            return Err(self.violation("done means done", "a machine has no address"));
        }
        for member in &self.desired.etcd.members {
            let machine = self.world.machines.get(&member.name).cloned().unwrap_or_else(MachineModel::none);
            let timers = self.desired.etcd.timers(&self.world.ledger).unwrap_or_default();
            let access = self.desired.etcd.client_access(&self.world.ledger);
            let config = self.desired.etcd.config(member, self.desired.etcd.version, timers, access);
            if machine.process.config.as_ref() != Some(&config.digest) {
                return Err(self.violation("done means done", format!("{} runs an old configuration", member.name)));
            }
        }
        if let Some(difference) = pki::unfinished(&self.desired, &self.world) {
            return Err(self.violation("done means done", difference));
        }
        let formed = self.world.agreed.values().find(|a| a.formed);
        if let Some(difference) = formed.and_then(|agreed| users::differs(&self.desired, &agreed.access)) {
            return Err(self.violation("done means done", difference));
        }
        if let Some(unfinished) = agents::unfinished(&self.desired, &self.world) {
            return Err(self.violation("done means done", unfinished));
        }
        if let Some(unfinished) = shape::unfinished(&self.desired, &self.world) {
            return Err(self.violation("done means done", unfinished));
        }
        if let Some(unfinished) = balancer::unfinished(&self.desired, &self.world) {
            return Err(self.violation("done means done", unfinished));
        }
        if let Some(unfinished) = postgres::unfinished(&self.desired, &self.world) {
            return Err(self.violation("done means done", unfinished));
        }
        if let Some(zones) = zones::broken(&self.desired, &self.world) {
            return Err(self.violation("the loss of a zone costs no quorum", zones));
        }
        if let Some(unfinished) = maintenance::unfinished(&self.world, &self.desired) {
            return Err(self.violation("done means done", unfinished));
        }
        let listed: BTreeSet<String> =
            self.world.agreed.values().flat_map(|a| &a.members).map(|m| m.name.clone()).collect();
        let wanted: BTreeSet<String> = self.desired.etcd.members.iter().map(|m| m.name.to_string()).collect();
        if listed != wanted {
            return Err(self.violation("done means done", format!("members are {listed:?}, wanted {wanted:?}")));
        }
        for (name, machine) in self.world.machines.iter().filter(|(name, _)| self.desired.etcd.member(name).is_some()) {
            if machine.process.version != Some(self.desired.etcd.version) {
                return Err(self.violation("done means done", format!("{name} runs another version")));
            }
        }
        let secured = self.world.agreed.values().any(|a| a.formed && a.auth);
        if !secured {
            return Err(self.violation("done means done", "auth is off"));
        }
        self.stats.converged += 1;
        Ok(())
    }

    /// Members, voters, deleted machines: compared with the true world.
    pub(super) fn membership(&self, observed: &Observed, action: &Action) -> Result<(), Violation> {
        let Some((id, agreed)) = self.world.agreed.iter().find(|(_, a)| a.formed) else { return Ok(()) };
        let named = |m: &ListedMember| self.world.ledger.etcd.name_of(m);
        let wanted_gone = |name: &Name| {
            let overdue =
                self.desired.etcd.replace_after_ms.is_some() && observed.ledger.etcd.down_since.contains_key(name);
            overdue || observed.ledger.etcd.replace.contains_key(name)
        };
        match action {
            Action::Member(MemberAction::AddLearner { .. }) if agreed.members.iter().any(|m| m.learner) => {
                Err(self.violation("one change at a time", format!("{action:?} beside another learner")))
            }
            Action::Member(MemberAction::RemoveMember { member, .. }) => {
                let Some(entry) = agreed.members.iter().find(|m| m.id == *member) else { return Ok(()) };
                if entry.learner {
                    return Ok(());
                }
                let name = named(entry);
                let renewed = |n: &Name| {
                    let machine = self.world.machines.get(n);
                    let otherwise = shape::outdated(&self.desired, n, machine);
                    (otherwise || zones::misplaced(&self.desired, n, machine)) && shape::others_healthy(observed, n)
                };
                let in_file = |n: &Name| self.desired.etcd.member(n).is_some();
                if name.as_ref().is_some_and(|n| in_file(n) && !wanted_gone(n) && !renewed(n)) {
                    return Err(self.violation("only unwanted members are removed", format!("{action:?}")));
                }
                if self.world.leader(*id) == Some(*member) {
                    return Err(self.violation("the leader is not removed", format!("{action:?}")));
                }
                let surplus = name.as_ref().is_none_or(|n| self.desired.etcd.member(n).is_none());
                let voters = agreed.members.iter().filter(|m| !m.learner).count();
                let missing = self
                    .desired
                    .etcd
                    .members
                    .iter()
                    .any(|m| !agreed.members.iter().any(|l| named(l).as_ref() == Some(&m.name)));
                let view = View::of(observed);
                let healthy = name.as_ref().is_some_and(|n| view.healthy.contains(n));
                if surplus && healthy && missing && voters <= self.desired.etcd.members.len() {
                    return Err(self.violation("an addition comes first", format!("{action:?}")));
                }
                Ok(())
            }
            Action::Etcd(EtcdAction::StopEtcd { machine })
            | Action::Etcd(EtcdAction::ClearData { machine, .. })
            | Action::Machine(MachineAction::DeleteMachine { machine }) => {
                match agreed.members.iter().find(|m| named(m).as_ref() == Some(machine)) {
                    Some(_) => Err(self.violation("no member's machine is taken away", format!("{action:?}"))),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Nothing is done to what could not be reached.
    pub(super) fn rests_on_what_was_seen(&self, observed: &Observed, action: &Action) -> Result<(), Violation> {
        // What etcd does itself rests on what etcd said.
        if matches!(
            action,
            Action::Member(MemberAction::PromoteMember { .. })
                | Action::Member(MemberAction::MoveLeader { .. })
                | Action::Maintenance(MaintenanceAction::Defragment { .. })
        ) {
            return Ok(());
        }
        let Some(seen) = action.machine().and_then(|name| observed.machines.get(name)) else { return Ok(()) };
        let unreachable = |fact_is: bool, what: &str| {
            if fact_is {
                Err(self
                    .violation("unreachable is not absent", format!("{action:?} although the {what} was unreachable")))
            } else {
                Ok(())
            }
        };
        unreachable(matches!(seen.machine, Fact::Unreachable { .. }), "machine")?;
        match action {
            Action::Machine(MachineAction::AssignAddress { .. })
            | Action::Machine(MachineAction::CreateMachine { .. })
            | Action::Machine(MachineAction::StartMachine { .. }) => Ok(()),
            // Only once the operator, or the file, gave it up.
            Action::Machine(MachineAction::DeleteMachine { machine })
                if observed.ledger.etcd.replace.contains_key(machine) =>
            {
                Ok(())
            }
            Action::Machine(MachineAction::DeleteMachine { machine })
                if observed.ledger.etcd.down_since.contains_key(machine) =>
            {
                Ok(())
            }
            Action::Machine(MachineAction::DeleteMachine { machine })
                if self.desired.etcd.member(machine).is_some() =>
            {
                Ok(())
            }
            Action::Machine(MachineAction::DeleteMachine { .. })
                if seen.machine.seen().is_some_and(|m| m.power == Power::Stopped) =>
            {
                Ok(())
            }
            _ => unreachable(matches!(seen.agent, Fact::Unreachable { .. }), "agent"),
        }
    }
}
