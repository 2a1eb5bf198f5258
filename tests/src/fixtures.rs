//! A few words → a valid file and what follows from it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use raftsman_core::action::Action;
use raftsman_core::desired::{Desired, Identity, LoopbackNetwork, Stack, resolve};
use raftsman_core::model::{Agreed, MachineModel, World};
use raftsman_core::observed::{ClusterId, Copies, Fact, Observed, Power, ServiceState, Tolerance};
use raftsman_core::plan::{Pause, Plan, WaitKind, plan};
use raftsman_core::spec::{self, Name, Spec};

/// The moment at which scripted worlds begin.
pub fn epoch() -> Timestamp {
    "2026-11-15T12:00:00Z".parse().expect("a timestamp")
}

/// Reads a file that must be valid.
pub fn spec(text: &str) -> Spec {
    let reading = spec::read(text);
    let rendered = reading.render("raftsman.yaml", text, false);
    reading.spec.unwrap_or_else(|| panic!("the fixture is wrong:\n{rendered}"))
}

/// What should be, by that file.
pub fn desired(text: &str) -> Desired {
    resolved(&spec(text))
}

fn resolved(spec: &Spec) -> Desired {
    let network = Some(LoopbackNetwork::new(0, 42));
    let identity = Identity { id: "f1ee7".to_owned(), network, places: BTreeMap::new(), zones: BTreeMap::new() };
    resolve(spec, &identity).expect("a resolvable file")
}

/// The stack of the cluster `main` with three members, with these further lines of its section, and of the PostgreSQL
/// cluster `pg` that stands on it, with these lines of its own. No file has one yet: it is refused for no other reason.
pub fn standing(further: &[&str], postgres: &[&str]) -> Stack {
    standing_on("3", further, postgres)
}

/// The same behind the balancer `db`, which is given this.
pub fn standing_behind(postgres: &[&str], front: &str) -> Stack {
    standing_as("3", &[], postgres, &format!("balancers:\n  db: {{ postgres: pg, {front} }}\n"))
}

/// The same on these members of etcd.
pub fn standing_on(members: &str, further: &[&str], postgres: &[&str]) -> Stack {
    standing_as(members, further, postgres, "")
}

fn standing_as(members: &str, further: &[&str], postgres: &[&str], rest: &str) -> Stack {
    let mut text = format!("fleet: lab\netcd:\n  main:\n    members: {members}\n    auth: {{ mode: password }}\n");
    further.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
    text.push_str("postgres:\n  pg:\n    etcd: main\n");
    postgres.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
    text.push_str(rest);
    let reading = spec::read(&text);
    let rendered = reading.render("raftsman.yaml", &text, false);
    let spec = reading.later.or(reading.spec).unwrap_or_else(|| panic!("the fixture is wrong:\n{rendered}"));
    resolved(&spec).stacks.remove(0)
}

/// One cluster `main` with so many members, and further lines of its section.
pub fn cluster(members: usize, further: &[&str]) -> Stack {
    cluster_of(&members.to_string(), further)
}

/// One cluster `main` with these members as the file lists them, and further lines of its section.
pub fn cluster_of(members: &str, further: &[&str]) -> Stack {
    let mut text = format!("fleet: lab\netcd:\n  main:\n    members: {members}\n");
    for line in further {
        text.push_str(&format!("    {line}\n"));
    }
    desired(&text).stacks.remove(0)
}

/// One cluster `main` with so many members, on machines that are made as these lines say.
pub fn on_machines(members: usize, machines: &[&str]) -> Stack {
    let mut text = "fleet: lab\nmachines:\n  provider: incus\n  subnet: 10.78.0.0/24\n  firewall: false\n  \
                    incus: { network: raft, pool: default }\n"
        .to_owned();
    machines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text.push_str(&format!("etcd:\n  main:\n    members: {members}\n"));
    desired(&text).stacks.remove(0)
}

/// The cluster `main` of a file with these lines below `machines`, where it and its machines are made as its own lines say.
pub fn machines_of(machines: &[&str], main: &[&str]) -> Stack {
    let mut text =
        "fleet: lab\nmachines:\n  provider: incus\n  image: a\n  subnet: 10.78.0.0/24\n  firewall: false\n  \
                    incus: { network: raft, pool: default }\n"
            .to_owned();
    machines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text.push_str("etcd:\n  main:\n");
    main.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
    desired(&text).stacks.remove(0)
}

