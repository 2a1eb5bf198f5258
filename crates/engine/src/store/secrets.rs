//! An age identity → the secrets of the state, decrypted one by one.

use std::io::Read;
use std::iter;
use std::path::{Path, PathBuf};

use age::{DecryptError, Decryptor, Identity, Recipient, scrypt, x25519};
use secrecy::{ExposeSecret, SecretString};
use zeroize::{Zeroize, Zeroizing};

use super::{IDENTITY, IDENTITY_ENCRYPTED, Lock, Protection, SECRETS, StoreError, files, recipient};

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
    identity: x25519::Identity,
    recipient: x25519::Recipient,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secrets").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Secrets {
    pub(super) fn unlock(dir: &Path, source: IdentitySource) -> Result<Self, StoreError> {
        let (path, passphrase) = match source {
            IdentitySource::File(path, passphrase) => (path, passphrase),
            IdentitySource::State(passphrase) => {
                let kept = [IDENTITY, IDENTITY_ENCRYPTED].map(|file| dir.join(file)).into_iter().find(|p| p.exists());
                (kept.ok_or_else(|| StoreError::NoIdentity { dir: dir.to_owned() })?, passphrase)
            }
        };
        let identity = read_identity(&path, passphrase)?;
        let recipient = recipient(dir)?;
        let found = identity.to_public().to_string();
        if found != recipient.to_string() {
            return Err(StoreError::WrongIdentity { path, expected: recipient.to_string(), found });
        }
        Ok(Self { dir: dir.to_owned(), identity, recipient })
    }

    /// The secret of this name.
    pub fn get(&self, name: &str) -> Result<Option<SecretString>, StoreError> {
        let file = SECRETS.path(&self.dir, name)?;
        let Some(bytes) = files::read(&file)? else { return Ok(None) };
        let mut plain = match decrypt(&self.identity, &bytes) {
            Ok(plain) => plain,
            Err(source) => return Err(StoreError::Decrypt { file, source: source.into() }),
        };
        match std::str::from_utf8(&plain) {
            Ok(text) => {
                let secret = SecretString::from(text);
                plain.zeroize();
                Ok(Some(secret))
            }
            Err(_) => Err(StoreError::damaged(file, "the secret in it is not text")),
        }
    }

    /// Keeps a secret.
    pub fn put(&self, lock: &Lock, name: &str, secret: &SecretString) -> Result<(), StoreError> {
        lock.covers(&self.dir)?;
        put(&self.dir, &self.recipient, name, secret)
    }

    /// The secret of this name; where there is none, stores this one. Of several processes that do so at the same time
    /// one stores its secret, and all get the same.
    pub fn get_or_put(&self, lock: &Lock, name: &str, new: SecretString) -> Result<SecretString, StoreError> {
        lock.covers(&self.dir)?;
        if let Some(secret) = self.get(name)? {
            return Ok(secret);
        }
        let bytes = encrypt(&self.recipient, name, new.expose_secret().as_bytes())?;
        match files::write_new(&SECRETS.path(&self.dir, name)?, &bytes, SECRETS.mode)? {
            true => Ok(new),
            false => Ok(self.get(name)?.unwrap_or(new)),
        }
    }

    /// Deletes a secret; returns whether there was one.
    pub fn delete(&self, lock: &Lock, name: &str) -> Result<bool, StoreError> {
        lock.covers(&self.dir)?;
        files::remove_if_there(&SECRETS.path(&self.dir, name)?)
    }

    /// The names of all secrets, in order.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        SECRETS.names(&self.dir)
    }
}

pub(super) fn put(
    dir: &Path,
    recipient: &x25519::Recipient,
    name: &str,
    secret: &SecretString,
) -> Result<(), StoreError> {
    let bytes = encrypt(recipient, name, secret.expose_secret().as_bytes())?;
    SECRETS.write(dir, name, &bytes)
}

/// Makes an identity and writes it; returns its recipient.
pub(super) fn make_identity(dir: &Path, protection: Protection) -> Result<x25519::Recipient, StoreError> {
    let identity = x25519::Identity::generate();
    let public = identity.to_public();
    // The form that the age command reads and writes.
    let text = Zeroizing::new(format!("# public key: {public}\n{}\n", identity.to_string().expose_secret()));
    match protection {
        Protection::IdentityFile => files::write(&dir.join(IDENTITY), text.as_bytes(), files::PRIVATE)?,
        Protection::Passphrase(passphrase) => {
            let mut recipient = scrypt::Recipient::new(passphrase);
            recipient.set_work_factor(WORK);
            let bytes = encrypt(&recipient, "identity", text.as_bytes())?;
            files::write(&dir.join(IDENTITY_ENCRYPTED), &bytes, files::PRIVATE)?;
        }
    }
    Ok(public)
}

fn read_identity(path: &Path, passphrase: Option<SecretString>) -> Result<x25519::Identity, StoreError> {
    files::check_mode(path, 0o077)?;
    let bytes = files::read(path)?.ok_or_else(|| StoreError::IdentityMissing { path: path.to_owned() })?;
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
            source => StoreError::Decrypt { file: path.to_owned(), source: source.into() },
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
