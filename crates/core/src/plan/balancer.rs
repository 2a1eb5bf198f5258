//! Balancers of the file, their instances and what is behind them → instances to equip, start and reload; members of etcd
//! to drain before they stop serving, and to admit once they serve again.

use super::etcd::CRASHES;
use super::members::{self, Standing};
use super::pki::flaw;
use super::report::{Because, Report};
use super::{Draft, Reason, Step, Waiting, agents, machines};
use crate::action::{Action, BalancerAction, MemberAction};
use crate::desired::{Balancer, Behind, HEALTH_PORT, Instance, REST_PORT};
use crate::observed::{
    AgentReport, BalancerOnMachine, CertificateFacts, Observed, PostgresView, ServerState, ServiceState,
};
use crate::render::{haproxy, keepalived};
use crate::spec::Name;

pub(super) const HAPROXY: &str = "HAProxy";
pub(super) const KEEPALIVED: &str = "keepalived";

/// Brings the machines that balancers have to themselves to where HAProxy can run. What is waited for there is returned:
/// a machine of a balancer that does not come up delays nothing of etcd.
pub(super) fn prepare(draft: &mut Draft<'_>) -> Vec<Waiting> {
    let desired = draft.desired;
    let own = desired.instances().filter(|(_, instance)| !instance.beside_member);
    own.filter_map(|(balancer, instance)| prepare_one(draft, balancer, instance)).collect()
}

fn prepare_one(draft: &mut Draft<'_>, balancer: &Balancer, instance: &Instance) -> Option<Waiting> {
    let moves = draft.desired.machine(&instance.name).is_some_and(|machine| machine.capabilities.moves);
    match machines::equipped(draft, &instance.name, instance.address, moves) {
        Ok(report) => {
            if let Some(step) = certificate(draft, balancer, instance, report) {
                draft.steps.push(step);
            }
            None
        }
        Err(waiting) => waiting,
    }
}

/// Signs the certificate that an instance presents to Patroni, where it lacks one or its own is to be renewed. HAProxy takes
/// it up with its file, which names it.
fn certificate(draft: &Draft<'_>, balancer: &Balancer, instance: &Instance, report: &AgentReport) -> Option<Step> {
    let (Behind::Nodes(cluster), Some(profile)) = (&balancer.behind, &instance.probe) else { return None };
    let seen = report.balancer.as_ref()?;
    // The CA is made with the machines of nodes.
    let signer = &draft.observed.ledger.of_postgres(cluster).trust.as_ref()?.current;
    if signer.not_after <= draft.now || agents::comes_first(draft, report) {
        return None;
    }
    let reason = flaw(seen.certificate.as_ref(), profile, None, signer, draft.now)?;
    Some(Step::new(BalancerAction::IssueBalancerCertificate { machine: instance.name.clone() }, reason))
}

/// Configures and starts the instances, and has them take up what has changed, one at a time.
pub(super) fn run(draft: &mut Draft<'_>) -> Report {
    let (desired, observed) = (draft.desired, draft.observed);
    let members = backends(draft);
    let settled = settled(draft);
    let mut reloads = Vec::new();
    for (balancer, instance) in desired.instances() {
        let Some(servers) = servers(draft, balancer, members.as_deref()) else { continue };
        let Some(report) = reported(observed, &instance.name) else { continue };
        let machine = instance.name.clone();
        // It takes only the lines that it knows.
        if agents::comes_first(draft, report) {
            continue;
        }
        let Some(seen) = &report.balancer else {
            draft.wait(Waiting::BalancerUnknown { machine });
            continue;
        };
        if let Some(waiting) = missing(instance, seen) {
            draft.wait(waiting);
            continue;
        }
        let certificate = match balancer.behind {
            Behind::Members => None,
            Behind::Nodes(_) => match accepted(draft, balancer, seen) {
                Some(certificate) => Some(certificate.fingerprint.clone()),
                // It is waited for on the machine.
                None => continue,
            },
        };
        let file = desired.haproxy((balancer, instance), &servers, certificate.as_deref(), &observed.ledger);
        let Some(digest) = file.map(|file| file.digest) else { continue };
        let wanted = Wanted { haproxy: &digest, keepalived: instance.keepalived.as_ref().map(|file| &file.digest) };
        if !wanted.is_written(seen) {
            if settled || seen.haproxy.config.is_none() {
                let reason = changed(seen, &servers);
                let action = BalancerAction::ConfigureBalancer { machine, members: servers, certificate, digest };
                draft.steps.push(Step::new(action, reason));
            }
            continue;
        }
        if let Some(waiting) = failing(&machine, seen, wanted.keepalived.is_some()) {
            draft.wait(waiting);
        } else if !seen.haproxy.runs() || wanted.keepalived.is_some() && seen.keepalived.is_stopped() {
            draft.steps.push(Step::new(BalancerAction::StartBalancer { machine }, Reason::NotRunning));
        } else if !wanted.is_taken_up(seen) {
            let reason = changed(seen, &servers);
            reloads.push(Step::new(BalancerAction::ReloadBalancer { machine }, reason));
        }
    }
    let surplus = observed.reports().filter(|(name, _)| desired.machine(name).is_some());
    let surplus = surplus.filter(|(name, _)| desired.instance(name).is_none() && observed.machine(name).is_some());
    let running = |seen: &BalancerOnMachine| !(seen.haproxy.is_stopped() && seen.keepalived.is_stopped());
    let stops = surplus.filter(|(_, report)| report.balancer.as_ref().is_some_and(running));
    let stops = stops.map(|(name, _)| BalancerAction::StopBalancer { machine: name.clone() });
    // Connections outlive a reload by minutes only: not those of all instances at the same time.
    let next = reloads.into_iter().chain(stops.map(|action| Step::new(action, Reason::NotInFile))).next();
    if draft.steps.is_empty() && settled {
        draft.steps.extend(next);
    }
    Report::Looked
}

