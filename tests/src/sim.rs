//! A seed and a planner → a faulted life of one cluster on the model, or the rule that was broken in it.
//!
//! The rules are checked against the true world, not against what the planner saw, and without the planner's own
//! safety judge: a flaw that both share would otherwise pass.

mod access;
mod addresses;
pub mod agents;
mod balancer;
mod cast;
mod faults;
mod maintenance;
mod pki;
mod postgres;
mod rules;
mod shape;
mod users;
mod versions;
mod zones;

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use raftsman_core::action::{
    Action, AuthAction, BalancerAction, EtcdAction, MachineAction, MaintenanceAction, StartData,
};
use raftsman_core::desired::Stack;
use raftsman_core::model::{MachineModel, World};
use raftsman_core::observed::{Data, MemberId, Observed, Power};
use raftsman_core::plan::{Plan, Step, WaitKind, Waiting, explain, plan};
use raftsman_core::spec::Name;

pub use cast::Cast;

use crate::dice::Dice;
use crate::fixtures;

/// More rounds than the longest way takes, several lines up with every member slow to start.
const PEACE: usize = 250;

/// A planner under test.
pub type Planner = fn(&Stack, &Observed, Timestamp) -> Plan;

/// A broken planner: it restarts all members at once whose configuration, or whose trust, has changed.
pub fn all_at_once(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = plan(desired, observed, now);
    let Some(Step { action: Action::Etcd(EtcdAction::RestartEtcd { version, cluster, .. }), .. }) =
        plan.steps.first().cloned()
    else {
        return plan;
    };
    let turns = plan.waiting.iter().filter_map(|w| match w {
        Waiting::Turn { machine, .. } => Some(machine.clone()),
        _ => None,
    });
    let more = turns.map(|machine| Action::Etcd(EtcdAction::RestartEtcd { machine, version, cluster }));
    let more: Vec<Step> = more.map(|action| Step { action, ..plan.steps[0].clone() }).collect();
    plan.steps.extend(more);
    plan
}

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
    /// Compactions, rewritten databases and alarms taken back.
    pub maintained: usize,
    /// Changes of members and of leadership carried out.
    pub reshaped: usize,
    /// Lost members that the operator gave up at the end.
    pub replaced: usize,
    /// Members drained before a step.
    pub drained: usize,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, more: Self) {
        self.plans += more.plans;
        self.steps += more.steps;
        self.faults += more.faults;
        self.converged += more.converged;
        self.refused += more.refused;
        self.restarts += more.restarts;
        self.maintained += more.maintained;
        self.reshaped += more.reshaped;
        self.replaced += more.replaced;
        self.drained += more.drained;
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
    desired: Stack,
    variants: Vec<Stack>,
    world: World,
    planner: Planner,
    stats: Stats,
    /// Members that ever had data, whatever became of it.
    ever_data: BTreeSet<MemberId>,
    /// Data or a machine with data was lost for good.
    lost: bool,
    /// An operator changed users by hand since the last observation.
    tampered: bool,
    /// Whether people change authorities.
    rotates: bool,
    /// Whether there are balancers at times.
    fronted: bool,
    /// What is remembered of PostgreSQL.
    postgres: postgres::Memory,
    /// Whether the life is printed as it goes on.
    output: bool,
}

/// One life of one cluster: faults for a while, then peace until nothing is left to do.
pub fn run(seed: u64, cast: &Cast, planner: Planner) -> Result<Stats, Violation> {
    let mut dice = Dice::new(seed);
    let variants = cast.sizes[dice.below(cast.sizes.len())].clone();
    let desired = variants[0].clone();
    let mut world = World::empty(&desired, fixtures::epoch());
    world.brought = pki::brought();
    let fronted = variants.iter().any(|variant| !variant.balancers.is_empty());
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
        rotates: cast.rotates,
        fronted,
        postgres: postgres::Memory::default(),
        output: std::env::var_os("RAFTSMAN_SIM_TRACE").is_some(),
    };
    run.troubled()?;
    run.peace()?;
    Ok(run.stats)
}

impl Run {
    #[allow(clippy::print_stderr, reason = "the trace of one life, on request")]
    fn describe(&self, what: impl FnOnce() -> String) {
        if self.output {
            eprintln!("{}", what());
        }
    }

    fn violation(&self, rule: &'static str, detail: impl Into<String>) -> Violation {
        Violation { seed: self.seed, rule, detail: detail.into() }
    }

