//! A newer agent, an earlier state, a newer state → what is refused, with which message, and that nothing is changed.
//!
//! A slice of `just skew`, which also has programs of the version before.

use raftsman_tests::lab::Lab;
use raftsman_tests::skew::{FORMAT, Outcome, Situation, VERBS, Version};

const WITH_NEWER_AGENT: &str = "its agent is of version";

/// Runs these verbs; each either works or is refused with this message.
#[track_caller]
fn all(situation: Situation, lab: &Lab, verbs: &[&str], refused: Option<&str>) {
    for name in verbs {
        let verb = VERBS.iter().find(|verb| verb.name == *name).expect("a verb");
        let outcome = situation.outcome(lab, verb);
        let expected = match (&outcome, refused) {
            (Outcome::Works(_), None) => true,
            (Outcome::Refused(said), Some(message)) => said.contains(message),
            (Outcome::Works(_) | Outcome::Refused(_) | Outcome::Unknown, _) => false,
        };
        assert!(expected, "{situation}: {name}: {outcome:?}");
    }
}

#[test]
fn a_newer_agent_is_refused_for_changes_and_nothing_is_recorded() {
    let situation = Situation { raftsman: Version::This, agent: Version::Next, state: Version::This };
    let lab = situation.make(1, None);
    let (ledger, etcds, agents) = (lab.ledger(), lab.etcds(), lab.agents());
    all(situation, &lab, &["plan", "status", "version", "logs", "env", "backup list", "backup now"], None);
    let changes = ["apply, nothing to do", "apply, a changed setting", "cert rotate", "restore"];
    all(situation, &lab, &changes, Some(WITH_NEWER_AGENT));
    all(situation, &lab, &["compact", "defrag"], Some("newer than this raftsman"));
    let replaced = lab.run(&["replace", "main-1", "--mark-only", "--yes"]).failed().all();
    assert!(replaced.contains(WITH_NEWER_AGENT) && replaced.contains("install raftsman"), "{replaced}");
    // What was refused must not be done later, by a raftsman that may.
    assert_eq!((lab.ledger(), lab.etcds(), lab.agents()), (ledger, etcds, agents));
    all(situation, &lab, &["destroy"], None);
}

#[test]
fn an_earlier_state_is_migrated_once_and_a_newer_one_is_refused() {
    let of = |state| Situation { raftsman: Version::This, agent: Version::This, state };
    let lab = of(Version::This).make(1, None);
    let format = || {
        let fleet = std::fs::read_to_string(lab.path().join(".raftsman/fleet.json")).expect("a state");
        serde_json::from_str::<serde_json::Value>(&fleet).expect("JSON")["format"]
            .as_u64()
            .and_then(|it| u32::try_from(it).ok())
    };
    all(of(Version::Before), &lab, &["plan", "status", "cert list"], None);
    assert_eq!(format(), Some(FORMAT - 1), "what only reads migrates nothing");
    all(of(Version::Before), &lab, &["compact"], None);
    assert_eq!(format(), Some(FORMAT));

    let etcds = lab.etcds();
    let verbs = ["plan", "status", "logs", "apply, nothing to do", "cert rotate", "restore", "replace", "destroy"];
    let refused = format!("has format {}, this raftsman knows formats up to {FORMAT}", FORMAT + 1);
    all(of(Version::Next), &lab, &verbs, Some(&refused));
    assert_eq!((format(), lab.etcds()), (Some(FORMAT + 1), etcds));
    all(of(Version::This), &lab, &["destroy"], None);
}
