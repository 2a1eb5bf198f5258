//! A cluster that is adopted read-only → how it differs from the file. Nothing is done to its members.

use super::report::Report;
use super::{Draft, Waiting, users};
use crate::adopt;
use crate::desired::Member;
use crate::observed::{Fact, ListedMember, View};
use crate::spec::{AuthMode, Name};

/// Lists the differences, and says what it takes to manage the members.
pub(super) fn compare(draft: &mut Draft<'_>) -> Report {
    let members: Vec<Name> = draft.observed.machines.keys().cloned().collect();
    draft.wait(Waiting::NotTakenOver { members });
    silent(draft);
    listed(draft);
    let wanted = adopt::wanted(draft.desired);
    let desired = draft.desired;
    for member in &desired.etcd.members {
        differences(draft, member, &wanted);
    }
    let Some(newest) = users::newest(&draft.view) else { return Report::Looked };
    let on = draft.desired.etcd.auth != AuthMode::None;
    if newest.auth == Some(!on) {
        let said = |on| if on { "on" } else { "off" };
        differs(draft, None, "auth", said(!on), said(on));
    }
    draft.waiting.extend(newest.alarms.iter().map(|alarm| Waiting::AlarmRaised { alarm: *alarm }));
    Report::Looked
}

/// A difference; one that several members share is reported once.
fn differs(draft: &mut Draft<'_>, machine: Option<&Name>, key: &str, found: &str, wanted: &str) {
    let described = draft.waiting.iter_mut().find_map(|waiting| match waiting {
        Waiting::Differs { machines, key: k, found: f, wanted: w } if (&**k, &**f, &**w) == (key, found, wanted) => {
            Some(machines)
        }
        _ => None,
    });
    match (described, machine) {
        (Some(machines), Some(machine)) => machines.push(machine.clone()),
        (Some(_), None) => {}
        (None, _) => {
            let (key, found, wanted) = (key.to_owned(), found.to_owned(), wanted.to_owned());
            let machines = machine.cloned().into_iter().collect();
            draft.wait(Waiting::Differs { machines, key, found, wanted });
        }
    }
}

fn silent(draft: &mut Draft<'_>) {
    for (name, member) in &draft.observed.etcd.members {
        let error = match &member.etcd {
            Fact::Unreachable { error, .. } => error.clone(),
            Fact::Absent { .. } => "nothing listens there".to_owned(),
            Fact::Seen { value, .. } if value.learner => continue,
            Fact::Seen { value, .. } => match &value.read_error {
                Some(error) => error.clone(),
                None => continue,
            },
        };
        draft.waiting.push(Waiting::MemberSilent { machine: name.clone(), error });
    }
}

/// Members that only one of both has.
fn listed(draft: &mut Draft<'_>) {
    let view: &View<'_> = &draft.view;
    let Some(list) = view.listed else { return };
    let listed: Vec<ListedMember> = list.to_vec();
    let named = |name: &Name| listed.iter().any(|m| m.name == name.as_str());
    let desired = draft.desired;
    let missing: Vec<&str> = desired.etcd.members.iter().filter(|m| !named(&m.name)).map(|m| m.name.as_str()).collect();
    let in_file = |m: &ListedMember| desired.etcd.members.iter().any(|wanted| wanted.name.as_str() == m.name);
    let surplus: Vec<String> = listed.iter().filter(|m| !in_file(m)).map(called).collect();
    for name in missing {
        differs(draft, None, &format!("member {name}"), "no member", "a member");
    }
    for name in surplus {
        differs(draft, None, &format!("member {name}"), "a member", "no member");
    }
}

fn called(member: &ListedMember) -> String {
    if member.name.is_empty() { member.peer_urls.join(",") } else { member.name.clone() }
}

fn differences(draft: &mut Draft<'_>, member: &Member, wanted: &std::collections::BTreeMap<String, String>) {
    let name = &member.name;
    let peers = draft.view.listed.and_then(|list| list.iter().find(|m| m.name == name.as_str()));
    if let Some(listed) = peers.filter(|m| !m.peer_urls.contains(&member.peer_url())).cloned() {
        differs(draft, Some(name), "peer URL", &listed.peer_urls.join(","), &member.peer_url());
    }
    let adopted = draft.observed.ledger.etcd.adopted();
    let client = adopted.and_then(|adopted| adopted.clients.get(name)).filter(|url| **url != member.client_url());
    if let Some(url) = client.cloned() {
        differs(draft, Some(name), "client URL", &url, &member.client_url());
    }
    let Some(etcd) = draft.view.answering.get(name).copied() else { return };
    if etcd.version != draft.desired.etcd.version {
        let wanted = draft.desired.etcd.version.to_string();
        differs(draft, Some(name), "version", &etcd.version.to_string(), &wanted);
    }
    for adopt::Difference { key, found, wanted } in adopt::differences(wanted, &etcd.settings) {
        differs(draft, Some(name), &key, &found, &wanted);
    }
}
