//! Stacks with PostgreSQL, and a life → what goes wrong with nodes, and the rule that a step or a round breaks.
//!
//! What is true of nodes is judged here by itself, without the planner's judge and without what was observed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use raftsman_core::action::{
    Action, Company, EtcdAction, MachineAction, MemberAction, PostgresAction, Takes, UserAction,
};
use raftsman_core::desired::{Postgres, Stack, UserSlot};
use raftsman_core::model::{ClusterModel, MachineModel, PostgresModel, World};
use raftsman_core::observed::{
    Catalog, CatalogRole, Copies, Fact, NodeRole, Observed, Password, PatroniFile, PgData, RoleAttribute, ServiceState,
    View,
};
use raftsman_core::plan::{Plan, PostgresWaiting, Step, Waiting};
use raftsman_core::spec::Name;

use crate::dice::Dice;
use crate::fixtures;

/// Rounds within which a step shows that it demotes a primary.
const SHOWS: u32 = 3;

/// What is remembered of a life beside its world.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    /// When etcd was last touched.
    touched: Option<Timestamp>,
    /// A step that was done while everything was as it should be, and for how many rounds it is still watched.
    watched: Option<(u32, String)>,
    /// How often each cluster's primary was demoted before that, and which node it is.
    primaries: BTreeMap<Name, (u32, Option<Name>)>,
}

/// Files of one stack between which a life changes.
fn variants(members: &str, etcd: &[&str], nodes: &[&str], rest: &[&[&str]]) -> Vec<Stack> {
    let of = |etcd: &[&str], further: &[&str]| {
        let lines: Vec<&str> = nodes.iter().chain(further).copied().collect();
        fixtures::standing_on(members, etcd, &lines)
    };
    let mut all = vec![of(etcd, &[])];
    all.extend(rest.iter().map(|further| of(etcd, further)));
    let quota: Vec<&str> = etcd.iter().chain(&["quota: 4GiB"]).copied().collect();
    all.push(of(&quota, &[]));
    all
}

const RAISED: &[&str] = &["parameters: { max_connections: 200 }"];
const LOWERED: &[&str] = &["parameters: { max_connections: 60, max_worker_processes: 16 }"];
const OLDER: &[&str] = &["patroni: { version: 4.1.4 }"];
const CATALOG: &[&str] = &[
    "roles: { app: { password: { file: p }, member_of: [readers] }, readers: { login: false } }",
    "databases: { shop: { owner: app }, stock: { owner: readers } }",
];
const OTHER_CATALOG: &[&str] = &[
    "roles: { readers: { password: { file: p }, connection_limit: 3 }, writers: { login: false } }",
    "databases: { shop: { owner: readers, extensions: [pg_trgm] } }",
];
const FAST: &str = "patroni: { ttl: 20, loop_wait: 1, retry_timeout: 3 }";

