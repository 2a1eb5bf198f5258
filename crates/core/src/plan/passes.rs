//! A draft of a plan → every pass in its order, each with its condition, and its result.

use serde::Serialize;

use super::Reason;
use super::report::{Because, Report};
use super::situation::{Ready, is_open};
use super::versions::UpgradePath;
use super::{
    Draft, Step, WaitKind, Waiting, adopted, agents, auth, backup, balancer, delivery, etcd, machines, maintenance,
    members, pki, postgres, preflight, recovery, restore, shape, trust, users, versions,
};
use crate::action::Action;
use crate::ledger::Mode;

/// What must hold for a pass to run.
#[derive(Debug, Clone, Copy)]
enum Condition {
    /// No step is planned: planned steps are carried out and observed first.
    NothingPlanned,
    /// No step is planned that is alone in its wave.
    NothingAlone,
    /// Every machine has its address: before that, the file's members and instances are not all described.
    Placed,
    Formed,
    NotFormed,
    Quorum,
    NoQuorum,
    Listed,
    /// No member is corrupt. Otherwise it must be known first which one is: it may not come back from a restart.
    Intact,
    /// Nothing is waited for that resolves by itself.
    NothingAwaited,
    /// PostgreSQL stands on it, or is to.
    Postgres,
    /// Members accept clients: before auth is on they accept none but raftsman.
    Open,
}

impl Condition {
    fn unmet(self, draft: &Draft<'_>) -> Option<Because> {
        let soon = |waiting: &Waiting| waiting.kind() == WaitKind::Transient;
        let (holds, otherwise) = match self {
            Self::NothingPlanned => (draft.steps.is_empty(), Because::StepsFirst),
            Self::NothingAlone => (!draft.steps.iter().any(|s| s.action.exclusive()), Because::AloneFirst),
            Self::Placed => (draft.desired.is_placed(), Because::Unplaced),
            Self::Formed => (etcd::formed(draft), Because::NotFormed),
            Self::NotFormed => (!etcd::formed(draft), Because::Formed),
            Self::Quorum => (draft.view.has_quorum(), Because::NoQuorum),
            Self::NoQuorum => (!draft.view.has_quorum(), Because::HasQuorum),
            Self::Listed => (draft.view.listed.is_some(), Because::NotListed),
            Self::Intact => (!draft.view.corrupt(), Because::Corrupt),
            Self::Postgres => (!draft.desired.postgres.is_empty(), Because::NotAsked),
            Self::Open => (is_open(draft.desired, draft.observed), Because::Closed),
            Self::NothingAwaited => (!draft.waiting.iter().any(soon), Because::Awaited),
        };
        (!holds).then_some(otherwise)
    }
}

/// What passes find out for later passes.
#[derive(Default)]
struct Decided<'a> {
    path: Option<UpgradePath>,
    ready: Vec<Ready<'a>>,
    /// What is waited for on machines that balancers have to themselves.
    behind: Vec<Waiting>,
}

/// One pass over a cluster.
struct Pass {
    about: &'static str,
    when: &'static [Condition],
    /// Where it finds something, no later pass runs.
    decides: bool,
    look: for<'a> fn(&mut Draft<'a>, &mut Decided<'a>) -> Report,
}

impl Pass {
    const fn new(
        about: &'static str,
        when: &'static [Condition],
        look: for<'a> fn(&mut Draft<'a>, &mut Decided<'a>) -> Report,
    ) -> Self {
        Self { about, when, decides: false, look }
    }