/// The cluster `main` of a file with these lines, on machines whose addresses the provider assigns.
pub fn assigned(main: &[&str], front: Option<&str>) -> Stack {
    let mut text = "fleet: lab\nmachines:\n  provider: incus\n  image: a\n  firewall: false\n  \
                    incus: { network: raft, pool: default }\netcd:\n  main:\n"
        .to_owned();
    main.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
    if let Some(front) = front {
        text.push_str(&format!("balancers:\n  front: {{ etcd: main, {front} }}\n"));
    }
    desired(&text).stacks.remove(0)
}

/// One cluster `main` with so many members on machines as these lines say, further lines of its section, and what the
/// balancer `front` in front of it is given.
pub fn behind(machines: &[&str], members: usize, further: &[&str], front: Option<&str>) -> Stack {
    let mut text = "fleet: lab\n".to_owned();
    if !machines.is_empty() {
        text.push_str("machines:\n");
    }
    machines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text.push_str(&format!("etcd:\n  main:\n    members: {members}\n"));
    further.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
    if let Some(front) = front {
        text.push_str(&format!("balancers:\n  front: {{ etcd: main, {front} }}\n"));
    }
    desired(&text).stacks.remove(0)
}

/// One cluster and its world, printed wave by wave.
#[derive(Debug, Clone)]
pub struct Scene {
    /// What should be.
    pub desired: Stack,
    /// What is.
    pub world: World,
    /// What cannot be reached at the moment: a machine's name, and what of it.
    pub hidden: BTreeSet<(String, Hidden)>,
}

/// What of a machine cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hidden {
    /// The provider's answer about it.
    Machine,
    /// Its agent.
    Agent,
    /// Its etcd.
    Etcd,
}

impl Scene {
    /// Nothing exists yet.
    pub fn empty(members: usize, further: &[&str]) -> Self {
        let desired = cluster(members, further);
        let world = World::empty(&desired, epoch());
        Self { desired, world, hidden: BTreeSet::new() }
    }

    /// A cluster that is as it should be.
    pub fn settled(members: usize) -> Self {
        Self::settled_with(members, &[])
    }

    /// A cluster that is as a file with these lines says.
    pub fn settled_with(members: usize, further: &[&str]) -> Self {
        let mut scene = Self::empty(members, further);
        let output = scene.to_the_end();
        assert!(output.ends_with("done\n"), "{output}");
        scene
    }

    /// The machine `main-<number>`.
    pub fn machine(&mut self, number: usize) -> &mut MachineModel {
        let name = Name::parse(&format!("main-{number}")).expect("a name");
        self.world.machines.get_mut(&name).expect("a machine of the cluster")
    }

    /// The cluster's id; there must be one.
    pub fn id(&self) -> ClusterId {
        *self.world.agreed.keys().next().expect("a cluster")
    }

    /// What the cluster has agreed upon.
    pub fn agreed(&mut self) -> &mut Agreed {
        self.world.agreed.values_mut().next().expect("a cluster")
    }

    /// The power of this machine is cut.
    pub fn cut_power(&mut self, number: usize) {
        let machine = self.machine(number);
        machine.power = Power::Stopped;
        machine.agent_up = false;
        machine.process.state = ServiceState::Stopped;
    }

    /// Lets this much time pass.
    pub fn later(&mut self, hours: i64) {
        self.world.now = self.world.now.checked_add(SignedDuration::from_hours(hours)).expect("a timestamp");
    }

    /// This of that machine cannot be reached from now on.
    pub fn hide(&mut self, number: usize, what: Hidden) {
        self.hidden.insert((format!("main-{number}"), what));
    }

    /// A look at the world, through what hides parts of it.
    pub fn look(&self) -> Observed {
        let mut observed = self.world.observe(&self.desired);
        let (error, since) = ("timed out".to_owned(), self.world.now);
        for (name, seen) in &mut observed.machines {
            let mut member = observed.etcd.members.get_mut(name);
            for (_, what) in self.hidden.iter().filter(|(hidden, _)| hidden == name.as_str()) {
                let error = error.clone();
                match what {
                    Hidden::Machine => seen.machine = Fact::Unreachable { error, since },
                    Hidden::Agent => seen.agent = Fact::Unreachable { error, since },
                    Hidden::Etcd => {
                        if let Some(member) = &mut member {
                            member.etcd = Fact::Unreachable { error, since };
                        }
                    }
                }
            }
        }
        observed.etcd.handshakes = self.world.test_handshakes(&self.desired, &observed);
        observed
    }

