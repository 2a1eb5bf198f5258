//! A seed and a planner → a faulted life of one cluster on the model, or the rule that was broken in it.
//!
//! The rules are checked against the true world, not against what the planner saw, and without the planner's own
//! safety judge: a flaw that both share would otherwise pass.

mod access;
pub mod agents;
mod maintenance;
mod pki;
mod shape;
mod users;
mod versions;
mod zones;

use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use raftsman_core::action::{
    Action, AuthAction, EtcdAction, MachineAction, MaintenanceAction, MemberAction, StartData,
};
use raftsman_core::desired::Cluster;
use raftsman_core::model::{MachineModel, World};
use raftsman_core::observed::{
    Data, Disk, Fact, ListedMember, MachineObserved, MemberId, MemberObserved, Observed, PortTaken, Power,
    ServiceState, View,
};
use raftsman_core::plan::{Plan, Step, WaitKind, Waiting, plan};
use raftsman_core::spec::{EtcdVersion, Name};

use crate::dice::Dice;
use crate::fixtures;

/// More rounds than the longest way takes, several lines up with every member slow to start.
const PEACE: usize = 250;

/// A planner under test.
pub type Planner = fn(&Cluster, &Observed, Timestamp) -> Plan;

/// A broken planner: it restarts all members at once whose configuration, or whose trust, has changed.
pub fn all_at_once(desired: &Cluster, observed: &Observed, now: Timestamp) -> Plan {
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
    /// Members that ever had data, whatever became of it.
    ever_data: BTreeSet<MemberId>,
    /// Data or a machine with data was lost for good.
    lost: bool,
    /// An operator changed users by hand since the last observation.
    tampered: bool,
    /// Whether people change authorities.
    rotates: bool,
    /// Whether the life is printed as it goes on.
    output: bool,
}

/// The clusters that runs are made of; built once, because reading files is not what is simulated.
#[derive(Debug, Clone)]
pub struct Cast {
    sizes: Vec<Vec<Cluster>>,
    /// Whether people change authorities.
    rotates: bool,
}

impl Cast {
    /// Sizes 1, 3, 5 and 7, each with three configurations to change between; and lives in which the members change:
    /// their number, their names, their addresses.
    pub fn new() -> Self {
        let [one, two, _] = users::FILES;
        let settings: [&[&str]; 3] = [&[], &["quota: 4GiB", one[0], one[1]], &["log_level: warn", two[0], two[1]]];
        let mut sizes = [1, 3, 5, 7].map(|n| settings.map(|s| fixtures::cluster(n, s)).to_vec()).to_vec();
        let grown = |n| fixtures::cluster(n, &["replace_after: 10m"]);
        sizes.push(vec![grown(3), grown(5), grown(1), grown(7), grown(2), grown(4)]);
        sizes.push(vec![fixtures::cluster(5, &[]), fixtures::cluster(3, &[]), fixtures::cluster(5, &["quota: 4GiB"])]);
        let named = |members: &[(&str, u8)]| {
            let list = members.iter().map(|(n, a)| format!("{{ name: {n}, address: 127.0.42.{a} }}"));
            fixtures::cluster_of(&format!("[{}]", list.collect::<Vec<_>>().join(", ")), &[])
        };
        sizes.push(vec![
            named(&[("a", 1), ("b", 2), ("c", 3)]),
            named(&[("a", 1), ("b", 2), ("d", 4)]),
            named(&[("d", 4), ("e", 5), ("f", 6)]),
            named(&[("a", 1), ("b", 12), ("c", 3)]),
            named(&[("a", 11), ("b", 12), ("c", 13), ("d", 14), ("e", 15)]),
        ]);
        Self { sizes, rotates: false }
    }

    /// Sizes 1, 3 and 5, whose files differ in their CAs, and operators that rotate them.
    pub fn with_rotations() -> Self {
        let cluster = |n, line: &str| fixtures::cluster(n, &[line]);
        let mut sizes = [1, 3, 5].map(|n| pki::FILES.map(|line| cluster(n, line)).to_vec()).to_vec();
        sizes.push(vec![
            cluster(3, pki::FILES[0]),
            cluster(5, pki::FILES[0]),
            cluster(3, "auth: { mode: certificate }"),
        ]);
        sizes.push(vec![cluster(3, "auth: { mode: password }")]);
        Self { sizes, rotates: true }
    }

