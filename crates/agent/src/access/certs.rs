//! a new key → a signing request → its certificate, swapped in together with the key.
//!
//! One directory per purpose: `gen-N.new/tls.key` waits for its certificate, `gen-N/{tls.key,tls.crt,ca.crt}` is
//! complete, and the link `current` names the generation in use. Moving the link changes key and certificate in one
//! step.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use raftsman_api::hex;
use raftsman_api::tls::{self, Identity, TlsError};
use raftsman_api::v1;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls_pki_types::CertificateDer;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::files::{self, FileError};

/// Generations that are kept: the one in use and the one before.
const KEPT: u64 = 2;

/// Why a certificate was not made, stored or read.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// What was sent is not usable.
    #[error("the certificates that were sent cannot be used")]
    Sent(#[source] TlsError),
    /// What is stored is not usable.
    #[error("the certificate in {} cannot be used: request a new one", dir.display())]
    Stored {
        /// Where.
        dir: PathBuf,
        /// Why.
        #[source]
        source: TlsError,
    },
    /// Bytes that are no certificate.
    #[error("the leaf certificate cannot be parsed")]
    Malformed,
    /// A certificate for some other key.
    #[error("the certificate is not for the key that this machine made last: request a certificate and sign that")]
    OtherKey,
    /// No key waits for a certificate.
    #[error("no key waits for this certificate: request one first")]
    NothingPending,
    /// There is no certificate to go with the trust.
    #[error("there is no certificate yet that this trust could go with: request and store one first")]
    NothingStored,
    /// etcd needs a trust bundle.
    #[error("the trust bundle is missing: send the CA certificates that the other side is checked against")]
    NoTrust,
    /// The key could not be made or read.
    #[error("the key could not be made or read")]
    Key(#[source] rcgen::Error),
}

/// Keys and certificates for one purpose.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    key_mode: u32,
}

impl Store {
    /// The store in this directory.
    pub fn new(dir: PathBuf) -> Self {
        Self { dir, key_mode: files::FOR_PROGRAM }
    }

    /// The same, with keys that only their owner may read.
    #[must_use]
    pub fn private(self) -> Self {
        Self { key_mode: 0o600, ..self }
    }

    /// The directory in use; `None` when nothing was stored yet.
    pub fn current_dir(&self) -> Option<PathBuf> {
        let link = self.dir.join("current");
        link.join("tls.crt").is_file().then_some(link)
    }

    /// Makes a new key and drops an older one that still waits for a certificate; returns a signing request for it.
    pub fn request(&self) -> Result<Vec<u8>, CertsError> {
        files::make_dir(&self.dir, files::DIR_FOR_PROGRAM)?;
        let (newest, waiting) = self.generations()?;
        for number in waiting {
            files::remove_dir(&self.waiting(number))?;
        }
        let dir = self.waiting(newest + 1);
        files::make_dir(&dir, files::DIR_FOR_PROGRAM)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(CertsError::Key)?;
        files::write(&dir.join("tls.key"), key.serialize_pem().as_bytes(), self.key_mode)?;
        signing_request(&key)
    }

    /// The key that waits for its certificate.
    pub fn pending(&self) -> Result<Option<KeyPair>, CertsError> {
        let (_, waiting) = self.generations()?;
        let Some(number) = waiting.last() else { return Ok(None) };
        let Some(pem) = files::read(&self.waiting(*number).join("tls.key"))? else { return Ok(None) };
        KeyPair::from_pem(&pem).map(Some).map_err(CertsError::Key)
    }

