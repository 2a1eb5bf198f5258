//! A run and its dice → a fault in the world, and observations through a network that fails.

use jiff::SignedDuration;
use raftsman_core::model::MachineModel;
use raftsman_core::observed::{
    Data, Disk, Fact, MachineObserved, MemberObserved, Observed, PortTaken, Power, ServiceState,
};
use raftsman_core::spec::Name;

use super::{Run, balancer, maintenance, pki, postgres, users};

impl Run {
    /// One look, through a network that fails.
    pub(super) fn look(&mut self, calm: usize) -> Observed {
        self.tampered = false;
        self.take_up();
        let mut observed = self.world.observe(&self.desired);
        let since = self.world.now;
        let dice = &mut self.dice;
        let hide = |error: &str| (error.to_owned(), since);
        for (name, MachineObserved { machine, agent }) in &mut observed.machines {
            if dice.one_in(8 * calm) {
                let (error, since) = hide("the provider does not answer");
                *machine = Fact::Unreachable { error, since };
            }
            if dice.one_in(8 * calm) {
                let (error, since) = hide("timed out");
                *agent = Fact::Unreachable { error, since };
            }
            let Some(MemberObserved { etcd, .. }) = observed.etcd.members.get_mut(name) else { continue };
            if dice.one_in(8 * calm) {
                let (error, since) = hide("timed out");
                *etcd = Fact::Unreachable { error, since };
            }
        }
        postgres::hide(dice, calm, &mut observed, since);
        observed.etcd.handshakes = self.world.test_handshakes(&self.desired, &observed);
        observed
    }

    /// Something goes wrong in the world, perhaps midway through a wave: then it is carried out for the file that it was
    /// planned for.
    pub(super) fn fault(&mut self, midway: bool) {
        self.stats.faults += 1;
        self.postgres.disturbed();
        if !self.desired.etcd.access.is_silent()
            && self.dice.one_in(8)
            && let Some(agreed) = self.world.agreed.values_mut().find(|a| a.formed)
            && users::tamper(&mut self.dice, &mut agreed.access)
        {
            self.tampered = true;
            return;
        }
        if self.rotates && self.dice.one_in(3) && pki::meddle(&mut self.dice, &mut self.world, midway) {
            self.describe(|| {
                format!("authorities: {:?} {:?}", self.world.ledger.etcd.peers, self.world.ledger.etcd.clients)
            });
            return;
        }
        if maintenance::is_configured(&self.desired)
            && self.dice.one_in(2)
            && maintenance::happens(&mut self.dice, &mut self.world, !self.lost)
        {
            self.describe(|| "fault: the database".to_owned());
            return;
        }
        let names: Vec<Name> = self.world.machines.keys().cloned().collect();
        let Some(name) = self.dice.pick(&names).cloned() else { return };
        let kind = self.dice.below(100);
        self.describe(|| format!("fault {kind} on {name}"));
        if !self.desired.postgres.is_empty()
            && self.dice.one_in(2)
            && postgres::happens(&mut self.dice, &self.desired, &mut self.world, &name)
        {
            return;
        }
        let Some(machine) = self.world.machines.get_mut(&name) else { return };
        if self.fronted && self.dice.one_in(4) && balancer::happens(&mut self.dice, machine) {
            return;
        }
        let running = machine.process.state == ServiceState::Running;
        match kind {
            // etcd is killed: its agent starts it again.
            0..20 if running => {
                machine.process.state = ServiceState::Backoff;
                machine.process.restarts += 1;
            }
            // The agent is killed; etcd runs on.
            20..30 => machine.agent_up = false,
            // The agent comes back.
            30..40 if machine.power == Power::Running => machine.agent_up = true,
            // On this computer: the agent is gone, which is a stopped machine, and etcd runs on.
            40..45 => {
                machine.power = Power::Stopped;
                machine.agent_up = false;
            }
            // Power cut.
            45..60 => {
                machine.power = Power::Stopped;
                machine.agent_up = false;
                if running {
                    machine.process.state = ServiceState::Stopped;
                }
                machine.postgres.kill();
            }
            60..65 => machine.ports_taken = vec![PortTaken { port: 2379, holder: "nginx (pid 80)".to_owned() }],
            65..70 => machine.ports_taken.clear(),
            70..73 => machine.disk = Disk { free: 1 << 20, ..machine.disk },
            73..76 => machine.disk.free = 1 << 34,
            76..79 => machine.clock_offset_ms = 3_600_000,
            79..82 => machine.clock_offset_ms = 0,
            // The file changes.
            82..90 if !midway => {
                let other = self.dice.below(self.variants.len());
                self.desired = self.variants[other].clone();
            }
            // Weeks pass: certificates come near their end.
            90..94 => {
                let weeks = SignedDuration::from_hours(24 * 7 * (1 + self.dice.below(9) as i64));
                self.world.now = self.world.now.checked_add(weeks).unwrap_or(self.world.now);
            }
            // The data directory is wiped, or the machine is gone with its disk.
            94 if machine.exists && !running => {
                self.lost |= matches!(machine.data, Data::Present { .. }) || machine.had_data;
                machine.data = Data::Empty;
            }
            // The operator gives a member up, rightly or not.
            97 => {
                let listed = self.world.agreed.values().filter(|a| a.formed).flat_map(|a| &a.members);
                let listed = listed.filter(|m| m.name == name.as_str()).map(|m| m.id).next();
                self.world.ledger.etcd.replace.extend(listed.map(|id| (name, id)));
            }
            // The file's delay passes.
            98 => {
                self.world.now = self.world.now.checked_add(SignedDuration::from_mins(11)).unwrap_or(self.world.now);
            }
            95 if machine.exists => {
                self.lost |= self.world.ledger.etcd.started.contains_key(&name);
                *machine = MachineModel::none();
            }
            // The machine is gone and the operator made another of the same name, unclaimed.
            96 if machine.exists => {
                self.lost |= self.world.ledger.etcd.started.contains_key(&name);
                let mut other = MachineModel::none();
                other.exists = true;
                other.power = Power::Running;
                other.agent_up = true;
                other.address = machine.address;
                other.incarnation = format!("foreign-{}", self.dice.bits());
                *machine = other;
            }
            _ => {}
        }
    }
}
