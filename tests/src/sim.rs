//! A seed and a planner → a faulted life of one cluster on the model, or the rule that was broken in it.
//!
//! The rules are checked against the true world, not against what the planner saw, and without the planner's own
//! safety judge: a flaw that both share would otherwise pass.

mod users;

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use raftsman_core::action::{Action, StartData};
use raftsman_core::desired::Cluster;
use raftsman_core::model::World;
use raftsman_core::observed::{Data, Disk, Fact, MemberObserved, Observed, PortTaken, Power, ServiceState};
use raftsman_core::plan::{Plan, Waiting};
use raftsman_core::spec::Name;

use crate::dice::Dice;
use crate::fixtures;

/// A planner under test.
pub type Planner = fn(&Cluster, &Observed, Timestamp) -> Plan;

/// What a run was like.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    /// Plans made.
    pub plans: usize,
    /// Steps carried out.
    pub steps: usize,
    /// Faults thrown in.
    pub faults: usize,
    /// Runs that ended converged.
    pub converged: usize,
    /// Runs in which data was lost for good, and that ended with the planner refusing to guess.
    pub refused: usize,
    /// Disruptive steps carried out.
    pub restarts: usize,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, more: Self) {
        self.plans += more.plans;
        self.steps += more.steps;
        self.faults += more.faults;
        self.converged += more.converged;
        self.refused += more.refused;
        self.restarts += more.restarts;
    }
}

/// A broken rule.
#[derive(Debug, Clone)]
pub struct Violation {
    /// The seed that shows it again.
    pub seed: u64,
    /// The rule.
    pub rule: &'static str,
    /// What happened.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}: {}", self.seed, self.rule, self.detail)
    }
}

struct Run {
    seed: u64,
    dice: Dice,
    desired: Cluster,
    variants: Vec<Cluster>,
    world: World,
    planner: Planner,
    stats: Stats,
    /// Names under which data once was, whatever became of it.
    ever_data: BTreeSet<Name>,
    /// Data or a machine with data was lost for good.
    lost: bool,
    /// Somebody changed users by hand since the last look.
    tampered: bool,
}

/// The clusters that runs are made of; built once, because reading files is not what is simulated.
#[derive(Debug, Clone)]
pub struct Cast {
    sizes: Vec<Vec<Cluster>>,
}

impl Cast {
    /// Sizes 1, 3, 5 and 7, each with three configurations to change between.
    pub fn new() -> Self {
        let [one, two, _] = users::FILES;
        let settings: [&[&str]; 3] = [&[], &["quota: 4GiB", one[0], one[1]], &["log_level: warn", two[0], two[1]]];
        let sizes = [1, 3, 5, 7].map(|n| settings.map(|s| fixtures::cluster(n, s)).to_vec()).to_vec();
        Self { sizes }
    }

    /// Sizes 1 and 3, whose files differ in their roles and users.
    pub fn with_users() -> Self {
        let cluster = |n, [roles, users]: [&str; 2]| fixtures::cluster(n, &[roles, users]);
        let mut sizes = [1, 3].map(|n| users::FILES.map(|file| cluster(n, file)).to_vec()).to_vec();
        sizes[1].push(fixtures::cluster(3, &["quota: 4GiB", users::FILES[0][0], users::FILES[0][1]]));
        Self { sizes }
    }
}

impl Default for Cast {
    fn default() -> Self {
        Self::new()
    }
}

/// One life of one cluster: faults for a while, then peace until nothing is left to do.
pub fn run(seed: u64, cast: &Cast, planner: Planner) -> Result<Stats, Violation> {
    let mut dice = Dice::new(seed);
    let variants = cast.sizes[dice.below(cast.sizes.len())].clone();
    let desired = variants[0].clone();
    let world = World::empty(&desired, fixtures::epoch());
    let mut run = Run {
        seed,
        dice,
        desired,
        variants,
        world,
        planner,
        stats: Stats::default(),
        ever_data: BTreeSet::new(),
        lost: false,
        tampered: false,
    };
    run.troubled()?;
    run.peace()?;
    Ok(run.stats)
}

impl Run {
    fn violation(&self, rule: &'static str, detail: impl Into<String>) -> Violation {
        Violation { seed: self.seed, rule, detail: detail.into() }
    }

    fn troubled(&mut self) -> Result<(), Violation> {
        let rounds = 10 + self.dice.below(40);
        // Some lives are stormy, some nearly calm: both reach states that the other does not.
        let calm = 1 + self.dice.below(6);
        for _ in 0..rounds {
            if self.dice.one_in(calm) {
                self.fault();
            }
            let observed = self.look(calm);
            self.round(&observed, calm)?;
        }
        Ok(())
    }