    /// Before the identity of the cluster is clear, nothing is changed.
    const IDENTITY: Self =
        Self { decides: true, ..Self::new("the cluster's id, and data of others", &[], |d, _| etcd::identity(d)) };
    /// This raftsman does not know what a newer agent does: nothing is changed.
    const NEWER_AGENTS: Self =
        Self { decides: true, ..Self::new("agents newer than this raftsman", &[], |d, _| agents::newer(d)) };
    /// Patroni's keys are not rolled back under a cluster that runs.
    const POSTGRES_FIRST: Self = Self {
        decides: true,
        ..Self::new("PostgreSQL, stopped before etcd is built anew", &[Condition::Postgres], |d, _| {
            postgres::stop_all(d)
        })
    };
    /// A cluster is founded with all its members or not at all: their addresses come before anything else.
    const FIRST_ADDRESSES: Self = Self {
        decides: true,
        ..Self::new("addresses before the first start", &[Condition::NotFormed], |d, _| machines::assign(d))
    };
    const ADDRESSES: Self = Self::new("addresses of new machines", &[Condition::Formed], |d, _| machines::assign(d));
    const AUTHORITIES: Self = Self::new("CAs", &[], |d, _| pki::authorities(d));
    const MACHINES: Self = Self::new("machines, certificates, binaries and configuration", &[], |d, found| {
        let path = versions::upgrade_path(d);
        *found = Decided { path: Some(path), ready: machines::prepare(d, path), ..Decided::default() };
        Report::Looked
    });
    const FIRST_MEASUREMENT: Self = Self::new(
        "measuring timers before the first start",
        &[Condition::NotFormed, Condition::NothingPlanned],
        |d, _| preflight::measure(d),
    );
    const SUPERUSERS: Self =
        Self::new("users with the role root that the file does not name", &[], |d, _| users::superusers(d));
    // Before it is known which member is corrupt, nothing is changed.
    const USERS: Self =
        Self::new("users and roles", &[Condition::NothingAlone, Condition::Quorum, Condition::Intact], |d, _| {
            users::manage(d)
        });
}

