//! A change of members or of leadership, on the simulated world → what the members have agreed upon then.

#![warn(clippy::wildcard_enum_match_arm)]

use super::World;
use super::effects::{Impossible, hash};
use crate::action::{MemberAction, StartData};
use crate::desired::Stack;
use crate::observed::{ListedMember, MemberId};

pub(super) fn act(world: &mut World, desired: &Stack, action: &MemberAction, warm_up: u32) -> Result<(), Impossible> {
    match action {
        MemberAction::AddLearner { peer_url, .. } => {
            world.made += 1;
            let id = MemberId(hash(&format!("{peer_url} {}", world.made)));
            let url = peer_url.clone();
            let mut refused = None;
            world.agree(|agreed| {
                if agreed.members.iter().any(|m| m.learner || m.peer_urls.contains(&url)) {
                    refused = Some("a learner is there already, or one of this address");
                    return;
                }
                let (name, peer_urls) = (String::new(), vec![url]);
                agreed.members.push(ListedMember { id, name, peer_urls, learner: true });
            })?;
            refused.map_or(Ok(()), |why| Err(Impossible(why.to_owned())))?;
        }
        MemberAction::PromoteMember { machine, member } => {
            if !world.machines.get(machine).is_some_and(|m| m.answers() && m.member() == Some(*member)) {
                return Err(Impossible("the learner is not in sync with the leader".to_owned()));
            }
            world.agree(|agreed| {
                agreed.members.iter_mut().filter(|m| m.id == *member).for_each(|m| m.learner = false)
            })?;
        }
        MemberAction::RemoveMember { member, .. } => {
            world.agree(|agreed| agreed.members.retain(|m| m.id != *member))?;
            if world.leads == Some(*member) {
                world.leads = None;
            }
        }
        MemberAction::UpdateMember { machine, member, peer_url, version, cluster } => {
            let url = vec![peer_url.clone()];
            world.agree(|agreed| {
                agreed.members.iter_mut().filter(|m| m.id == *member).for_each(|m| m.peer_urls.clone_from(&url));
            })?;
            world.stop(machine, Some(*cluster))?;
            let member = desired.etcd.member(machine);
            let timers = desired.etcd.timers(&world.ledger).unwrap_or_default();
            let access = desired.etcd.client_access(&world.ledger);
            let digest = member.map(|m| desired.etcd.config(m, *version, timers, access).digest.clone());
            let address = member.map(|m| m.address);
            world.note_closed(desired, machine, *version, address);
            let moved = world.claimed(machine)?;
            moved.config = digest;
            moved.config_address = address;
            world.start(machine, *version, StartData::Of(*cluster), warm_up)?;
        }
        MemberAction::MoveLeader { member, .. } => world.leads = Some(*member),
    }
    Ok(())
}