/// Three, two and one nodes on three, five and one members, in each mode; members and nodes that come and go.
pub(super) fn files() -> Vec<Vec<Stack>> {
    let mut all = vec![
        variants("3", &[], &["nodes: 3"], &[RAISED, LOWERED, OLDER, CATALOG, OTHER_CATALOG]),
        variants("5", &[], &["nodes: 3", "synchronous: { mode: quorum }"], &[RAISED, LOWERED]),
        variants("3", &[], &["nodes: 2"], &[RAISED, LOWERED]),
        variants("3", &[], &["nodes: 3", "synchronous: { mode: off }"], &[RAISED, LOWERED]),
        variants("1", &[], &["nodes: 1", "synchronous: { mode: off }"], &[RAISED, CATALOG]),
        variants("3", &[], &["nodes: 3", FAST, "failsafe: false"], &[RAISED]),
    ];
    all.push(["nodes: 3", "nodes: 4", "nodes: 5"].map(|nodes| fixtures::standing(&[], &[nodes])).to_vec());
    // Behind a balancer that comes, changes and goes.
    let instances = "instances: [{ name: db-1, address: 127.0.42.111 }, { name: db-2, address: 127.0.42.112 }]";
    let nodes = ["nodes: [{ name: pg-1, address: 127.0.42.101 }, { name: pg-2, address: 127.0.42.102 }, \
                  { name: pg-3, address: 127.0.42.103 }]"];
    all.push(vec![
        fixtures::standing_behind(&nodes, instances),
        fixtures::standing_behind(&nodes, &format!("{instances}, replicas_port: 5433")),
        fixtures::standing(&[], &nodes),
    ]);
    // Nodes come and go behind it, and are all replaced.
    let nodes = |numbers: &[u8]| {
        let one = |number: &u8| format!("{{ name: pg-{number}, address: 127.0.42.{} }}", 120 + number);
        format!("nodes: [{}]", numbers.iter().map(one).collect::<Vec<_>>().join(", "))
    };
    let numbered: [&[u8]; 4] = [&[1, 2, 3], &[1, 2, 3, 4], &[2, 3], &[5, 6, 7]];
    all.push(numbered.map(|numbers| fixtures::standing_behind(&[&nodes(numbers)], instances)).to_vec());
    let listed = |members: &[(&str, u8)]| {
        let list = members.iter().map(|(name, last)| format!("{{ name: {name}, address: 127.0.42.{last} }}"));
        let list = format!("[{}]", list.collect::<Vec<_>>().join(", "));
        let nodes = "nodes: [{ name: pg-1, address: 127.0.42.101 }, { name: pg-2, address: 127.0.42.102 }, \
                     { name: pg-3, address: 127.0.42.103 }]";
        fixtures::standing_on(&list, &[], &[nodes])
    };
    all.push(vec![
        listed(&[("a", 1), ("b", 2), ("c", 3)]),
        listed(&[("a", 1), ("b", 2), ("d", 4)]),
        listed(&[("d", 4), ("e", 5), ("f", 6)]),
    ]);
    all
}

/// Something goes wrong with a node, or an operator changes something; whether there was anything.
pub(super) fn happens(dice: &mut Dice, desired: &Stack, world: &mut World, name: &Name) -> bool {
    let Some(machine) = world.machines.get_mut(name).filter(|machine| machine.exists) else { return false };
    let node = &mut machine.postgres;
    let Some(cluster) = node.node.as_ref().map(|node| node.cluster.clone()) else { return false };
    match dice.below(20) {
        0..3 => node.kill_patroni(),
        3..5 => node.kill_server(),
        5..8 => node.kill(),
        8 if dice.one_in(4) => node.minor += 1,
        8..10 => node.cut_from_etcd = !node.cut_from_etcd,
        10..12 => node.cut_from_nodes = !node.cut_from_nodes,
        12 => node.rest_silent = !node.rest_silent,
        // The network is well again.
        13..16 => (node.cut_from_etcd, node.cut_from_nodes, node.rest_silent) = (false, false, false),
        // The disk is lost.
        16 => {
            node.kill();
            node.data = PgData::Empty;
        }
        // An operator wants the other user of etcd.
        17 | 18 => {
            let users = |slot: UserSlot| desired.postgres(&cluster).map(|cluster| cluster.etcd_user(slot));
            let known = world.ledger.postgres.entry(cluster.clone()).or_default();
            let other = users(known.user.other());
            // The last change is complete.
            let there =
                world.agreed.values().any(|a| other.as_ref().is_some_and(|user| a.access.users.contains_key(user)));
            if there || known.system.is_none() {
                return false;
            }
            known.user = known.user.other();
        }
        // An operator changes a role by hand.
        19 if dice.one_in(2) => return meddle(dice, world, &cluster),
        // An operator changes a setting by hand.
        _ => {
            let set = BTreeMap::from([("ttl".to_owned(), Some("60".to_owned()))]);
            let action = Action::Postgres(PostgresAction::SetPatroni { cluster, set });
            let ledger = world.ledger.clone();
            let done = world.act(desired, &action, 0).is_ok();
            world.ledger = ledger;
            return done;
        }
    }
    true
}

