//! What is kept in the journal and in the state → read back, and written again as the same bytes.

#![allow(clippy::disallowed_methods, reason = "the rule is for core itself")]

use raftsman_core::action::Action;
use raftsman_core::ledger::Ledger;

/// Every action, as the journal and `plan --json` have them.
const ACTIONS: &str = include_str!("stored/actions.jsonl");

#[test]
fn every_action_is_read_back_and_written_as_it_was() {
    for line in ACTIONS.lines() {
        let action: Action = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(serde_json::to_string(&action).expect("JSON"), line);
        let value = serde_json::to_value(&action).expect("JSON");
        assert_eq!(serde_json::from_value::<Action>(value).expect("an action"), action, "{line}");
    }
}

/// Journals of earlier versions have other names.
#[test]
fn earlier_names_of_actions_are_read() {
    for (earlier, now) in [
        ("next_authority", "add_authority"),
        ("switch_authority", "activate_authority"),
        ("retire_authority", "distrust_authority"),
        ("forget_authority", "delete_authority"),
    ] {
        let line = ACTIONS.lines().find(|line| line.contains(now)).expect("such an action");
        let read: Action = serde_json::from_str(&line.replace(now, earlier)).expect("it is read");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), line);
    }
}

#[test]
fn what_is_no_action_is_refused() {
    for text in [
        r#"{"do":"fly"}"#,
        r#"{"do":"enroll"}"#,
        r#"{"do":"enroll","machine":"no name!"}"#,
        r#"{"machine":"main-1"}"#,
        r#"{"do":"start_etcd","machine":"main-1","version":"3.6.15","data":"full"}"#,
        r#""enroll""#,
        "{}",
        "null",
    ] {
        assert!(serde_json::from_str::<Action>(text).is_err(), "{text}");
    }
    // A field of a later version is ignored.
    assert!(serde_json::from_str::<Action>(r#"{"do":"enroll","machine":"main-1","zone":"a"}"#).is_ok());
    assert!(serde_json::from_str::<Action>(r#"{"do":"measure","deep":true}"#).is_ok());
}

/// A ledger of each kind, as the state keeps them.
const LEDGERS: &str = include_str!("stored/ledgers.jsonl");

#[test]
fn every_ledger_is_read_back_and_written_as_it_was() {
    for line in LEDGERS.lines() {
        let ledger: Ledger = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(serde_json::to_string(&ledger).expect("JSON"), line);
        let value = serde_json::to_value(&ledger).expect("JSON");
        assert_eq!(serde_json::from_value::<Ledger>(value).expect("a ledger"), ledger, "{line}");
    }
    // Of an older version, or of a later one.
    assert_eq!(serde_json::from_str::<Ledger>("{}").expect("a ledger"), Ledger::default());
    assert_eq!(serde_json::from_str::<Ledger>(r#"{"zones":{}}"#).expect("a ledger"), Ledger::default());
}