    /// What the planner says now. Nothing is done.
    pub fn plan(&self) -> Plan {
        plan(&self.desired, &self.look(), self.world.now)
    }

    /// Takes up the addresses that the state has by now, as the next run does.
    pub fn take_up(&mut self) {
        if let Some(placed) = self.desired.placed_by(&self.world.ledger).expect("an address for each") {
            self.desired = placed;
        }
    }

    /// Carries out wave after wave until nothing more is done, and prints it. Where it ends with `done`, planning once
    /// more was seen to change nothing.
    pub fn to_the_end(&mut self) -> String {
        let mut output = String::new();
        self.take_up();
        for _ in 0..100 {
            let next = self.plan();
            if next.steps.is_empty() {
                output.push_str(&describe(&next));
                let again = self.plan();
                assert_eq!(next, again, "re-planning changes nothing");
                return output;
            }
            output.push_str(&describe(&Plan { steps: next.steps.clone(), waiting: Vec::new() }));
            self.carry_out(&next);
        }
        panic!("it goes round in circles:\n{output}")
    }

    /// Carries out waves up to the one with such an action, that one included, and prints them.
    pub fn until(&mut self, last: impl Fn(&Action) -> bool) -> String {
        let mut output = String::new();
        for _ in 0..100 {
            let next = self.plan();
            assert!(!next.steps.is_empty(), "it never comes to it:\n{output}{}", describe(&next));
            output.push_str(&describe(&Plan { steps: next.steps.clone(), waiting: Vec::new() }));
            self.carry_out(&next);
            if next.steps.iter().any(|step| last(&step.action)) {
                return output;
            }
        }
        panic!("it goes round in circles:\n{output}")
    }

    /// Carries out one wave, and lets time pass.
    pub fn carry_out(&mut self, plan: &Plan) {
        for step in &plan.steps {
            let done = self.world.act(&self.desired, &step.action, 0);
            done.unwrap_or_else(|impossible| panic!("{step:?}: {impossible}"));
        }
        self.world.pass_time();
        self.world.remember(&self.desired);
        self.take_up();
    }
}

/// A plan as compact text: equal steps on several machines in one line, with what the cluster can lose before, during
/// and after; then what is waited for.
pub fn describe(plan: &Plan) -> String {
    let lose = |tolerance: Tolerance| match tolerance {
        Tolerance::NoQuorum => "-".to_owned(),
        Tolerance::CanLose(n) => n.to_string(),
    };
    let mut lines: Vec<(String, Vec<String>, String)> = Vec::new();
    for step in &plan.steps {
        let verb = step.action.verb().to_owned();
        let machine = step.action.subject().to_owned();
        let pause = match step.pause {
            Pause::None | Pause::NotServing => "",
            Pause::HandOver(_) => ", hand-over",
            Pause::Patroni(_) => ", switchover",
        };
        let [before, during, after] = [step.before, step.during, step.after].map(lose);
        let left = |copies: Copies| match copies {
            Copies::NotWritable => "-".to_owned(),
            Copies::Synchronous(n) => n.to_string(),
        };
        let copies = step.copies.map(|of| [of.before, of.during, of.after].map(left).join(" "));
        let copies = copies.map(|copies| format!(", copies {copies}")).unwrap_or_default();
        let rest = format!("{}; {before} {during} {after}{copies}{pause}", step.reason);
        match lines.iter_mut().find(|(v, _, r)| *v == verb && *r == rest) {
            Some((_, machines, _)) => machines.push(machine),
            None => lines.push((verb, vec![machine], rest)),
        }
    }
    let mut output = String::new();
    for (i, (verb, machines, rest)) in lines.iter().enumerate() {
        let bullet = if i == 0 { "*" } else { " " };
        output.push_str(&format!("{bullet} {verb} {}: {rest}\n", machines.join(" ")));
    }
    for waiting in &plan.waiting {
        let word = match waiting.kind() {
            WaitKind::Transient => "waits",
            WaitKind::Blocked => "blocked",
            WaitKind::Informational => "note",
        };
        output.push_str(&format!("{word}: {waiting}\n"));
    }
    if plan.is_done() {
        output.push_str("done\n");
    }
    output
}
