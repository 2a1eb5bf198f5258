//! Certificates and authorities → lifetimes that do not fit, invalid names, authorities that are the same.

use std::collections::HashMap;
use std::net::IpAddr;

use super::super::diagnostic::Path;
use super::super::types::{Authority, BroughtAuthority, Certificates, EtcdCluster, Secret};
use super::super::units::{Duration, Name, quoted};
use super::{Finding, Findings};

/// What the authority of a PostgreSQL cluster is for.
const POSTGRES: &str = "postgres";

pub(super) fn check(findings: &mut Findings<'_>, name: &Name, cluster: &EtcdCluster) {
    let at = |keys: &[&str]| keys.iter().fold(Path::of(&["etcd", name.as_str()]), |path, key| path.key(key));
    let made = [&cluster.ca.peers, &cluster.ca.clients].iter().any(|authority| matches!(authority, Authority::Made));
    certificates(findings, &at, &cluster.certificates, made, "etcd");
    for (who, authority) in [("peers", &cluster.ca.peers), ("clients", &cluster.ca.clients)] {
        brought(findings, &|key| at(&["ca", who, "brought", key]), authority);
    }
}

/// The certificates of a cluster; `made` says whether raftsman makes one of its authorities.
pub(super) fn certificates(
    findings: &mut Findings<'_>,
    at: &dyn Fn(&[&str]) -> Path,
    certificates: &Certificates,
    made: bool,
    service: &str,
) {
    lifetimes(findings, at, certificates, made, service);
    names(findings, at, certificates);
}

fn lifetimes(
    findings: &mut Findings<'_>,
    at: &dyn Fn(&[&str]) -> Path,
    certificates: &Certificates,
    made: bool,
    service: &str,
) {
    let (validity, renew, ca) = (certificates.validity, certificates.renew_before, certificates.ca_validity);
    let here = |key: &str| at(&["certificates", key]);
    if validity < Duration::from_hours(1) {
        findings.add(
            Finding::error(
                "validity-short",
                here("validity"),
                format!("a certificate that is valid for {validity} expires before it can be renewed safely"),
            )
            .why("clocks differ, and a renewal needs a run of `raftsman apply`")
            .help("`90d` is the default; `1h` is the least"),
        );
    } else if renew >= validity {
        findings.add(
            Finding::error(
                "renew-too-early",
                here("renew_before"),
                format!(
                    "renewal {renew} before the end of a certificate that is valid for {validity} would never stop"
                ),
            )
            .also(here("validity"), "the validity")
            .help(format!("about a third of the validity, such as `{}`", Duration::from_millis(third(validity)))),
        );
    } else if renew == Duration::ZERO {
        findings.add(
            Finding::error("renew-never", here("renew_before"), "renewal at the very end comes too late")
                .why("certificates that expire take the whole cluster down")
                .help(format!("about a third of the validity, such as `{}`", Duration::from_millis(third(validity)))),
        );
    }
    if validity > Duration::from_days(825) {
        findings.add(
            Finding::warning(
                "validity-long",
                here("validity"),
                format!("a certificate that is valid for {validity} outlives any mistake made with its key"),
            )
            .why(format!("{service} checks no revocation list by default: a lost key works until the certificate ends"))
            .help("`90d` is the default: renewal is raftsman's work, not yours"),
        );
    }
    if made && validity > ca {
        findings.add(
            Finding::error(
                "ca-validity-short",
                here("ca_validity"),
                format!("the authorities, valid for {ca}, end before the certificates they sign, valid for {validity}"),
            )
            .also(here("validity"), "the certificates")
            .help("make `ca_validity` several times `validity`; `10y` is the default"),
        );
    }
}

/// A third, rounded down to whole days, hours or minutes: a number that a user would write.
fn third(validity: Duration) -> u64 {
    let third = validity.as_millis() / 3;
    [Duration::from_days(1), Duration::from_hours(1), Duration::from_millis(60_000)]
        .iter()
        .map(|unit| third - third % unit.as_millis())
        .find(|rounded| *rounded > 0)
        .unwrap_or(third)
}