/// An operator changes the roles or databases of this cluster by hand; whether there is one to change.
fn meddle(dice: &mut Dice, world: &mut World, cluster: &Name) -> bool {
    let Some(catalog) = world.postgres.get_mut(cluster).map(|truth| &mut truth.catalog) else { return false };
    let spare = catalog.roles.values().next().cloned();
    match (dice.below(4), catalog.roles.values_mut().next(), catalog.databases.values_mut().next()) {
        (0, Some(role), _) => drop(role.attributes.insert(RoleAttribute::Superuser)),
        (1, Some(role), _) => role.password = Password::Other,
        (2, _, Some(database)) => database.owner = "postgres".to_owned(),
        _ => match spare {
            Some(role) => drop(catalog.roles.insert("guest".to_owned(), CatalogRole { needed: false, ..role })),
            None => return false,
        },
    }
    true
}

/// What of the roles and databases is not as the file says.
fn other_catalog(cluster: &Postgres, world: &World) -> Option<String> {
    let none = Catalog::default();
    let has = world.postgres.get(&cluster.name).map_or(&none, |truth| &truth.catalog);
    for (name, role) in cluster.section.roles.iter().flatten() {
        let Some(there) = has.roles.get(name) else { return Some(format!("the role {name} is not there")) };
        let right = if role.password.is_some() { Password::Right } else { Password::None };
        let login = there.attributes.contains(&RoleAttribute::Login);
        if there.password != right || login != role.login || there.attributes.contains(&RoleAttribute::Superuser) {
            return Some(format!("the role {name} is another: {there:?}"));
        }
        if role.member_of.len() != there.member_of.len()
            || !role.member_of.iter().all(|of| there.member_of.contains(of))
        {
            return Some(format!("the role {name} is a member of {:?}", there.member_of));
        }
    }
    for (name, database) in cluster.section.databases.iter().flatten() {
        if has.databases.get(name).is_none_or(|there| there.owner != database.owner) {
            return Some(format!("the database {name} is not there, or not {}'s", database.owner));
        }
    }
    let listed = cluster.section.roles.as_ref()?;
    let surplus = has.roles.iter().find(|(name, role)| !listed.contains_key(*name) && !role.needed);
    surplus.map(|(name, _)| format!("the role {name} is still there"))
}

/// The network is well again.
pub(super) fn clear(world: &mut World) {
    for machine in world.machines.values_mut() {
        let node = &mut machine.postgres;
        (node.cut_from_etcd, node.cut_from_nodes, node.rest_silent) = (false, false, false);
    }
}

/// Patroni's keys cannot be read at times.
pub(super) fn hide(dice: &mut Dice, calm: usize, observed: &mut Observed, since: Timestamp) {
    for seen in observed.postgres.values_mut() {
        if dice.one_in(8 * calm) {
            seen.keys = Fact::Unreachable { error: "timed out".to_owned(), since };
        }
    }
}

/// The nodes of a cluster, as they really are.
fn nodes<'w>(world: &'w World, cluster: &'w Name) -> Vec<(&'w Name, &'w PostgresModel)> {
    world.nodes_of(cluster).map(|(name, machine)| (name, &machine.postgres)).collect()
}

/// The node that takes writes.
fn primary(world: &World, cluster: &Name) -> Option<Name> {
    nodes(world, cluster).into_iter().find(|(_, node)| node.is_primary()).map(|(name, _)| name.clone())
}

/// The clusters that were made, and of which a node runs.
fn living<'a>(desired: &'a Stack, world: &'a World) -> impl Iterator<Item = &'a Postgres> {
    desired.postgres.iter().filter(|cluster| {
        let made = world.nodes_of(&cluster.name).any(|(_, machine)| machine.postgres.had_data);
        made && world.nodes_of(&cluster.name).any(|(_, machine)| machine.postgres.process.is_some())
    })
}