/// All passes, for a cluster in normal operation.
const NORMAL: &[Pass] = &[
    Pass::IDENTITY,
    Pass::NEWER_AGENTS,
    Pass::FIRST_ADDRESSES,
    Pass::ADDRESSES,
    Pass::AUTHORITIES,
    Pass::MACHINES,
    Pass::new("machines of balancers", &[], |d, found| {
        found.behind = balancer::prepare(d);
        Report::Looked
    }),
    Pass::new("machines of PostgreSQL's nodes", &[Condition::Postgres], |d, found| {
        found.behind.extend(postgres::prepare(d));
        Report::Looked
    }),
    Pass::FIRST_MEASUREMENT,
    Pass::new("stopped members", &[], |d, found| etcd::run(d, &found.ready)),
    Pass::new("members not in the file, needed for quorum", &[Condition::NoQuorum], |d, _| members::keep_quorum(d)),
    // What is broken comes first: no healthy member is restarted beside a lost one.
    Pass::new("learners, lost and replaced members", &[], |d, found| members::repair(d, &found.ready)),
    Pass::new("alarms", &[Condition::Quorum], |d, _| maintenance::clear_alarms(d)),
    // Before etcd's own changes: a node that is down, or has not taken up its file, keeps etcd from being touched.
    // Such a step would keep the very steps from being planned that it waits for.
    Pass::new("steps on etcd that wait for PostgreSQL", &[Condition::Postgres], |d, _| postgres::hold(d)),
    Pass::new(
        "users of etcd for Patroni",
        &[Condition::Postgres, Condition::NothingAlone, Condition::Quorum, Condition::Intact],
        |d, _| postgres::make_users(d),
    ),
    Pass::new(
        "stopped nodes of PostgreSQL",
        &[Condition::Postgres, Condition::NothingAlone, Condition::Formed, Condition::Quorum, Condition::Open],
        |d, _| postgres::run(d),
    ),
    Pass::new(
        "passwords that nodes of PostgreSQL log in with",
        &[Condition::Postgres, Condition::NothingPlanned, Condition::Quorum],
        |d, _| postgres::change_node_passwords(d),
    ),
    Pass::new(
        "nodes that have not taken up their file",
        &[Condition::Postgres, Condition::NothingPlanned, Condition::Quorum],
        |d, _| postgres::take_up(d),
    ),
    Pass::new("measuring timers", &[Condition::NothingPlanned, Condition::Formed], |d, _| preflight::measure(d)),
    Pass::new("downgrade", &[Condition::NothingPlanned, Condition::Quorum], |d, found| {
        found.path.map_or(Report::Looked, |path| versions::follow_upgrade_path(d, path))
    }),
    Pass::new("a leader that the others could not follow", &[], |d, _| trust::hand_over_left_behind(d)),
    Pass::new(
        "rolling restart: settings, version, CAs",
        &[Condition::NothingPlanned, Condition::Formed, Condition::Intact],
        |d, found| etcd::roll(d, &found.ready),
    ),
    Pass::new("CA rotation", &[], |d, _| trust::rotate(d)),
    // A node that left the file gets no CA certificates any more: it goes first.
    Pass::new("a rotation that waits for PostgreSQL", &[Condition::Postgres], |d, _| postgres::hold(d)),
    Pass::new(
        "members to add, remove or move",
        &[Condition::Placed, Condition::Listed, Condition::NothingPlanned],
        |d, found| members::change_membership(d, &found.ready),
    ),
    Pass::new("machines of former members", &[Condition::Placed], |d, _| members::retire(d)),
    // Clients connect through them for as long as members restart.
    Pass::new("machines of former balancers", &[Condition::Placed, Condition::NothingPlanned], |d, _| {
        balancer::retire(d)
    }),
    Pass::new("machines to rebuild", &[Condition::NothingPlanned, Condition::Formed], |d, _| shape::renew(d)),
    Pass::new("auth", &[Condition::Quorum, Condition::NothingAlone], |d, _| auth::secure(d)),
    Pass::SUPERUSERS,
    Pass::USERS,
    Pass::new(
        "former users of etcd for Patroni",
        &[Condition::Postgres, Condition::NothingPlanned, Condition::Quorum, Condition::Intact],
        |d, _| postgres::discard_users(d),
    ),
    Pass::new("Patroni's settings", &[Condition::Postgres, Condition::NothingPlanned, Condition::Quorum], |d, _| {
        postgres::set(d)
    }),
    Pass::new(
        "rolling restart of PostgreSQL",
        &[Condition::Postgres, Condition::NothingPlanned, Condition::Quorum],
        |d, _| postgres::roll(d),
    ),
    Pass::new("scheduled defragmentation", &[Condition::NothingPlanned, Condition::Quorum], |d, _| {
        maintenance::routine(d)
    }),
    // Late: this raftsman works with agents of the version before, and an upgrade that fails must keep no operator from
    // repairing a cluster. Before deliveries, which only a newer agent may know.
    Pass::new("agents' programs", &[Condition::NothingPlanned, Condition::NothingAwaited], |d, _| agents::upgrade(d)),
    Pass::new(
        "balancers",
        &[Condition::Placed, Condition::NothingPlanned, Condition::Formed, Condition::Quorum],
        |d, found| {
            d.waiting.append(&mut found.behind);
            balancer::run(d)
        },
    ),
    // Once balancers in front of it have those that replace them: one of these may become the primary at any time.
    Pass::new(
        "former nodes of PostgreSQL",
        &[Condition::Postgres, Condition::Placed, Condition::NothingPlanned, Condition::Quorum],
        |d, _| postgres::retire(d),
    ),
    // Last of all, so that a password that cannot be read keeps no operator from repairing a cluster.
    Pass::new(
        "secrets and backup settings on machines",
        &[Condition::NothingPlanned, Condition::NothingAwaited],
        |d, _| match delivery::deliver(d) {
            Report::Looked => backup::configure(d),
            left @ Report::Left(_) => left,
        },
    ),
    // A password that cannot be read, or a database that cannot be as it should, keeps nothing else from being done.
    Pass::new("roles and databases of PostgreSQL", &[Condition::Postgres, Condition::NothingPlanned], |d, _| {
        postgres::manage_catalog(d)
    }),
    // It only waits: a step on etcd waits for the same by itself.
    Pass::new("whether PostgreSQL is as it should be", &[Condition::Postgres, Condition::NothingPlanned], |d, _| {
        postgres::settle(d)
    }),
    Pass::new("timers against the last measurement", &[], |d, _| preflight::note(d)),
    Pass::new("agents that are not upgraded", &[], |d, _| agents::note(d)),
    // Last of all that plans: it looks at the step that would be next.
    Pass::new("members to drain and to admit", &[Condition::Formed], |d, _| balancer::drain(d)),
    // It only waits, and delays no other pass.
    Pass::new("virtual addresses", &[Condition::NothingPlanned, Condition::Formed], |d, _| balancer::addresses(d)),
];