/// Whether no member is starting or about to be restarted: in the gaps of a rolling restart, what clients connect through
/// is not changed.
fn settled(draft: &Draft<'_>) -> bool {
    !draft.waiting.iter().any(|waiting| {
        matches!(
            waiting,
            Waiting::EtcdStarting { .. }
                | Waiting::EtcdSilent { .. }
                | Waiting::NoQuorumYet { .. }
                | Waiting::WouldLoseQuorum { .. }
                | Waiting::NoTransferTarget { .. }
                | Waiting::HealFirst { .. }
                | Waiting::Turn { .. }
        )
    })
}

/// The report of an instance's machine. Where the provider cannot be asked for the machine, nothing is done to it.
fn reported<'a>(observed: &'a Observed, machine: &Name) -> Option<&'a AgentReport> {
    observed.report(machine).filter(|_| observed.machine(machine).is_some())
}

/// Why an instance is configured otherwise: HAProxy says which members it has.
fn changed(seen: &BalancerOnMachine, members: &[Name]) -> Reason {
    let servers = &seen.facts.servers;
    let same = servers.len() == members.len() && members.iter().all(|name| servers.contains_key(name));
    match &seen.haproxy.config {
        None => Reason::Missing,
        Some(_) if !servers.is_empty() && !same => Reason::OtherMembers,
        Some(_) => Reason::Changed,
    }
}

/// What connections are passed to; nothing where that is not known now.
fn servers(draft: &Draft<'_>, balancer: &Balancer, members: Option<&[Name]>) -> Option<Vec<Name>> {
    match &balancer.behind {
        Behind::Members => members.map(<[Name]>::to_vec),
        // HAProxy asks each of them for its role.
        Behind::Nodes(_) => Some(draft.desired.servers(balancer, &draft.observed.ledger)),
    }
}

/// The certificate of an instance, where nodes accept it.
fn accepted<'a>(draft: &Draft<'a>, balancer: &Balancer, seen: &'a BalancerOnMachine) -> Option<&'a CertificateFacts> {
    let Behind::Nodes(cluster) = &balancer.behind else { return None };
    let trust = draft.observed.ledger.of_postgres(cluster).trust.as_ref()?;
    seen.certificate.as_ref().filter(|certificate| trust.accepts(certificate, draft.now))
}

/// The members that connections are passed to: those of the file that have a vote. A learner answers health checks as
/// others do, and refuses what clients ask. Nothing while no member can be asked.
fn backends(draft: &Draft<'_>) -> Option<Vec<Name>> {
    draft.view.listed?;
    let votes = |name: &&Name| matches!(draft.standing(name), Standing::Voter(_));
    let members = draft.desired.etcd.members.iter().map(|member| &member.name);
    Some(members.filter(votes).cloned().collect()).filter(|members: &Vec<Name>| !members.is_empty())
}

/// The digests of an instance's files.
struct Wanted<'a> {
    haproxy: &'a String,
    keepalived: Option<&'a String>,
}