fn names(findings: &mut Findings<'_>, at: &dyn Fn(&[&str]) -> Path, certificates: &Certificates) {
    if let Some(organization) = &certificates.organization {
        let here = || at(&["certificates", "organization"]);
        if organization.trim().is_empty()
            || organization.chars().count() > 64
            || organization.contains(|c: char| c.is_control())
        {
            findings.add(
                Finding::error("organization-invalid", here(), "an organization is 1 to 64 characters")
                    .help("shorten it, or remove the key"),
            );
        }
    }
    for (index, name) in certificates.extra_names.iter().enumerate() {
        let here = || at(&["certificates", "extra_names"]).index(index);
        if name.parse::<IpAddr>().is_ok() {
            findings.add(
                Finding::error("name-is-address", here(), format!("`{name}` is an address, not a name"))
                    .why("TLS looks for addresses and names in different places of a certificate")
                    .help("move it to `extra_addresses`"),
            );
        } else if let Err(reason) = dns_name(name, true) {
            findings.add(
                Finding::error("dns-name-invalid", here(), format!("{} is not a DNS name: {reason}", quoted(name)))
                    .help("such as `etcd.example.com`: no scheme, no port"),
            );
        } else if certificates.extra_names[..index].contains(name) {
            findings.add(
                Finding::warning("name-listed-twice", here(), format!("`{name}` is listed twice"))
                    .help("remove one of them"),
            );
        }
    }
    for (index, address) in certificates.extra_addresses.iter().enumerate() {
        if address.is_unspecified() || address.is_multicast() {
            findings.add(
                Finding::error(
                    "address-impossible",
                    at(&["certificates", "extra_addresses"]).index(index),
                    format!("no client can reach a member at {address}"),
                )
                .help("list only addresses that clients connect to"),
            );
        }
    }
}

/// Checks a DNS name; the first label may be `*` where wildcards make sense.
pub(super) fn dns_name(text: &str, wildcard: bool) -> Result<(), &'static str> {
    let name = if wildcard { text.strip_prefix("*.").unwrap_or(text) } else { text };
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.contains("://") || text.contains('/') {
        return Err("it has a scheme or a path");
    }
    if text.contains(':') {
        return Err("it has a port");
    }
    if name.len() > 253 {
        return Err("it is longer than 253 characters");
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err("two dots, or a dot at an end, leave a part empty");
        }
        if label.len() > 63 {
            return Err("a part is longer than 63 characters");
        }
        if !label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
            return Err("only letters, digits, hyphens and dots");
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err("a part starts or ends with a hyphen");
        }
    }
    if name.split('.').all(|label| label.bytes().all(|b| b.is_ascii_digit())) {
        return Err("it is made of numbers only");
    }
    Ok(())
}

/// An authority that is brought.
pub(super) fn brought(findings: &mut Findings<'_>, here: &dyn Fn(&str) -> Path, authority: &Authority) {
    let Authority::Brought(brought) = authority else { return };
    findings.file(|| here("certificate"), &brought.certificate);
    findings.secret(|| here("key"), &brought.key);
    if matches!(&brought.key, Secret::File(file) if same_file(file, &brought.certificate)) {
        findings.add(
            Finding::error(
                "ca-key-is-certificate",
                here("key").key("file"),
                "the key and the certificate are the same file",
            )
            .also(here("certificate"), "the certificate")
            .why("the certificate is handed to every machine and client, the key to none")
            .help("put the private key into a file of its own"),
        );
    }
}

