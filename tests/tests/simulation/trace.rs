//! Seeded worlds → a digest of every plan, verdict, note and effect in them: of two commits that decide alike, the same.
//!
//! `cargo nextest run --workspace -E 'test(trace::)' --run-ignored only --no-capture` prints it; compare the line of two
//! commits after code was moved. `RAFTSMAN_SIM_PLANS` says how many plans.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use jiff::Timestamp;
use raftsman_core::action::Action;
use raftsman_core::desired::Stack;
use raftsman_core::model::World;
use raftsman_core::observed::{Ledger, Observed};
use raftsman_core::plan::{Plan, deletion, plan, safety};
use raftsman_tests::sim::{Cast, lives};
use serde_json::{Value, json};

static SUM: AtomicU64 = AtomicU64::new(0);
static PLANS: AtomicUsize = AtomicUsize::new(0);

/// Of so many plans one is looked at closely.
const CLOSELY: usize = 16;

const ACTIONS: &str = include_str!("../../../crates/core/tests/stored/actions.jsonl");

/// Every action, about a machine and a member of this world.
fn actions(desired: &Stack, observed: &Observed, turn: usize) -> Vec<Action> {
    let names: Vec<_> = observed.machines.keys().collect();
    let machine = names.get(turn % names.len().max(1)).map_or("main-1", |name| name.as_str());
    let etcd = observed.answers().next().map(|(_, etcd)| etcd);
    let list = etcd.map(|etcd| etcd.members.as_slice()).unwrap_or_default();
    let member = list.get(turn % list.len().max(1)).map_or("8e9e05c52164694d".to_owned(), |m| m.id.to_string());
    let cluster = etcd.map_or("c0ffee".to_owned(), |etcd| etcd.cluster.to_string());
    let text = ACTIONS
        .replace("main-1", machine)
        .replace("8e9e05c52164694d", &member)
        .replace("c0ffee", &cluster)
        .replace("3.6.15", &desired.etcd.version.to_string());
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// The same world, were it adopted, recovered or restored.
fn modes(observed: &Observed) -> Vec<Observed> {
    let ledger = serde_json::to_value(&observed.ledger).expect("JSON");
    let names: Vec<_> = observed.machines.keys().collect();
    let members: Value = serde_json::to_value(&observed.ledger.etcd.members).expect("JSON");
    let cluster = observed.ledger.etcd.cluster.map_or("c0ffee".to_owned(), |id| id.to_string());
    let (survivor, since) = (names.first(), "2026-01-01T00:00:00Z");
    let recovery = |alone, settled, member: Option<&str>| {
        json!({"recovery": {
            "survivor": survivor, "of": cluster, "since": since, "alone": alone, "settled": settled, "member": member,
        }})
    };
    let restoration = |agreed| {
        json!({"restoration": {
            "backup": "20260101T000000Z-0000000000000000007", "revision": 7, "keys": 3, "since": since, "old": [cluster],
            "members": members, "version": "3.6.15", "source": {"file": "a.db"}, "sha256": "00", "bump": 1000,
            "agreed": agreed,
        }})
    };
    let variants = [
        json!({}),
        json!({"adopted": {"clients": {}}}),
        recovery(false, false, None),
        recovery(true, true, Some("8e9e05c52164694d")),
        restoration(false),
        restoration(true),
    ];
    let with = |more: Value| {
        let mut ledger = ledger.clone();
        for (key, value) in more.as_object().into_iter().flatten() {
            ledger[key] = value.clone();
        }
        let ledger: Ledger = serde_json::from_value(ledger).expect("a ledger");
        Observed { ledger, ..observed.clone() }
    };
    variants.into_iter().map(with).collect()
}

fn closely(desired: &Stack, observed: &Observed, now: Timestamp, turn: usize) -> String {
    let mut text = String::new();
    let ledger = |ledger: &Ledger| serde_json::to_string(ledger).expect("JSON");
    for observed in modes(observed) {
        let whole = plan(desired, &observed, now);
        writeln!(text, "{}", serde_json::to_string(&whole).expect("JSON")).expect("text");
        let mut learned = observed.ledger.clone();
        learned.learn(desired, &observed, now);
        writeln!(text, "{}", ledger(&learned)).expect("text");
        for action in actions(desired, &observed, turn) {
            let verdict = safety::judge(desired, &observed, &[&action], &action);
            let mut noted = observed.ledger.clone();
            noted.ahead(desired, &observed, &action, now);
            let ahead = ledger(&noted);
            noted.after(desired, &action, now);
            let mut world = World::from_observed(desired, &observed, now);
            let done = world.act(desired, &action, 0);
            let seen = serde_json::to_string(&world.observe(desired)).expect("JSON");
            let (class, gone, up) = (action.class(), deletion(&action), action.brings_up());
            writeln!(text, "{} {verdict:?} {class:?} {gone:?} {up:?}", action.describe()).expect("text");
            writeln!(text, "{ahead} {} {done:?} {seen}", ledger(&noted)).expect("text");
        }
    }
    text
}

fn traced(desired: &Stack, observed: &Observed, now: Timestamp) -> Plan {
    let plan = plan(desired, observed, now);
    let turn = PLANS.fetch_add(1, Ordering::Relaxed);
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(&plan).expect("JSON").hash(&mut hasher);
    if turn.is_multiple_of(CLOSELY) {
        closely(desired, observed, now, turn / CLOSELY).hash(&mut hasher);
    }
    SUM.fetch_add(hasher.finish(), Ordering::Relaxed);
    plan
}

#[test]
#[ignore = "prints a digest, for two commits to be compared by"]
fn digest_of_all_decisions() {
    let wanted = std::env::var("RAFTSMAN_SIM_PLANS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000_usize);
    let casts = [
        Cast::new(),
        Cast::with_rotations(),
        Cast::with_users(),
        Cast::with_access(),
        Cast::with_shapes(),
        Cast::versions(),
        Cast::with_maintenance(),
    ];
    let mut seed = 0;
    while PLANS.load(Ordering::Relaxed) < wanted {
        for cast in &casts {
            lives(seed..seed + 1, cast, traced).unwrap_or_else(|v| panic!("{v}"));
        }
        seed += 1;
    }
    println!("{} plans: {:016x}", PLANS.load(Ordering::Relaxed), SUM.load(Ordering::Relaxed));
}