impl Wanted<'_> {
    fn is_written(&self, seen: &BalancerOnMachine) -> bool {
        let addressed = self.keepalived.is_none_or(|wanted| seen.keepalived.config.as_ref() == Some(wanted));
        seen.haproxy.config.as_ref() == Some(self.haproxy) && addressed
    }

    fn is_taken_up(&self, seen: &BalancerOnMachine) -> bool {
        let addressed = match self.keepalived {
            Some(wanted) => seen.keepalived.running_config.as_ref() == Some(wanted),
            None => seen.keepalived.is_stopped(),
        };
        seen.haproxy.running_config.as_ref() == Some(self.haproxy) && addressed
    }
}

/// Which program is not installed, or cannot listen.
fn missing(instance: &Instance, seen: &BalancerOnMachine) -> Option<Waiting> {
    let machine = || instance.name.clone();
    if seen.haproxy.installed.is_none() {
        return Some(Waiting::PackageMissing { machine: machine(), package: haproxy::PACKAGE.to_owned() });
    }
    if instance.keepalived.is_some() && seen.keepalived.installed.is_none() {
        return Some(Waiting::PackageMissing { machine: machine(), package: keepalived::PACKAGE.to_owned() });
    }
    let taken = seen.haproxy.ports_taken.first()?;
    Some(Waiting::PortTaken { machine: machine(), port: taken.port, holder: taken.holder.clone() })
}

/// What is waited for while one of its programs restarts by itself, or HAProxy runs and does not answer yet.
fn failing(machine: &Name, seen: &BalancerOnMachine, addressed: bool) -> Option<Waiting> {
    let machine = || machine.clone();
    if let Some(error) = seen.problem.clone().filter(|_| seen.haproxy.runs()) {
        return Some(Waiting::BalancerStarting { machine: machine(), program: HAPROXY.to_owned(), error });
    }
    let keepalived = addressed.then_some((KEEPALIVED, &seen.keepalived.service));
    let mut programs = [(HAPROXY, &seen.haproxy.service)].into_iter().chain(keepalived);
    let (program, service) = programs.find(|(_, service)| service.state == ServiceState::Backoff)?;
    let last_exit = service.last_exit.clone().unwrap_or_else(|| "for an unknown reason".to_owned());
    let (machine, program, restarts) = (machine(), program.to_owned(), service.restarts);
    Some(match restarts >= CRASHES {
        true => Waiting::BalancerCrashes { machine, program, restarts, last_exit },
        false => Waiting::BalancerStarting { machine, program, error: last_exit },
    })
}

/// Before the next step has a member stop serving, instances pass no new connections to it; one that serves again gets
/// them again. What a client is connected to and what it connects through are not changed in one wave.
pub(super) fn drain(draft: &mut Draft<'_>) -> Report {
    let leaving = match draft.steps.as_slice() {
        [] => None,
        [step] => match leaving(step) {
            Some(member) => Some(member),
            None => return Report::Looked,
        },
        _ => return Report::Looked,
    };
    let (mut admits, mut drains) = (Vec::new(), Vec::new());
    for (_, instance, seen) in asked(draft).filter(|(balancer, ..)| balancer.behind == Behind::Members) {
        for (member, server) in &seen.facts.servers {
            let (machine, member) = (instance.name.clone(), member.clone());
            match server.state {
                ServerState::Draining if leaving.as_ref() != Some(&member) => {
                    let reason = Reason::ServesAgain { member: member.clone() };
                    admits.push(Step::new(BalancerAction::AdmitMember { machine, member }, reason));
                }
                ServerState::Up if leaving.as_ref() == Some(&member) && seen.facts.can_drain(&member) => {
                    let reason = Reason::StopsServing { member: member.clone() };
                    drains.push(Step::new(BalancerAction::DrainMember { machine, member }, reason));
                }
                ServerState::Up | ServerState::Draining | ServerState::Down | ServerState::Maintenance => {}
            }
        }
    }
    let first = if admits.is_empty() { drains } else { admits };
    if !first.is_empty() {
        draft.steps = first;
    } else if draft.steps.is_empty() {
        let unchecked = unchecked(draft);
        draft.waiting.extend(unchecked);
    }
    Report::Looked
}

