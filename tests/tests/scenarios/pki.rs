//! Scripted worlds → how an authority is changed, phase by phase, and what a change waits for.
//!
//! A line with `*` begins a wave; the three numbers are what the cluster can lose before, during and after it, `-` for
//! no quorum. `Scene::to_the_end` itself holds every end against 're-planning changes nothing'.

use insta::assert_snapshot;
use raftsman_core::observed::{AuthorityRecord, Data, Origin, Purpose, Trust, TrustDomain};
use raftsman_core::spec::Name;
use raftsman_tests::fixtures::{Hidden, Scene, cluster, describe};

const DAY: i64 = 24;

fn trust(scene: &mut Scene, side: TrustDomain) -> &mut Trust {
    scene.world.ledger.etcd.trust_mut(side).as_mut().expect("an authority")
}

fn ask(scene: &mut Scene, side: TrustDomain) {
    trust(scene, side).asked = true;
}

/// Carries out so many waves, and leaves it there.
fn waves(scene: &mut Scene, count: usize) {
    for _ in 0..count {
        for step in scene.plan().steps {
            scene.world.act(&scene.desired.clone(), &step.action, 0).expect("it can be done");
        }
        scene.world.pass_time();
        scene.world.remember(&scene.desired.clone());
    }
}

const BROUGHT_PEERS: &str = "ca: { peers: { brought: { certificate: ca.crt, key: { file: ca.key } } } }";

/// From now on the file brings this authority for the peers.
fn bring(scene: &mut Scene, key: &str) {
    scene.desired = cluster(scene.desired.etcd.members.len(), &[BROUGHT_PEERS]);
    let record = AuthorityRecord {
        number: 0,
        key: key.to_owned(),
        not_after: "2040-01-01T00:00:00Z".parse().expect("a timestamp"),
        origin: Origin::Brought,
        certificate: format!("certificate of {key}\n"),
    };
    scene.world.brought.insert(TrustDomain::Peers, record);
}

// ---- Asked for.

#[test]
fn another_authority_for_peers() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Peers);
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: requested; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * activate peers CA cluster: trusted by every member; 1 1 1
    * sign peer cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust peers CA cluster: not needed any more; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    done
    ");
    let trust = trust(&mut scene, TrustDomain::Peers);
    assert_eq!((trust.current.number, trust.rotates()), (2, false));
}