const RECOVERING: &[Pass] =
    &[Pass::NEWER_AGENTS, Pass::POSTGRES_FIRST, Pass::new("the recovery", &[], |d, _| recovery::rebuild(d))];

const RESTORING: &[Pass] = &[
    Pass::NEWER_AGENTS,
    Pass::POSTGRES_FIRST,
    Pass {
        decides: true,
        ..Pass::new("whether the file still has the restore's members", &[], |d, _| restore::same_members(d))
    },
    Pass::AUTHORITIES,
    Pass::MACHINES,
    Pass::FIRST_MEASUREMENT,
    Pass::new("the restore", &[], |d, found| restore::restore(d, &found.ready)),
];

const ADOPTED: &[Pass] =
    &[Pass::IDENTITY, Pass::new("differences from the file", &[], |d, _| adopted::compare(d)), Pass::USERS];

const BOOTSTRAPPED_FROM_A_BACKUP: &[Pass] = &[
    Pass::IDENTITY,
    Pass::NEWER_AGENTS,
    Pass::FIRST_ADDRESSES,
    Pass::AUTHORITIES,
    Pass::MACHINES,
    Pass::FIRST_MEASUREMENT,
    Pass::new("the backup that the cluster starts from", &[], |d, found| restore::prepare(d, &found.ready)),
];

/// The passes for the mode of this cluster.
fn passes(draft: &Draft<'_>) -> &'static [Pass] {
    match draft.observed.ledger.etcd.mode {
        Mode::Recovering(_) => RECOVERING,
        Mode::Restoring(_) => RESTORING,
        Mode::Adopted(_) => ADOPTED,
        Mode::Normal if restore::awaited(draft) => BOOTSTRAPPED_FROM_A_BACKUP,
        Mode::Normal => NORMAL,
    }
}

/// The result of a pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Considered {
    /// What it is about.
    pub about: &'static str,
    /// Its result.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The result of a pass.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It was left for later.
    Left {
        /// Why.
        because: Because,
    },
    /// Nothing is to be done.
    Nothing,
    /// Steps that it wants, before safety judges them, and what it waits for.
    Found {
        /// What to do.
        steps: Vec<Intent>,
        /// What to wait for.
        waiting: Vec<Waiting>,
    },
}

/// A step that is not judged yet.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Intent {
    /// What to do.
    pub action: Action,
    /// Why.
    pub reason: Reason,
}

impl Intent {
    fn of(step: &Step) -> Self {
        Self { action: step.action.clone(), reason: step.reason.clone() }
    }
}

/// Runs all passes; `report` gets the topic of each, its report, and the new steps and waits.
pub(super) fn make(draft: &mut Draft<'_>, mut report: impl FnMut(&'static str, Report, &[Step], &[Waiting])) {
    let mut found = Decided::default();
    for pass in passes(draft) {
        // Where no PostgreSQL cluster is, its passes are of no interest.
        if draft.desired.postgres.is_empty() && matches!(pass.when, [Condition::Postgres, ..]) {
            continue;
        }
        let (steps, waiting) = (draft.steps.len(), draft.waiting.len());
        let outcome = match pass.when.iter().find_map(|condition| condition.unmet(draft)) {
            Some(because) => Report::Left(because),
            None => (pass.look)(draft, &mut found),
        };
        let new = (draft.steps.get(steps..).unwrap_or_default(), draft.waiting.get(waiting..).unwrap_or_default());
        report(pass.about, outcome, new.0, new.1);
        if pass.decides && !(new.0.is_empty() && new.1.is_empty()) {
            return;
        }
    }
}

/// The same, written down.
pub(super) fn explain(draft: &mut Draft<'_>) -> Vec<Considered> {
    let mut considered = Vec::new();
    make(draft, |about, report, steps, waiting| {
        let outcome = match report {
            _ if !(steps.is_empty() && waiting.is_empty()) => {
                Outcome::Found { steps: steps.iter().map(Intent::of).collect(), waiting: waiting.to_vec() }
            }
            Report::Left(because) => Outcome::Left { because },
            Report::Looked => Outcome::Nothing,
        };
        considered.push(Considered { about, outcome });
    });
    considered
}