/// Whether nothing could be better: a primary with the lease, all standbys of the file stream, as many are synchronous as
/// should be, and every node was admitted by etcd since this moment.
fn unsettled(cluster: &Postgres, world: &World, since: Option<Timestamp>) -> Option<String> {
    let Some(keys) = world.patroni_keys(&cluster.name) else { return Some("etcd is lost".to_owned()) };
    let nodes = nodes(world, &cluster.name);
    let primaries: Vec<&str> = nodes.iter().filter(|(_, n)| n.is_primary()).map(|(name, _)| name.as_str()).collect();
    let [primary] = primaries.as_slice() else { return Some(format!("primaries: {primaries:?}")) };
    if keys.leader.as_deref() != Some(*primary) {
        return Some(format!("{primary} has no lease"));
    }
    let synchronous = keys.sync.standbys.iter().filter(|standby| {
        nodes.iter().any(|(_, n)| n.streams() && n.node.as_ref().is_some_and(|node| node.name == **standby))
    });
    if synchronous.count() < cluster.synchronous_standbys() as usize {
        return Some("a synchronous standby does not stream".to_owned());
    }
    // A former node that never ran is none of it.
    let of_it = |(name, node): &(&Name, &PostgresModel)| cluster.node(name).is_some() || node.process.is_some();
    for (name, node) in nodes.into_iter().filter(of_it) {
        let Some(process) = &node.process else { return Some(format!("Patroni does not run on {name}")) };
        if node.server.as_ref().is_none_or(|server| !server.is_up()) {
            return Some(format!("PostgreSQL does not run on {name}"));
        }
        if since.is_some_and(|since| process.written_at <= since) {
            return Some(format!("{name} was not admitted by etcd since the last step"));
        }
    }
    None
}

/// The member that this step takes from an etcd that could lose it.
fn taken<'a>(world: &World, observed: &Observed, action: &'a Action) -> Option<&'a str> {
    let view = View::of(observed);
    match action {
        // One that was seen not to serve is repaired, whatever stands on it.
        Action::Etcd(EtcdAction::RestartEtcd { machine, .. })
        | Action::Member(MemberAction::UpdateMember { machine, .. })
        | Action::Machine(MachineAction::RebuildMachine { machine })
            if !view.healthy.contains(machine) =>
        {
            None
        }
        Action::Member(MemberAction::RemoveMember { member, .. })
            if !view
                .healthy
                .iter()
                .any(|name| view.answering.get(*name).is_some_and(|etcd| etcd.member == *member)) =>
        {
            None
        }
        Action::Etcd(EtcdAction::RestartEtcd { machine, .. })
        | Action::Member(MemberAction::UpdateMember { machine, .. })
        | Action::Machine(MachineAction::RebuildMachine { machine }) => {
            let serves = |id| world.machines.get(machine).is_some_and(|m| world.voters_answering(id).any(|v| is(m, v)));
            world.agreed.keys().any(|id| world.has_quorum(*id) && serves(*id)).then_some(machine.as_str())
        }
        Action::Member(MemberAction::RemoveMember { member, .. }) => {
            let serves = |id| world.has_quorum(id) && world.voters_answering(id).any(|voter| voter == *member);
            world.agreed.keys().any(|id| serves(*id)).then_some("a member")
        }
        Action::Member(MemberAction::MoveLeader { .. }) | Action::Etcd(EtcdAction::RestartTogether { .. }) => {
            world.agreed.keys().any(|id| world.has_quorum(*id)).then_some("the leader")
        }
        _ => None,
    }
}

fn is(machine: &MachineModel, member: raftsman_core::observed::MemberId) -> bool {
    matches!(machine.data, raftsman_core::observed::Data::Present { member: found, .. } if found == member)
}

/// Steps of both services in one wave, of which one takes something away or changes what runs.
pub(super) fn mixed(actions: &[Action]) -> bool {
    let gives = |action: &Action| action.class().takes != Takes::Nothing || action.class().company == Company::Alone;
    let of_postgres = |action: &Action| matches!(action, Action::Postgres(_));
    let etcd = actions.iter().any(|action| !of_postgres(action) && gives(action));
    let postgres = actions.iter().any(|action| of_postgres(action) && gives(action));
    etcd && postgres
}

