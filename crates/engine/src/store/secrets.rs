//! An age identity → the secrets of the state, decrypted one by one.

use std::io::Read;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use age::{DecryptError, Decryptor, Identity, Recipient, scrypt, x25519};
use secrecy::{ExposeSecret, SecretString};
use zeroize::{Zeroize, Zeroizing};

use super::directory::{IDENTITY, IDENTITY_ENCRYPTED, check_mode, read};
use super::state::{Before, Key, KeyKind, KeyName, State};
use super::{Lock, Protection, StoreError};

/// The default of the age command: about a second per unlock.
const WORK: u8 = 18;

/// A larger work factor would exhaust the CPU of the process that opens the file: an attack or a mistake.
const MOST_WORK: u8 = 22;

/// Where the identity comes from.
#[derive(Debug)]
pub enum IdentitySource {
    /// From the state, with the passphrase if it is protected by one.
    State(Option<SecretString>),
    /// From this file, with the passphrase if it is protected by one.
    File(PathBuf, Option<SecretString>),
}

/// The secrets of the state, unlocked. The identity is in memory only.
pub struct Secrets {
    dir: PathBuf,
    state: Arc<dyn State>,
    identity: x25519::Identity,
    recipient: x25519::Recipient,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Secrets {
    pub(super) async fn unlock(dir: &Path, state: &Arc<dyn State>, source: IdentitySource) -> Result<Self, StoreError> {
        let (path, passphrase) = match source {
            IdentitySource::File(path, passphrase) => (path, passphrase),
            IdentitySource::State(passphrase) => {
                let kept = [IDENTITY, IDENTITY_ENCRYPTED].map(|file| dir.join(file)).into_iter().find(|p| p.exists());
                (kept.ok_or_else(|| StoreError::NoIdentity { dir: dir.to_owned() })?, passphrase)
            }
        };
        let identity = read_identity(&path, passphrase)?;
        let recipient = recipient(&**state).await?;
        let found = identity.to_public().to_string();
        if found != recipient.to_string() {
            return Err(StoreError::WrongIdentity { path, expected: recipient.to_string(), found });
        }
        Ok(Self { dir: dir.to_owned(), state: Arc::clone(state), identity, recipient })
    }

    /// The secret of this name.
    pub async fn get(&self, name: &str) -> Result<Option<SecretString>, StoreError> {
        let key = key(name)?;
        let Some(stored) = self.state.get(&key).await? else { return Ok(None) };
        let mut plain = match decrypt(&self.identity, &stored.value) {
            Ok(plain) => plain,
            Err(source) => return Err(StoreError::Decrypt { place: self.state.place(&key), source: source.into() }),
        };
        match std::str::from_utf8(&plain) {
            Ok(text) => {
                let secret = SecretString::from(text);
                plain.zeroize();
                Ok(Some(secret))
            }
            Err(_) => Err(StoreError::damaged(self.state.place(&key), "the secret in it is not text")),
        }
    }

    /// Keeps a secret.
    pub async fn put(&self, lock: &Lock, name: &str, secret: &SecretString) -> Result<(), StoreError> {
        put(&self.dir, &self.recipient, lock, name, secret).await
    }

    /// The secret of this name; where there is none, stores this one. Of several processes that do so at the same time
    /// one stores its secret, and all get the same.
    pub async fn get_or_put(&self, lock: &Lock, name: &str, new: SecretString) -> Result<SecretString, StoreError> {
        let key = key(name)?;
        lock.covers_key(&self.dir, &key)?;
        if let Some(secret) = self.get(name).await? {
            return Ok(secret);
        }
        let bytes = encrypt(&self.recipient, name, new.expose_secret().as_bytes())?;
        match lock.put(&self.dir, &key, &bytes, &Before::Nothing).await {
            Ok(_) => Ok(new),
            Err(StoreError::Changed { .. }) => Ok(self.get(name).await?.unwrap_or(new)),
            Err(error) => Err(error),
        }
    }

    /// Deletes a secret; returns whether there was one.
    pub async fn delete(&self, lock: &Lock, name: &str) -> Result<bool, StoreError> {
        lock.delete(&self.dir, &key(name)?).await
    }

    /// The names of all secrets, in order.
    pub async fn names(&self) -> Result<Vec<String>, StoreError> {
        let name = |key: Key| match key {
            Key::Secret(name) => Some(name.to_string()),
            Key::Fleet | Key::Recipient | Key::Certificate(_) | Key::Ledger(_) | Key::History(..) => None,
        };
        Ok(self.state.list(&KeyKind::Secrets).await?.into_iter().filter_map(name).collect())
    }
}

fn key(name: &str) -> Result<Key, StoreError> {
    Ok(Key::Secret(KeyName::parse(name)?))
}

/// Seals a secret and writes it.
pub(super) async fn put(
    dir: &Path,
    recipient: &x25519::Recipient,
    lock: &Lock,
    name: &str,
    secret: &SecretString,
) -> Result<(), StoreError> {
    let bytes = encrypt(recipient, name, secret.expose_secret().as_bytes())?;
    lock.put(dir, &key(name)?, &bytes, &Before::Any).await.map(drop)
}

/// The public key that secrets are sealed for.
pub(super) async fn recipient(state: &dyn State) -> Result<x25519::Recipient, StoreError> {
    let place = || state.place(&Key::Recipient);
    let Some(stored) = state.get(&Key::Recipient).await? else {
        return Err(StoreError::damaged(place(), "it is missing"));
    };
    std::str::from_utf8(&stored.value)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| StoreError::damaged(place(), "it is not an age recipient (age1…)"))
}

