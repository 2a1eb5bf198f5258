//! Seeded lives of clusters that lose their majority for good → built anew, whatever goes wrong on the way; and planners
//! that would lose more are caught.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use raftsman_core::action::{Action, EtcdAction, MachineAction, MemberAction, StartData};
use raftsman_core::desired::Stack;
use raftsman_core::model::MachineModel;
use raftsman_core::observed::{Agent, ClusterId, Data, Fact, Mode, Observed, Power, Recovery, ServiceState, quorum};
use raftsman_core::plan::recovery::{self, survey};
use raftsman_core::plan::{Plan, plan};
use raftsman_core::spec::Name;
use raftsman_tests::dice::Dice;
use raftsman_tests::fixtures::Scene;

type Planner = fn(&Stack, &Observed, Timestamp) -> Plan;

/// Enough rounds for seven members, each step interrupted.
const ROUNDS: usize = 400;

struct Life {
    seed: u64,
    dice: Dice,
    scene: Scene,
    planner: Planner,
    /// The cluster that lost its majority.
    of: ClusterId,
    /// The highest revision that clients got acknowledged by the cluster that they wrote to.
    acknowledged: i64,
    /// Whether the survivor was ever truly alone and well: only then has it applied its whole log.
    alone: bool,
    plans: usize,
}

impl Life {
    fn new(seed: u64, planner: Planner) -> Self {
        let mut dice = Dice::new(seed);
        let members = [3, 5, 7][dice.below(3)];
        let scene = Scene::settled(members);
        let of = scene.id();
        let mut life = Self { seed, dice, scene, planner, of, acknowledged: 0, alone: false, plans: 0 };
        life.destroy(members);
        life
    }

    /// A majority is lost for good, each member in its own way. Survivors may be down, but their data is there.
    fn destroy(&mut self, members: usize) {
        let mut numbers: Vec<usize> = (1..=members).collect();
        self.dice.shuffle(&mut numbers);
        let least = members - quorum(members) + 1;
        let lost = least + self.dice.below(members - least);
        for number in &numbers[..lost] {
            let way = self.dice.below(3);
            let machine = self.scene.machine(*number);
            match way {
                0 => *machine = MachineModel::none(),
                1 => {
                    machine.data = Data::Empty;
                    machine.process.state = ServiceState::Stopped;
                }
                _ => {
                    machine.data = Data::Unreadable { problem: "a hole".to_owned() };
                    machine.process.state = ServiceState::Backoff;
                }
            }
        }
        for number in &numbers[lost..] {
            if self.dice.below(2) == 0 {
                self.scene.machine(*number).process.state = ServiceState::Stopped;
            }
        }
    }

    fn live(mut self) -> Result<usize, String> {
        let desired = self.scene.desired.clone();
        let remains = survey(&desired, &self.scene.look(), &[], None);
        let survivor = match &remains.outcome {
            Ok(proposal) => proposal.survivor.clone(),
            Err(unclear) => return Err(format!("seed {}: no proposal: {unclear}", self.seed)),
        };
        recovery::decide(&mut self.scene.world.ledger, &remains, self.scene.world.now);
        for round in 0..ROUNDS {
            // Faults come for a while, and then cease.
            match round {
                ..60 => self.fault(),
                60 => self.scene.world.machines.values_mut().filter(|m| m.exists).for_each(|m| m.agent_up = true),
                _ => {}
            }
            let observed = self.scene.look();
            let next = (self.planner)(&desired, &observed, self.scene.world.now);
            self.plans += 1;
            if round >= 60 && next.is_done() {
                return self.end();
            }
            self.carry_out(&desired, &survivor, &observed, &next, round)?;
            self.pass(&desired, &survivor)?;
        }
        let last = (self.planner)(&desired, &self.scene.look(), self.scene.world.now);
        Err(format!("seed {}: it does not converge: {last:?}", self.seed))
    }

    /// Something dies, or the command does: then only some of the wave is done.
    fn fault(&mut self) {
        let names: Vec<Name> = self.scene.world.machines.keys().cloned().collect();
        let name = names[self.dice.below(names.len())].clone();
        let Some(machine) = self.scene.world.machines.get_mut(&name).filter(|m| m.exists) else { return };
        match self.dice.below(12) {
            0 if machine.process.state == ServiceState::Running => machine.process.state = ServiceState::Backoff,
            1 => machine.agent_up = false,
            2 | 3 => machine.agent_up = machine.power == Power::Running,
            4 => {
                // Without power for a while: the agent starts etcd again as in the last request.
                machine.process.state = match machine.process.state {
                    ServiceState::Stopped => ServiceState::Stopped,
                    ServiceState::Running | ServiceState::Backoff => ServiceState::Backoff,
                };
            }
            _ => {}
        }
    }

    fn carry_out(
        &mut self,
        desired: &Stack,
        survivor: &Name,
        observed: &Observed,
        next: &Plan,
        round: usize,
    ) -> Result<(), String> {
        let now = self.scene.world.now;
        for step in &next.steps {
            self.scene.world.ledger.ahead(desired, observed, &step.action, now);
        }
        for step in &next.steps {
            if round < 60 && self.dice.below(4) == 0 {
                continue;
            }
            self.check(survivor, &step.action)?;
            // An agent may be gone since the look: then it is not done.
            let _ = self.scene.world.act(desired, &step.action, self.dice.below(2) as u32);
        }
        Ok(())
    }