/// How many synchronous standbys really stream while this node is away; nothing where there is no primary then.
fn copies_without(world: &World, cluster: &Name, away: &str) -> Option<u32> {
    let keys = world.patroni_keys(cluster)?;
    let primary = nodes(world, cluster).into_iter().find(|(_, node)| node.is_primary())?;
    let name_of = |node: &PostgresModel| node.node.as_ref().map(|node| node.name.clone()).unwrap_or_default();
    if name_of(primary.1) == away {
        return None;
    }
    let waited_for = keys.sync.standbys.len().saturating_sub(keys.sync.quorum as usize);
    let there = nodes(world, cluster).into_iter().filter(|(_, node)| {
        let name = name_of(node);
        node.streams() && name != away && keys.sync.standbys.contains(&name)
    });
    u32::try_from(there.count().min(waited_for)).ok()
}

/// Whether this wave says that more copies stay than there are.
pub(super) fn overstated(desired: &Stack, world: &World, steps: &[Step]) -> Option<String> {
    let takes = |step: &&Step| step.action.class().takes == Takes::Node;
    if steps.iter().filter(takes).count() > 1 {
        return Some("several nodes are away at once".to_owned());
    }
    for step in steps.iter().filter(takes) {
        let Some((cluster, node)) = step.action.machine().and_then(|machine| desired.node(machine)) else { continue };
        let truth = copies_without(world, &cluster.name, &node.patroni_name);
        let said = step.copies.map(|copies| copies.during);
        let more = match (said, truth) {
            (Some(Copies::Synchronous(said)), Some(truth)) => said > truth,
            (Some(Copies::Synchronous(_)), None) => true,
            (Some(Copies::NotWritable), _) => false,
            (None, truth) => truth.is_none_or(|truth| truth < cluster.synchronous_standbys()),
        };
        if more {
            return Some(format!("{:?}: said {said:?}, in truth {truth:?}", step.action));
        }
    }
    None
}

fn number(parameters: &BTreeMap<String, String>, name: &str) -> Option<i64> {
    parameters.get(name).and_then(|value| value.trim_matches('"').parse().ok())
}

/// Whether this machine alone has what was acknowledged.
fn last_copy(world: &World, machine: &Name) -> Option<(&'static str, String)> {
    let own = &world.machines.get(machine)?.postgres;
    let cluster = &own.node.as_ref()?.cluster;
    let truth = world.postgres.get(cluster)?;
    let complete = |node: &PostgresModel| {
        node.position().is_some_and(|(of, position)| of >= truth.timeline && position >= truth.acknowledged)
    };
    let alone =
        complete(own) && !nodes(world, cluster).into_iter().any(|(name, node)| name != machine && complete(node));
    alone.then(|| ("no machine goes with the last copy", format!("{machine} of {cluster}")))
}

/// The rule that this step breaks, judged before it is done.
pub(super) fn broken(
    memory: &Memory,
    desired: &Stack,
    world: &World,
    observed: &Observed,
    action: &Action,
) -> Option<(&'static str, String)> {
    if let Some(member) = taken(world, observed, action) {
        let why = living(desired, world).find_map(|cluster| unsettled(cluster, world, memory.touched));
        if let Some(why) = why {
            return Some(("etcd gives only to a settled PostgreSQL", format!("{member}: {why}")));
        }
    }
    match action {
        Action::Machine(MachineAction::DeleteMachine { machine }) => last_copy(world, machine),
        Action::User(UserAction::DeleteUser { user }) => in_use(desired, world, user),
        Action::User(UserAction::SetUser { user, account, revoke, .. }) => {
            (account.replaces_password() || !revoke.is_empty()).then(|| in_use(desired, world, user)).flatten()
        }
        Action::Postgres(PostgresAction::Switchover { cluster, to, .. }) => {
            let keys = world.patroni_keys(cluster)?;
            let name = world.machines.get(to)?.postgres.node.as_ref()?.name.clone();
            let synchronous = desired.postgres(cluster)?.synchronous_standbys() > 0;
            if synchronous && !keys.sync.standbys.contains(&name) {
                let rule = "a synchronous standby takes the primary's place";
                return Some((rule, format!("{to} is not one of {:?}", keys.sync.standbys)));
            }
            out_of_order(world, cluster, None)
        }
        Action::Postgres(PostgresAction::RestartPostgres { machine, role }) => {
            let cluster = world.machines.get(machine)?.postgres.node.as_ref()?.cluster.clone();
            out_of_order(world, &cluster, Some((machine, *role)))
        }
        _ => None,
    }
}