/// Members that serve, and primaries, that an instance does not find healthy yet. A member that was drained shows only then
/// that it is to be admitted.
fn unchecked(draft: &Draft<'_>) -> Vec<Waiting> {
    let mut waiting = Vec::new();
    for (balancer, instance, seen) in asked(draft) {
        let (serving, port): (Vec<Name>, u16) = match &balancer.behind {
            Behind::Members => (draft.view.healthy.iter().map(|name| (*name).clone()).collect(), HEALTH_PORT),
            Behind::Nodes(cluster) => (primary(draft, cluster).into_iter().collect(), REST_PORT),
        };
        let down = |name: &&Name| seen.facts.servers.get(*name).is_some_and(|server| server.state == ServerState::Down);
        waiting.extend(serving.iter().filter(down).map(|member| {
            let (machine, member) = (instance.name.clone(), member.clone());
            Waiting::BalancerChecks { machine, member, port }
        }));
    }
    waiting
}

/// The node that takes writes.
fn primary(draft: &Draft<'_>, cluster: &Name) -> Option<Name> {
    let cluster = draft.desired.postgres(cluster)?;
    let seen = PostgresView::seen(cluster, draft.observed)?;
    cluster.node_in_patroni(seen.primary()?).map(|node| node.name.clone())
}

/// Whether each virtual address is at one instance.
pub(super) fn addresses(draft: &mut Draft<'_>) -> Report {
    let observed = draft.observed;
    let waiting = draft.desired.balancers.iter().filter_map(|balancer| misplaced(observed, balancer));
    draft.waiting.extend(waiting);
    Report::Looked
}

/// What is wrong with the place of a balancer's virtual address.
fn misplaced(observed: &Observed, balancer: &Balancer) -> Option<Waiting> {
    let (address, name) = (balancer.virtual_address?, balancer.name.clone());
    // Whether an instance has it: known of those that run both programs as wanted. An agent looks for the address that
    // is in keepalived's file on its machine, which may be another one until that is the wanted file.
    let has = |instance: &Instance| {
        let seen = observed.report(&instance.name)?.balancer.as_ref()?;
        let wanted = instance.keepalived.as_ref().map(|file| &file.digest);
        let as_wanted = seen.keepalived.runs() && seen.keepalived.running_config.as_ref() == wanted;
        (seen.haproxy.runs() && as_wanted).then_some(seen.has_virtual_address)
    };
    let holders = balancer.instances.iter().filter(|instance| has(instance) == Some(true));
    let machines: Vec<Name> = holders.map(|instance| instance.name.clone()).collect();
    match machines.len() {
        // One that cannot be asked may have it: then there is nothing to wait for here. That its machine cannot be
        // reached, or what it lacks, is waited for in any case.
        0 if balancer.instances.iter().all(|instance| has(instance).is_some()) => {
            Some(Waiting::VirtualAddressUnheld { balancer: name, address })
        }
        0 | 1 => None,
        _ => Some(Waiting::VirtualAddressConflict { balancer: name, address, machines }),
    }
}

/// Instances that run and answer.
fn asked<'a>(draft: &Draft<'a>) -> impl Iterator<Item = (&'a Balancer, &'a Instance, &'a BalancerOnMachine)> {
    let (desired, observed) = (draft.desired, draft.observed);
    desired.instances().filter_map(|(balancer, instance)| {
        let seen = reported(observed, &instance.name)?.balancer.as_ref()?;
        (seen.haproxy.runs() && seen.problem.is_none()).then_some((balancer, instance, seen))
    })
}

/// The member that stops serving by this step, or right after it.
fn leaving(step: &Step) -> Option<Name> {
    match (&step.action, &step.reason) {
        (_, Reason::LeaderGoes { from } | Reason::LeaderRestarts { from }) => Some(from.clone()),
        (Action::Member(MemberAction::RemoveMember { name, .. }), _) => Name::parse(name).ok(),
        (action, _) => action.machine().filter(|_| action.disruptive()).cloned(),
    }
}

/// Deletes the machines of former instances.
pub(super) fn retire(draft: &mut Draft<'_>) -> Report {
    if !settled(draft) {
        return Report::Left(Because::Awaited);
    }
    let former = draft.observed.ledger.machines.instances.keys();
    // The machine of a former node goes once Patroni is stopped on it.
    let node = |name: &Name| draft.observed.ledger.postgres.values().any(|known| known.started.contains_key(name));
    let former = former.filter(|name| draft.desired.machine(name).is_none() && !node(name));
    let former: Vec<Name> = former.cloned().collect();
    for name in former {
        let step = members::discard(draft, &name);
        draft.steps.extend(step);
    }
    Report::Looked
}
