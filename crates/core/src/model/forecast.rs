//! (Desired, Observed, now) → every step until nothing is left to do, if every step succeeds.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::World;
use crate::desired::Stack;
use crate::observed::{Fact, Observed, Problem, Tolerance};
use crate::plan::{Pause, Plan, PostgresWaiting, Step, WaitKind, Waiting, plan};

/// More waves than any sound plan has: a planner that does not converge is stopped here.
const MAX_WAVES: usize = 200;

/// Longer than this no cluster takes to settle on a version.
const MAX_SETTLING: usize = 20;

/// What `apply` would do, wave by wave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// What the cluster can lose now.
    pub now: Tolerance,
    /// The waves of steps, in order.
    pub waves: Vec<Wave>,
    /// What is still waited for at the end.
    pub waiting: Vec<Waiting>,
    /// Whether the end is reached: nothing left to do or to wait for.
    pub converges: bool,
}

/// Steps that are carried out at the same time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wave {
    /// The steps.
    pub steps: Vec<Step>,
}

impl Forecast {
    /// All steps in order.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.waves.iter().flat_map(|w| &w.steps)
    }

    /// The longest pause to expect.
    pub fn longest_pause(&self) -> Pause {
        self.steps().map(|s| s.pause).filter(|p| *p != Pause::NotServing).max().unwrap_or(Pause::None)
    }
}

/// Runs the planner against the model until nothing is left to do.
pub fn forecast(desired: &Stack, observed: &Observed, now: Timestamp) -> Forecast {
    forecast_by(plan, desired, observed, now)
}

fn forecast_by(
    planner: impl Fn(&Stack, &Observed, Timestamp) -> Plan,
    desired: &Stack,
    observed: &Observed,
    now: Timestamp,
) -> Forecast {
    let mut desired = Cow::Borrowed(desired);
    let mut world = World::from_observed(&desired, observed, now);
    let mut waves = Vec::new();
    let mut seen = observed.clone();
    let tolerance = crate::observed::View::of(observed).tolerance();
    let (mut settled, mut came_up, mut rested) = (0, 0, 0);
    loop {
        // What a step made known is part of what is wanted from then on.
        if let Ok(Some(placed)) = desired.placed_by(&world.ledger) {
            desired = Cow::Owned(placed);
            seen = still_unreachable(world.observe(&desired), observed);
        }
        // Rounds of Patroni take time; nothing else in the model does.
        let next = planner(&desired, &seen, world.now);
        // What a step has started comes up by itself: the agent of a machine starts its etcd, and one keepalived takes the
        // virtual address.
        let comes_up = |w: &Waiting| {
            matches!(
                w,
                Waiting::EtcdStarting { .. } | Waiting::NoQuorumYet { .. } | Waiting::VirtualAddressUnheld { .. }
            )
        };
        if next.steps.is_empty() && !waves.is_empty() && came_up < MAX_SETTLING && next.waiting.iter().any(comes_up) {
            came_up += 1;
            world.pass_time();
            world.remember(&desired);
            seen = still_unreachable(world.observe(&desired), observed);
            continue;
        }
        // etcd does by itself what it is about to do, and the plan continues after it.
        if next.steps.is_empty() && settled < MAX_SETTLING && next.waiting.iter().any(settling) {
            settled += 1;
            world.pass_time();
            world.remember(&desired);
            seen = still_unreachable(world.observe(&desired), observed);
            continue;
        }
        // So does Patroni, after every step.
        let mut by_itself = next.waiting.iter().filter(|w| rests(w, !waves.is_empty())).peekable();
        if next.steps.is_empty() && rested < MAX_SETTLING && by_itself.peek().is_some() {
            rested += 1;
            world.now = by_itself.filter_map(read_again).fold(world.now, Timestamp::max);
            world.pass_time();
            world.remember(&desired);
            seen = still_unreachable(world.observe(&desired), observed);
            continue;
        }
        if next.steps.is_empty() || waves.len() >= MAX_WAVES {
            let converges = next.is_done();
            let waiting =
                next.waiting.into_iter().filter(|w| converges || w.kind() != WaitKind::Transient || stuck(w)).collect();
            return Forecast { now: tolerance, waves, waiting, converges };
        }
        for step in &next.steps {
            if world.act(&desired, &step.action, 0).is_err() {
                // A step that the model finds impossible is not forecast: the planner then reports what it waits for.
                let waiting = vec![Waiting::Unsafe {
                    verb: step.action.verb().to_owned(),
                    machine: step.action.machine().cloned(),
                    refusal: "its effect cannot be foreseen".to_owned(),
                }];
                return Forecast { now: tolerance, waves, waiting, converges: false };
            }
        }
        waves.push(Wave { steps: next.steps });
        rested = 0;
        world.pass_time();
        world.remember(&desired);
        seen = still_unreachable(world.observe(&desired), observed);
        seen.etcd.handshakes = world.test_handshakes(&desired, &seen);
    }
}

