//! Machines that should be, machines that are → machines to make, start, enroll and equip.

use std::net::IpAddr;

use super::report::Report;
use super::situation::{Ready, to_be_opened};
use super::versions::UpgradePath;
use super::{Draft, Reason, Step, Waiting, members, pki};
use crate::action::{Action, EtcdAction, MachineAction};
use crate::desired::{ClientAccess, Config, Member};
use crate::observed::{Agent, AgentReport, Data, EtcdOnMachine, Fact, Power, ServiceState};
use crate::render::changes::changes;
use crate::spec::{EtcdVersion, Name};

/// Certificates are checked against the clock: with a larger difference, a fresh certificate may not be valid yet on
/// the machine.
const MAX_CLOCK_OFFSET_MS: u64 = 60_000;
/// etcd needs room for its first write-ahead log segment.
const MIN_FREE_BYTES: u64 = 64 * 1024 * 1024;

/// Has the provider assign the addresses that are not known, all in one wave. A provider that cannot be asked assigns
/// none.
pub(super) fn assign(draft: &mut Draft<'_>) -> Report {
    for machine in draft.desired.unplaced_machines().map(|machine| machine.name.clone()) {
        match draft.observed.machines.get(&machine).map(|seen| &seen.machine) {
            Some(Fact::Unreachable { error, .. }) => {
                draft.wait(Waiting::MachineUnknown { machine, error: error.clone() });
            }
            // A machine that exists has its address: the judge refuses another one.
            Some(Fact::Absent { .. } | Fact::Seen { .. }) | None => {
                draft.steps.push(Step::new(MachineAction::AssignAddress { machine }, Reason::Missing));
            }
        }
    }
    Report::Looked
}

/// Steps that bring machines closer to running etcd; returns the members that are ready.
pub(super) fn prepare<'a>(draft: &mut Draft<'a>, path: UpgradePath) -> Vec<Ready<'a>> {
    let desired = draft.desired;
    let ready = desired.etcd.members.iter().filter_map(|member| prepare_one(draft, member, path)).collect();
    // Members are opened to clients once new machines are enrolled: all of them are configured in one wave then, however
    // long the first one took until it was seen that auth is on.
    let enrolls = draft.steps.iter().any(|step| matches!(step.action, Action::Machine(MachineAction::Enroll { .. })));
    if let Some(closed) = to_be_opened(desired, draft.observed).filter(|_| enrolls) {
        let opens = |action: &Action| {
            let Action::Etcd(EtcdAction::ConfigureEtcd { machine, .. }) = action else { return false };
            closed.contains(machine)
        };
        draft.steps.retain(|step| !opens(&step.action));
    }
    ready
}

fn prepare_one<'a>(draft: &mut Draft<'a>, member: &'a Member, path: UpgradePath) -> Option<Ready<'a>> {
    let name = &member.name;
    let observed = draft.observed;
    let outside = draft.standing(name).outside();
    // A name that is no longer a member holds no data that could be lost.
    let started = observed.ledger.etcd.started.get(name).filter(|_| !outside);
    let report = match reach(draft, name, started, outside) {
        Ok(report) => report,
        Err(waiting) => {
            if let Some(waiting) = waiting {
                draft.lose(name, waiting);
            }
            return None;
        }
    };
    if outside && !empty(draft, member, report) {
        return None;
    }
    if let Some(from) = members::misplaced(draft, member) {
        if !draft.desired.machine(&member.machine).is_some_and(|machine| machine.capabilities.moves) {
            draft.wait(Waiting::CannotMove { machine: name.clone(), from, to: member.address });
            return None;
        }
        let action = MachineAction::MoveMachine { machine: name.clone(), address: member.address };
        draft.steps.push(Step::new(action, Reason::Moved));
        return None;
    }
    let etcd = &report.etcd;
    let version = version(etcd, path);
    let timers = draft.desired.etcd.timers(&observed.ledger);
    // A machine that joins a cluster need not be closed to clients; a restored member is configured when it is compared.
    let access = match draft.joins(name) || observed.ledger.etcd.restoration().is_some() {
        true => ClientAccess::Open,
        false => draft.desired.etcd.client_access(&observed.ledger),
    };
    let address = members::serves_at(draft, member);
    let configured =
        |access| timers.map(|timers| draft.desired.etcd.config_at(member, version, address, timers, access));
    let config = configured(access);
    let open = (access == ClientAccess::Closed).then(|| configured(ClientAccess::Open)).flatten();
    let open = open.map(|config| config.digest.clone());
    // Before the timers are measured, every member keeps those that it has.
    let stays = matches!(path, UpgradePath::Stay(_)) || timers.is_none();
    let kept = etcd.running_config.as_ref().or(etcd.config.as_ref()).filter(|_| stays);
    let equipped = equip(draft, member, report, version, config.as_deref().filter(|_| kept.is_none()));
    let digest = kept.or(config.as_ref().map(|config| &config.digest)).filter(|_| equipped)?.clone();
    let stale = etcd.running_config_text.as_ref().filter(|_| etcd.running_config.as_ref() != Some(&digest));
    let changes = stale.zip(config.as_deref()).map(|(from, to)| changes(from, &to.text)).unwrap_or_default();
    Some(Ready { member, report, version, digest, open, changes })
}

