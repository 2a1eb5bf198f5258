//! A world whose CAs change → what operators do about it, and whether a member or client was rejected.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use raftsman_core::action::{Action, EtcdAction, PkiAction};
use raftsman_core::desired::Stack;
use raftsman_core::model::{MachineModel, World};
use raftsman_core::observed::{AuthorityRecord, Ledger, MemberId, Observed, Origin, ServiceState, TrustDomain};
use raftsman_core::spec::Name;

use crate::dice::Dice;

/// Lines of files that differ in their authorities.
pub(super) const FILES: [&str; 3] = [
    "ca: { algorithm: ecdsa-p256 }",
    "ca: { peers: { brought: { certificate: ca.crt, key: { file: ca.key } } } }",
    "certificates: { validity: 30d, renew_before: 10d, ca_validity: 500d }",
];

/// What the file brings where it brings something.
pub(super) fn brought() -> BTreeMap<TrustDomain, AuthorityRecord> {
    let record = AuthorityRecord {
        number: 0,
        key: "theirs".to_owned(),
        not_after: Timestamp::MAX,
        origin: Origin::Brought,
        certificate: "certificate of theirs\n".to_owned(),
    };
    let of_clients = AuthorityRecord {
        key: "theirs, of clients".to_owned(),
        certificate: "certificate of theirs, of clients\n".to_owned(),
        ..record.clone()
    };
    BTreeMap::from([(TrustDomain::Peers, record), (TrustDomain::Clients, of_clients)])
}

/// The operator wants another CA, or is done with the old one; or etcd has loaded other CAs than its agent reports; or
/// another member is elected.
pub(super) fn meddle(dice: &mut Dice, world: &mut World, midway: bool) -> bool {
    let kind = dice.below(14);
    if kind >= 12 {
        let formed = world.agreed.iter().find(|(_, a)| a.formed).map(|(id, _)| *id);
        let following: Vec<MemberId> = formed.map(|id| world.voters_answering(id).collect()).unwrap_or_default();
        // The leader may well be one that not all members can follow.
        world.leads = dice.pick(&following).copied().or(world.leads);
        return !following.is_empty();
    }
    let side = if kind.is_multiple_of(2) { TrustDomain::Peers } else { TrustDomain::Clients };
    let next = world.ledger.etcd.trust(side).is_some_and(|t| t.next.is_some());
    if kind >= 8 {
        let before = world.ledger.etcd.trust(side).map(|t| render(&t.current));
        let names: Vec<Name> = world.machines.keys().cloned().collect();
        let picked = dice.pick(&names).and_then(|name| world.machines.get_mut(name));
        // Only before a step depends on it: the planner cannot foresee it afterwards.
        let (Some(machine), Some(before), true) = (picked, before, next && !midway) else { return false };
        if machine.process.state == ServiceState::Running {
            machine.process.read.insert(side.purpose(), before);
        }
        return true;
    }
    let Some(trust) = world.ledger.etcd.trust_mut(side) else { return false };
    match kind {
        0..4 => trust.asked = true,
        4..7 => trust.finish = !trust.old.is_empty(),
        _ => trust.now = trust.rotates(),
    }
    true
}

/// The digest of the bundle that holds this authority alone.
fn render(record: &AuthorityRecord) -> String {
    raftsman_core::observed::Trust::new(record.clone()).digest()
}

/// Processes read what is on their disks after all.
pub(super) fn clear(world: &mut World) {
    world.machines.values_mut().for_each(|m| m.process.read.clear());
}

/// Which members are connected with each other, and which accept us, before a step.
pub(super) struct Before {
    in_touch: BTreeSet<MemberId>,
    following: BTreeSet<Name>,
    receiving: BTreeSet<Name>,
    /// Whether a client may depend on any member.
    serving: bool,
    ledger: Ledger,
}

/// The voters whose handshakes would succeed now, whether or not older connections still exist.
fn in_touch(world: &World) -> BTreeSet<MemberId> {
    let formed = world.agreed.iter().find(|(_, a)| a.formed).map(|(id, _)| *id);
    formed.map(|id| world.voters_trusting(id).into_iter().collect()).unwrap_or_default()
}

/// Whether a restarted member reconnects to the leader of that time.
fn comes_back(world: &World, machine: &Name) -> bool {
    let formed = world.agreed.iter().find(|(_, a)| a.formed).map(|(id, _)| *id);
    let mut world = world.clone();
    let Some(restarted) = world.machines.get_mut(machine) else { return true };
    restarted.process.warm_up = 0;
    let raftsman_core::observed::Data::Present { member, .. } = restarted.data else { return true };
    let runs = restarted.process.state == ServiceState::Running;
    let Some(id) = formed.filter(|id| runs && world.has_quorum(*id)) else { return true };
    world.voters_answering(id).any(|id| id == member)
}

fn receiving(desired: &Stack, world: &World) -> BTreeSet<Name> {
    let lets_in = |m: &MachineModel| serves(m) && world.receives_us(desired, m);
    world.machines.iter().filter(|(_, m)| lets_in(m)).map(|(name, _)| name.clone()).collect()
}

fn serves(machine: &MachineModel) -> bool {
    machine.exists && machine.process.state == ServiceState::Running && machine.process.warm_up == 0
}

