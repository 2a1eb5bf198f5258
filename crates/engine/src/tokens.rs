//! A machine that is to join → its join token, kept in the state with its expiry.

use jiff::{SignedDuration, Timestamp};
use raftsman_api::claim::{self, JoinToken};
use raftsman_core::spec::Name;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use crate::store::{Lock, Secrets, StoreError};

/// How long a new machine may take to join, unless the operator sets another time.
pub const JOIN_WINDOW: SignedDuration = SignedDuration::from_hours(1);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It could not be made, or is damaged.
    #[error(transparent)]
    Claim(#[from] claim::ClaimError),
}

/// A join token of this state.
pub struct KeptToken {
    /// The token.
    pub token: JoinToken,
    /// A proof by this token is rejected after this moment. `None` for machines on this computer.
    pub until: Option<Timestamp>,
}

impl std::fmt::Debug for KeptToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptToken").field("until", &self.until).finish_non_exhaustive()
    }
}

/// As it is kept.
#[derive(Serialize, Deserialize)]
struct Record {
    token: String,
    until: Option<Timestamp>,
}

impl KeptToken {
    /// The token of this machine, valid or expired.
    pub async fn get(secrets: &Secrets, machine: &Name) -> Result<Option<Self>, TokenError> {
        secrets.get(&token_name(machine)).await?.map(|kept| Self::read(kept.expose_secret())).transpose()
    }

    /// A new token that replaces any earlier one: boot data with the earlier one is invalid from now on.
    pub async fn renew(
        secrets: &Secrets,
        lock: &Lock,
        machine: &Name,
        until: Option<Timestamp>,
    ) -> Result<Self, TokenError> {
        Self { token: JoinToken::generate()?, until }.put(secrets, lock, machine).await
    }

    /// The token of a machine that is being made: a killed run finds it again, because the machine may have it already;
    /// an expired one is replaced.
    pub async fn of_new_machine(
        secrets: &Secrets,
        lock: &Lock,
        machine: &Name,
        until: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Self, TokenError> {
        match Self::get(secrets, machine).await?.filter(|kept| kept.is_alive(now)) {
            Some(kept) => {
                // An operator may have set a later expiry.
                let later = until.map(|until| kept.until.map_or(until, |kept| kept.max(until)));
                match later == kept.until {
                    true => Ok(kept),
                    false => Self { until: later, ..kept }.put(secrets, lock, machine).await,
                }
            }
            None => Self::renew(secrets, lock, machine, until).await,
        }
    }

    /// Whether a proof by this token is accepted at this moment.
    pub fn is_alive(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now <= until)
    }

    async fn put(self, secrets: &Secrets, lock: &Lock, machine: &Name) -> Result<Self, TokenError> {
        secrets.put(lock, &token_name(machine), &self.text()).await?;
        Ok(self)
    }

    fn text(&self) -> SecretString {
        let until = self.until.map_or_else(|| "null".to_owned(), |until| format!("\"{until}\""));
        // Neither part needs escaping.
        SecretString::from(format!("{{\"token\":\"{}\",\"until\":{until}}}", self.token.to_hex()))
    }

    /// States of an earlier version had the token alone.
    fn read(text: &str) -> Result<Self, TokenError> {
        let (token, until) = match serde_json::from_str::<Record>(text) {
            Ok(Record { token, until }) => (JoinToken::from_hex(&token)?, until),
            Err(_) => (JoinToken::from_hex(text)?, None),
        };
        Ok(Self { token, until })
    }
}

/// The name under which the state keeps a machine's join token.
pub fn token_name(machine: &Name) -> String {
    format!("join-{machine}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{IdentitySource, LockInfo, Protection, Store};

    #[tokio::test]
    async fn tokens_end_and_are_never_given_out_twice() {
        let dir = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let store =
            Store::create(&dir.path().join("state"), "shop", None, Protection::IdentityFile, now).await.unwrap();
        let lock = store.lock(LockInfo::new("join", "alice", "desk")).await.unwrap();
        let secrets = store.unlock(IdentitySource::State(None)).await.unwrap();
        let db1 = Name::parse("db1").unwrap();
        let hex = |kept: &KeptToken| kept.token.to_hex();
        assert!(KeptToken::get(&secrets, &db1).await.unwrap().is_none());

        let until = now + JOIN_WINDOW;
        let first = KeptToken::renew(&secrets, &lock, &db1, Some(until)).await.unwrap();
        let kept = KeptToken::get(&secrets, &db1).await.unwrap().unwrap();
        assert_eq!((hex(&kept), kept.until), (hex(&first), Some(until)));
        assert!(kept.is_alive(until) && !kept.is_alive(until + SignedDuration::from_secs(1)));

        let second = KeptToken::renew(&secrets, &lock, &db1, Some(until)).await.unwrap();
        assert_ne!(hex(&first), hex(&second));

        // A killed run that makes the machine again finds the token that the machine may have.
        let later = until + JOIN_WINDOW;
        let again = KeptToken::of_new_machine(&secrets, &lock, &db1, Some(later), until).await.unwrap();
        assert_eq!((hex(&again), again.until), (hex(&second), Some(later)));
        let anew =
            KeptToken::of_new_machine(&secrets, &lock, &db1, None, later + SignedDuration::from_secs(1)).await.unwrap();
        assert_ne!(hex(&anew), hex(&second));
        assert!(KeptToken::get(&secrets, &db1).await.unwrap().unwrap().is_alive(Timestamp::MAX));
    }
}