/// Authorities that are the same, in a cluster or over several: by their keys where they can be read, by their files
/// elsewhere.
pub(super) fn shared(findings: &mut Findings<'_>) {
    #[derive(Clone, Copy)]
    struct Place<'s> {
        cluster: &'s Name,
        who: &'static str,
    }
    impl Place<'_> {
        fn path(self) -> Path {
            match self.who {
                POSTGRES => Path::of(&["postgres", self.cluster.as_str(), "ca", "brought", "certificate"]),
                who => Path::of(&["etcd", self.cluster.as_str(), "ca", who, "brought", "certificate"]),
            }
        }
    }
    let spec = findings.spec;
    let mut seen: HashMap<Identity, Place<'_>> = HashMap::new();
    let etcd = spec.etcd.iter().flat_map(|(cluster, settings)| {
        [("peers", &settings.ca.peers), ("clients", &settings.ca.clients)]
            .map(|(who, authority)| (Place { cluster, who }, authority))
    });
    let postgres = spec.postgres.iter().map(|(cluster, settings)| (Place { cluster, who: POSTGRES }, &settings.ca));
    for (place, authority) in etcd.chain(postgres) {
        let Place { cluster, who } = place;
        let Authority::Brought(brought) = authority else { continue };
        let identities = identities(brought, (findings.keys)(&brought.certificate));
        let first = identities.iter().find_map(|identity| seen.get(identity)).copied();
        for identity in identities {
            seen.entry(identity).or_insert(place);
        }
        let Some(first) = first else { continue };
        let finding = match (first.who, who) {
            (POSTGRES, POSTGRES) => Finding::warning(
                "ca-shared-postgres",
                place.path(),
                format!("the PostgreSQL clusters `{cluster}` and `{}` share one authority", first.cluster),
            )
            .why("the REST interfaces of one cluster accept the certificates of the other's nodes"),
            (_, POSTGRES) => Finding::error(
                "ca-shared",
                place.path(),
                format!(
                    "the PostgreSQL cluster `{cluster}` and the {} of etcd `{}` share one authority",
                    first.who, first.cluster
                ),
            )
            .why("etcd would accept the certificates of PostgreSQL's nodes and clients"),
            _ if first.cluster == cluster => {
                Finding::error("ca-shared", place.path(), "peers and clients share one authority").why(
                    "every client certificate would then open the peer port, and could join the cluster (CIS benchmark 2.7)",
                )
            }
            ("clients", "clients") => Finding::warning(
                "ca-shared-clients",
                place.path(),
                format!("the clients of `{cluster}` and of `{}` share one authority", first.cluster),
            )
            .why("a certificate for the user `root` of one cluster is one for `root` of the other"),
            ("peers", "peers") => Finding::error(
                "ca-shared",
                place.path(),
                format!("the peers of `{cluster}` and of `{}` share one authority", first.cluster),
            )
            .why("a member of one cluster could join the other"),
            _ => Finding::error(
                "ca-shared",
                place.path(),
                format!("the {who} of `{cluster}` and the {} of `{}` share one authority", first.who, first.cluster),
            )
            .why("every client certificate of one cluster would open the peer port of the other"),
        };
        findings.add(
            finding.also(first.path(), "also here").help("bring two authorities, or let raftsman make one of them"),
        );
    }
}

/// By what two authorities are the same.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    PublicKey(String),
    CertificateFile(String),
    KeyFile(String),
    KeyVariable(String),
}

fn identities(brought: &BroughtAuthority, key: Option<String>) -> Vec<Identity> {
    let secret = match &brought.key {
        Secret::File(path) => plain(path).map(Identity::KeyFile),
        Secret::Env(name) => Some(Identity::KeyVariable(name.clone())),
    };
    let file = plain(&brought.certificate).map(Identity::CertificateFile);
    key.map(Identity::PublicKey).into_iter().chain(file).chain(secret).collect()
}

/// One spelling of a path; none of an empty one.
fn plain(path: &str) -> Option<String> {
    let root = if path.starts_with('/') { "/" } else { "" };
    let parts = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/");
    (!path.trim().is_empty()).then(|| format!("{root}{parts}"))
}

/// Whether two paths are spelt for the same file: core cannot look.
fn same_file(a: &str, b: &str) -> bool {
    plain(a).is_some_and(|a| plain(b) == Some(a))
}