/// Looks before a step.
pub(super) fn before(desired: &Stack, world: &World) -> Before {
    let formed = world.agreed.iter().find(|(_, a)| a.formed).map(|(id, _)| *id);
    let following: BTreeSet<MemberId> = formed.map(|id| world.voters_answering(id).collect()).unwrap_or_default();
    let follows = |m: &MachineModel| matches!(m.data, raftsman_core::observed::Data::Present { member, .. } if following.contains(&member));
    let following = world.machines.iter().filter(|(_, m)| follows(m)).map(|(name, _)| name.clone()).collect();
    let (in_touch, receiving, ledger) = (in_touch(world), receiving(desired, world), world.ledger.clone());
    Before { in_touch, following, receiving, serving: super::access::serves_clients(desired, world), ledger }
}

/// The rule that a step broke, and how.
pub(super) fn broken(
    desired: &Stack,
    observed: &Observed,
    before: &Before,
    world: &World,
    action: &Action,
) -> Option<(&'static str, String)> {
    let (was, now) = (&before.ledger, world.now);
    let is = in_touch(world);
    let up = |id: &MemberId| {
        world.machines.iter().find(|(_, m)| {
            matches!(m.data, raftsman_core::observed::Data::Present { member, .. } if member == *id) && serves(m)
        })
    };
    // An emergency rotation leaves unreachable members behind.
    let emergency = |side| was.etcd.trust(side).is_some_and(|t| t.now);
    let silent = |name: &Name| observed.report(name).is_none();
    for id in before.in_touch.difference(&is) {
        let left = |name: &Name| emergency(TrustDomain::Peers) && silent(name);
        let listed = world.agreed.values().any(|a| a.members.iter().any(|m| m.id == *id));
        if let Some((name, _)) = up(id).filter(|(name, _)| listed && !left(name)) {
            return Some(("no member is cut off", format!("{name} by {action:?}")));
        }
    }
    if let Action::Etcd(EtcdAction::RestartEtcd { machine, .. }) = action
        && before.following.contains(machine)
        && !comes_back(world, machine)
    {
        return Some(("no member is cut off", format!("{machine} cannot follow after {action:?}")));
    }
    if let Action::Pki(PkiAction::DistrustAuthority { side: TrustDomain::Clients, unused: false }) = action {
        let trust = was.etcd.clients.as_ref()?;
        if !(trust.finish || trust.now || trust.old.iter().all(|a| a.not_after <= now)) {
            return Some(("clients get time for new certificates", format!("{action:?}")));
        }
    }
    let ended = |side| was.etcd.trust(side).is_some_and(|t| t.current.not_after <= now);
    if !ended(TrustDomain::Clients) {
        let receives = receiving(desired, world);
        let shut = before.receiving.difference(&receives).filter(|name| serves(&world.machines[*name]));
        let shut = shut.into_iter().find(|name| !(emergency(TrustDomain::Clients) && silent(name)));
        if let Some(name) = shut {
            return Some(("our clients are accepted", format!("not by {name} after {action:?}")));
        }
    }
    match action {
        Action::Pki(PkiAction::DeleteAuthority { side }) => {
            let trust = was.etcd.trust(*side)?;
            let gone = trust.retired.iter().filter(|a| !trust.trusts(&a.key) && a.not_after > now);
            let gone: Vec<&AuthorityRecord> = gone.collect();
            let still = |m: &MachineModel| gone.iter().any(|a| world.accepts(m, side.purpose(), &a.key));
            let reached = |name: &Name| observed.report(name).is_some();
            let checked =
                *side == TrustDomain::Peers || desired.etcd.auth == raftsman_core::spec::AuthMode::Certificate;
            let machines = world.machines.iter().filter(|(name, m)| serves(m) && reached(name));
            let open = machines.filter(|_| checked).find(|(_, m)| still(m)).map(|(name, _)| name.clone());
            open.map(|name| ("the old CA is rejected", format!("not by {name}")))
        }
        Action::Etcd(EtcdAction::RestartTogether { .. }) if before.serving && !ended_before(was, now) => {
            Some(("members are restarted one at a time", format!("{action:?}")))
        }
        _ => None,
    }
}

/// Whether an authority that members trust has ended.
fn ended_before(ledger: &Ledger, now: Timestamp) -> bool {
    let over = |side| ledger.etcd.trust(side).is_some_and(|t| t.known().iter().any(|a| a.not_after <= now));
    TrustDomain::ALL.into_iter().any(over)
}

/// What is not as it should be of a cluster that is done.
pub(super) fn unfinished(desired: &Stack, world: &World) -> Option<String> {
    for side in TrustDomain::ALL {
        let trust = world.ledger.etcd.trust(side)?;
        if side == TrustDomain::Peers && trust.rotates() || trust.next.is_some() || !trust.retired.is_empty() {
            return Some(format!("the {side} CA still changes"));
        }
        for member in &desired.etcd.members {
            let machine = world.machines.get(&member.name)?;
            let leaf = machine.certificates.get(&side.purpose())?;
            let reads = side == TrustDomain::Peers || desired.etcd.auth == raftsman_core::spec::AuthMode::Certificate;
            if leaf.trust != Some(trust.digest())
                || reads && machine.process.trust.get(&side.purpose()) != Some(&trust.digest())
            {
                return Some(format!("{} trusts others than it should", member.name));
            }
            if side == TrustDomain::Peers && leaf.issuer_key != trust.current.key {
                return Some(format!("{} shows an old certificate", member.name));
            }
        }
    }
    None
}
