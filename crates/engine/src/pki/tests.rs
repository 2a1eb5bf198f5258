//! Authorities and requests → certificates that parsers and TLS stacks accept, and only those.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use secrecy::ExposeSecret;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);
const ALL: [KeyAlgorithm; 4] =
    [KeyAlgorithm::EcdsaP256, KeyAlgorithm::EcdsaP384, KeyAlgorithm::Rsa2048, KeyAlgorithm::Rsa4096];

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn made(algorithm: KeyAlgorithm) -> Authority {
    Authority::make(AuthorityKind::EtcdPeers, "main peers", Some("acme"), algorithm, now(), 3650 * DAY).unwrap()
}

fn profile(usages: Usages) -> LeafProfile {
    LeafProfile {
        common_name: "main-1".into(),
        organization: Some("acme".into()),
        dns_names: vec!["main-1".into(), "*.etcd.example.org".into()],
        addresses: vec!["127.0.42.1".parse().unwrap(), "::1".parse().unwrap()],
        usages,
        validity: 90 * DAY,
    }
}

/// A machine: its key never leaves it, only the request does.
fn request(algorithm: KeyAlgorithm) -> (KeyPair, Vec<u8>) {
    let key = make_key(algorithm).unwrap();
    let key = KeyPair::try_from(key.0.serialized_der()).unwrap();
    let mut params = CertificateParams::new(vec!["asked.for.by.the.machine".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "root");
    params.distinguished_name.push(DnType::OrganizationName, "raftsman:admin");
    let der = params.serialize_request(&key).unwrap().der().to_vec();
    (key, der)
}

#[test]
fn an_authority_is_a_ca_that_signs_leaves_only() {
    for algorithm in ALL {
        let authority = made(algorithm);
        let ders = pem::certificates(authority.certificate_pem()).unwrap();
        let certificate = facts::parse(&ders[0]).unwrap();
        certificate.verify_signature(None).unwrap();
        let constraints = certificate.basic_constraints().unwrap().unwrap();
        assert!(constraints.critical && constraints.value.ca);
        assert_eq!(constraints.value.path_len_constraint, Some(0));
        let usage = certificate.key_usage().unwrap().unwrap();
        assert!(usage.critical && usage.value.key_cert_sign() && usage.value.crl_sign());
        assert!(!usage.value.digital_signature());
        let key_id = x509_parser::oid_registry::OID_X509_EXT_SUBJECT_KEY_IDENTIFIER;
        assert!(certificate.get_extension_unique(&key_id).unwrap().is_some());
        assert_eq!(certificate.raw_serial().len(), 16);
        assert!(certificate.raw_serial()[0] < 0x80);
        let facts = authority.facts();
        assert_eq!(facts.subject, "O=acme, CN=main peers");
        assert_eq!(facts.not_before, "2026-03-01T11:55:00Z".parse().unwrap());
        assert_eq!(facts.not_after, "2036-02-27T12:00:00Z".parse().unwrap());
        assert!(facts.is_ca);
        let again =
            Authority::load(AuthorityKind::EtcdPeers, authority.certificate_pem(), &authority.key_pem()).unwrap();
        assert_eq!(again.facts(), facts);
    }
}

#[test]
fn of_a_request_only_the_key_is_taken() {
    for algorithm in ALL {
        let authority = made(KeyAlgorithm::EcdsaP256);
        let (key, csr) = request(algorithm);
        let chain = authority.sign_csr(&csr, &profile(Usages::Both), now()).unwrap();
        let facts = describe(&chain).unwrap();
        assert_eq!(facts.subject, "O=acme, CN=main-1");
        assert_eq!(facts.issuer, "O=acme, CN=main peers");
        assert_eq!(facts.names, ["main-1", "*.etcd.example.org", "127.0.42.1", "::1"]);
        assert!(!facts.is_ca);
        assert_eq!(facts.not_before, "2026-03-01T11:55:00Z".parse().unwrap());
        assert_eq!(facts.not_after, "2026-05-30T12:00:00Z".parse().unwrap());
        let info = rcgen::PublicKeyData::subject_public_key_info(&key);
        assert_eq!(facts.public_key_sha256, facts::sha256_hex(&info));
        let leaf = pem::certificates(&chain).unwrap();
        assert_eq!(leaf.len(), 1, "a root is not part of the chain");
        let ca = pem::certificates(authority.certificate_pem()).unwrap();
        let ca = facts::parse(&ca[0]).unwrap();
        facts::parse(&leaf[0]).unwrap().verify_signature(Some(ca.public_key())).unwrap();
    }
}

#[test]
fn a_request_that_was_tampered_with_is_refused() {
    let authority = made(KeyAlgorithm::EcdsaP256);
    let (_, csr) = request(KeyAlgorithm::EcdsaP256);
    let mut altered = csr.clone();
    let place = altered.windows(4).position(|window| window == b"root").unwrap();
    altered[place] = b'b';
    let sign = |csr: &[u8]| authority.sign_csr(csr, &profile(Usages::Both), now());
    assert!(matches!(sign(&altered), Err(PkiError::RequestSignature)));
    assert!(matches!(sign(&csr[..40]), Err(PkiError::RequestUnreadable)));
    assert!(matches!(sign(&[csr.clone(), vec![0]].concat()), Err(PkiError::RequestUnreadable)));
}

#[test]
fn a_leaf_lives_within_its_authority() {
    let kind = AuthorityKind::Fleet;
    let short = Authority::make(kind, "fleet", None, KeyAlgorithm::EcdsaP256, now(), 10 * DAY).unwrap();
    let (chain, _) = short.issue_client("alice", None, 90 * DAY, now()).unwrap();
    let facts = describe(&chain).unwrap();
    assert_eq!(facts.not_after, short.facts().not_after);
    assert_eq!(facts.not_before, short.facts().not_before);
    let late = now() + 10 * DAY;
    assert!(matches!(short.issue_client("alice", None, DAY, late), Err(PkiError::AuthorityEnded { .. })));
    let endless = Authority::make(kind, "fleet", None, KeyAlgorithm::EcdsaP256, now(), Duration::MAX).unwrap();
    assert_eq!(endless.facts().not_after.as_second(), LAST_SECOND);
}

#[test]
fn a_client_certificate_may_bear_no_user() {
    let authority = made(KeyAlgorithm::EcdsaP256);
    let (chain, key) = authority.issue_client("", Some("raftsman:admin"), DAY, now()).unwrap();
    assert_eq!(describe(&chain).unwrap().subject, "O=raftsman:admin");
    assert!(key.expose_secret().starts_with("-----BEGIN PRIVATE KEY-----"));
    assert!(matches!(authority.issue_client("", None, DAY, now()), Err(PkiError::Nameless)));
}

#[test]
fn serials_do_not_repeat() {
    let serials: std::collections::HashSet<_> = (0..1000).map(|_| random_serial().unwrap().to_bytes()).collect();
    assert_eq!(serials.len(), 1000);
}

#[test]
fn pem_is_written_as_openssl_does() {
    let authority = made(KeyAlgorithm::Rsa2048);
    let der = pem::certificates(authority.certificate_pem()).unwrap();
    for length in [der[0].len(), 48, 49, 50, 51] {
        let text = pem::encode_certificate(&der[0][..length]);
        assert_eq!(pem::certificates(&text).unwrap(), [&der[0][..length]]);
    }
    assert_eq!(pem::encode_certificate(&der[0]), authority.certificate_pem().replace("\r\n", "\n"));
}

/// rustls at a time of our choice: certificates are checked at `now()`.
#[derive(Debug)]
struct Clock;

impl rustls::time_provider::TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(now().as_second().unsigned_abs())))
    }
}