#[test]
fn another_authority_for_clients_waits_for_them() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Clients);
    assert_snapshot!(scene.to_the_end(), @"
    * add clients CA cluster: requested; 1 1 1
    * store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * activate clients CA cluster: trusted by every member; 1 1 1
    done
    ");
    // Clients that trust only the old CA still accept the members' certificates.
    for i in 1..=3 {
        assert_eq!(scene.machine(i).certificates[&Purpose::Server].issuer_key, "clients-1");
    }
    // Months later. Renewed certificates are still signed by the CA that all clients trust.
    scene.later(DAY * 61);
    scene.to_the_end();
    assert_eq!(scene.machine(1).certificates[&Purpose::Server].issuer_key, "clients-1");
    trust(&mut scene, TrustDomain::Clients).finish = true;
    assert_snapshot!(scene.to_the_end(), @"
    * sign server cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust clients CA cluster: not needed any more; 1 1 1
    * store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete clients CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn another_authority_for_clients_now() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Clients);
    trust(&mut scene, TrustDomain::Clients).now = true;
    assert_snapshot!(scene.to_the_end(), @"
    * add clients CA cluster: requested; 1 1 1
    * store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * activate clients CA cluster: trusted by every member; 1 1 1
    * sign server cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust clients CA cluster: not needed any more; 1 1 1
    * store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete clients CA cluster: refused by every member; 1 1 1
    done
    ");
    assert!(!trust(&mut scene, TrustDomain::Clients).now);
}

#[test]
fn other_authorities_for_both_share_the_restarts_of_the_first_phase() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Peers);
    ask(&mut scene, TrustDomain::Clients);
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: requested; 1 1 1
      add clients CA cluster: requested; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
      store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * activate peers CA cluster: trusted by every member; 1 1 1
      activate clients CA cluster: trusted by every member; 1 1 1
    * sign peer cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust peers CA cluster: not needed any more; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn another_authority_for_clients_with_passwords_restarts_no_member() {
    let mut scene = Scene::empty(3, &["auth: { mode: password }"]);
    scene.to_the_end();
    ask(&mut scene, TrustDomain::Clients);
    assert_snapshot!(scene.to_the_end(), @"
    * add clients CA cluster: requested; 1 1 1
    * store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * activate clients CA cluster: trusted by every member; 1 1 1
    done
    ");
    trust(&mut scene, TrustDomain::Clients).finish = true;
    assert_snapshot!(scene.to_the_end(), @"
    * sign server cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust clients CA cluster: not needed any more; 1 1 1
    * store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * delete clients CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn a_lone_member_has_no_transfer_target() {
    let mut scene = Scene::settled(1);
    ask(&mut scene, TrustDomain::Peers);
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: requested; 0 0 0
    * store peer trust main-1: trusted CAs have changed; 0 0 0
    blocked: main-1: restart etcd would lose quorum: 1 of 1 members are healthy
    ");
}

// ---- Because a CA expires soon.

#[test]
fn authorities_near_their_end() {
    let mut scene = Scene::settled(3);
    scene.later(DAY * (3650 - 170));
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: expires in 170 days; 1 1 1
      add clients CA cluster: expires in 170 days; 1 1 1
      sign peer cert main-1 main-2 main-3: expired; 1 1 1
      sign server cert main-1 main-2 main-3: expired; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * activate peers CA cluster: trusted by every member; 1 1 1
      activate clients CA cluster: trusted by every member; 1 1 1
    * sign peer cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust peers CA cluster: not needed any more; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn the_old_authority_of_the_clients_expires_before_the_operator_finishes() {
    let mut scene = Scene::settled(3);
    scene.later(DAY * (3650 - 170));
    scene.to_the_end();
    assert!(!trust(&mut scene, TrustDomain::Clients).old.is_empty());
    scene.later(DAY * 145);
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-1 main-2 main-3: expired; 1 1 1
      sign server cert main-1 main-2 main-3: expired; 1 1 1
    done
    ");
    scene.later(DAY * 30);
    assert_snapshot!(scene.to_the_end(), @"
    * distrust clients CA cluster: not needed any more; 1 1 1
    * store server trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * delete clients CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn authorities_have_ended() {
    let mut scene = Scene::settled(3);
    scene.later(DAY * 3660);
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: expired; 1 1 1
      add clients CA cluster: expired; 1 1 1
    * activate peers CA cluster: expired; 1 1 1
      activate clients CA cluster: expired; 1 1 1
    * sign peer cert main-1 main-2 main-3: signed by another authority; - - -
      sign server cert main-1 main-2 main-3: signed by another authority; - - -
    * restart all etcd cluster: the CA that they trust has expired; - - 1
    * delete peers CA cluster: refused by every member; 1 1 1
      delete clients CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn an_authority_that_was_brought_has_ended() {
    let mut scene = Scene::settled(3);
    bring(&mut scene, "theirs");
    scene.to_the_end();
    scene.later(DAY * 6000);
    let plan = scene.plan();
    assert!(plan.waiting.iter().any(|w| w.to_string() == "the peers CA has expired"), "{}", describe(&plan));
}

#[test]
fn short_lived_authorities_do_not_follow_each_other_for_ever() {
    let mut scene = Scene::empty(3, &["certificates: { validity: 30d, renew_before: 10d, ca_validity: 40d }"]);
    assert!(scene.to_the_end().ends_with("done\n"));
    scene.later(DAY * 21);
    assert!(scene.to_the_end().ends_with("done\n"));
}

// ---- Because the file says so.

#[test]
fn made_then_brought_then_another_then_made() {
    let mut scene = Scene::settled(3);
    bring(&mut scene, "theirs");
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: the file has changed; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * activate peers CA cluster: trusted by every member; 1 1 1
    * sign peer cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust peers CA cluster: not needed any more; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    done
    ");
    assert_eq!(scene.machine(2).certificates[&Purpose::Peer].issuer_key, "theirs");
    bring(&mut scene, "another of theirs");
    assert!(scene.to_the_end().ends_with("done\n"));
    assert_eq!(scene.machine(2).certificates[&Purpose::Peer].issuer_key, "another of theirs");
    scene.desired = cluster(3, &[]);
    scene.world.brought.clear();
    assert!(scene.to_the_end().ends_with("done\n"));
    let trust = trust(&mut scene, TrustDomain::Peers);
    assert_eq!((trust.current.origin, trust.rotates()), (Origin::Made, false));
}

#[test]
fn the_file_reverts_before_anything_is_signed() {
    let mut scene = Scene::settled(3);
    bring(&mut scene, "theirs");
    waves(&mut scene, 3);
    scene.desired = cluster(3, &[]);
    scene.world.brought.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * distrust peers CA cluster: the file has changed; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    done
    ");
    let trust = trust(&mut scene, TrustDomain::Peers);
    assert_eq!((trust.current.number, trust.rotates()), (1, false));
}

#[test]
fn the_file_names_yet_another_before_anything_is_signed() {
    let mut scene = Scene::settled(3);
    bring(&mut scene, "theirs");
    waves(&mut scene, 3);
    bring(&mut scene, "another of theirs");
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: the file has changed; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * activate peers CA cluster: trusted by every member; 1 1 1
    * sign peer cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust peers CA cluster: not needed any more; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn the_same_key_in_another_certificate() {
    let mut scene = Scene::settled(3);
    bring(&mut scene, "theirs");
    scene.to_the_end();
    let brought = scene.world.brought.get_mut(&TrustDomain::Peers).expect("brought");
    brought.certificate = "a later certificate of theirs\n".to_owned();
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: the file has changed; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * activate peers CA cluster: trusted by every member; 1 1 1
    * distrust peers CA cluster: not needed any more; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn another_authority_before_the_first_start() {
    let mut scene = Scene::empty(3, &[]);
    waves(&mut scene, 3);
    bring(&mut scene, "theirs");
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: the file has changed; - - -
    * sign peer cert main-1 main-2 main-3: signed by another authority; - - -
    * start etcd main-1 main-2 main-3: first start, 3 of 3 together; - - 1
    * create root cluster: not there yet; 1 1 1
    * enable auth cluster: auth is off; 1 1 1
    done
    ");
}

// ---- Things go wrong meanwhile.

#[test]
fn a_member_is_down_when_the_next_authority_is_to_be_trusted() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Peers);
    scene.cut_power(3);
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: requested; 0 0 0
      start machine main-3: not running; 0 0 0
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * activate peers CA cluster: trusted by every member; 1 1 1
    * sign peer cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust peers CA cluster: not needed any more; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn an_agent_does_not_answer_before_the_switch() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Peers);
    scene.hide(3, Hidden::Agent);
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: requested; 1 1 1
    * store peer trust main-1 main-2: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    waits: main-3: the agent does not answer: timed out
    ");
    scene.hidden.clear();
    assert!(scene.to_the_end().ends_with("done\n"));
}

#[test]
fn in_an_emergency_members_that_quorum_does_not_need_are_not_waited_for() {
    let mut scene = Scene::settled(5);
    ask(&mut scene, TrustDomain::Peers);
    trust(&mut scene, TrustDomain::Peers).now = true;
    scene.hide(5, Hidden::Agent);
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: requested; 2 2 2
    * store peer trust main-1 main-2 main-3 main-4: trusted CAs have changed; 2 2 2
    * restart etcd main-2: trusted CAs have changed; 2 1 2
    * restart etcd main-3: trusted CAs have changed; 2 1 2
    * restart etcd main-4: trusted CAs have changed; 2 1 2
    * move leader to main-2: main-1 restarts next; 2 2 2, hand-over
    * restart etcd main-1: trusted CAs have changed; 2 1 2
    * activate peers CA cluster: trusted by every member; 2 2 2
    * sign peer cert main-1 main-2 main-3 main-4: signed by another authority; 2 2 2
    * distrust peers CA cluster: not needed any more; 2 2 2
    * store peer trust main-1 main-2 main-3 main-4: trusted CAs have changed; 2 2 2
    * restart etcd main-1: trusted CAs have changed; 2 0 2
    * restart etcd main-3: trusted CAs have changed; 2 0 2
    * restart etcd main-4: trusted CAs have changed; 2 0 2
    * move leader to main-1: main-2 stops serving next; 2 2 2, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    waits: main-5: the agent does not answer: timed out
    ");
    // It comes back with a certificate that no member trusts any more, and catches up.
    scene.hidden.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-5: signed by another authority; 1 1 1
    * restart etcd main-5: trusted CAs have changed; 1 1 2
    done
    ");
}

/// The member of this number comes to lead.
fn lead(scene: &mut Scene, number: usize) {
    let Data::Present { member, .. } = scene.machine(number).data else { panic!("no member") };
    scene.world.leads = Some(member);
}

#[test]
fn in_an_emergency_a_member_that_is_left_behind_does_not_lead() {
    let mut scene = Scene::settled(5);
    ask(&mut scene, TrustDomain::Peers);
    trust(&mut scene, TrustDomain::Peers).now = true;
    scene.hide(5, Hidden::Agent);
    lead(&mut scene, 5);
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: requested; 2 2 2
    * store peer trust main-1 main-2 main-3 main-4: trusted CAs have changed; 2 2 2
    * move leader to main-1: main-5 may not trust the new CA; 2 2 2, hand-over
    * restart etcd main-2: trusted CAs have changed; 2 1 2
    * restart etcd main-3: trusted CAs have changed; 2 1 2
    * restart etcd main-4: trusted CAs have changed; 2 1 2
    * move leader to main-2: main-1 restarts next; 2 2 2, hand-over
    * restart etcd main-1: trusted CAs have changed; 2 1 2
    * activate peers CA cluster: trusted by every member; 2 2 2
    * sign peer cert main-1 main-2 main-3 main-4: signed by another authority; 2 2 2
    * distrust peers CA cluster: not needed any more; 2 2 2
    * store peer trust main-1 main-2 main-3 main-4: trusted CAs have changed; 2 2 2
    * restart etcd main-1: trusted CAs have changed; 2 0 2
    * restart etcd main-3: trusted CAs have changed; 2 0 2
    * restart etcd main-4: trusted CAs have changed; 2 0 2
    * move leader to main-1: main-2 stops serving next; 2 2 2, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    waits: main-5: the agent does not answer: timed out
    ");
    scene.hidden.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-5: signed by another authority; 1 1 1
    * restart etcd main-5: trusted CAs have changed; 1 1 2
    done
    ");
}

#[test]
fn a_leader_that_was_left_behind_hands_over_when_it_is_back() {
    let mut scene = Scene::settled(5);
    ask(&mut scene, TrustDomain::Peers);
    trust(&mut scene, TrustDomain::Peers).now = true;
    scene.hide(5, Hidden::Agent);
    while trust(&mut scene, TrustDomain::Peers).retired.is_empty() {
        waves(&mut scene, 1);
    }
    waves(&mut scene, 2);
    // Members with old connections to it elect it: those that were restarted since cannot follow.
    lead(&mut scene, 5);
    scene.hidden.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-5: signed by another authority; 1 1 1
    * move leader to main-2: main-5 may not trust the new CA; 1 1 1, hand-over
    * restart etcd main-5: trusted CAs have changed; 2 1 2
    * restart etcd main-3: trusted CAs have changed; 2 1 2
    * restart etcd main-4: trusted CAs have changed; 2 1 2
    * move leader to main-1: main-2 restarts next; 2 2 2, hand-over
    * restart etcd main-2: trusted CAs have changed; 2 1 2
    * delete peers CA cluster: refused by every member; 2 2 2
    done
    ");
}

#[test]
fn in_an_emergency_no_member_is_left_behind_where_that_would_cost_quorum() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Peers);
    trust(&mut scene, TrustDomain::Peers).now = true;
    scene.hide(3, Hidden::Agent);
    assert_snapshot!(scene.to_the_end(), @"
    * add peers CA cluster: requested; 1 1 1
    * store peer trust main-1 main-2: trusted CAs have changed; 1 1 1
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * move leader to main-2: main-1 restarts next; 1 1 1, hand-over
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    waits: main-3: the agent does not answer: timed out
    ");
    scene.hidden.clear();
    assert!(scene.to_the_end().ends_with("done\n"));
}

#[test]
fn a_member_goes_down_after_the_switch_and_catches_up() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Peers);
    while trust(&mut scene, TrustDomain::Peers).old.is_empty() {
        waves(&mut scene, 1);
    }
    scene.cut_power(2);
    scene.hide(2, Hidden::Machine);
    assert_snapshot!(scene.to_the_end(), @"
    waits: main-2: the provider does not answer: timed out
    waits: main-1: does not have the new trust bundle or certificate of the peers CA yet
    waits: main-3: does not have the new trust bundle or certificate of the peers CA yet
    ");
    scene.hidden.clear();
    assert_snapshot!(scene.to_the_end(), @"
    * start machine main-2: not running; 0 0 0
    * sign peer cert main-1 main-2 main-3: signed by another authority; 1 1 1
    * distrust peers CA cluster: not needed any more; 1 1 1
    * store peer trust main-1 main-2 main-3: trusted CAs have changed; 1 1 1
    * restart etcd main-1: trusted CAs have changed; 1 0 1
    * restart etcd main-3: trusted CAs have changed; 1 0 1
    * move leader to main-1: main-2 restarts next; 1 1 1, hand-over
    * restart etcd main-2: trusted CAs have changed; 1 0 1
    * delete peers CA cluster: refused by every member; 1 1 1
    done
    ");
}

#[test]
fn a_process_that_trusts_less_than_its_agent_says_is_detected() {
    let mut scene = Scene::settled(3);
    let before = scene.machine(2).process.trust.clone();
    ask(&mut scene, TrustDomain::Peers);
    waves(&mut scene, 6);
    let output = scene.machine(2).process.trust.clone();
    assert_ne!(output, before);
    scene.world.bundles.insert(output[&Purpose::Peer].clone(), scene.world.bundles[&before[&Purpose::Peer]].clone());
    assert_snapshot!(describe(&scene.plan()), @"
    waits: a certificate of the peers CA 2 → main-1: TLS handshake failed: bad certificate
    waits: a certificate of the peers CA 2 → main-2: TLS handshake failed: bad certificate
    waits: a certificate of the peers CA 2 → main-3: TLS handshake failed: bad certificate
    ");
}

#[test]
fn a_member_that_still_accepts_the_old_ca_is_named() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Peers);
    while trust(&mut scene, TrustDomain::Peers).retired.is_empty() {
        waves(&mut scene, 1);
    }
    waves(&mut scene, 5);
    let both: std::collections::BTreeSet<String> = ["peers-1".to_owned(), "peers-2".to_owned()].into();
    let digest = scene.machine(2).process.trust[&Purpose::Peer].clone();
    scene.world.bundles.insert(digest, both);
    assert_snapshot!(describe(&scene.plan()), @"
    blocked: main-1: still accepts certificates of the old peers CA 1
    blocked: main-2: still accepts certificates of the old peers CA 1
    blocked: main-3: still accepts certificates of the old peers CA 1
    ");
}

#[test]
fn a_certificate_of_an_unknown_ca_is_replaced() {
    let mut scene = Scene::settled(3);
    scene.machine(2).certificates.get_mut(&Purpose::Peer).expect("a certificate").issuer_key = "another".to_owned();
    assert_snapshot!(scene.to_the_end(), @"
    * sign peer cert main-2: signed by another authority; 1 1 1
    done
    ");
}

#[test]
fn members_change_while_the_clients_are_waited_for() {
    let mut scene = Scene::settled(3);
    ask(&mut scene, TrustDomain::Clients);
    scene.to_the_end();
    scene.desired = cluster(5, &[]);
    assert!(scene.to_the_end().ends_with("done\n"));
    let fourth = Name::parse("main-4").expect("a name");
    assert_eq!(scene.world.machines[&fourth].certificates[&Purpose::Server].issuer_key, "clients-1");
    scene.desired = cluster(3, &[]);
    trust(&mut scene, TrustDomain::Clients).finish = true;
    assert!(scene.to_the_end().ends_with("done\n"));
    assert!(!trust(&mut scene, TrustDomain::Clients).rotates());
}

#[test]
fn a_member_too_many_goes_before_the_authority_changes() {
    let mut scene = Scene::settled(5);
    ask(&mut scene, TrustDomain::Peers);
    scene.desired = cluster(3, &[]);
    assert!(scene.to_the_end().ends_with("done\n"));
    assert!(!trust(&mut scene, TrustDomain::Peers).rotates());
}

// ---- Agents.

fn shown(scene: &mut Scene, number: usize, hours: i64, issuer: &str) {
    let now = scene.world.now;
    let facts = raftsman_core::observed::CertificateFacts {
        fingerprint: String::new(),
        not_before: now,
        not_after: now + jiff::SignedDuration::from_hours(hours),
        names: Vec::new(),
        subject: String::new(),
        issuer_key: issuer.to_owned(),
        trust: None,
    };
    scene.machine(number).agent_certificate = Some(facts);
}

#[test]
fn agents_certificates_are_renewed_before_they_end() {
    let mut scene = Scene::settled(3);
    scene.desired.agents.signer = Some("fleet".to_owned());
    shown(&mut scene, 1, 300 * DAY, "fleet");
    shown(&mut scene, 2, 119 * DAY, "fleet");
    shown(&mut scene, 3, -DAY, "fleet");
    assert_snapshot!(scene.to_the_end(), @"
    * renew agent cert main-2: expires in 119 days; 1 1 1
      renew agent cert main-3: expired; 1 1 1
    done
    ");
    // The CA ends before a new one would: nothing is gained by another certificate.
    let end = scene.world.now + jiff::SignedDuration::from_hours(100 * DAY);
    scene.desired.agents.signer_until = Some(end);
    shown(&mut scene, 1, 100 * DAY, "fleet");
    assert!(scene.plan().steps.is_empty());
}

#[test]
fn agents_learn_of_a_ca_before_it_signs() {
    let mut scene = Scene::settled(3);
    (1..=3).for_each(|number| shown(&mut scene, number, 300 * DAY, "fleet"));
    scene.desired.agents.signer = Some("fleet-2".to_owned());
    scene.desired.agents.access = Some("both".to_owned());
    scene.machine(2).access = Some("both".to_owned());
    assert_snapshot!(scene.to_the_end(), @"
    * set agent access main-1 main-3: not there yet; 1 1 1
      renew agent cert main-2: signed by another authority; 1 1 1
    * renew agent cert main-1 main-3: signed by another authority; 1 1 1
    done
    ");
    // An unreachable agent does not hold up the others.
    scene.desired.agents.access = Some("only-fleet-2".to_owned());
    scene.hide(3, Hidden::Agent);
    let steps = scene.plan().steps;
    let output: Vec<&str> =
        steps.iter().filter(|it| it.action.verb() == "set agent access").map(|it| it.action.subject()).collect();
    assert_eq!(output, ["main-1", "main-2"]);
}
