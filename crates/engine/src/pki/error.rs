//! What can be wrong with keys and certificates → messages that say what to do.

use jiff::Timestamp;

/// Why a certificate cannot be read, used or made.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// There is no certificate in the text.
    #[error("no certificate found: a PEM file with a `-----BEGIN CERTIFICATE-----` block is expected")]
    NoCertificate,
    /// A certificate cannot be parsed.
    #[error("the certificate is damaged: {detail}; look at it with `openssl x509 -text -noout -in <file>`")]
    Certificate {
        /// What the parser said.
        detail: String,
    },
    /// It is not a CA.
    #[error(
        "the certificate of {subject} is not a CA certificate (basicConstraints has no CA:TRUE); bring the \
         certificate of the authority itself, not one that it signed"
    )]
    NotAnAuthority {
        /// Its subject.
        subject: String,
    },
    /// It may not sign certificates.
    #[error(
        "the CA {subject} may not sign certificates (its keyUsage lacks keyCertSign); bring a CA certificate that was \
         made with `keyUsage = keyCertSign, cRLSign`"
    )]
    MayNotSign {
        /// Its subject.
        subject: String,
    },
    /// It has expired.
    #[error("the CA {subject} ended at {at}; bring a new certificate for it, or let raftsman make a CA")]
    AuthorityEnded {
        /// Its subject.
        subject: String,
        /// When it ended.
        at: Timestamp,
    },
    /// It is not valid yet.
    #[error("the CA {subject} begins only at {at}; check this computer's clock, or wait")]
    AuthorityNotYet {
        /// Its subject.
        subject: String,
        /// When it begins.
        at: Timestamp,
    },
    /// Its name would be changed in what it signs.
    #[error(
        "the CA's subject {subject} has several parts of one kind, or parts in an unusual form, which raftsman cannot \
         write into certificates; bring an intermediate CA with a plain subject (O=…, CN=…)"
    )]
    SubjectNotCarried {
        /// Its subject.
        subject: String,
    },
    /// Key and certificate are not of one pair.
    #[error(
        "the key does not belong to the certificate of {subject}; compare `openssl x509 -noout -pubkey -in <certificate>` \
         with `openssl pkey -pubout -in <key>`"
    )]
    KeyDoesNotMatch {
        /// The certificate's subject.
        subject: String,
    },
    /// There is no key in the text.
    #[error("no private key found: a PEM file with a `-----BEGIN PRIVATE KEY-----` block (PKCS#8) is expected")]
    NoKey,
    /// The key is in an older form.
    #[error("the private key is in the form {form}, PKCS#8 is needed; convert it: {command}")]
    KeyForm {
        /// The form it is in.
        form: &'static str,
        /// What converts it.
        command: &'static str,
    },
    /// The key is encrypted.
    #[error(
        "the private key is encrypted; decrypt it into a file that only you can read: \
         (umask 077; openssl pkcs8 -topk8 -nocrypt -in <key> -out <new key>); raftsman keeps it encrypted in its state"
    )]
    KeyEncrypted,
    /// The text that says it is a key is a certificate or a public key.
    #[error("a private key is expected, but this is a {found}; are certificate and key swapped?")]
    NotAKey {
        /// What it is.
        found: String,
    },
    /// The key cannot be parsed.
    #[error(
        "the private key is damaged or of an unknown algorithm; ECDSA (P-256, P-384, P-521), Ed25519 and RSA from 2048 \
         bits are known; check it with `openssl pkey -check -noout -in <key>`"
    )]
    Key {
        /// What the parser said.
        source: rcgen::Error,
    },
    /// The signing request cannot be parsed.
    #[error("the certificate signing request is not readable; the agent's version may not fit raftsman's")]
    RequestUnreadable,
    /// The signing request is not signed by the key in it.
    #[error("the certificate signing request is not signed by its own key; nothing is signed for it")]
    RequestSignature,
    /// The key in the signing request is too short.
    #[error("the key in the certificate signing request has {bits} bits; RSA keys need 2048 or more")]
    RequestKeyTooShort {
        /// Its length.
        bits: usize,
    },
    /// The key in the signing request is of an unknown kind.
    #[error("the key in the certificate signing request is of an unknown algorithm; ECDSA on P-256 is the safe choice")]
    RequestKey {
        /// What the parser said.
        source: rcgen::Error,
    },
    /// A name is too long for X.509.
    #[error("`{name}` is longer than the 64 characters that a certificate's subject can hold; shorten it")]
    NameTooLong {
        /// The name.
        name: String,
    },
    /// Not a DNS name.
    #[error("`{name}` is not a DNS name that a certificate can hold; write it in ASCII, without port or scheme")]
    DnsName {
        /// The name.
        name: String,
    },
    /// A certificate without any name or address.
    #[error("a certificate needs a common name, an organization, a DNS name or an address")]
    Nameless,
    /// The library refused to make something.
    #[error("{what} cannot be made: {source}; please report this as a bug of raftsman")]
    Make {
        /// What was to be made.
        what: &'static str,
        /// Why not.
        source: rcgen::Error,
    },
    /// No random numbers.
    #[error("the system gives no random numbers; nothing secret can be made on this computer")]
    Random,
}