fn ders(text: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(text.as_bytes()).map(Result::unwrap).collect()
}

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    // As the agents and etcd do: every certificate of the bundle is trusted.
    ders(authority.certificate_pem()).into_iter().for_each(|der| roots.add(der).unwrap());
    Arc::new(roots)
}

fn handshake(
    server: (&str, &str),
    client: Option<(&str, &str)>,
    trusted_by_server: &Authority,
    trusted_by_client: &Authority,
    name: &str,
) -> Result<(), rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = |pem: &str| PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots(trusted_by_server), provider.clone()).build().unwrap();
    let server_config = ServerConfig::builder_with_details(provider.clone(), Arc::new(Clock))
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(ders(server.0), key(server.1))?;
    let client_config = ClientConfig::builder_with_details(provider, Arc::new(Clock))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(trusted_by_client));
    let client_config = match client {
        Some((chain, pem)) => client_config.with_client_auth_cert(ders(chain), key(pem))?,
        None => client_config.with_no_client_auth(),
    };
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(client_config), name)?;
    let mut server = ServerConnection::new(Arc::new(server_config))?;
    client.writer().write_all(b"ping").unwrap();
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        server.read_tls(&mut wire.as_slice()).unwrap();
        server.process_new_packets()?;
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut wire = wire.as_slice();
        while !wire.is_empty() {
            client.read_tls(&mut wire).unwrap();
            client.process_new_packets()?;
        }
    }
    let mut received = [0; 4];
    server.reader().read_exact(&mut received).unwrap();
    assert_eq!(&received, b"ping");
    Ok(())
}

