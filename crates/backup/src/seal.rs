//! The bytes of a thing ↔ those of its object: compressed, then encrypted, where that is asked for.

use std::fmt;
use std::io::{self, Read, Write};

use age::x25519;
use aws_lc_rs::digest::{Context, SHA256};
use raftsman_api::hex;
use raftsman_core::backup::{Coding, Stored};

/// The fastest of zstd's ordinary levels: a backup must keep up with the network, on a machine that also runs etcd.
const LEVEL: i32 = 1;
/// What is read at once.
const BUFFER: usize = 128 << 10;

/// Why an object could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// There is no recipient to encrypt to.
    #[error("it cannot be encrypted: {0}")]
    Encrypt(#[from] age::EncryptError),
    /// None of the keys opens it, or it was changed.
    #[error("it cannot be decrypted: {0}")]
    Decrypt(#[from] age::DecryptError),
    /// It is encrypted, and there is no key.
    #[error("it is encrypted: name a file with the age identity that opens it")]
    NoKey,
    /// More comes out of it than its manifest says.
    #[error("more than {most} bytes come out of it, which is what its manifest says")]
    TooLarge {
        /// So many are in it.
        most: u64,
    },
    /// More comes than one object.
    #[error("there are bytes behind its end")]
    Trailing,
    /// Reading, writing, or what was read.
    #[error("{0}")]
    Stream(#[from] io::Error),
}

/// How objects are made.
#[derive(Clone, Default)]
pub struct Seals {
    /// Compressed with zstd.
    pub zstd: bool,
    /// Encrypted so that each of these can open it; not at all when there are none.
    pub recipients: Vec<x25519::Recipient>,
}

impl fmt::Debug for Seals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seals").field("zstd", &self.zstd).field("recipients", &self.recipients.len()).finish()
    }
}

impl Seals {
    /// What it makes of objects.
    pub fn coding(&self) -> Coding {
        Coding { zstd: self.zstd, age: !self.recipients.is_empty() }
    }
}

/// What opens objects that are encrypted.
#[derive(Clone, Default)]
pub struct Keys(pub Vec<x25519::Identity>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// Makes an object of a thing. Returns the object's size and hash.
pub fn seal<W: Write>(mut thing: impl Read, object: &mut W, seals: &Seals) -> Result<Stored, SealError> {
    let tally = Hashing::new(object);
    let tally = match seals.recipients.is_empty() {
        true => compress(&mut thing, tally, seals.zstd)?,
        false => {
            let recipients = seals.recipients.iter().map(|recipient| recipient as &dyn age::Recipient);
            let encrypting = age::Encryptor::with_recipients(recipients)?.wrap_output(tally)?;
            compress(&mut thing, encrypting, seals.zstd)?.finish()?
        }
    };
    Ok(tally.stored())
}

fn compress<W: Write>(thing: &mut impl Read, mut to: W, zstd: bool) -> io::Result<W> {
    match zstd {
        false => copy(thing, &mut to)?,
        true => {
            let mut encoder = zstd::Encoder::new(to, LEVEL)?;
            encoder.include_checksum(true)?;
            copy(thing, &mut encoder)?;
            to = encoder.finish()?;
        }
    }
    Ok(to)
}

/// Takes a thing out of its object. Returns size and hash of the object, which is read to its end. It fails when more
/// than `most` bytes come out: a few thousand bytes of zstd can become as many gigabytes.
pub fn open(
    object: impl Read,
    thing: &mut impl Write,
    coding: Coding,
    keys: &Keys,
    most: u64,
) -> Result<Stored, SealError> {
    let mut tally = Hashing::new(object);
    let thing = &mut Limited { inner: thing, left: most };
    let opened = opened(&mut tally, thing, coding, keys);
    match opened {
        Err(SealError::Stream(error)) if error.kind() == io::ErrorKind::FileTooLarge => {
            return Err(SealError::TooLarge { most });
        }
        opened => opened?,
    }
    match tally.read(&mut [0])? {
        0 => Ok(tally.stored()),
        _ => Err(SealError::Trailing),
    }
}

fn opened<R: Read>(
    tally: &mut Hashing<R>,
    thing: &mut impl Write,
    coding: Coding,
    keys: &Keys,
) -> Result<(), SealError> {
    match coding.age {
        false => expand(tally, thing, coding.zstd)?,
        true if keys.0.is_empty() => return Err(SealError::NoKey),
        true => {
            let identities = keys.0.iter().map(|identity| identity as &dyn age::Identity);
            let mut plain = age::Decryptor::new(tally)?.decrypt(identities)?;
            expand(&mut plain, thing, coding.zstd)?;
        }
    }
    Ok(())
}

/// Takes so many bytes, and no more.
struct Limited<'a, W> {
    inner: &'a mut W,
    left: u64,
}