    /// Sizes 1 and 3, whose files differ in their roles and users.
    pub fn with_users() -> Self {
        let cluster = |n, [roles, users]: [&str; 2]| fixtures::cluster(n, &[roles, users]);
        let mut sizes = [1, 3].map(|n| users::FILES.map(|file| cluster(n, file)).to_vec()).to_vec();
        sizes[1].push(fixtures::cluster(3, &["quota: 4GiB", users::FILES[0][0], users::FILES[0][1]]));
        Self { sizes, rotates: false }
    }

    /// Sizes 1, 3 and 5 whose clients need no certificate, or have one that raftsman did not sign.
    pub fn with_access() -> Self {
        let of = |n, files: &[[&str; 2]]| files.iter().map(|file| fixtures::cluster(n, file)).collect();
        let [passwords, brought] = [&access::FILES[..2], &access::FILES[2..]];
        let sizes = [1, 3, 5].into_iter().flat_map(|n| [of(n, passwords), of(n, brought)]);
        Self { sizes: sizes.collect(), rotates: false }
    }

    /// Sizes 1, 3 and 5 that are operated with one raftsman and then with another, newer or older.
    pub fn with_agents() -> Self {
        let of = |n: usize| agents::SHIPPED.map(|ships| agents::shipping(fixtures::cluster(n, &[]), ships)).to_vec();
        Self { sizes: [1, 3, 5].map(of).to_vec(), rotates: false }
    }

    /// Sizes 1, 3 and 5 on machines that the file has made otherwise now and then.
    pub fn with_shapes() -> Self {
        let sizes = [1, 3, 5].map(|n| shape::FILES.map(|file| fixtures::on_machines(n, file)).to_vec());
        Self { sizes: sizes.to_vec(), rotates: false }
    }

    /// Sizes 3 and 5 whose members the file puts into other zones now and then.
    pub fn with_zones() -> Self {
        let sizes = zones::PLACES.map(|places| places.iter().map(|zones| zones::placed(zones)).collect());
        Self { sizes: sizes.to_vec(), rotates: false }
    }

    /// Sizes 3 and 5, each with versions to change between, some of them with a way over others.
    pub fn versions() -> Self {
        let versions = ["3.6.15", "3.5.30", "3.5.34", "3.6.10", "3.6.14", "3.7.2"];
        let available = || versions.iter().filter_map(|v| EtcdVersion::parse(v).ok());
        let of = |size: usize, version: &str| {
            let mut cluster = fixtures::cluster(size, &[&format!("version: {version}")]);
            cluster.available.extend(available());
            cluster
        };
        Self { sizes: [3, 5].map(|size| versions.iter().map(|v| of(size, v)).collect()).to_vec(), rotates: false }
    }
}

impl Cast {
    /// Sizes 1, 3 and 5 with small quotas, whose databases fill up.
    pub fn with_maintenance() -> Self {
        Self {
            sizes: [1, 3, 5].map(|n| maintenance::FILES.map(|file| fixtures::cluster(n, file)).to_vec()).to_vec(),
            rotates: false,
        }
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
    let mut world = World::empty(&desired, fixtures::epoch());
    world.brought = pki::brought();
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
        for _ in 0..if self.rotates { 500 } else { PEACE } {
            self.tampered = false;
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
            self.world.pass_time();
            self.world.remember(&self.desired.clone());
        }
        // Founders that the file dropped before their cluster formed are brought up only by the file that has them.
        let founding = !self.world.agreed.values().any(|a| a.formed)
            && self.world.ledger.founders.keys().any(|name| self.desired.member(name).is_none());
        if founding || self.lost && (!self.quorate() || maintenance::damaged(&self.world)) {
            self.stats.refused += 1;
            return Ok(());
        }
        let observed = self.world.observe(&self.desired);
        let plan = (self.planner)(&self.desired, &observed, self.world.now);
        Err(self.violation("converges when faults cease", format!("still planned: {plan:?}")))
    }