#[test]
fn tls_takes_what_is_issued_and_nothing_else() {
    for algorithm in ALL {
        let authority = made(algorithm);
        let other = made(KeyAlgorithm::EcdsaP256);
        let (key, csr) = request(KeyAlgorithm::EcdsaP256);
        let chain = authority.sign_csr(&csr, &profile(Usages::Both), now()).unwrap();
        let key = key.serialize_pem();
        let server = (chain.as_str(), key.as_str());
        let (client_chain, client_key) = authority.issue_client("alice", Some("raftsman:admin"), DAY, now()).unwrap();
        let client = Some((client_chain.as_str(), client_key.expose_secret()));
        let (foreign_chain, foreign_key) = other.issue_client("alice", Some("raftsman:admin"), DAY, now()).unwrap();
        let foreign = Some((foreign_chain.as_str(), foreign_key.expose_secret()));

        for name in ["main-1", "a.etcd.example.org", "127.0.42.1", "::1"] {
            handshake(server, client, &authority, &authority, name).unwrap();
        }
        handshake(server, Some(server), &authority, &authority, "main-1").unwrap();
        handshake(server, client, &authority, &authority, "main-2").unwrap_err();
        handshake(server, None, &authority, &authority, "main-1").unwrap_err();
        handshake(server, foreign, &authority, &authority, "main-1").unwrap_err();
        handshake(server, client, &authority, &other, "main-1").unwrap_err();
        // A client's certificate is not valid for a server, nor the other way round.
        handshake((&client_chain, client_key.expose_secret()), client, &authority, &authority, "alice").unwrap_err();
        let server_only = authority.sign_csr(&csr, &profile(Usages::Server), now()).unwrap();
        handshake(server, Some((&server_only, &key)), &authority, &authority, "main-1").unwrap_err();
    }
}

/// A root with an intermediate below it, as companies have them.
fn intermediate(change: impl FnOnce(&mut CertificateParams)) -> (String, SecretString) {
    let root_key = make_key(KeyAlgorithm::EcdsaP384).unwrap();
    let mut root = CertificateParams::default();
    root.distinguished_name = subject("root", Some("corp")).unwrap();
    root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    set_validity(&mut root, 0, LAST_SECOND);
    let root_pem = root.self_signed(&root_key).unwrap().pem();
    let key = make_key(KeyAlgorithm::Rsa2048).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = subject("etcd issuer", Some("corp")).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    set_validity(&mut params, second_before(now(), DAY), second_after(now(), 100 * DAY));
    change(&mut params);
    let pem = params.signed_by(&key, &Issuer::from_params(&root, &root_key)).unwrap().pem();
    (pem + &root_pem, SecretString::from(key.0.serialize_pem()))
}

fn bring(pem: &str, key: &SecretString) -> Result<Authority, PkiError> {
    Authority::brought(AuthorityKind::EtcdClients, pem, key, now())
}

#[test]
fn a_brought_intermediate_is_shown_beside_the_leaf() {
    let (pem, key) = intermediate(|_| {});
    let authority = bring(&pem, &key).unwrap();
    let (chain, key) = authority.issue_client("alice", None, DAY, now()).unwrap();
    let all = pem::certificates(&chain).unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(facts::of_der(&all[1]).unwrap().subject, "O=corp, CN=etcd issuer");
    // A verifier that trusts the root alone can build the chain.
    let root = ders(&pem).pop().unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
    let shown = ders(&chain);
    let at = rustls::time_provider::TimeProvider::current_time(&Clock).unwrap();
    verifier.verify_client_cert(&shown[0], &shown[1..], at).unwrap();
    assert!(key.expose_secret().contains("PRIVATE KEY"));
}