    /// Swaps in the certificate of the pending key. Storing the same certificate again does nothing.
    pub fn store(&self, chain_pem: &str, trust_pem: Option<&str>) -> Result<(), CertsError> {
        let chain = tls::certificates(chain_pem, "certificate chain").map_err(CertsError::Sent)?;
        if let Some(trust) = trust_pem {
            check_trust(trust)?;
        }
        let (_, leaf) = X509Certificate::from_der(&chain[0]).map_err(|_| CertsError::Malformed)?;
        let (_, waiting) = self.generations()?;
        let matches = |key: &KeyPair| key.subject_public_key_info() == leaf.public_key().raw;
        let pending = self.pending()?;
        let number = match (waiting.last(), pending) {
            (Some(number), Some(key)) if matches(&key) => *number,
            _ if self.holds(chain_pem, trust_pem)? => return Ok(()),
            (_, Some(_)) => return Err(CertsError::OtherKey),
            _ => return Err(CertsError::NothingPending),
        };
        let dir = self.waiting(number);
        files::write(&dir.join("tls.crt"), chain_pem.as_bytes(), 0o644)?;
        if let Some(trust) = trust_pem {
            files::write(&dir.join("ca.crt"), trust.as_bytes(), 0o644)?;
        }
        self.swap_in(&dir, number)
    }

    /// Swaps in other CA certificates to verify the other side against; key and certificate stay. Storing the same
    /// again does nothing.
    pub fn store_trust(&self, trust_pem: &str) -> Result<(), CertsError> {
        check_trust(trust_pem)?;
        let old = self.resolved()?.ok_or(CertsError::NothingStored)?;
        if files::read(&old.join("ca.crt"))?.as_deref() == Some(trust_pem) {
            return Ok(());
        }
        let (newest, _) = self.generations()?;
        let number = newest + 1;
        // Not `.new`: no certificate is pending for it, and a pending key stays as it is.
        let dir = files::beside(&self.complete(number));
        files::make_dir(&dir, files::DIR_FOR_PROGRAM)?;
        let copied = [("tls.key", self.key_mode), ("tls.crt", 0o644)].into_iter().try_for_each(|(name, mode)| {
            let text = files::read(&old.join(name))?.unwrap_or_default();
            files::write(&dir.join(name), text.as_bytes(), mode)
        });
        let filled = copied.and_then(|()| files::write(&dir.join("ca.crt"), trust_pem.as_bytes(), 0o644));
        let swapped = filled.map_err(CertsError::from).and_then(|()| self.swap_in(&dir, number));
        if swapped.is_err() {
            // Gone already when it has its final name.
            let _ = fs::remove_dir_all(&dir);
        }
        swapped
    }

    fn swap_in(&self, dir: &Path, number: u64) -> Result<(), CertsError> {
        let complete = self.complete(number);
        fs::rename(dir, &complete).map_err(FileError::of("complete", &complete))?;
        files::point(&self.dir.join("current"), Path::new(&format!("gen-{number}")))?;
        self.prune(number)
    }

    /// The directory of the generation in use: the files that are read through it match.
    fn resolved(&self) -> Result<Option<PathBuf>, CertsError> {
        let Some(link) = self.current_dir() else { return Ok(None) };
        Ok(Some(link.canonicalize().map_err(FileError::of("resolve", &link))?))
    }

    /// The key and certificate in use.
    pub fn identity(&self) -> Result<Option<Identity>, CertsError> {
        self.resolved()?.map(read_identity).transpose()
    }

    /// The key, the certificate and the trust bundle in use, all of one generation.
    pub fn credentials(&self) -> Result<Option<(Identity, String)>, CertsError> {
        let Some(dir) = self.resolved()? else { return Ok(None) };
        let trust = files::read(&dir.join("ca.crt"))?.ok_or(CertsError::NoTrust)?;
        Ok(Some((read_identity(dir)?, trust)))
    }

    /// The digest of the trust bundle in use.
    pub fn trust_digest(&self) -> Result<Option<String>, CertsError> {
        let trust = files::read(&self.dir.join("current/ca.crt"))?;
        Ok(trust.map(|pem| hex::sha256(pem.as_bytes())))
    }