    fn troubled(&mut self) -> Result<(), Violation> {
        let rounds = 10 + self.dice.below(40);
        // Some lives are stormy, some nearly calm: both reach states that the other does not.
        let calm = 1 + self.dice.below(6);
        for _ in 0..rounds {
            if self.dice.one_in(calm) {
                self.fault(false);
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
        pki::clear(&mut self.world);
        balancer::clear(&mut self.world);
        postgres::clear(&mut self.world);
        let longer = self.rotates || !self.desired.postgres.is_empty();
        for _ in 0..if longer { 500 } else { PEACE } {
            self.tampered = false;
            self.take_up();
            self.mark_the_lost();
            let observed = self.world.observe(&self.desired);
            let plan = (self.planner)(&self.desired, &observed, self.world.now);
            self.stats.plans += 1;
            self.describe(|| format!("peace: {}", fixtures::describe(&plan)));
            if plan.is_done() {
                return self.settled();
            }
            let evicted = plan.blocked().all(|w| matches!(w, Waiting::LearnerEvicted { .. }));
            let stuck = plan.steps.is_empty() && plan.waiting.iter().all(|w| w.kind() == WaitKind::Blocked);
            // No member can take over from one that is alone, or from all of them at once.
            if stuck && plan.waiting.iter().any(|w| matches!(w, Waiting::NoTransferTarget { .. })) {
                self.stats.refused += 1;
                return Ok(());
            }
            if plan.steps.is_empty()
                && postgres::is_lost(&self.desired, &self.world)
                && plan.waiting.iter().any(postgres::says_lost)
            {
                self.stats.refused += 1;
                return Ok(());
            }
            if self.has_few_members() && postgres::waits_for_a_restart(&plan) {
                self.stats.refused += 1;
                return Ok(());
            }
            if stuck && maintenance::obey(&mut self.world, &plan) {
                continue;
            }
            if stuck && let Some(newer) = agents::obey(&self.variants, &plan) {
                self.desired = newer;
                continue;
            }
            if stuck && !evicted {
                // Where some members are lost and one is corrupt, no majority shows which data is right.
                let disputed = self.lost && maintenance::damaged(&self.world);
                if disputed || (self.lost && !self.quorate()) || self.only_would_lose_quorum(&plan) {
                    self.stats.refused += 1;
                    return Ok(());
                }
                let why: Vec<String> = plan.blocked().map(ToString::to_string).collect();
                return Err(self.violation("never blocked without a reason", why.join("; ")));
            }
            // What rests for a while is tried again later.
            let rests = |w: &Waiting| matches!(w, Waiting::LearnerEvicted { .. } | Waiting::ReplacedLater { .. });
            if plan.steps.is_empty() && plan.waiting.iter().any(rests) {
                self.world.now = self.world.now.checked_add(SignedDuration::from_mins(11)).unwrap_or(self.world.now);
            }
            self.carry_out(&observed, plan, usize::MAX)?;
            self.pass_time()?;
            self.world.remember(&self.desired.clone());
        }
        // Founders that the file dropped before their cluster formed are brought up only by the file that has them.
        let founding = !self.world.agreed.values().any(|a| a.formed)
            && self.world.ledger.etcd.founders.keys().any(|name| self.desired.etcd.member(name).is_none());
        if founding || self.lost && (!self.quorate() || maintenance::damaged(&self.world)) {
            self.stats.refused += 1;
            return Ok(());
        }
        let observed = self.world.observe(&self.desired);
        let plan = (self.planner)(&self.desired, &observed, self.world.now);
        self.describe(|| format!("{:#?}", explain(&self.desired, &observed, self.world.now)));
        Err(self.violation("converges when faults cease", format!("still planned: {plan:?}")))
    }

    /// The operator gives up what is gone for good.
    fn mark_the_lost(&mut self) {
        let listed = self.world.agreed.values().filter(|a| a.formed).flat_map(|a| &a.members);
        let marks: Vec<(Name, MemberId)> = listed
            .filter_map(|m| Some((self.world.ledger.etcd.name_of(m)?, m.id)))
            .filter(|(name, id)| {
                let machine = self.world.machines.get(name).filter(|m| m.exists);
                machine.is_none_or(|m| !matches!(m.data, Data::Present { member, .. } if member == *id))
            })
            .filter(|(name, _)| self.lost && self.desired.etcd.member(name).is_some())
            .filter(|(name, _)| self.world.ledger.etcd.started.contains_key(name))
            .collect();
        for (name, id) in marks {
            self.stats.replaced += usize::from(self.world.ledger.etcd.replace.insert(name, id).is_none());
        }
    }

    /// Whether the cluster that formed has a majority that could be brought up again.
    fn quorate(&self) -> bool {
        let Some(cluster) = self.world.ledger.etcd.cluster else {
            return !self.lost && !self.world.agreed.values().any(|a| a.formed);
        };
        let Some(agreed) = self.world.agreed.get(&cluster) else { return false };
        let has = |id: MemberId| {
            let holds = |m: &MachineModel| {
                m.exists && matches!(m.data, Data::Present { member, cluster: c } if member == id && c == cluster)
            };
            self.world.machines.values().any(holds)
        };
        let voters = agreed.members.iter().filter(|m| !m.learner);
        voters.clone().filter(|m| has(m.id)).count() >= raftsman_core::observed::quorum(voters.count())
    }

    /// A cluster of one cannot be restarted without losing quorum: the planner must say so instead.
    fn only_would_lose_quorum(&self, plan: &Plan) -> bool {
        self.has_few_members() && plan.blocked().all(|w| matches!(w, Waiting::WouldLoseQuorum { .. }))
    }

    fn has_few_members(&self) -> bool {
        let voters = self.world.agreed.values().map(|a| a.members.iter().filter(|m| !m.learner).count()).max();
        self.desired.etcd.members.len().min(voters.unwrap_or(0)) < 3
    }

    /// The next wave is planned with the addresses that the provider has assigned, and those of machines that exist.
    fn take_up(&mut self) {
        if !self.desired.is_placed() {
            self.world.remember(&self.desired.clone());
        }
        if let Ok(Some(placed)) = self.desired.placed_by(&self.world.ledger) {
            self.desired = placed;
        }
    }

    fn round(&mut self, observed: &Observed, calm: usize) -> Result<(), Violation> {
        let plan = (self.planner)(&self.desired, observed, self.world.now);
        self.stats.plans += 1;
        self.describe(|| format!("plan: {}", fixtures::describe(&plan)));
        self.carry_out(observed, plan, calm)?;
        self.pass_time()?;
        // The CLI may be killed before it writes down what it saw.
        if !self.dice.one_in(3) {
            self.world.remember(&self.desired.clone());
        }
        Ok(())
    }

    fn pass_time(&mut self) -> Result<(), Violation> {
        self.world.pass_time();
        self.describe(|| postgres::describe(&self.desired, &self.world));
        match self.postgres.round(&self.world) {
            Some((rule, detail)) => Err(self.violation(rule, detail)),
            None => Ok(()),
        }
    }

    /// Carries a wave out in any order, perhaps only a part of it, perhaps with lost replies and faults in between.
    fn carry_out(&mut self, observed: &Observed, plan: Plan, calm: usize) -> Result<(), Violation> {
        let overstated = postgres::overstated(&self.desired, &self.world, &plan.steps);
        let mut actions: Vec<Action> = plan.steps.into_iter().map(|s| s.action).collect();
        if balancer::mixed(&actions) || postgres::mixed(&actions) {
            return Err(self.violation("one service at a time", format!("{actions:?}")));
        }
        if let Some(detail) = overstated {
            return Err(self.violation("a copy stays, or the step says otherwise", detail));
        }
        if actions.iter().any(Action::exclusive) && actions.len() > 1 {
            return Err(self.violation("a step that changes the cluster is alone", format!("{actions:?}")));
        }
        // Neither life here restores or recovers: there all members lose their data together.
        let loses = |action: &&Action| {
            matches!(
                action,
                Action::Etcd(EtcdAction::StopEtcd { .. })
                    | Action::Etcd(EtcdAction::ClearData { .. })
                    | Action::Machine(MachineAction::DeleteMachine { .. })
            )
        };
        if actions.iter().filter(loses).count() > 1 {
            return Err(self.violation("one loss at a time", format!("{actions:?}")));
        }
        self.dice.shuffle(&mut actions);
        for action in actions {
            if calm != usize::MAX {
                if self.dice.one_in(10 * calm) {
                    // Killed, perhaps just after it was written down that it would be done.
                    if matches!(action, Action::Maintenance(MaintenanceAction::Compact { .. })) && self.dice.one_in(2) {
                        self.world.ledger.ahead(&self.desired, observed, &action, self.world.now);
                    }
                    break;
                }
                if self.dice.one_in(10 * calm) {
                    continue; // refused, without effect
                }
                if self.dice.one_in(12 * calm) && !action.exclusive() {
                    self.fault(true);
                }
            }
            self.act(observed, &action)?;
        }
        Ok(())
    }

    fn act(&mut self, observed: &Observed, action: &Action) -> Result<(), Violation> {
        self.rests_on_what_was_seen(observed, action)?;
        self.may_change_version(observed, action)?;
        let formed = self.world.agreed.iter().find(|(_, a)| a.formed).map(|(id, _)| *id);
        let quorum_before = formed.is_some_and(|id| self.world.has_quorum(id));
        match action {
            Action::Machine(MachineAction::CreateMachine { machine })
                if self.world.machines.get(machine).is_some_and(|m| m.exists) =>
            {
                return Err(self.violation("a machine is made once", format!("{machine} exists")));
            }
            _ => self.membership(observed, action)?,
        }
        if let Some(rule) = maintenance::broken(&self.world, action)
            .or_else(|| shape::broken(&self.world, observed, action))
            .or_else(|| agents::broken(&self.desired, &self.world, action))
            .or_else(|| balancer::broken(&self.desired, &self.world, observed, action))
            .or_else(|| addresses::broken(&self.desired, &self.world, action))
        {
            return Err(self.violation(rule, format!("{action:?}")));
        }
        if let Some((rule, detail)) = postgres::broken(&self.postgres, &self.desired, &self.world, observed, action) {
            return Err(self.violation(rule, format!("{action:?}: {detail}")));
        }
        if users::touches_root(action) {
            return Err(self.violation("root is left alone", format!("{action:?}")));
        }
        let access = formed.and_then(|id| self.world.agreed.get(&id)).map(|agreed| agreed.access.clone());
        let trusted = pki::before(&self.desired, &self.world);
        let logins = postgres::logins(&self.desired, &self.world);
        let calm = postgres::is_calm(&self.desired, &self.world);
        let bootstrap = match action {
            Action::Etcd(EtcdAction::StartEtcd { machine, data: StartData::Empty | StartData::Joining(_), .. }) => {
                Some(machine.clone())
            }
            _ => None,
        };
        self.describe(|| format!("  {action:?}"));
        let warm_up = u32::try_from(self.dice.below(4)).unwrap_or(0);
        let warm_up = if action.disruptive() { warm_up + 1 } else { warm_up };
        self.stats.reshaped += usize::from(action.exclusive() && !action.disruptive());
        let maintains = matches!(
            action,
            Action::Maintenance(MaintenanceAction::Compact { .. })
                | Action::Maintenance(MaintenanceAction::Defragment { .. })
                | Action::Maintenance(MaintenanceAction::DisarmAlarm { .. })
        );
        self.stats.maintained += usize::from(maintains);
        self.stats.steps += 1;
        self.stats.restarts += usize::from(action.disruptive());
        self.stats.drained += usize::from(matches!(action, Action::Balancer(BalancerAction::DrainMember { .. })));
        if let Err(impossible) = self.world.act(&self.desired, action, warm_up)
            && *action == Action::Auth(AuthAction::EnableAuth)
            && impossible.0.contains("root")
        {
            return Err(self.violation("auth only with root", impossible.0));
        }
        if let Some(Data::Present { member, .. }) =
            bootstrap.as_ref().and_then(|name| self.world.machines.get(name)).map(|m| &m.data)
            && formed.is_some()
            && self.ever_data.contains(member)
        {
            return Err(
                self.violation("a member is bootstrapped once", format!("{member} had data before: {action:?}"))
            );
        }
        for machine in self.world.machines.values() {
            if let Data::Present { member, .. } = machine.data {
                self.ever_data.insert(member);
            }
        }
        let after = formed.and_then(|id| self.world.agreed.get(&id));
        // The planner cannot foresee what an operator takes away in between.
        if let (Some(before), Some(after), false) = (access, after, self.tampered)
            && let Some(lost) = users::robbed(&self.desired, &before, &after.access)
        {
            return Err(self.violation("no user loses access meanwhile", format!("{lost}: {action:?}")));
        }
        if let Some((rule, detail)) = self.postgres.step(&self.desired, &self.world, &logins, action, calm) {
            return Err(self.violation(rule, detail));
        }
        if let Some(detail) = access::broken(&self.desired, &self.world, action) {
            return Err(self.violation("no client is accepted before auth is on", detail));
        }
        if let Some((rule, detail)) = pki::broken(&self.desired, observed, &trusted, &self.world, action) {
            return Err(self.violation(rule, detail));
        }
        let together = matches!(action, Action::Etcd(EtcdAction::RestartTogether { .. }));
        if quorum_before && !together && formed.is_some_and(|id| !self.world.has_quorum(id)) {
            return Err(self.violation("no step of ours costs quorum", format!("{action:?}")));
        }
        Ok(())
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
