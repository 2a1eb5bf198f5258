//! The CA of agents, the clients that they accept, and for how long: the same for every machine of a fleet.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

/// How long an agent's own certificate is valid. No operator has to renew it for eight months.
pub const AGENT_VALIDITY: SignedDuration = SignedDuration::from_hours(365 * 24);
/// It is renewed when this much is left.
pub const AGENT_RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(120 * 24);

/// What the state says of agents; nothing for a fleet whose CA is its first, and where nothing is revoked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Agents {
    /// Digest of the CAs that agents trust, and of the certificates that are revoked; none where what a machine was told
    /// at its first start still holds.
    pub access: Option<String>,
    /// The public key of the CA that signs for agents; any where it is not known.
    pub signer: Option<String>,
    /// When that CA ends.
    pub signer_until: Option<Timestamp>,
    /// The agent that this raftsman ships; none where it was not found, and agents are left as they are.
    pub shipped: Option<Shipped>,
}

/// The program of the agent that a raftsman ships.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shipped {
    /// Its version.
    pub version: AgentVersion,
    /// Hex SHA-256 of its bytes.
    pub digest: String,
    /// How many bytes it has.
    pub size: u64,
}

/// A version of raftsman and its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AgentVersion {
    major: u64,
    minor: u64,
    patch: u64,
}

impl AgentVersion {
    /// `1.2.3`; what follows a `-` or a `+` does not count.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.split(['-', '+']).next()?;
        let mut numbers = plain.split('.').map(str::parse::<u64>);
        let version = Self { major: numbers.next()?.ok()?, minor: numbers.next()?.ok()?, patch: numbers.next()?.ok()? };
        numbers.next().is_none().then_some(version)
    }
}

impl fmt::Display for AgentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Agents {
    /// How long a certificate is valid that is signed at this moment: no longer than its CA.
    pub fn renewed_until(&self, now: Timestamp) -> Timestamp {
        let until = now.checked_add(AGENT_VALIDITY).unwrap_or(Timestamp::MAX);
        self.signer_until.map_or(until, |end| end.min(until))
    }
}
