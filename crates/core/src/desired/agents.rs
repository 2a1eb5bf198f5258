//! Who signs for agents, whom they accept, and for how long: the same for every machine of a fleet.

use jiff::{SignedDuration, Timestamp};

/// How long an agent's own certificate is valid. Nobody need be there to renew it for eight months.
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
}

impl Agents {
    /// How long a certificate is valid that is signed at this moment: no longer than its CA.
    pub fn renewed_until(&self, now: Timestamp) -> Timestamp {
        let until = now.checked_add(AGENT_VALIDITY).unwrap_or(Timestamp::MAX);
        self.signer_until.map_or(until, |end| end.min(until))
    }
}