impl<W: Write> Write for Limited<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let many = self.inner.write(bytes)?;
        self.left -= many as u64;
        Ok(many)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn expand(from: &mut impl Read, thing: &mut impl Write, zstd: bool) -> Result<(), SealError> {
    match zstd {
        false => Ok(copy(from, thing)?),
        true => {
            let mut decoder = zstd::Decoder::new(from)?.single_frame();
            copy(&mut decoder, thing)?;
            let mut rest = decoder.finish();
            match rest.read(&mut [0])? {
                0 => Ok(()),
                _ => Err(SealError::Trailing),
            }
        }
    }
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(many) => to.write_all(&buffer[..many])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Counts and hashes what passes.
pub struct Hashing<T> {
    inner: T,
    context: Context,
    bytes: u64,
}

impl<T> Hashing<T> {
    /// Of what is read from or written to this.
    pub fn new(inner: T) -> Self {
        Self { inner, context: Context::new(&SHA256), bytes: 0 }
    }

    /// What has passed.
    pub fn stored(self) -> Stored {
        Stored { bytes: self.bytes, sha256: hex::encode(self.context.finish().as_ref()) }
    }

    /// This has passed.
    pub fn add(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
        self.bytes += bytes.len() as u64;
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let many = self.inner.read(buffer)?;
        self.add(&buffer[..many]);
        Ok(many)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let many = self.inner.write(bytes)?;
        self.add(&bytes[..many]);
        Ok(many)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thing() -> Vec<u8> {
        (0..300_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect()
    }

    fn codings(recipient: &x25519::Recipient) -> Vec<Seals> {
        let some = vec![recipient.clone()];
        [(false, vec![]), (true, vec![]), (false, some.clone()), (true, some)]
            .map(|(zstd, recipients)| Seals { zstd, recipients })
            .to_vec()
    }

    #[test]
    fn sealed_bytes_open_unchanged() {
        let identity = x25519::Identity::generate();
        let keys = Keys(vec![x25519::Identity::generate(), identity.clone()]);
        for seals in codings(&identity.to_public()) {
            let mut object = Vec::new();
            let sealed = seal(thing().as_slice(), &mut object, &seals).unwrap();
            assert_eq!(sealed, Stored { bytes: object.len() as u64, sha256: hex::sha256(&object) });
            assert!(!seals.zstd || object.len() < thing().len() / 2);
            let mut out = Vec::new();
            let most = thing().len() as u64;
            assert_eq!(open(object.as_slice(), &mut out, seals.coding(), &keys, most).unwrap(), sealed);
            assert!(out == thing());
            let refused = open(object.as_slice(), &mut Vec::new(), seals.coding(), &keys, most - 1);
            assert!(matches!(refused, Err(SealError::TooLarge { .. })), "{refused:?}");
        }
    }

    #[test]
    fn what_is_not_whole_is_never_taken_for_it() {
        let identity = x25519::Identity::generate();
        let keys = Keys(vec![identity.clone()]);
        for seals in codings(&identity.to_public()) {
            let mut object = Vec::new();
            let sealed = seal(thing().as_slice(), &mut object, &seals).unwrap();
            // Without a coding only the hash shows it, and the caller compares it.
            let passes = |object: &[u8]| {
                let mut out = Vec::new();
                matches!(open(object, &mut out, seals.coding(), &keys, u64::MAX), Ok(stored) if stored == sealed && out == thing())
            };
            assert!(passes(&object));
            for at in (0..object.len()).step_by(object.len() / 50) {
                let mut other = object.clone();
                other[at] ^= 1 << (at % 8);
                assert!(!passes(&other), "a bit at {at}");
                assert!(!passes(&object[..at]), "cut at {at}");
            }
            assert!(!passes(&[object.as_slice(), b"more"].concat()), "something behind it");
            assert!(!passes(&[object.as_slice(), object.as_slice()].concat()), "twice");
        }
    }

    /// A gigabyte of zeros in a few kilobytes: the output ends where the manifest says.
    #[test]
    fn what_expands_without_end_is_ended() {
        struct Nothing(u64);
        impl Read for Nothing {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let many = self.0.min(buffer.len() as u64);
                self.0 -= many;
                buffer[..usize::try_from(many).unwrap()].fill(0);
                Ok(usize::try_from(many).unwrap())
            }
        }
        let seals = Seals { zstd: true, recipients: Vec::new() };
        let mut bomb = Vec::new();
        seal(Nothing(1 << 30), &mut bomb, &seals).unwrap();
        assert!(bomb.len() < 1 << 20);
        let mut out = Vec::new();
        let refused = open(bomb.as_slice(), &mut out, seals.coding(), &Keys::default(), 1 << 20);
        assert!(matches!(refused, Err(SealError::TooLarge { most: 1_048_576 })), "{refused:?}");
        assert!(out.len() <= 1 << 20, "{}", out.len());
    }

    #[test]
    fn the_wrong_key_opens_nothing() {
        let seals = Seals { zstd: true, recipients: vec![x25519::Identity::generate().to_public()] };
        let mut object = Vec::new();
        seal(thing().as_slice(), &mut object, &seals).unwrap();
        let other = Keys(vec![x25519::Identity::generate()]);
        let refused = open(object.as_slice(), &mut Vec::new(), seals.coding(), &other, u64::MAX);
        assert!(matches!(refused, Err(SealError::Decrypt(_))), "{refused:?}");
        let refused = open(object.as_slice(), &mut Vec::new(), seals.coding(), &Keys::default(), u64::MAX);
        assert!(matches!(refused, Err(SealError::NoKey)), "{refused:?}");
    }
}