    fn peace(&mut self) -> Result<(), Violation> {
        for machine in self.world.machines.values_mut() {
            machine.ports_taken.clear();
            machine.disk.free = 1 << 34;
            machine.clock_offset_ms = 0;
            if machine.exists && machine.power == Power::Running {
                machine.agent_up = true;
            }
        }
        for _ in 0..120 {
            self.tampered = false;
            let observed = self.world.observe(&self.desired);
            let plan = (self.planner)(&self.desired, &observed, self.world.now);
            self.stats.plans += 1;
            if plan.is_done() {
                return self.settled();
            }
            if plan.steps.is_empty() && plan.blocked().next().is_some() {
                if self.lost || self.only_would_lose_quorum(&plan) {
                    self.stats.refused += 1;
                    return Ok(());
                }
                let why: Vec<String> = plan.blocked().map(ToString::to_string).collect();
                return Err(self.violation("never blocked without a reason", why.join("; ")));
            }
            self.carry_out(&observed, plan, usize::MAX)?;
            self.world.pass_time();
            self.world.remember(&self.desired.clone());
        }
        if self.lost {
            self.stats.refused += 1;
            return Ok(());
        }
        let observed = self.world.observe(&self.desired);
        let plan = (self.planner)(&self.desired, &observed, self.world.now);
        Err(self.violation("converges when faults cease", format!("still planned: {plan:?}")))
    }

    /// A cluster of one cannot be restarted without losing quorum: the planner must say so instead.
    fn only_would_lose_quorum(&self, plan: &Plan) -> bool {
        self.desired.members.len() < 3 && plan.blocked().all(|w| matches!(w, Waiting::WouldLoseQuorum { .. }))
    }

    fn settled(&mut self) -> Result<(), Violation> {
        let observed = self.world.observe(&self.desired);
        let again = (self.planner)(&self.desired, &observed, self.world.now);
        if !again.steps.is_empty() {
            return Err(self.violation("re-planning changes nothing", format!("{again:?}")));
        }
        for member in &self.desired.members {
            let machine = &self.world.machines[&member.name];
            if machine.process.config.as_ref() != Some(&member.config.digest) {
                return Err(self.violation("done means done", format!("{} runs an old configuration", member.name)));
            }
        }
        let formed = self.world.agreed.values().find(|a| a.formed);
        if let Some(difference) = formed.and_then(|agreed| users::differs(&self.desired, &agreed.access)) {
            return Err(self.violation("done means done", difference));
        }
        let secured = self.world.agreed.values().any(|a| a.formed && a.auth);
        if !secured {
            return Err(self.violation("done means done", "auth is off"));
        }
        self.stats.converged += 1;
        Ok(())
    }

    /// One look, through a network that fails.
    fn look(&mut self, calm: usize) -> Observed {
        self.tampered = false;
        let mut observed = self.world.observe(&self.desired);
        let since = self.world.now;
        let dice = &mut self.dice;
        let hide = |error: &str| (error.to_owned(), since);
        for member in observed.members.values_mut() {
            let MemberObserved { machine, agent, etcd } = member;
            if dice.one_in(8 * calm) {
                let (error, since) = hide("the provider does not answer");
                *machine = Fact::Unreachable { error, since };
            }
            if dice.one_in(8 * calm) {
                let (error, since) = hide("timed out");
                *agent = Fact::Unreachable { error, since };
            }
            if dice.one_in(8 * calm) {
                let (error, since) = hide("timed out");
                *etcd = Fact::Unreachable { error, since };
            }
        }
        observed
    }

    fn round(&mut self, observed: &Observed, calm: usize) -> Result<(), Violation> {
        let plan = (self.planner)(&self.desired, observed, self.world.now);
        self.stats.plans += 1;
        self.carry_out(observed, plan, calm)?;
        self.world.pass_time();
        // The CLI may be killed before it writes down what it saw.
        if !self.dice.one_in(3) {
            self.world.remember(&self.desired.clone());
        }
        Ok(())
    }

    /// Carries a wave out in any order, perhaps only a part of it, perhaps with lost replies and faults in between.
    fn carry_out(&mut self, observed: &Observed, plan: Plan, calm: usize) -> Result<(), Violation> {
        let mut actions: Vec<Action> = plan.steps.into_iter().map(|s| s.action).collect();
        if actions.iter().any(Action::exclusive) && actions.len() > 1 {
            return Err(self.violation("a disruptive step is alone", format!("{actions:?}")));
        }
        self.dice.shuffle(&mut actions);
        for action in actions {
            if calm != usize::MAX {
                if self.dice.one_in(10 * calm) {
                    break; // killed
                }
                if self.dice.one_in(10 * calm) {
                    continue; // refused, without effect
                }
                if self.dice.one_in(12 * calm) && !action.disruptive() {
                    self.fault();
                }
            }
            self.act(observed, &action)?;
        }
        Ok(())
    }