fn settling(waiting: &Waiting) -> bool {
    matches!(waiting, Waiting::VersionSettling { .. })
}

/// Whether Patroni resolves this within a few rounds: what a step has begun, or what only takes time.
fn rests(waiting: &Waiting, begun: bool) -> bool {
    let Waiting::Postgres(waiting) = waiting else { return false };
    match waiting {
        PostgresWaiting::NotSeenSince { .. }
        | PostgresWaiting::MembersUnknown { .. }
        | PostgresWaiting::SwitchoverUndetermined { .. } => true,
        PostgresWaiting::PatroniStarting { .. }
        | PostgresWaiting::KeysUnknown { .. }
        | PostgresWaiting::CatalogUnknown { .. }
        | PostgresWaiting::LoginFailed { .. }
        | PostgresWaiting::EtcdFirst { .. } => begun,
        PostgresWaiting::PostgresUnsettled { .. } => begun && waiting.kind() == WaitKind::Transient,
        PostgresWaiting::NodeUnknown { .. }
        | PostgresWaiting::MajorVersion { .. }
        | PostgresWaiting::PatroniCrashes { .. }
        | PostgresWaiting::ForeignPgData { .. }
        | PostgresWaiting::PgDataUnreadable { .. }
        | PostgresWaiting::AllPgDataLost { .. }
        | PostgresWaiting::NoCandidate { .. }
        | PostgresWaiting::DatabaseDiffers { .. }
        | PostgresWaiting::OwnerMissing { .. }
        | PostgresWaiting::RoleNeeded { .. }
        | PostgresWaiting::SyncRolledBack { .. } => false,
    }
}

/// When Patroni has read the list of etcd's members again.
fn read_again(waiting: &Waiting) -> Option<Timestamp> {
    match waiting {
        Waiting::Postgres(PostgresWaiting::MembersUnknown { until, .. }) => Some(*until),
        _ => None,
    }
}

/// Whether this still blocks at the end of a forecast. All that resolves by itself has done so by then: only what
/// raftsman cannot reach remains.
fn stuck(waiting: &Waiting) -> bool {
    matches!(
        waiting,
        Waiting::MachineUnknown { .. }
            | Waiting::AgentUnreachable { .. }
            | Waiting::NoMajority { .. }
            | Waiting::NotMeasured { .. }
            | Waiting::NoQuorumYet { .. }
            | Waiting::EtcdStarting { .. }
            | Waiting::EtcdSilent { .. }
            | Waiting::BalancerStarting { .. }
            | Waiting::BalancerChecks { .. }
            | Waiting::VirtualAddressUnheld { .. }
            | Waiting::VirtualAddressConflict { .. }
            | Waiting::WouldLoseQuorum { .. }
            | Waiting::LearnerCatchingUp { .. }
            | Waiting::HealFirst { .. }
            | Waiting::ReplacedLater { .. }
            | Waiting::NoTransferTarget { .. }
            | Waiting::MemberSilent { .. }
            | Waiting::UsersUnknown { .. }
            | Waiting::PasswordUnknown { .. }
            | Waiting::TrustLags { .. }
            | Waiting::HandshakeFailed { .. }
            | Waiting::VersionSettling { .. }
            | Waiting::Postgres(_)
    )
}

/// What could not be reached now cannot be reached in the forecast either, except where a step of the plan makes it
/// reachable.
fn still_unreachable(mut seen: Observed, observed: &Observed) -> Observed {
    for (name, machine) in &mut seen.machines {
        let Some(before) = observed.machines.get(name) else { continue };
        if let Fact::Unreachable { .. } = before.machine {
            machine.machine = before.machine.clone();
            // Its agent may answer though its provider does not: steps on it have their effect.
            if before.agent.seen().is_none() {
                machine.agent = before.agent.clone();
            }
        }
        if let (Fact::Unreachable { .. }, Fact::Unreachable { .. }) = (&before.agent, &machine.agent) {
            machine.agent = before.agent.clone();
        }
    }
    for (name, member) in &mut seen.etcd.members {
        let Some(before) = observed.etcd.members.get(name) else { continue };
        let hidden = observed.machines.get(name).is_some_and(|m| matches!(m.machine, Fact::Unreachable { .. }));
        // What neither a step nor waiting resolves stays as it is.
        let stays = matches!(before.problem, Some(Problem::Denied | Problem::Unclear));
        if stays || hidden && before.etcd.seen().is_none() {
            *member = before.clone();
        }
    }
    seen
}