    /// The certificate in use, for the report. `more_pem` holds further CA certificates to search the issuer in.
    pub fn describe(&self, purpose: v1::Purpose, more_pem: &str) -> Result<Option<v1::Certificate>, CertsError> {
        let Some(dir) = self.resolved()? else { return Ok(None) };
        let trust_pem = files::read(&dir.join("ca.crt"))?;
        let stored = |source| CertsError::Stored { dir: dir.clone(), source };
        let chain = chain(&dir)?;
        let mut issuers: Vec<_> = chain[1..].to_vec();
        for pem in [trust_pem.as_deref().unwrap_or_default(), more_pem] {
            if !pem.is_empty() {
                issuers.extend(tls::certificates(pem, "trust bundle").map_err(stored)?);
            }
        }
        let (_, leaf) = X509Certificate::from_der(&chain[0]).map_err(|_| CertsError::Malformed)?;
        Ok(Some(v1::Certificate {
            purpose: purpose.into(),
            fingerprint: hex::sha256(&chain[0]),
            not_before: Some(timestamp(leaf.validity().not_before.timestamp())),
            not_after: Some(timestamp(leaf.validity().not_after.timestamp())),
            subject: leaf.subject().to_string(),
            issuer: leaf.issuer().to_string(),
            names: names(&leaf),
            trust_digest: trust_pem.map(|pem| hex::sha256(pem.as_bytes())).unwrap_or_default(),
            issuer_key: issuer_key(&leaf, &issuers).unwrap_or_default(),
        }))
    }

    /// The fingerprint of the certificate in use; `None` when nothing was stored yet.
    pub fn fingerprint(&self) -> Result<Option<String>, CertsError> {
        let Some(dir) = self.resolved()? else { return Ok(None) };
        Ok(chain(&dir)?.first().map(|leaf| hex::sha256(leaf)))
    }

    fn holds(&self, chain_pem: &str, trust_pem: Option<&str>) -> Result<bool, CertsError> {
        let current = self.dir.join("current");
        let same_chain = files::read(&current.join("tls.crt"))?.as_deref() == Some(chain_pem);
        Ok(same_chain && files::read(&current.join("ca.crt"))?.as_deref() == trust_pem)
    }

    /// The highest number in use, and the numbers of pending keys, ascending.
    fn generations(&self) -> Result<(u64, Vec<u64>), CertsError> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((0, Vec::new())),
            entries => entries.map_err(FileError::of("list", &self.dir))?,
        };
        let (mut newest, mut waiting) = (0, Vec::new());
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(rest) = name.to_str().and_then(|name| name.strip_prefix("gen-")) else { continue };
            let (number, waits) = rest.strip_suffix(".new").map_or((rest, false), |number| (number, true));
            let Ok(number) = number.parse() else { continue };
            newest = newest.max(number);
            if waits {
                waiting.push(number);
            }
        }
        waiting.sort_unstable();
        Ok((newest, waiting))
    }

    fn prune(&self, newest: u64) -> Result<(), CertsError> {
        for entry in fs::read_dir(&self.dir).map_err(FileError::of("list", &self.dir))?.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("gen-")).and_then(|rest| rest.parse().ok());
            if number.is_some_and(|number: u64| number.saturating_add(KEPT) <= newest) {
                files::remove_dir(&entry.path())?;
            }
        }
        Ok(())
    }

    fn waiting(&self, number: u64) -> PathBuf {
        self.dir.join(format!("gen-{number}.new"))
    }

    fn complete(&self, number: u64) -> PathBuf {
        self.dir.join(format!("gen-{number}"))
    }
}

fn read_identity(dir: PathBuf) -> Result<Identity, CertsError> {
    let chain = files::read(&dir.join("tls.crt"))?.unwrap_or_default();
    let key = files::read(&dir.join("tls.key"))?.unwrap_or_default();
    Identity::from_pem(&chain, &key).map_err(|source| CertsError::Stored { dir, source })
}

