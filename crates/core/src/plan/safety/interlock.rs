//! A step on etcd while PostgreSQL stands on it, a step on PostgreSQL while etcd is beneath → why it must not be done now.
//!
//! What etcd does under a running Patroni can demote a healthy primary, and what PostgreSQL does while etcd is weak can
//! leave it without one. So neither gives anything away before the other is seen to be whole.

use jiff::{SignedDuration, Timestamp};

use super::{Case, Refusal, otherwise};
use crate::action::{
    Action, AuthAction, EtcdAction, MachineAction, MaintenanceAction, MemberAction, PkiAction, PostgresAction,
    StartData, Takes, UserAction, VersionAction,
};
use crate::desired::{Postgres, UserSlot, address_of};
use crate::ledger::Mode;
use crate::observed::{PostgresOnMachine, Purpose, TrustDomain};
use crate::plan::situation::postgres::{asleep, login, machines, node, seen, seen_since, stands, strong};
use crate::plan::{Draft, PostgresWaiting, Waiting};
use crate::spec::Name;

/// What a step does to the etcd beneath.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Beneath {
    /// A client may notice it: a member or the leadership is away for a while, or the list of members changes.
    Noticed,
    /// A member that still serves goes for good, or moves.
    Goes(Name),
    /// A member that does not serve goes for good.
    LostGoes(Name),
    /// A member presents the certificate of another CA.
    OtherIssuer,
    /// A CA of the clients' side begins to sign, or is not trusted any more.
    Trust,
}

/// Whether what stands on etcd, or beneath PostgreSQL, allows this step now.
pub(in crate::plan) fn check(case: &Case<'_>, wave: &[&Action], action: &Action) -> Result<(), Refusal> {
    for (name, _) in case.observed.ledger.postgres.iter().filter(|(_, known)| known.system.is_some()) {
        if case.desired.postgres(name).is_none() && beneath(case, action).is_some() {
            return Err(Refusal::Otherwise(format!("PostgreSQL `{name}` stands on it, and is not in the file")));
        }
    }
    for cluster in &case.desired.postgres {
        user_in_use(case, cluster, action)?;
        if !stands(cluster, case.observed) || asleep(cluster, case.observed) {
            continue;
        }
        rebuilt(case, cluster, action)?;
        keeps_what_patroni_needs(action)?;
        match beneath(case, action) {
            None => {}
            Some(Beneath::LostGoes(going)) => knows_one_that_stays(case, cluster, &going)?,
            Some(step) => {
                if wave.iter().filter(|other| beneath(case, other).is_some()).count() > 1 {
                    return Err(Refusal::NotAlone);
                }
                // The others have to accept every node without one that goes.
                let beside = match &step {
                    Beneath::Goes(going) => Some(going),
                    Beneath::Noticed | Beneath::LostGoes(_) | Beneath::OtherIssuer | Beneath::Trust => action.machine(),
                };
                whole(case, cluster, beside)?;
                match step {
                    Beneath::Goes(going) => knows_one_that_stays(case, cluster, &going)?,
                    Beneath::OtherIssuer | Beneath::Trust => has_the_trust(case, cluster)?,
                    Beneath::Noticed | Beneath::LostGoes(_) => {}
                }
            }
        }
    }
    if let Action::Postgres(action) = action {
        carried(case, action)?;
    }
    Ok(())
}

/// Steps that clients of etcd may notice are done one at a time while PostgreSQL stands on it.
pub(super) fn one_a_wave(draft: &mut Draft<'_>) {
    let (desired, observed) = (draft.desired, draft.observed);
    if !desired.postgres.iter().any(|cluster| stands(cluster, observed) && !asleep(cluster, observed)) {
        return;
    }
    let case = Case::of(desired, observed, &draft.view);
    let mut noticed = 0;
    let mut later = Vec::new();
    draft.steps.retain(|step| {
        let counts = beneath(&case, &step.action).is_some();
        noticed += usize::from(counts);
        let turn = !counts || noticed <= 1;
        if let (false, Some(machine)) = (turn, step.action.machine()) {
            later.push(Waiting::Turn { machine: machine.clone(), verb: step.action.verb().to_owned() });
        }
        turn
    });
    draft.waiting.extend(later);
}