fn in_use(desired: &Stack, world: &World, user: &str) -> Option<(&'static str, String)> {
    for cluster in &desired.postgres {
        let Some(slot) = cluster.slot_of(user) else { continue };
        for (name, node) in nodes(world, &cluster.name) {
            let taken_up = node.process.as_ref().map(|process| &process.taken_up);
            if taken_up.into_iter().chain(&node.written).any(|file: &PatroniFile| file.user == slot) {
                return Some(("a user in use is left alone", format!("{name} uses {user}")));
            }
        }
    }
    None
}

/// What a standby must have as much of as its primary, and how much it has of it by default.
const ORDERED: [(&str, i64); 5] = [
    ("max_connections", 100),
    ("max_worker_processes", 8),
    ("max_wal_senders", 10),
    ("max_prepared_transactions", 0),
    ("max_locks_per_transaction", 64),
];

/// A standby has what is raised before its primary has it, and what is lowered after its primary.
fn out_of_order(world: &World, cluster: &Name, restart: Option<(&Name, NodeRole)>) -> Option<(&'static str, String)> {
    const RULE: &str = "standbys are never short of what their primary has";
    let nodes = nodes(world, cluster);
    let (_, primary) = nodes.iter().find(|(_, node)| node.is_primary())?;
    let settings = world.patroni_keys(cluster)?.settings.clone();
    for (parameter, usual) in ORDERED {
        let wanted = number(&settings, &format!("postgresql.parameters.{parameter}")).unwrap_or(usual);
        let has = |node: &PostgresModel| {
            node.server.as_ref().map(|server| number(&server.parameters, parameter).unwrap_or(usual))
        };
        let broken = match restart {
            Some((machine, NodeRole::Replica)) => {
                let lowered = has(primary).is_some_and(|has| has > wanted);
                lowered.then(|| format!("{machine} gets less of {parameter} before its primary"))
            }
            Some(_) | None => {
                let from = restart.map(|(machine, _)| machine);
                let standbys = nodes.iter().filter(|(name, node)| Some(*name) != from && !node.is_primary());
                let short = standbys.into_iter().find(|(_, node)| has(node).is_some_and(|has| has < wanted));
                short.map(|(name, _)| format!("{name} has less of {parameter} than its primary will have"))
            }
        };
        if let Some(detail) = broken {
            return Some((RULE, detail));
        }
    }
    None
}

/// What every node can do at etcd, had it to connect anew.
pub(super) fn logins(desired: &Stack, world: &World) -> BTreeSet<(Name, Option<Name>)> {
    let mut able = BTreeSet::new();
    if desired.postgres.is_empty() {
        return able;
    }
    let reachable = world.reachable();
    for cluster in living(desired, world) {
        for (name, node) in nodes(world, &cluster.name) {
            if node.process.is_some() && world.could_connect_anew(&reachable, name) {
                able.insert((name.clone(), None));
            }
            let users = node.written.iter().chain(node.process.iter().map(|process| &process.taken_up));
            let users: BTreeSet<UserSlot> = users.map(|file| file.user).collect();
            for member in world.machines.keys() {
                let able_to = |user: &UserSlot| match world.could_log_in(&reachable, name, *user, member) {
                    Ok(()) => true,
                    // It is away for a while: that is judged elsewhere.
                    Err(error) => error == "connection refused" || error == "no leader",
                };
                if users.iter().all(able_to) {
                    able.insert((name.clone(), Some(member.clone())));
                }
            }
        }
    }
    able
}