/// The report of a machine's agent; where there is none, the step towards it is planned, or it is said what is waited
/// for. `started` is the machine's incarnation when etcd was started on it: such a machine is not made anew. `outside`
/// says that its member is none any more.
pub(super) fn reach<'a>(
    draft: &mut Draft<'a>,
    name: &Name,
    started: Option<&String>,
    outside: bool,
) -> Result<&'a AgentReport, Option<Waiting>> {
    let machine = || name.clone();
    let seen = draft.observed.machines.get(name).ok_or(None)?;
    match &seen.machine {
        Fact::Unreachable { error, .. } => {
            return Err(Some(Waiting::MachineUnknown { machine: machine(), error: error.clone() }));
        }
        Fact::Absent { .. } if started.is_some() => return Err(Some(Waiting::MachineLost { machine: machine() })),
        Fact::Absent { .. } => {
            draft.steps.push(Step::new(MachineAction::CreateMachine { machine: machine() }, Reason::Missing));
            return Err(None);
        }
        Fact::Seen { value, .. } if value.power == Power::Stopped => {
            draft.steps.push(Step::new(MachineAction::StartMachine { machine: machine() }, Reason::NotRunning));
            return Err(None);
        }
        // It belongs to no member, no longer or not yet: a new machine takes its place.
        Fact::Seen { .. } if outside && draft.outdated(name).is_some() => return Err(discarded(draft, name)),
        Fact::Seen { .. } => {}
    }
    let report = match &seen.agent {
        // A new machine replaces one that cannot be reached, once that one is no longer a member.
        Fact::Unreachable { .. } | Fact::Absent { .. } if outside && draft.to_be_replaced(name) => {
            return Err(discarded(draft, name));
        }
        Fact::Unreachable { error, since } => {
            let (error, since) = (error.clone(), *since);
            return Err(Some(Waiting::AgentUnreachable { machine: machine(), error, since }));
        }
        Fact::Absent { at } => {
            let error = "the machine runs without an agent".to_owned();
            return Err(Some(Waiting::AgentUnreachable { machine: machine(), error, since: *at }));
        }
        Fact::Seen { value: Agent::Unclaimed, .. } if started.is_some() => {
            return Err(Some(Waiting::MachineRebuilt { machine: machine() }));
        }
        Fact::Seen { value: Agent::Unclaimed, .. } => {
            draft.steps.push(Step::new(MachineAction::Enroll { machine: machine() }, Reason::Unclaimed));
            return Err(None);
        }
        Fact::Seen { value: Agent::Claimed(report), .. } => report,
    };
    if report.machine != *name {
        draft.wait(Waiting::WrongMachine { machine: machine(), found: report.machine.clone() });
        return Err(None);
    }
    if started.is_some_and(|incarnation| *incarnation != report.incarnation) {
        return Err(Some(Waiting::MachineRebuilt { machine: machine() }));
    }
    Ok(report)
}

/// Plans to delete a machine that belongs to no member.
fn discarded(draft: &mut Draft<'_>, name: &Name) -> Option<Waiting> {
    let step = members::discard(draft, name);
    draft.steps.extend(step);
    None
}

/// Whether a machine's clock is too far from ours for a fresh certificate to be valid there.
pub(super) fn skewed(name: &Name, report: &AgentReport) -> Option<Waiting> {
    let offset_ms = report.clock_offset_ms;
    (offset_ms.unsigned_abs() > MAX_CLOCK_OFFSET_MS).then(|| Waiting::ClockSkew { machine: name.clone(), offset_ms })
}