/// What this step does to the etcd beneath; nothing where no client can be worse off by it.
fn beneath(case: &Case<'_>, action: &Action) -> Option<Beneath> {
    let view = case.view;
    // Where etcd does not serve, there is nothing to lose, and nothing that may delay its repair.
    let serves = |name: &Name| view.has_quorum() && view.healthy.contains(name);
    let noticed = |machine: &Name| serves(machine).then_some(Beneath::Noticed);
    match action {
        Action::Etcd(EtcdAction::RestartEtcd { machine, .. })
        | Action::Maintenance(MaintenanceAction::Defragment { machine })
        | Action::Machine(MachineAction::RebuildMachine { machine }) => noticed(machine),
        Action::Etcd(EtcdAction::RestartTogether { .. })
        | Action::Member(MemberAction::MoveLeader { .. })
        | Action::Version(VersionAction::EnableDowngrade { .. } | VersionAction::CancelDowngrade) => {
            view.has_quorum().then_some(Beneath::Noticed)
        }
        Action::Member(MemberAction::UpdateMember { machine, .. })
        | Action::Machine(MachineAction::MoveMachine { machine, .. })
            if case.desired.etcd.member(machine).is_some() =>
        {
            Some(if serves(machine) { Beneath::Goes(machine.clone()) } else { Beneath::LostGoes(machine.clone()) })
        }
        Action::Member(MemberAction::RemoveMember { member, .. }) => {
            let listed = view.listed?.iter().find(|listed| listed.id == *member)?;
            let name = case.observed.ledger.etcd.name_of(listed)?;
            match listed.learner {
                true => None,
                false if serves(&name) => Some(Beneath::Goes(name)),
                false => Some(Beneath::LostGoes(name)),
            }
        }
        Action::Pki(PkiAction::IssueCertificate { machine, purpose: Purpose::Server, .. }) => {
            other_issuer(case, machine).then_some(Beneath::OtherIssuer)
        }
        Action::Pki(
            PkiAction::ActivateAuthority { side: TrustDomain::Clients }
            | PkiAction::DistrustAuthority { side: TrustDomain::Clients, unused: false },
        ) => Some(Beneath::Trust),
        Action::Machine(_)
        | Action::Agent(_)
        | Action::Pki(_)
        | Action::Preflight(_)
        | Action::Etcd(_)
        | Action::Member(_)
        | Action::Maintenance(_)
        | Action::Version(_)
        | Action::Backup(_)
        | Action::Balancer(_)
        | Action::Postgres(_)
        | Action::Auth(_)
        | Action::User(_)
        | Action::Restore(_)
        | Action::Recovery(_) => None,
    }
}

/// Whether the certificate that the member presents to clients would be signed by another CA than the one that it has.
fn other_issuer(case: &Case<'_>, machine: &Name) -> bool {
    let (Some(member), Some(trust)) =
        (case.desired.etcd.member(machine), case.observed.ledger.etcd.trust(TrustDomain::Clients))
    else {
        return false;
    };
    let now = case.observed.at();
    let signer = trust.signer(TrustDomain::Clients, member.profile(Purpose::Server).renew_before(), now);
    let seen = case.observed.report(machine).and_then(|report| report.etcd.certificates.get(&Purpose::Server));
    // One that has expired is accepted by no client.
    seen.is_some_and(|seen| seen.not_after > now && seen.issuer_key != signer.key)
}

/// Whether the cluster above is as it should be, and every node of it reaches every member anew.
fn whole(case: &Case<'_>, cluster: &Postgres, restarted: Option<&Name>) -> Result<(), Refusal> {
    let observed = case.observed;
    let unsettled = |why| PostgresWaiting::PostgresUnsettled { cluster: cluster.name.clone(), why };
    let seen = seen(cluster, observed)?;
    seen.settled(cluster.synchronous_standbys()).map_err(unsettled)?;
    let since = observed.ledger.etcd.last_step.unwrap_or(Timestamp::UNIX_EPOCH);
    seen_since(cluster, &seen, since)?;
    for machine in machines(cluster, observed) {
        // It may run as it was started before auth was on: the restart has it accept clients.
        login(case.desired, cluster, observed, case.view, machine, None, restarted)?;
    }
    Ok(())
}