/// The certificates of a complete generation, the leaf first.
fn chain(dir: &Path) -> Result<Vec<CertificateDer<'static>>, CertsError> {
    let pem = files::read(&dir.join("tls.crt"))?.unwrap_or_default();
    let stored = |source| CertsError::Stored { dir: dir.to_owned(), source };
    tls::certificates(&pem, "certificate chain").map_err(stored)
}

fn check_trust(pem: &str) -> Result<(), CertsError> {
    if pem.trim().is_empty() {
        return Err(CertsError::NoTrust);
    }
    for certificate in tls::certificates(pem, "trust bundle").map_err(CertsError::Sent)? {
        X509Certificate::from_der(&certificate).map_err(|_| CertsError::Malformed)?;
    }
    Ok(())
}

/// A signing request with the key only: the signer chooses names and usages.
pub fn signing_request(key: &KeyPair) -> Result<Vec<u8>, CertsError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(key).map_err(CertsError::Key)?;
    Ok(request.der().to_vec())
}

fn names(leaf: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = leaf.subject_alternative_name() else { return Vec::new() };
    let mut names: Vec<String> = extension
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok().map(|ip| std::net::Ipv4Addr::from(ip).to_string()),
                16 => <[u8; 16]>::try_from(*bytes).ok().map(|ip| std::net::Ipv6Addr::from(ip).to_string()),
                _ => None,
            },
            _ => None,
        })
        .collect();
    names.sort();
    names
}

/// The digest of the issuing CA's public key. Two CAs may have the same name during a rotation, so the key identifier
/// decides where there is one.
fn issuer_key(leaf: &X509Certificate<'_>, issuers: &[CertificateDer<'static>]) -> Option<String> {
    let wanted = leaf.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|key| key.0),
        _ => None,
    });
    let mut found: Vec<String> = Vec::new();
    for der in issuers {
        let Ok((_, issuer)) = X509Certificate::from_der(der) else { continue };
        let id = issuer.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
            _ => None,
        });
        let named = issuer.subject().as_raw() == leaf.issuer().as_raw();
        let fits = !matches!((wanted, id), (Some(wanted), Some(id)) if wanted != id);
        if named && fits {
            found.push(hex::sha256(issuer.public_key().raw));
        }
    }
    found.dedup();
    match found.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    }
}