#[test]
fn messages() {
    let authority = made(KeyAlgorithm::EcdsaP256);
    let certificate = authority.certificate_pem();
    let key = authority.key_pem();
    let (good, good_key) = intermediate(|_| {});
    let leaf = authority.issue_client("alice", None, DAY, now()).unwrap();
    let openssl = |arguments: &[&str]| -> SecretString {
        let output = std::process::Command::new("openssl").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        SecretString::from(String::from_utf8(output.stdout).unwrap())
    };
    let block = |label: &str| SecretString::from(format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n"));
    let pkcs1 = openssl(&["genrsa", "-traditional", "2048"]);
    let encrypted_pkcs1 = openssl(&["genrsa", "-traditional", "-aes128", "-passout", "pass:x", "2048"]);
    let sec1 = openssl(&["ecparam", "-name", "prime256v1", "-genkey"]);
    let encrypted = openssl(&["genpkey", "-algorithm", "RSA", "-aes128", "-pass", "pass:x"]);
    let secp256k1 = openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:secp256k1"]);
    let changed = |change: fn(&mut CertificateParams)| {
        let (pem, key) = intermediate(change);
        bring(&pem, &key).unwrap_err()
    };
    let days = |days: u32| second_after(now(), days * DAY);
    let damaged = certificate.replacen("MII", "MIJ", 1);
    let two_units = openssl(&[
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "9",
        "-subj",
        "/DC=org/DC=example/CN=ad",
        "-keyout",
        "/dev/stdout",
    ]);
    let mut text = String::new();
    let mut show = |case: &str, error: PkiError| text += &format!("{case}:\n  {error}\n");
    show("no certificate", bring("hello", &key).unwrap_err());
    show("key instead of certificate", bring(key.expose_secret(), &key).unwrap_err());
    show("damaged certificate", bring(&damaged, &key).unwrap_err());
    show("not a CA", bring(&leaf.0, &leaf.1).unwrap_err());
    show("may not sign", changed(|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]));
    let (ended, ended_key) = intermediate(|params| set_validity(params, days(0) - 20, days(0) - 10));
    show("ended", bring(&ended, &ended_key).unwrap_err());
    let (early, early_key) = intermediate(|params| set_validity(params, days(1), days(2)));
    show("not yet", bring(&early, &early_key).unwrap_err());
    show("other key", bring(certificate, &good_key).unwrap_err());
    let mut blocks = two_units.expose_secret().split_inclusive("-----END PRIVATE KEY-----\n");
    let (ad_key, ad) = (SecretString::from(blocks.next().unwrap()), blocks.next().unwrap());
    // openssl signs as of now.
    let error = Authority::brought(AuthorityKind::Fleet, ad, &ad_key, Timestamp::now()).unwrap_err();
    show("subject with two parts of a kind", error);
    show("no key", bring(&good, &SecretString::from("hello")).unwrap_err());
    show("PKCS#1", bring(certificate, &pkcs1).unwrap_err());
    show("PKCS#1 encrypted", bring(certificate, &encrypted_pkcs1).unwrap_err());
    show("SEC1", bring(certificate, &sec1).unwrap_err());
    show("OpenSSH", bring(certificate, &block("OPENSSH PRIVATE KEY")).unwrap_err());
    show("encrypted", bring(certificate, &encrypted).unwrap_err());
    show("certificate instead of key", bring(certificate, &SecretString::from(certificate)).unwrap_err());
    show("unknown algorithm", bring(certificate, &secp256k1).unwrap_err());
    let client = |name: &str| authority.issue_client(name, None, DAY, now()).unwrap_err();
    show("name too long", client(&"x".repeat(65)));
    show("nameless", client(""));
    let (_, csr) = request(KeyAlgorithm::EcdsaP256);
    let named = |name: &str| LeafProfile { dns_names: vec![name.into()], ..profile(Usages::Server) };
    show("DNS name", authority.sign_csr(&csr, &named("https://etcd:2379"), now()).unwrap_err());
    show("request unreadable", authority.sign_csr(b"", &profile(Usages::Server), now()).unwrap_err());
    show("request signature", PkiError::RequestSignature);
    show("request key too short", PkiError::RequestKeyTooShort { bits: 1024 });
    insta::assert_snapshot!(text);
}