impl Memory {
    /// The rule that is broken once a step was done.
    pub(super) fn step(
        &mut self,
        desired: &Stack,
        world: &World,
        before: &BTreeSet<(Name, Option<Name>)>,
        action: &Action,
        calm_before: bool,
    ) -> Option<(&'static str, String)> {
        if !matches!(action, Action::Postgres(_)) && action.class().company == Company::Alone {
            self.touched = Some(world.now);
        }
        if world.agreed.keys().any(|id| world.has_quorum(*id)) {
            let after = logins(desired, world);
            let stopped =
                |name: &Name| world.machines.get(name).is_none_or(|machine| machine.postgres.process.is_none());
            if let Some((node, member)) = before.difference(&after).find(|(node, _)| !stopped(node)) {
                let at = member.as_ref().map_or_else(|| "any member".to_owned(), ToString::to_string);
                return Some(("every node can log in anew", format!("{node} at {at}, after {action:?}")));
            }
        }
        let meant = matches!(
            action,
            Action::Postgres(
                PostgresAction::Switchover { .. }
                    | PostgresAction::RestartPostgres { .. }
                    | PostgresAction::StopPatroni { .. }
            )
        );
        self.watched = (calm_before && !meant).then(|| (SHOWS, format!("{action:?}")));
        let known = |(name, truth): (&Name, &ClusterModel)| (name.clone(), (truth.demotions, primary(world, name)));
        self.primaries = world.postgres.iter().map(known).collect();
        None
    }

    /// Something went wrong: what follows is not of our doing.
    pub(super) fn disturbed(&mut self) {
        self.watched = None;
    }

    /// The rule that is broken after a round.
    pub(super) fn round(&mut self, world: &World) -> Option<(&'static str, String)> {
        for (cluster, truth) in &world.postgres {
            if let Some(lost) = &truth.lost {
                return Some(("no acknowledged commit is lost", lost.clone()));
            }
            // Where Patroni was killed, its PostgreSQL goes on by itself until another one has reached etcd.
            let kept = |node: &PostgresModel| node.process.as_ref().is_some_and(|process| process.logged_in);
            let writable = nodes(world, cluster).into_iter().filter(|(_, n)| n.is_primary() && kept(n));
            let writable: Vec<&Name> = writable.map(|(name, _)| name).collect();
            if writable.len() > 1 {
                return Some(("one node takes writes", format!("{writable:?}")));
            }
            let (demotions, before) = self.primaries.get(cluster).cloned().unwrap_or_default();
            let demoted = before.is_some() && (truth.demotions > demotions || primary(world, cluster) != before);
            if let Some((_, step)) = self.watched.as_ref().filter(|_| demoted) {
                return Some(("no step of ours demotes a primary", step.clone()));
            }
        }
        self.watched = self.watched.take().and_then(|(left, step)| (left > 1).then(|| (left - 1, step)));
        None
    }
}

/// Whether every cluster was as it should be, and nothing was about to go wrong by itself.
pub(super) fn is_calm(desired: &Stack, world: &World) -> bool {
    let cut = |(_, node): &(&Name, &PostgresModel)| node.cut_from_etcd || node.cut_from_nodes || node.rest_silent;
    desired
        .postgres
        .iter()
        .all(|cluster| unsettled(cluster, world, None).is_none() && !nodes(world, &cluster.name).iter().any(cut))
}

/// Whether no node can become the primary any more: those that the keys name have lost their data.
pub(super) fn is_lost(desired: &Stack, world: &World) -> bool {
    desired.postgres.iter().any(|cluster| {
        let Some(keys) = world.patroni_keys(&cluster.name) else { return false };
        let named = |node: &PostgresModel| {
            let name = node.node.as_ref().map(|node| &node.name);
            let may = |name: &String| keys.sync.leader.as_ref() == Some(name) || keys.sync.standbys.contains(name);
            keys.sync.leader.is_none() || name.is_some_and(may)
        };
        // A former node that does not run is not started again.
        let has = |(name, node): &(&Name, &PostgresModel)| {
            let there = node.process.is_some() || cluster.node(name).is_some();
            there && named(node) && matches!(node.data, PgData::Present { .. })
        };
        let able = nodes(world, &cluster.name).iter().filter(|node| has(node)).count();
        keys.system.is_some() && keys.leader.is_none() && able <= keys.sync.quorum as usize
    })
}

