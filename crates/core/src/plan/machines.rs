//! Machines that should be, machines that are → machines to make, start, enroll and equip.

use super::situation::{Ready, to_be_opened};
use super::versions::UpgradePath;
use super::{Draft, Reason, Step, Waiting, members, pki};
use crate::action::{Action, EtcdAction, MachineAction};
use crate::desired::{ClientAccess, Config, Member};
use crate::observed::{Agent, AgentReport, Data, EtcdOnMachine, Fact, Power, ServiceState};
use crate::render::changes::changes;
use crate::spec::EtcdVersion;

/// Certificates are checked against the clock: with a larger difference, a fresh certificate may not be valid yet on
/// the machine.
const MAX_CLOCK_OFFSET_MS: u64 = 60_000;
/// etcd needs room for its first write-ahead log segment.
const MIN_FREE_BYTES: u64 = 64 * 1024 * 1024;

/// Steps that bring machines closer to running etcd; returns the members that are ready.
pub(super) fn prepare<'a>(draft: &mut Draft<'a>, path: UpgradePath) -> Vec<Ready<'a>> {
    let desired = draft.desired;
    let ready = desired.members.iter().filter_map(|member| prepare_one(draft, member, path)).collect();
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
    let seen = observed.machines.get(name)?;
    let outside = draft.standing(name).outside();
    // A name that is no longer a member holds no data that could be lost.
    let started = observed.ledger.started.get(name).filter(|_| !outside);
    match &seen.machine {
        Fact::Unreachable { error, .. } => {
            draft.lose(name, Waiting::MachineUnknown { machine: name.clone(), error: error.clone() });
            return None;
        }
        Fact::Absent { .. } if started.is_some() => {
            draft.lose(name, Waiting::MachineLost { machine: name.clone() });
            return None;
        }
        Fact::Absent { .. } => {
            draft.steps.push(Step::new(MachineAction::CreateMachine { machine: name.clone() }, Reason::Missing));
            return None;
        }
        Fact::Seen { value, .. } if value.power == Power::Stopped => {
            draft.steps.push(Step::new(MachineAction::StartMachine { machine: name.clone() }, Reason::NotRunning));
            return None;
        }
        // It belongs to no member, no longer or not yet: a new machine takes its place.
        Fact::Seen { .. } if outside && draft.outdated(name).is_some() => {
            let step = members::discard(draft, name);
            draft.steps.extend(step);
            return None;
        }
        Fact::Seen { .. } => {}
    }
    let report = match &seen.agent {
        // A new machine replaces one that cannot be reached, once that one is no longer a member.
        Fact::Unreachable { .. } | Fact::Absent { .. } if outside && draft.to_be_replaced(name) => {
            let step = members::discard(draft, name);
            draft.steps.extend(step);
            return None;
        }
        Fact::Unreachable { error, since } => {
            let (error, since) = (error.clone(), *since);
            draft.lose(name, Waiting::AgentUnreachable { machine: name.clone(), error, since });
            return None;
        }
        Fact::Absent { at } => {
            let error = "the machine runs without an agent".to_owned();
            draft.lose(name, Waiting::AgentUnreachable { machine: name.clone(), error, since: *at });
            return None;
        }
        Fact::Seen { value: Agent::Unclaimed, .. } if started.is_some() => {
            draft.lose(name, Waiting::MachineRebuilt { machine: name.clone() });
            return None;
        }
        Fact::Seen { value: Agent::Unclaimed, .. } => {
            draft.steps.push(Step::new(MachineAction::Enroll { machine: name.clone() }, Reason::Unclaimed));
            return None;
        }
        Fact::Seen { value: Agent::Claimed(report), .. } => report,
    };
    if report.machine != *name {
        draft.wait(Waiting::WrongMachine { machine: name.clone(), found: report.machine.clone() });
        return None;
    }
    if started.is_some_and(|incarnation| *incarnation != report.incarnation) {
        draft.lose(name, Waiting::MachineRebuilt { machine: name.clone() });
        return None;
    }
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
    let timers = draft.desired.timers(&observed.ledger);
    // A machine that is no member need not be closed to clients; a restored member is configured when it is compared.
    let access = match outside || observed.ledger.restoration().is_some() {
        true => ClientAccess::Open,
        false => draft.desired.client_access(&observed.ledger),
    };
    let address = members::serves_at(draft, member);
    let configured = |access| timers.map(|timers| draft.desired.config_at(member, version, address, timers, access));
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
    if report.clock_offset_ms.unsigned_abs() > MAX_CLOCK_OFFSET_MS {
        draft.wait(Waiting::ClockSkew { machine: name.clone(), offset_ms: report.clock_offset_ms });
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
    let rules = draft.desired.firewall(&member.machine, &draft.observed.ledger);
    if let Some(rules) = rules.filter(|rules| report.firewall.as_ref() != Some(&rules.digest)) {
        let action = MachineAction::SetFirewall { machine: name.clone(), digest: rules.digest };
        draft.steps.push(Step::new(action, Reason::Changed));
    }
    pki::agent(draft, name, report);
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