/// A new identity, as the file that holds it.
pub(super) struct NewIdentity {
    pub(super) recipient: x25519::Recipient,
    pub(super) text: Zeroizing<Vec<u8>>,
    /// Whether a passphrase protects the text.
    pub(super) encrypted: bool,
}

/// Makes an identity.
pub(super) fn make_identity(protection: Protection) -> Result<NewIdentity, StoreError> {
    let identity = x25519::Identity::generate();
    let recipient = identity.to_public();
    // The form that the age command reads and writes.
    let text = format!("# public key: {recipient}\n{}\n", identity.to_string().expose_secret());
    let text = Zeroizing::new(text.into_bytes());
    match protection {
        Protection::IdentityFile => Ok(NewIdentity { recipient, text, encrypted: false }),
        Protection::Passphrase(passphrase) => {
            let mut by_passphrase = scrypt::Recipient::new(passphrase);
            by_passphrase.set_work_factor(WORK);
            let text = Zeroizing::new(encrypt(&by_passphrase, "identity", &text)?);
            Ok(NewIdentity { recipient, text, encrypted: true })
        }
    }
}

fn read_identity(path: &Path, passphrase: Option<SecretString>) -> Result<x25519::Identity, StoreError> {
    check_mode(path, 0o077)?;
    let bytes = read(path)?.ok_or_else(|| StoreError::IdentityMissing { path: path.to_owned() })?;
    let mut text = Zeroizing::new(bytes);
    if text.starts_with(b"age-encryption.org/") {
        let Some(passphrase) = passphrase else {
            return Err(StoreError::PassphraseNeeded { path: path.to_owned() });
        };
        let mut key = scrypt::Identity::new(passphrase);
        key.set_max_work_factor(MOST_WORK);
        text = decrypt(&key, &text).map_err(|source| match source {
            DecryptError::DecryptionFailed | DecryptError::KeyDecryptionFailed => {
                StoreError::WrongPassphrase { path: path.to_owned() }
            }
            source => StoreError::Decrypt { place: path.into(), source: source.into() },
        })?;
    }
    std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.lines().map(str::trim).find(|line| line.starts_with("AGE-SECRET-KEY-1")))
        .and_then(|line| line.parse().ok())
        .ok_or_else(|| StoreError::IdentityUnreadable { path: path.to_owned() })
}

fn encrypt(recipient: &impl Recipient, name: &str, plain: &[u8]) -> Result<Vec<u8>, StoreError> {
    age::encrypt(recipient, plain)
        .map_err(|source| StoreError::Encrypt { name: name.to_owned(), source: source.into() })
}

fn decrypt(identity: &dyn Identity, bytes: &[u8]) -> Result<Zeroizing<Vec<u8>>, DecryptError> {
    // Full capacity at once: a buffer that grows leaves copies in memory that are not wiped.
    let mut plain = Zeroizing::new(Vec::with_capacity(bytes.len()));
    Decryptor::new_buffered(bytes)?.decrypt(iter::once(identity))?.read_to_end(&mut plain)?;
    Ok(plain)
}