    /// The rules, held against the world as it truly is.
    fn check(&self, survivor: &Name, action: &Action) -> Result<(), String> {
        let world = &self.scene.world;
        let broken = |rule: &str| Err(format!("seed {}: {rule}: {action:?}", self.seed));
        let rebuilt = world.ledger.etcd.cluster != Some(self.of);
        let others_run = world.machines.iter().any(|(name, m)| {
            name != survivor
                && m.exists
                && m.agent_up
                && m.process.state == ServiceState::Running
                && is_of(&m.data, self.of)
        });
        match action {
            Action::Etcd(EtcdAction::StartEtcd { data: StartData::Alone(_), .. }) if others_run => {
                broken("another member runs beside the one that goes on")
            }
            Action::Etcd(EtcdAction::ClearData { .. }) if !rebuilt && !self.alone => {
                broken("data is put away before the survivor has applied all that it knows")
            }
            Action::Member(MemberAction::AddLearner { .. }) | Action::Machine(MachineAction::CreateMachine { .. })
                if !rebuilt =>
            {
                broken("others come in before revisions were raised")
            }
            Action::Machine(MachineAction::DeleteMachine { machine })
                if world.machines.get(machine).is_some_and(|m| is_of(&m.data, self.of)) =>
            {
                broken("a machine is deleted that has data")
            }
            _ => Ok(()),
        }
    }

    /// Time passes; clients write wherever they are served.
    fn pass(&mut self, desired: &Stack, survivor: &Name) -> Result<(), String> {
        let scene = &mut self.scene;
        scene.world.now = scene.world.now.checked_add(SignedDuration::from_secs(1)).expect("a timestamp");
        scene.world.pass_time();
        scene.world.remember(desired);
        let serving: BTreeSet<ClusterId> =
            scene.world.agreed.keys().copied().filter(|id| scene.world.has_quorum(*id)).collect();
        if serving.len() > 1 {
            return Err(format!("seed {}: two clusters serve", self.seed));
        }
        if let Some(cluster) = serving.first() {
            let agreed = &scene.world.agreed[cluster];
            self.alone |= *cluster == self.of
                && agreed.members.len() == 1
                && agreed.members.iter().all(|m| m.name == survivor.as_str());
            if agreed.stored.revision < self.acknowledged {
                return Err(format!("seed {}: acknowledged writes are gone", self.seed));
            }
            scene.world.write(1 << 10, 0);
            self.acknowledged = scene.world.agreed[cluster].stored.revision;
        }
        Ok(())
    }

    fn end(self) -> Result<usize, String> {
        let world = &self.scene.world;
        if world.ledger.etcd.cluster == Some(self.of) || world.ledger.etcd.recovery().is_some() {
            return Err(format!("seed {}: it ended, and was not built anew", self.seed));
        }
        Ok(self.plans)
    }
}

fn is_of(data: &Data, of: ClusterId) -> bool {
    matches!(data, Data::Present { cluster, .. } if *cluster == of)
}

/// Lives until so many plans were made, or a rule is broken.
fn lives(planner: Planner, plans: usize) -> Result<usize, String> {
    let (mut made, mut seed) = (0, 0);
    while made < plans {
        made += Life::new(seed, planner).live()?;
        seed += 1;
    }
    Ok(made)
}

#[test]
fn a_majority_is_lost_and_nothing_more() {
    let plans = std::env::var("RAFTSMAN_SIM_PLANS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000) / 10;
    let made = lives(plan, plans).unwrap_or_else(|broken| panic!("{broken}"));
    assert!(made >= plans);
}

/// A planner that sees something else in the ledger.
fn with(observed: &Observed, change: impl FnMut(&mut Recovery)) -> Observed {
    let mut observed = observed.clone();
    observed.ledger.etcd.recovery_mut().into_iter().for_each(change);
    observed
}

/// Puts data away as soon as all members are stopped.
fn impatient(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    plan(desired, &with(observed, |recovery| recovery.settled = true), now)
}

/// Does not see that others run.
fn blind(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut seen = observed.clone();
    let survivor = seen.ledger.etcd.recovery().map(|recovery| recovery.survivor.clone());
    for (_, machine) in seen.machines.iter_mut().filter(|(name, _)| Some(*name) != survivor.as_ref()) {
        if let Fact::Seen { value: Agent::Claimed(report), .. } = &mut machine.agent {
            report.etcd.service.state = ServiceState::Stopped;
        }
    }
    let seen = if survivor.is_some() { &seen } else { observed };
    plan(desired, seen, now)
}

/// Takes a survivor for alone that was never started with `--force-new-cluster`.
fn credulous(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    plan(desired, &with(observed, |recovery| recovery.alone = true), now)
}

/// Forgets the approved recovery as soon as the survivor serves: it grows the old cluster.
fn forgetful(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut seen = observed.clone();
    if seen.ledger.etcd.recovery().is_some_and(|recovery| recovery.settled) {
        seen.ledger.etcd.mode = Mode::Normal;
    }
    plan(desired, &seen, now)
}

#[test]
fn planners_that_would_lose_more_are_caught() {
    let broken: [(&str, Planner); 4] =
        [("impatient", impatient), ("blind", blind), ("credulous", credulous), ("forgetful", forgetful)];
    for (name, planner) in broken {
        let caught = lives(planner, 20_000).expect_err(name);
        println!("{name}: {caught}");
    }
}