    fn act(&mut self, observed: &Observed, action: &Action) -> Result<(), Violation> {
        self.rests_on_what_was_seen(observed, action)?;
        let formed = self.world.agreed.iter().find(|(_, a)| a.formed).map(|(id, _)| *id);
        let quorum_before = formed.is_some_and(|id| self.world.has_quorum(id));
        match action {
            Action::CreateMachine { machine } if self.world.machines[machine].exists => {
                return Err(self.violation("a machine is made once", format!("{machine} exists")));
            }
            Action::StartEtcd { machine, data: StartData::Empty, .. }
                if formed.is_some() && self.ever_data.contains(machine) =>
            {
                return Err(self.violation("a member is born once", format!("{machine} had data before")));
            }
            _ => {}
        }
        if users::touches_root(action) {
            return Err(self.violation("root is left alone", format!("{action:?}")));
        }
        let access = formed.and_then(|id| self.world.agreed.get(&id)).map(|agreed| agreed.access.clone());
        let warm_up = u32::try_from(self.dice.below(4)).unwrap_or(0);
        let warm_up = if action.disruptive() { warm_up + 1 } else { warm_up };
        self.stats.steps += 1;
        self.stats.restarts += usize::from(action.disruptive());
        if let Err(impossible) = self.world.act(&self.desired, action, warm_up)
            && *action == Action::EnableAuth
            && impossible.0.contains("root")
        {
            return Err(self.violation("auth only with root", impossible.0));
        }
        for (name, machine) in &self.world.machines {
            if matches!(machine.data, Data::Present { .. }) {
                self.ever_data.insert(name.clone());
            }
        }
        let after = formed.and_then(|id| self.world.agreed.get(&id));
        // Nobody can foresee what somebody else takes away in between.
        if let (Some(before), Some(after), false) = (access, after, self.tampered)
            && let Some(who) = users::robbed(&self.desired, &before, &after.access)
        {
            return Err(self.violation("nobody loses what he should have", format!("{who}: {action:?}")));
        }
        if quorum_before && formed.is_some_and(|id| !self.world.has_quorum(id)) {
            return Err(self.violation("no step of ours costs quorum", format!("{action:?}")));
        }
        Ok(())
    }

    /// Nothing is done to what could not be reached.
    fn rests_on_what_was_seen(&self, observed: &Observed, action: &Action) -> Result<(), Violation> {
        let Some(member) = action.machine().and_then(|name| observed.members.get(name)) else { return Ok(()) };
        let unreachable = |fact_is: bool, what: &str| {
            if fact_is {
                Err(self
                    .violation("unreachable is not absent", format!("{action:?} although the {what} was unreachable")))
            } else {
                Ok(())
            }
        };
        unreachable(matches!(member.machine, Fact::Unreachable { .. }), "machine")?;
        match action {
            Action::CreateMachine { .. } | Action::StartMachine { .. } => Ok(()),
            _ => unreachable(matches!(member.agent, Fact::Unreachable { .. }), "agent"),
        }
    }

    /// Something goes wrong in the world.
    fn fault(&mut self) {
        self.stats.faults += 1;
        if !self.desired.access.is_silent()
            && self.dice.one_in(8)
            && let Some(agreed) = self.world.agreed.values_mut().find(|a| a.formed)
            && users::tamper(&mut self.dice, &mut agreed.access)
        {
            self.tampered = true;
            return;
        }
        let names: Vec<Name> = self.world.machines.keys().cloned().collect();
        let Some(name) = self.dice.pick(&names).cloned() else { return };
        let kind = self.dice.below(100);
        let Some(machine) = self.world.machines.get_mut(&name) else { return };
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
            }
            60..65 => machine.ports_taken = vec![PortTaken { port: 2379, holder: "nginx (pid 80)".to_owned() }],
            65..70 => machine.ports_taken.clear(),
            70..73 => machine.disk = Disk { free: 1 << 20, ..machine.disk },
            73..76 => machine.disk.free = 1 << 34,
            76..79 => machine.clock_offset_ms = 3_600_000,
            79..82 => machine.clock_offset_ms = 0,
            // The file changes.
            82..90 => {
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
            95 if machine.exists => {
                self.lost |= self.world.ledger.started.contains_key(&name);
                *machine = raftsman_core::model::MachineModel::none();
            }
            // The machine is gone and somebody made another of the same name, unclaimed.
            96 if machine.exists => {
                self.lost |= self.world.ledger.started.contains_key(&name);
                let mut other = raftsman_core::model::MachineModel::none();
                other.exists = true;
                other.power = Power::Running;
                other.agent_up = true;
                other.incarnation = format!("foreign-{}", self.dice.bits());
                *machine = other;
            }
            _ => {}
        }
    }
}

/// Lives for all these seeds; the first violation, or what they were like in all.
pub fn lives(seeds: std::ops::Range<u64>, cast: &Cast, planner: Planner) -> Result<Stats, Violation> {
    let mut total = Stats::default();
    for seed in seeds {
        let stats = run(seed, cast, planner)?;
        total += stats;
    }
    Ok(total)
}