/// A point in time as the protocol has it.
pub fn timestamp(seconds: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds, nanos: 0 }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rcgen::{CertificateSigningRequestParams, Issuer};

    use super::*;

    struct Ca {
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    fn ca() -> Ca {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("ca").pem();
        Ca { issuer: Issuer::new(params, key), pem }
    }

    impl Ca {
        fn sign(&self, csr: &[u8]) -> String {
            let mut csr = CertificateSigningRequestParams::from_der(&csr.to_vec().into()).expect("csr");
            csr.params.subject_alt_names = vec![
                rcgen::SanType::DnsName("etcd-1".try_into().expect("name")),
                rcgen::SanType::IpAddress("127.77.0.1".parse().expect("address")),
            ];
            csr.params.use_authority_key_identifier_extension = true;
            csr.signed_by(&self.issuer).expect("sign").pem()
        }
    }

    #[test]
    fn only_the_newest_key_is_served() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::new(dir.path().join("peer"));
        let ca = ca();
        assert!(matches!(store.store(&ca.pem, Some(&ca.pem)), Err(CertsError::NothingPending)));
        let old = ca.sign(&store.request().expect("request"));
        let new = ca.sign(&store.request().expect("request"));
        assert!(matches!(store.store(&old, Some(&ca.pem)), Err(CertsError::OtherKey)));
        assert!(matches!(store.store(&new, Some("")), Err(CertsError::NoTrust)));
        assert!(matches!(store.store(&new, Some("junk")), Err(CertsError::Sent(_))));
        store.store(&new, Some(&ca.pem)).expect("store");
        store.store(&new, Some(&ca.pem)).expect("again, after a lost reply");
        let described = store.describe(v1::Purpose::EtcdPeer, "").expect("describe").expect("some");
        assert_eq!(described.names, ["127.77.0.1", "etcd-1"]);
        assert_eq!(described.trust_digest, hex::sha256(ca.pem.as_bytes()));
        assert_eq!(described.issuer_key.len(), 64);
        let key = dir.path().join("peer/current/tls.key");
        assert_eq!(fs::metadata(key).expect("key").permissions().mode() & 0o777, files::FOR_PROGRAM);
    }

    #[test]
    fn two_generations_are_kept() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::new(dir.path().to_path_buf());
        let ca = ca();
        for _ in 0..5 {
            let chain = ca.sign(&store.request().expect("request"));
            store.store(&chain, Some(&ca.pem)).expect("store");
        }
        let count = fs::read_dir(dir.path()).expect("list").count();
        assert_eq!(count, 3, "two generations and the link");
    }

    #[test]
    fn trust_changes_alone() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::new(dir.path().to_path_buf());
        let (old, new) = (ca(), ca());
        assert!(matches!(store.store_trust(&new.pem), Err(CertsError::NothingStored)));
        let chain = old.sign(&store.request().expect("request"));
        store.store(&chain, Some(&old.pem)).expect("store");
        let key = fs::read(dir.path().join("current/tls.key")).expect("key");
        let described = || store.describe(v1::Purpose::EtcdPeer, "").expect("describe").expect("some");
        let before = described();

        // A pending key stays pending.
        let next = new.sign(&store.request().expect("request"));
        let both = format!("{}{}", old.pem, new.pem);
        store.store_trust(&both).expect("trust");
        store.store_trust(&both).expect("again, after a lost reply");
        let after = described();
        assert_eq!(after.fingerprint, before.fingerprint);
        assert_eq!(after.trust_digest, hex::sha256(both.as_bytes()));
        assert_eq!(store.trust_digest().expect("digest"), Some(after.trust_digest));
        assert_eq!(fs::read(dir.path().join("current/tls.key")).expect("key"), key);
        let mode = fs::metadata(dir.path().join("current/tls.key")).expect("key").permissions().mode();
        assert_eq!(mode & 0o777, files::FOR_PROGRAM);
        assert!(matches!(store.store_trust(" "), Err(CertsError::NoTrust)));
        assert!(matches!(store.store_trust("junk"), Err(CertsError::Sent(_))));

        store.store(&next, Some(&both)).expect("store");
        let (identity, trust) = store.credentials().expect("read").expect("some");
        assert_eq!((hex::sha256(&identity.chain[0]), trust), (described().fingerprint, both));
        for _ in 0..5 {
            store.store_trust(&old.pem).expect("trust");
            store.store_trust(&new.pem).expect("trust");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 3, "two generations and the link");
    }

    #[test]
    fn key_and_certificate_change_together() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Store::new(dir.path().to_path_buf());
        let ca = ca();
        let renew = |store: &Store| {
            let chain = ca.sign(&store.request().expect("request"));
            store.store(&chain, Some(&ca.pem)).expect("store");
        };
        renew(&store);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0;
                while !done.load(Ordering::Relaxed) || reads == 0 {
                    // A generation may be pruned under a reader that resolved it two swaps ago; key and certificate
                    // must never differ.
                    let Ok(Some(identity)) = store.identity() else { continue };
                    let key = KeyPair::try_from(&identity.key).expect("key");
                    let (_, leaf) = X509Certificate::from_der(&identity.chain[0]).expect("leaf");
                    assert_eq!(key.subject_public_key_info(), leaf.public_key().raw);
                    reads += 1;
                }
            });
            for _ in 0..50 {
                renew(&store);
            }
            done.store(true, Ordering::Relaxed);
            reader.join().expect("reader");
        });
    }
}