/// The nodes as they are, for the trace of a life.
pub(super) fn describe(desired: &Stack, world: &World) -> String {
    let names = desired.nodes().map(|(_, node)| node.name.as_str());
    let mut lines = format!("  nodes of the file: {}\n", names.collect::<Vec<_>>().join(" "));
    for cluster in world.postgres.keys() {
        let keys = world.patroni_keys(cluster).map(|keys| (keys.leader.clone(), keys.sync.clone()));
        lines.push_str(&format!("  {cluster}: {keys:?}\n"));
        for (name, node) in nodes(world, cluster) {
            let (role, work) =
                (node.server.as_ref().map(|s| (s.role, s.starting)), node.process.as_ref().map(|p| p.work));
            let (data, service) = (&node.data, node.service);
            let (streams, written) = (node.streams(), node.written.is_some());
            let machine = world.machines.get(name).map(|m| (m.power, m.agent_up, m.claimed));
            lines.push_str(&format!("    {name}: {machine:?} {written} {:?} {service:?} {role:?}", node.patroni));
            lines.push_str(&format!(" {data:?} streams {streams} {work:?}\n"));
        }
    }
    lines
}

/// Whether this is what a plan says where all data is lost.
pub(super) fn says_lost(waiting: &Waiting) -> bool {
    matches!(
        waiting,
        Waiting::Postgres(
            PostgresWaiting::AllPgDataLost { .. }
                | PostgresWaiting::PostgresUnsettled { .. }
                | PostgresWaiting::NoCandidate { .. }
        )
    )
}

/// Whether PostgreSQL waits for the restart of a member that cannot be restarted without losing quorum, and for nothing
/// else.
pub(super) fn waits_for_a_restart(plan: &Plan) -> bool {
    let restart =
        |w: &Waiting| matches!(w, Waiting::WouldLoseQuorum { .. } | Waiting::NoTransferTarget { others: 0, .. });
    let blocked: Vec<&Waiting> = plan.blocked().collect();
    plan.steps.is_empty()
        && !blocked.is_empty()
        && blocked.into_iter().all(restart)
        && plan.waiting.iter().all(|w| restart(w) || matches!(w, Waiting::Postgres(_)))
}

/// What is not as the file says, once nothing is planned.
pub(super) fn unfinished(desired: &Stack, world: &World) -> Option<String> {
    for cluster in &desired.postgres {
        if let Some(why) = unsettled(cluster, world, None) {
            return Some(format!("{}: {why}", cluster.name));
        }
        let keys = world.patroni_keys(&cluster.name)?;
        if let Some((key, _)) = cluster.settings.iter().find(|(key, value)| keys.settings.get(*key) != Some(value)) {
            return Some(format!("{key} is not as in the file"));
        }
        if let Some(why) = other_catalog(cluster, world) {
            return Some(why);
        }
        let user = world.ledger.of_postgres(&cluster.name).user;
        let hosts = desired.etcd_hosts(&world.ledger);
        for wanted in &cluster.nodes {
            let Some(node) = world.machines.get(&wanted.name).filter(|m| m.exists).map(|m| &m.postgres) else {
                return Some(format!("{} does not exist", wanted.name));
            };
            let Some(process) = &node.process else { return Some(format!("{} does not run", wanted.name)) };
            let digest = cluster.patroni_file(wanted, &hosts, user).digest;
            if process.taken_up.digest != digest || process.version != cluster.patroni || node.pending_restart() {
                return Some(format!("{} does not run as the file says", wanted.name));
            }
            if node.server.as_ref().is_some_and(|server| server.minor != node.minor) {
                return Some(format!("{} runs an older minor version", wanted.name));
            }
        }
        for (name, machine) in world.machines.iter().filter(|(_, machine)| machine.exists) {
            let of = machine.postgres.node.as_ref().is_some_and(|node| node.cluster == cluster.name);
            if of && cluster.node(name).is_none() && machine.postgres.service != ServiceState::Stopped {
                return Some(format!("{name} still runs a node"));
            }
        }
        let other = cluster.etcd_user(user.other());
        if world.agreed.values().any(|agreed| agreed.formed && agreed.access.users.contains_key(&other)) {
            return Some(format!("the user {other} is still there"));
        }
    }
    None
}