    /// The operator gives up what is gone for good.
    fn mark_the_lost(&mut self) {
        let listed = self.world.agreed.values().filter(|a| a.formed).flat_map(|a| &a.members);
        let marks: Vec<(Name, MemberId)> = listed
            .filter_map(|m| Some((self.world.ledger.name_of(m)?, m.id)))
            .filter(|(name, id)| {
                let machine = self.world.machines.get(name).filter(|m| m.exists);
                machine.is_none_or(|m| !matches!(m.data, Data::Present { member, .. } if member == *id))
            })
            .filter(|(name, _)| self.lost && self.desired.member(name).is_some())
            .filter(|(name, _)| self.world.ledger.started.contains_key(name))
            .collect();
        for (name, id) in marks {
            self.stats.replaced += usize::from(self.world.ledger.replace.insert(name, id).is_none());
        }
    }

    /// Whether the cluster that formed has a majority that could be brought up again.
    fn quorate(&self) -> bool {
        let Some(cluster) = self.world.ledger.cluster else {
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
        let voters = self.world.agreed.values().map(|a| a.members.iter().filter(|m| !m.learner).count()).max();
        let few = self.desired.members.len().min(voters.unwrap_or(0)) < 3;
        few && plan.blocked().all(|w| matches!(w, Waiting::WouldLoseQuorum { .. }))
    }

    fn settled(&mut self) -> Result<(), Violation> {
        let observed = self.world.observe(&self.desired);
        let again = (self.planner)(&self.desired, &observed, self.world.now);
        if !again.steps.is_empty() {
            return Err(self.violation("re-planning changes nothing", format!("{again:?}")));
        }
        for member in &self.desired.members {
            let machine = self.world.machines.get(&member.name).cloned().unwrap_or_else(MachineModel::none);
            let timers = self.desired.timers(&self.world.ledger).unwrap_or_default();
            let access = self.desired.client_access(&self.world.ledger);
            let config = self.desired.config(member, self.desired.version, timers, access);
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
        if let Some(zones) = zones::broken(&self.desired, &self.world) {
            return Err(self.violation("the loss of a zone costs no quorum", zones));
        }
        if let Some(unfinished) = maintenance::unfinished(&self.world, &self.desired) {
            return Err(self.violation("done means done", unfinished));
        }
        let listed: BTreeSet<String> =
            self.world.agreed.values().flat_map(|a| &a.members).map(|m| m.name.clone()).collect();
        let wanted: BTreeSet<String> = self.desired.members.iter().map(|m| m.name.to_string()).collect();
        if listed != wanted {
            return Err(self.violation("done means done", format!("members are {listed:?}, wanted {wanted:?}")));
        }
        for (name, machine) in self.world.machines.iter().filter(|(name, _)| self.desired.member(name).is_some()) {
            if machine.process.version != Some(self.desired.version) {
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

    /// One look, through a network that fails.
    fn look(&mut self, calm: usize) -> Observed {
        self.tampered = false;
        let mut observed = self.world.observe(&self.desired);
        let since = self.world.now;
        let dice = &mut self.dice;
        let hide = |error: &str| (error.to_owned(), since);
        for (name, MachineObserved { machine, agent }) in &mut observed.machines {
            let Some(MemberObserved { etcd, .. }) = observed.etcd.members.get_mut(name) else { continue };
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
        observed.etcd.handshakes = self.world.test_handshakes(&self.desired, &observed);
        observed
    }

    fn round(&mut self, observed: &Observed, calm: usize) -> Result<(), Violation> {
        let plan = (self.planner)(&self.desired, observed, self.world.now);
        self.stats.plans += 1;
        self.describe(|| format!("plan: {}", fixtures::describe(&plan)));
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
        {
            return Err(self.violation(rule, format!("{action:?}")));
        }
        if users::touches_root(action) {
            return Err(self.violation("root is left alone", format!("{action:?}")));
        }
        let access = formed.and_then(|id| self.world.agreed.get(&id)).map(|agreed| agreed.access.clone());
        let trusted = pki::before(&self.desired, &self.world);
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

    /// Members, voters, deleted machines: compared with the true world.
    fn membership(&self, observed: &Observed, action: &Action) -> Result<(), Violation> {
        let Some((id, agreed)) = self.world.agreed.iter().find(|(_, a)| a.formed) else { return Ok(()) };
        let named = |m: &ListedMember| self.world.ledger.name_of(m);
        let wanted_gone = |name: &Name| {
            let overdue = self.desired.replace_after_ms.is_some() && observed.ledger.down_since.contains_key(name);
            overdue || observed.ledger.replace.contains_key(name)
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
                let in_file = |n: &Name| self.desired.member(n).is_some();
                if name.as_ref().is_some_and(|n| in_file(n) && !wanted_gone(n) && !renewed(n)) {
                    return Err(self.violation("only unwanted members are removed", format!("{action:?}")));
                }
                if self.world.leader(*id) == Some(*member) {
                    return Err(self.violation("the leader is not removed", format!("{action:?}")));
                }
                let surplus = name.as_ref().is_none_or(|n| self.desired.member(n).is_none());
                let voters = agreed.members.iter().filter(|m| !m.learner).count();
                let missing = self
                    .desired
                    .members
                    .iter()
                    .any(|m| !agreed.members.iter().any(|l| named(l).as_ref() == Some(&m.name)));
                let view = View::of(observed);
                let healthy = name.as_ref().is_some_and(|n| view.healthy.contains(n));
                if surplus && healthy && missing && voters <= self.desired.members.len() {
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
    fn rests_on_what_was_seen(&self, observed: &Observed, action: &Action) -> Result<(), Violation> {
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
            Action::Machine(MachineAction::CreateMachine { .. })
            | Action::Machine(MachineAction::StartMachine { .. }) => Ok(()),
            // Only once the operator, or the file, gave it up.
            Action::Machine(MachineAction::DeleteMachine { machine })
                if observed.ledger.replace.contains_key(machine) =>
            {
                Ok(())
            }
            Action::Machine(MachineAction::DeleteMachine { machine })
                if observed.ledger.down_since.contains_key(machine) =>
            {
                Ok(())
            }
            Action::Machine(MachineAction::DeleteMachine { machine }) if self.desired.member(machine).is_some() => {
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

    /// Something goes wrong in the world, perhaps midway through a wave: then it is carried out for the file that it was
    /// planned for.
    fn fault(&mut self, midway: bool) {
        self.stats.faults += 1;
        if !self.desired.access.is_silent()
            && self.dice.one_in(8)
            && let Some(agreed) = self.world.agreed.values_mut().find(|a| a.formed)
            && users::tamper(&mut self.dice, &mut agreed.access)
        {
            self.tampered = true;
            return;
        }
        if self.rotates && self.dice.one_in(3) && pki::meddle(&mut self.dice, &mut self.world, midway) {
            self.describe(|| format!("authorities: {:?} {:?}", self.world.ledger.peers, self.world.ledger.clients));
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
                self.world.ledger.replace.extend(listed.map(|id| (name, id)));
            }
            // The file's delay passes.
            98 => {
                self.world.now = self.world.now.checked_add(SignedDuration::from_mins(11)).unwrap_or(self.world.now);
            }
            95 if machine.exists => {
                self.lost |= self.world.ledger.started.contains_key(&name);
                *machine = MachineModel::none();
            }
            // The machine is gone and the operator made another of the same name, unclaimed.
            96 if machine.exists => {
                self.lost |= self.world.ledger.started.contains_key(&name);
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

/// Lives for all these seeds; the first violation, or what they were like in all.
pub fn lives(seeds: std::ops::Range<u64>, cast: &Cast, planner: Planner) -> Result<Stats, Violation> {
    let mut total = Stats::default();
    for seed in seeds {
        let stats = run(seed, cast, planner)?;
        total += stats;
    }
    Ok(total)
}