/// The report of a machine that no member is on, once it is where it should be; elsewhere the step towards it is planned,
/// or it is said what is waited for. It is given what every machine is.
pub(super) fn equipped<'a>(
    draft: &mut Draft<'a>,
    name: &Name,
    address: IpAddr,
    moves: bool,
) -> Result<&'a AgentReport, Option<Waiting>> {
    let report = reach(draft, name, None, false)?;
    if let Some(skewed) = skewed(name, report) {
        return Err(Some(skewed));
    }
    let found = draft.observed.machine(name).map(|machine| machine.address);
    if let Some(from) = found.filter(|found| *found != address) {
        let machine = name.clone();
        if !moves {
            return Err(Some(Waiting::CannotMove { machine, from, to: address }));
        }
        draft.steps.push(Step::new(MachineAction::MoveMachine { machine, address }, Reason::Moved));
        return Err(None);
    }
    set_up(draft, name, report);
    Ok(report)
}

/// What every machine is given, whatever runs on it: its firewall, and what its agent accepts and presents.
pub(super) fn set_up(draft: &mut Draft<'_>, name: &Name, report: &AgentReport) {
    let rules = draft.desired.firewall(name, &draft.observed.ledger);
    if let Some(rules) = rules.filter(|rules| report.firewall.as_ref() != Some(&rules.digest)) {
        let action = MachineAction::SetFirewall { machine: name.clone(), digest: rules.digest };
        draft.steps.push(Step::new(action, Reason::Changed));
    }
    pki::agent(draft, name, report);
}

/// The version that etcd should run on a machine now. A stopped member restarts with the version that its data was last
/// used with, and is upgraded like all others.
fn version(etcd: &EtcdOnMachine, path: UpgradePath) -> EtcdVersion {
    let last = etcd.used_with().filter(|last| etcd.installed.contains_key(last));
    match etcd.service.state {
        ServiceState::Stopped => last.unwrap_or_else(|| path.target(None)),
        ServiceState::Running | ServiceState::Backoff => path.target(etcd.running_version.or(last)),
    }
}

/// Clears the data of a removed member from its machine; returns whether none is left.
fn empty(draft: &mut Draft<'_>, member: &Member, report: &AgentReport) -> bool {
    let machine = member.name.clone();
    let etcd = &report.etcd;
    let owner = match etcd.data {
        Data::Empty if !etcd.had_data => return true,
        Data::Empty => None,
        Data::Present { member, .. } => Some(member),
        // The data cannot be identified: raftsman moves it away only when an operator asks for the replacement.
        Data::Unreadable { .. } if !draft.to_be_replaced(&machine) => return true,
        Data::Unreadable { .. } => None,
    };
    let action = match etcd.service.state {
        ServiceState::Stopped => Action::Etcd(EtcdAction::ClearData { machine, member: owner }),
        ServiceState::Running | ServiceState::Backoff => Action::Etcd(EtcdAction::StopEtcd { machine }),
    };
    draft.steps.push(Step::new(action, Reason::Replaced));
    false
}

/// Steps that equip one of raftsman's machines; returns whether it lacks nothing. Without a configuration it keeps its
/// own.
fn equip(
    draft: &mut Draft<'_>,
    member: &Member,
    report: &AgentReport,
    version: EtcdVersion,
    config: Option<&Config>,
) -> bool {
    let name = &member.name;
    let etcd = &report.etcd;
    if let Some(skewed) = skewed(name, report) {
        draft.wait(skewed);
        return false;
    }
    let running = etcd.service.state == ServiceState::Running;
    // While etcd runs, etcd itself validates its data: just after the first start the agent cannot read it yet.
    if let Data::Unreadable { problem } = &etcd.data
        && !running
    {
        draft.lose(name, Waiting::DataUnreadable { machine: name.clone(), problem: problem.clone() });
        return false;
    }
    if !running && report.disk.free < MIN_FREE_BYTES {
        draft.wait(Waiting::DiskFull { machine: name.clone(), free: report.disk.free });
        return false;
    }
    // The firewall is set before a new member joins: members that cannot reach each other form no cluster.
    set_up(draft, name, report);
    let mut complete = pki::leaves(draft, member, report);
    if !etcd.installed.contains_key(&version) {
        let action = EtcdAction::InstallEtcd { machine: name.clone(), version };
        draft.steps.push(Step::new(action, Reason::Missing));
        complete = false;
    }
    if let Some(config) = config.filter(|config| etcd.config.as_ref() != Some(&config.digest)) {
        let at = Some(members::serves_at(draft, member)).filter(|address| *address != member.address);
        let digest = config.digest.clone();
        let action = EtcdAction::ConfigureEtcd { machine: name.clone(), version, at, digest };
        let differing = etcd.config_text.as_ref().map(|from| changes(from, &config.text)).unwrap_or_default();
        let reason = if etcd.config.is_none() { Reason::Missing } else { Reason::settings(differing) };
        draft.steps.push(Step::new(action, reason));
        complete = false;
    }
    complete
}
