//! A password → what PostgreSQL checks it by (SCRAM-SHA-256), and whether that is of this password.
//!
//! PostgreSQL is given no password in the clear: neither its log nor an agent sees one.

use std::borrow::Cow;
use std::num::NonZeroU32;

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::{constant_time, digest, hmac, pbkdf2, rand};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use secrecy::{ExposeSecret as _, SecretString};
use zeroize::Zeroizing;

/// PostgreSQL's own default.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(4096).expect("not zero");
/// More would keep this computer busy for seconds.
const MOST_ITERATIONS: u32 = 1_000_000;
const KEY: usize = 32;

/// What PostgreSQL keeps of this password, with a new salt.
pub(crate) fn verifier(password: &SecretString) -> Result<String, Unspecified> {
    let mut salt = [0; 16];
    rand::fill(&mut salt)?;
    let (stored, server) = keys(password, ITERATIONS, &salt);
    let [salt, stored, server] = [&salt[..], &stored, &server].map(|bytes| STANDARD.encode(bytes));
    Ok(format!("SCRAM-SHA-256${ITERATIONS}:{salt}${stored}:{server}"))
}

/// Whether PostgreSQL, which keeps this, lets a client in with this password.
pub(crate) fn is_of(verifier: &str, password: &SecretString) -> bool {
    let parts = || {
        let (iterations, rest) = verifier.strip_prefix("SCRAM-SHA-256$")?.split_once(':')?;
        let (salt, rest) = rest.split_once('$')?;
        let (stored, server) = rest.split_once(':')?;
        let iterations = iterations.parse::<u32>().ok().filter(|count| *count <= MOST_ITERATIONS)?;
        let [salt, stored, server] = [salt, stored, server].map(|text| STANDARD.decode(text).ok());
        Some((NonZeroU32::new(iterations)?, salt?, stored?, server?))
    };
    let Some((iterations, salt, stored, server)) = parts() else { return false };
    let (own_stored, own_server) = keys(password, iterations, &salt);
    let same = |a: &[u8], b: &[u8]| constant_time::verify_slices_are_equal(a, b).is_ok();
    same(&stored, &own_stored) && same(&server, &own_server)
}

/// The two keys of RFC 5802 that a server keeps.
fn keys(password: &SecretString, iterations: NonZeroU32, salt: &[u8]) -> ([u8; KEY], [u8; KEY]) {
    // As PostgreSQL does: what cannot be prepared is taken as it is.
    let prepared = stringprep::saslprep(password.expose_secret()).unwrap_or(Cow::Borrowed(password.expose_secret()));
    let mut salted = Zeroizing::new([0; KEY]);
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, prepared.as_bytes(), salted.as_mut_slice());
    let keyed = |text: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, salted.as_slice()), text);
    let bytes = |from: &[u8]| {
        let mut key = [0; KEY];
        key.copy_from_slice(from);
        key
    };
    let stored = digest::digest(&digest::SHA256, keyed(b"Client Key").as_ref());
    (bytes(stored.as_ref()), bytes(keyed(b"Server Key").as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by PostgreSQL 15.
    const PENCIL: &str = "SCRAM-SHA-256$4096:l85+MCZxE/LofkQy3592ag==$q0eZgpP4ttwWVtQUHApyB+XICM/BMf3RsY6k7AdbQic=:\
                          PLsgJ1NApKzbaPuZqUqgs3WNBgPfVykSSE3ELaaaCao=";
    const PREPARED: &str = "SCRAM-SHA-256$4096:M6M7Iu2KRXCEVeVMwqC4UQ==$WqwroBQQtr7fzxbK6XFwL8un2sK5Vs8N4QT0WdpaDxc=:\
                            8vy1Q33EbnLfAI/gFDPbceGVk82FJYJTvt2UCoIaCL0=";

    fn word(text: &str) -> SecretString {
        SecretString::from(text.to_owned())
    }

    #[test]
    fn what_postgresql_keeps_is_understood() {
        assert!(is_of(PENCIL, &word("pencil")));
        assert!(!is_of(PENCIL, &word("Pencil")));
        // The raised zero is a zero for it.
        assert!(is_of(PREPARED, &word("gräß ⁰")) && is_of(PREPARED, &word("gräß 0")));
    }

    #[test]
    fn what_is_made_is_of_its_password_alone() {
        let made = verifier(&word("pencil")).unwrap();
        assert!(is_of(&made, &word("pencil")) && !is_of(&made, &word("pen")));
        assert_ne!(made, verifier(&word("pencil")).unwrap());
    }

    #[test]
    fn anything_else_is_of_no_password() {
        for other in ["", "md5a3556571e93b0d20722ba62be61e8c2d", "SCRAM-SHA-256$0:AA==$AA==:AA==", "SCRAM-SHA-256$9"] {
            assert!(!is_of(other, &word("pencil")), "{other}");
        }
        let endless = PENCIL.replace("$4096:", "$4000000000:");
        assert!(!is_of(&endless, &word("pencil")));
    }
}
