//! Every step, from any pass → what it costs, or why it must not be done.
//!
//! The one place where safety is judged: the planner passes every wave through `gate`, and the executor of a step calls
//! `judge` again, on a fresh observation, just before. What holds for all steps is here; each topic's judge is in the
//! file of its name.

#![warn(clippy::wildcard_enum_match_arm)]

mod agents;
mod auth;
mod backup;
mod balancer;
mod etcd;
pub(in crate::plan) mod interlock;
mod machines;
mod maintenance;
mod members;
mod pki;
mod postgres;
mod preflight;
mod recovery;
mod restore;
mod users;
mod versions;

use super::{CopiesLeft, Draft, Pause, Plan, PostgresWaiting, Waiting};
use crate::action::{Action, Changes, Company, MemberAction, RestoreAction};
use crate::desired::Stack;
use crate::ledger::Mode;
use crate::observed::{AgentReport, ListedMember, MachineObserved, Observed, Tolerance, View, quorum};
use crate::spec::Name;

/// What a step costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// What the cluster can lose before.
    pub before: Tolerance,
    /// What it can lose meanwhile.
    pub during: Tolerance,
    /// How long no write is acknowledged.
    pub pause: Pause,
    /// What it costs the PostgreSQL cluster that it is done to.
    pub copies: Option<CopiesLeft>,
}

/// Why a step must not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It would take the cluster below a majority.
    #[error("{healthy} of {of} members are healthy: quorum would be lost")]
    WouldLoseQuorum {
        /// Healthy members.
        healthy: usize,
        /// Of so many.
        of: usize,
    },
    /// It needs a majority, and there is none.
    #[error("the cluster has no quorum")]
    NoQuorum,
    /// It takes something away, or changes the voters, and must be the only step of its wave.
    #[error("it changes the cluster and is not alone in its wave")]
    NotAlone,
    /// What it depends on was not seen.
    #[error("{0} was not seen")]
    NotSeen(&'static str),
    /// What stands on it, or beneath it, must be whole first.
    #[error("{0}")]
    Held(PostgresWaiting),
    /// What it depends on differs.
    #[error("{0}")]
    Otherwise(String),
}

/// What a step is judged by: the file, and what was observed.
pub(super) struct Case<'a> {
    desired: &'a Stack,
    observed: &'a Observed,
    view: &'a View<'a>,
    /// The cost of a step that takes nothing away.
    unharmed: Cost,
}

/// Judges one action of a wave.
pub fn judge(desired: &Stack, observed: &Observed, wave: &[&Action], action: &Action) -> Result<Cost, Refusal> {
    let view = View::of(observed);
    let case = Case::of(desired, observed, &view);
    let class = action.class();
    let in_company = match class.company {
        Company::Any => true,
        Company::OneLoss => observed.ledger.etcd.is_built_anew() || losses(wave) <= 1,
        Company::Alike => wave
            .iter()
            .map(|other| other.class())
            .all(|other| other.company == Company::Alike && other.changes == class.changes),
        Company::Alone => wave.len() <= 1,
    };
    if !in_company {
        return Err(Refusal::NotAlone);
    }
    agents::skew(desired, observed)?;
    interlock::check(&case, wave, action)?;
    match &observed.ledger.etcd.mode {
        Mode::Normal => {}
        Mode::Recovering(_) | Mode::Restoring(_) if matches!(action, Action::Postgres(_)) => {}
        Mode::Adopted(_) if class.changes == Changes::Users => {}
        Mode::Adopted(_) => return Err(otherwise("this cluster is adopted read-only")),
        Mode::Recovering(recovery) => {
            return recovery::meanwhile(&case, recovery, action).map(|()| case.not_serving());
        }
        Mode::Restoring(restoration) => {
            if let Some(judged) = restore::meanwhile(&case, restoration, action) {
                return judged.map(|()| case.not_serving());
            }
        }
    }
    match action {
        Action::Machine(action) => machines::judge(&case, action),
        Action::Agent(action) => agents::judge(&case, action),
        Action::Pki(action) => pki::judge(&case, action),
        Action::Preflight(action) => preflight::judge(&case, action),
        Action::Etcd(action) => etcd::judge(&case, action),
        Action::Member(action) => members::judge(&case, action),
        Action::Maintenance(action) => maintenance::judge(&case, action),
        Action::Version(action) => versions::judge(&case, action),
        Action::Backup(action) => backup::judge(&case, action),
        Action::Balancer(action) => balancer::judge(&case, action),
        Action::Postgres(action) => postgres::judge(&case, action),
        Action::Auth(action) => auth::judge(&case, action),
        Action::User(action) => users::judge(&case, action),
        Action::Restore(action) => restore::judge(&case, action),
        Action::Recovery(action) => recovery::judge(action),
    }
}

/// How many steps of a wave delete something of a machine for good.
fn losses(wave: &[&Action]) -> usize {
    wave.iter().filter(|action| action.class().company == Company::OneLoss).count()
}

impl<'a> Case<'a> {
    pub(super) fn of(desired: &'a Stack, observed: &'a Observed, view: &'a View<'a>) -> Self {
        let before = view.tolerance();
        Self { desired, observed, view, unharmed: Cost { before, during: before, pause: Pause::None, copies: None } }
    }