/// A running Patroni asks the members that it knows: those that it was started with, and those of the list that it read.
/// It reads the list again when a request fails, and after ten times its ttl; where none that it knows answers, it goes
/// back to those that it was started with.
fn knows_one_that_stays(case: &Case<'_>, cluster: &Postgres, going: &Name) -> Result<(), Refusal> {
    let observed = case.observed;
    // Patroni goes by the settings that it has, which may be others than those of the file.
    let (patroni, keys) = (&cluster.section.patroni, seen(cluster, observed)?.keys());
    let longer = |key: &str, file: u32| i64::from(keys.seconds(key).unwrap_or(file).max(file));
    let refreshed = SignedDuration::from_secs(longer("ttl", patroni.ttl) * 10 + longer("loop_wait", patroni.loop_wait));
    let listed = case.view.listed.ok_or(Refusal::NoQuorum)?;
    let ledger = &observed.ledger.etcd;
    let stays = || listed.iter().filter(|member| !member.learner && ledger.name_of(member).as_ref() != Some(going));
    let addresses = || stays().filter_map(|member| address_of(member.peer_urls.first()?));
    // The voter that has been one for the longest time is in every list that was read since.
    let oldest = stays().filter_map(|member| ledger.voters_since.get(&member.id)).min().copied();
    let until = oldest.and_then(|since| since.checked_add(refreshed).ok());
    for machine in machines(cluster, observed) {
        let Some(node) = node(observed, machine) else { continue };
        if !node.runs() {
            continue;
        }
        let knows = addresses().any(|address| node.started_with.iter().any(|host| host.ip() == address));
        let named = addresses().filter(|address| {
            node.written.as_ref().is_some_and(|file| file.hosts.iter().any(|host| host.ip() == *address))
        });
        if named.count() < stays().count().min(2) {
            return Err(Refusal::Otherwise(format!("Patroni's file on {machine} does not name the members that stay")));
        }
        if !knows && until.is_none_or(|until| until > observed.at()) {
            let (machine, until) = (machine.clone(), until.unwrap_or(Timestamp::MAX));
            return Err(PostgresWaiting::MembersUnknown { machine, until }.into());
        }
    }
    Ok(())
}

/// Every node has the CA certificates that are to be trusted now on its disk.
fn has_the_trust(case: &Case<'_>, cluster: &Postgres) -> Result<(), Refusal> {
    let Some(trust) = case.observed.ledger.etcd.trust(TrustDomain::Clients) else { return Ok(()) };
    let digest = trust.digest();
    for machine in machines(cluster, case.observed) {
        let node = node(case.observed, machine).ok_or(Refusal::NotSeen("a node"))?;
        if node.trust.as_ref() != Some(&digest) {
            let member =
                case.desired.etcd.members.first().map_or_else(|| machine.clone(), |member| member.name.clone());
            let error = "it does not have the CA certificates that are to be trusted now".to_owned();
            return Err(PostgresWaiting::LoginFailed { machine: machine.clone(), member, error }.into());
        }
    }
    Ok(())
}