    /// The cost of a step during which no client is served.
    fn not_serving(&self) -> Cost {
        Cost { during: Tolerance::NoQuorum, pause: Pause::NotServing, ..self.unharmed }
    }

    fn machine(&self, machine: &Name) -> Result<&'a MachineObserved, Refusal> {
        self.observed.machines.get(machine).ok_or(Refusal::NotSeen("the machine"))
    }

    /// The report of the machine's agent, whichever machine it is.
    fn any_report(&self, machine: &Name) -> Result<&'a AgentReport, Refusal> {
        self.machine(machine)?.report().ok_or(Refusal::NotSeen("the agent's report"))
    }

    /// The report of the agent of the machine that etcd was started on, where it was.
    fn report(&self, machine: &Name) -> Result<&'a AgentReport, Refusal> {
        let report = self.any_report(machine)?;
        match self.observed.ledger.etcd.started.get(machine) {
            Some(incarnation) if *incarnation != report.incarnation && !self.outside(machine) => {
                Err(Refusal::Otherwise("this is another machine than the one that etcd was started on".into()))
            }
            Some(_) | None => Ok(report),
        }
    }

    /// Whether a majority says that this name is no member.
    fn outside(&self, machine: &Name) -> bool {
        let known = |m: &ListedMember| self.observed.ledger.etcd.name_of(m).as_ref() == Some(machine);
        self.view.has_quorum() && self.view.listed.is_some_and(|list| !list.iter().any(known))
    }

    fn no_member(&self, machine: &Name) -> Result<(), Refusal> {
        if self.outside(machine) { Ok(()) } else { Err(Refusal::NotSeen("that it is no member any more")) }
    }

    fn with_quorum(&self) -> Result<(), Refusal> {
        if self.view.has_quorum() { Ok(()) } else { Err(Refusal::NoQuorum) }
    }

    fn costs_quorum(&self) -> Refusal {
        Refusal::WouldLoseQuorum { healthy: self.view.healthy.len(), of: self.view.voters }
    }
}

fn otherwise(why: &str) -> Refusal {
    Refusal::Otherwise(why.to_owned())
}

fn corrupt() -> Refusal {
    otherwise("etcd reports that a member's data is corrupt")
}

/// What only a recovery or a restore does, without either.
fn not_decided() -> Refusal {
    otherwise("no recovery or restore has been approved")
}

/// The draft's steps, each judged; what must not be done becomes something to wait for.
pub(super) fn gate(mut draft: Draft<'_>) -> Plan {
    one_loss_a_wave(&mut draft);
    interlock::one_a_wave(&mut draft);
    let Draft { desired, observed, view, steps, mut waiting, .. } = draft;
    let wave: Vec<&Action> = steps.iter().map(|s| &s.action).collect();
    let verdicts: Vec<Result<Cost, Refusal>> = wave.iter().map(|a| judge(desired, observed, &wave, a)).collect();
    let coming_up: Vec<Name> = wave.iter().flat_map(|action| action.brings_up()).cloned().collect();
    let after = match wave.as_slice() {
        [Action::Member(MemberAction::PromoteMember { .. } | MemberAction::RemoveMember { .. })] => None,
        // They are started one after the other.
        [Action::Restore(RestoreAction::CompareRestored { machines })] => {
            let spare = machines.len().saturating_sub(quorum(machines.len()));
            Some(Tolerance::CanLose(u32::try_from(spare).unwrap_or(0)))
        }
        _ if observed.ledger.etcd.restoration().is_some() => None,
        _ => Some(view.tolerance_with(&coming_up)),
    };
    let mut kept = Vec::with_capacity(steps.len());
    for (mut step, verdict) in steps.into_iter().zip(verdicts) {
        match verdict {
            Ok(cost) => {
                step.before = cost.before;
                step.during = cost.during;
                step.after = after.unwrap_or(cost.during);
                step.pause = cost.pause;
                step.copies = cost.copies;
                kept.push(step);
            }
            Err(refusal) => waiting.push(refused(&step.action, refusal)),
        }
    }
    Plan { steps: kept, waiting }
}

/// Steps that delete something of a machine for good are done one at a time, unless a restore or a recovery was
/// approved for all of them.
fn one_loss_a_wave(draft: &mut Draft<'_>) {
    if draft.observed.ledger.etcd.is_built_anew() {
        return;
    }
    let mut losses = 0;
    let Draft { steps, waiting, .. } = draft;
    steps.retain(|step| {
        losses += usize::from(step.action.class().company == Company::OneLoss);
        let turn = losses <= 1 || step.action.class().company != Company::OneLoss;
        if let (false, Some(machine)) = (turn, step.action.machine()) {
            waiting.push(Waiting::Turn { machine: machine.clone(), verb: step.action.verb().to_owned() });
        }
        turn
    });
}

/// A refused action as something to wait for.
pub fn refused(action: &Action, refusal: Refusal) -> Waiting {
    let verb = action.verb().to_owned();
    match (refusal, action.machine()) {
        (Refusal::Held(waiting), _) => Waiting::Postgres(waiting),
        (Refusal::WouldLoseQuorum { healthy, of }, Some(machine)) => {
            Waiting::WouldLoseQuorum { verb, machine: machine.clone(), healthy, of }
        }
        (refusal, machine) => Waiting::Unsafe { verb, machine: machine.cloned(), refusal: refusal.to_string() },
    }
}