/// The user of etcd that Patroni uses is left alone; the other one goes once every node logs in as the first.
fn user_in_use(case: &Case<'_>, cluster: &Postgres, action: &Action) -> Result<(), Refusal> {
    let Action::User(action) = action else { return Ok(()) };
    let (role, _) = cluster.etcd_role();
    let uses = |slot: UserSlot| {
        let has = |machine: &&Name| match node(case.observed, machine) {
            Some(node) => node.written.iter().chain(&node.taken_up).any(|file| file.user == slot),
            // One that cannot be asked may use it.
            None => case.observed.ledger.of_postgres(&cluster.name).started.contains_key(*machine),
        };
        machines(cluster, case.observed).into_iter().find(has).cloned()
    };
    let in_use = |machine: Name, slot: UserSlot| {
        Refusal::Otherwise(format!("Patroni on {machine} uses the user `{}` of etcd", cluster.etcd_user(slot)))
    };
    match action {
        UserAction::SetUser { user, account, grant, revoke } => {
            let Some(slot) = cluster.slot_of(user) else { return Ok(()) };
            if account.replaces_password() || !revoke.is_empty() {
                return uses(slot).map_or(Ok(()), |machine| Err(in_use(machine, slot)));
            }
            if grant.iter().any(|granted| *granted != role) {
                return Err(otherwise("it would be more than PostgreSQL needs"));
            }
        }
        UserAction::DeleteUser { user } => {
            let Some(slot) = cluster.slot_of(user) else { return Ok(()) };
            if let Some(machine) = uses(slot) {
                return Err(in_use(machine, slot));
            }
            if stands(cluster, case.observed) && !asleep(cluster, case.observed) {
                for machine in machines(cluster, case.observed) {
                    login(case.desired, cluster, case.observed, case.view, machine, Some(slot.other()), None)?;
                }
            }
        }
        UserAction::SetRole { role: changed, set, revoke } if *changed == role => {
            let (_, wanted) = cluster.etcd_role();
            let exact = set.iter().all(|granted| wanted.permissions.get(&granted.keys) == Some(&granted.level));
            let takes = revoke.iter().any(|keys| wanted.permissions.contains_key(keys));
            if !exact || takes {
                return Err(otherwise("it would not be what PostgreSQL needs"));
            }
        }
        UserAction::DeleteRole { role: deleted } if *deleted == role => {
            return Err(Refusal::Otherwise(format!("Patroni of `{}` needs it", cluster.name)));
        }
        UserAction::SetRole { .. } | UserAction::DeleteRole { .. } => {}
    }
    Ok(())
}

/// Patroni's keys are never rolled back under a living cluster: it is stopped before etcd is built anew.
fn rebuilt(case: &Case<'_>, cluster: &Postgres, action: &Action) -> Result<(), Refusal> {
    let building = match &case.observed.ledger.etcd.mode {
        Mode::Recovering(_) | Mode::Restoring(_) => !matches!(action, Action::Postgres(_)),
        Mode::Normal | Mode::Adopted(_) => matches!(
            action,
            Action::Restore(_)
                | Action::Recovery(_)
                | Action::Etcd(EtcdAction::StartEtcd { data: StartData::Alone(_), .. })
        ),
    };
    if building {
        return Err(Refusal::Otherwise(format!(
            "PostgreSQL `{}` runs on this etcd: it is stopped first",
            cluster.name
        )));
    }
    Ok(())
}

fn keeps_what_patroni_needs(action: &Action) -> Result<(), Refusal> {
    if matches!(action, Action::Auth(AuthAction::DisableAuth)) {
        return Err(otherwise("Patroni logs in with a password: auth stays on"));
    }
    Ok(())
}

/// A step on PostgreSQL needs an etcd that can lose a member.
fn carried(case: &Case<'_>, step: &PostgresAction) -> Result<(), Refusal> {
    let action = Action::Postgres(step.clone());
    let changes = matches!(step, PostgresAction::SetPatroni { .. } | PostgresAction::ReloadPatroni { .. });
    let building = matches!(case.observed.ledger.etcd.mode, Mode::Recovering(_) | Mode::Restoring(_));
    if building || strong(case.view) || action.class().takes != Takes::Node && !changes {
        return Ok(());
    }
    let of = action.machine().and_then(|machine| case.desired.node(machine)).map(|(cluster, _)| cluster.name.as_str());
    let cluster = Name::parse(of.unwrap_or(action.subject())).unwrap_or_else(|_| case.desired.name.clone());
    let verb = step.verb().to_owned();
    Err(PostgresWaiting::EtcdFirst { cluster, verb }.into())
}

impl From<PostgresWaiting> for Refusal {
    fn from(waiting: PostgresWaiting) -> Self {
        Self::Held(waiting)
    }
}

impl PostgresOnMachine {
    fn runs(&self) -> bool {
        self.service.state != crate::observed::ServiceState::Stopped
    }
}
