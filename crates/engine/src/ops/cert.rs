//! `raftsman cert`: certificates and their expiry, and new certificates for clients.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
pub use raftsman_api::roles::Role;
use raftsman_core::desired::AGENT_RENEW_BEFORE;
use raftsman_core::observed::{AuthorityRecord, NodePurpose, Trust, TrustDomain};
use raftsman_core::spec::{self, AuthMode, Name};
use secrecy::ExposeSecret;
use serde::Serialize;

use super::{OpError, for_each_stack, pick_cluster};
use crate::fleet::Fleet;
use crate::observe::Observer;
use crate::pki;
use crate::store::write_file;

/// One certificate.
#[derive(Debug, Clone, Serialize)]
pub struct Certificate {
    /// Which cluster; none for the fleet's own.
    pub cluster: Option<Name>,
    /// What: `fleet CA`, `peers CA`, `clients CA`, `postgresql CA`, `agent`, `peer`, `server`, `postgresql`, `rest`.
    pub what: &'static str,
    /// During a rotation: `signs`, `signs next`, `still trusted`, `distrusted`.
    pub standing: Option<&'static str>,
    /// Its holder.
    pub holder: String,
    /// From when.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
    /// When it is renewed, or another authority is made; never for authorities that the file brings, nor for PostgreSQL's.
    pub renewal: Option<Timestamp>,
    /// SHA-256.
    pub fingerprint: String,
    /// Names and addresses in it.
    pub names: Vec<String>,
}

/// Every certificate, the authorities first. Machines that cannot be reached are named in the second list.
pub async fn list(fleet: &Arc<Fleet>, only: &[Name]) -> Result<(Vec<Certificate>, Vec<String>), OpError> {
    let mut all = vec![of_authority(None, "fleet CA", fleet.authority.facts())];
    let mut silent = Vec::new();
    let lists = for_each_stack(fleet, only, |cluster| async move {
        let name = &cluster.desired.name;
        let mut certificates = Vec::new();
        for side in TrustDomain::ALL {
            let Some(trust) = cluster.ledger().etcd.trust(side).cloned() else { continue };
            for (standing, records) in standings(&trust) {
                for record in records {
                    let facts = pki::describe(&record.certificate)?;
                    let standing = Some(standing).filter(|_| trust.rotates());
                    let what = if side == TrustDomain::Peers { "peers CA" } else { "clients CA" };
                    let made = *cluster.desired.etcd.authority(side) == spec::Authority::Made;
                    let before = cluster.desired.etcd.renew_authority_before();
                    let renewal = facts.not_after.checked_sub(before).ok().filter(|_| made && record == &trust.current);
                    certificates.push(Certificate { standing, renewal, ..of_authority(Some(name), what, &facts) });
                }
            }
        }
        for postgres in &cluster.desired.postgres {
            let Some(trust) = cluster.ledger().of_postgres(&postgres.name).trust.clone() else { continue };
            for (standing, records) in standings(&trust) {
                for record in records {
                    let facts = pki::describe(&record.certificate)?;
                    let standing = Some(standing).filter(|_| trust.rotates());
                    let authority = of_authority(Some(&postgres.name), "postgresql CA", &facts);
                    certificates.push(Certificate { standing, ..authority });
                }
            }
        }
        let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
        let mut silent = Vec::new();
        for machine in cluster.desired.all_machines() {
            let Some(report) = observed.report(machine) else {
                silent.push(machine.to_string());
                continue;
            };
            let node = cluster.desired.node(machine);
            let instance = cluster.desired.instance(machine);
            let name = match (node, instance) {
                (Some((postgres, _)), _) => &postgres.name,
                (None, Some((balancer, _))) => balancer.before(),
                (None, None) => name,
            };
            let mut push = |what, facts: &raftsman_core::observed::CertificateFacts, renewal| {
                certificates.push(Certificate {
                    cluster: Some(name.clone()),
                    what,
                    standing: None,
                    holder: machine.to_string(),
                    not_before: facts.not_before,
                    not_after: facts.not_after,
                    renewal,
                    fingerprint: facts.fingerprint.clone(),
                    names: facts.names.clone(),
                });
            };
            if let Some(own) = &report.certificate {
                push("agent", own, own.not_after.checked_sub(AGENT_RENEW_BEFORE).ok());
            }
            for (purpose, facts) in report.postgres.iter().flat_map(|on| &on.certificates) {
                let Some((_, node)) = node else { continue };
                let what = match purpose {
                    NodePurpose::Server => "postgresql",
                    NodePurpose::Rest => "rest",
                };
                push(what, facts, facts.not_after.checked_sub(node.profile(*purpose).renew_before()).ok());
            }
            let profile = instance.and_then(|(_, instance)| instance.probe.as_ref());
            if let (Some(profile), Some(facts)) =
                (profile, report.balancer.as_ref().and_then(|on| on.certificate.as_ref()))
            {
                push("balancer", facts, facts.not_after.checked_sub(profile.renew_before()).ok());
            }
            let Some(member) = cluster.desired.etcd.member(machine) else { continue };
            for (purpose, facts) in &report.etcd.certificates {
                let before = i64::try_from(member.profile(*purpose).renew_before_ms).unwrap_or(i64::MAX);
                let renewal = facts.not_after.checked_sub(SignedDuration::from_millis(before)).ok();
                push(purpose.name(), facts, renewal);
            }
        }
        Ok((certificates, silent))
    });
    for (certificates, unheard) in lists.await? {
        all.extend(certificates);
        silent.extend(unheard);
    }
    Ok((all, silent))
}

/// A side's authorities by their role in a rotation.
fn standings(trust: &Trust) -> [(&'static str, Vec<&AuthorityRecord>); 4] {
    [
        ("signs", vec![&trust.current]),
        ("signs next", trust.next.iter().collect()),
        ("still trusted", trust.old.iter().collect()),
        ("distrusted", trust.retired.iter().collect()),
    ]
}

fn of_authority(cluster: Option<&Name>, what: &'static str, facts: &pki::CertificateFacts) -> Certificate {
    Certificate {
        cluster: cluster.cloned(),
        what,
        standing: None,
        holder: facts.subject.clone(),
        not_before: facts.not_before,
        not_after: facts.not_after,
        renewal: None,
        fingerprint: facts.fingerprint.clone(),
        names: facts.names.clone(),
    }
}

/// Files of a client certificate.
#[derive(Debug, Clone, Serialize)]
pub struct Issued {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key, readable by its owner alone.
    pub key: PathBuf,
    /// The CAs that the servers' certificates are checked against.
    pub ca: PathBuf,
    /// Until when it is valid.
    pub not_after: Timestamp,
    /// What its owner should know.
    pub warnings: Vec<String>,
}

/// What happens to files that exist already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Nothing: no certificate is issued.
    Keep,
    /// They are replaced.
    Replace,
}

/// How a client certificate is issued.
#[derive(Debug, Clone, Copy)]
pub struct IssueRequest<'a> {
    /// The common name.
    pub name: &'a str,
    /// The directory for the files.
    pub dir: &'a Path,
    /// Its validity; the default of its kind where none is given.
    pub validity: Option<Duration>,
    /// What happens to files that exist already.
    pub existing: Existing,
}

const DAY: Duration = Duration::from_secs(24 * 3600);
/// An application's certificate: what `certificates.validity` is for members.
const USER_VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);
/// `root` has all permissions, and etcd checks no revocation list: long enough for a day's work.
const ROOT_VALIDITY: Duration = DAY;

/// Signs a certificate for a user of etcd, into `<dir>/<user>.crt`, `.key` and `ca.crt`.
pub async fn issue(fleet: &Arc<Fleet>, cluster: Option<&str>, request: IssueRequest<'_>) -> Result<Issued, OpError> {
    let user = request.name;
    let cluster = pick_cluster(fleet, cluster).await?;
    let now = Timestamp::now();
    let trust = cluster.trust(TrustDomain::Clients)?;
    // Before auth is enabled, every client with a certificate is a superuser.
    let ledger = cluster.ledger();
    let unsecured = ledger.etcd.adopted().is_none() && ledger.etcd.secured.is_none();
    if cluster.desired.etcd.auth == AuthMode::Certificate && unsecured && user != "root" {
        return Err(OpError::AuthOff(cluster.desired.name.clone()));
    }
    let authority = cluster.kept(TrustDomain::Clients, &trust.current).await?;
    let usual = if user == "root" { ROOT_VALIDITY } else { USER_VALIDITY };
    let validity = request.validity.unwrap_or(usual);
    let leaf = Leaf { authority: &authority, organization: &cluster.desired.etcd.organization, trust: trust.bundle() };
    let mut issued = leaf.write(request, "ca.crt", validity, now)?;
    if user == "root" && validity > ROOT_VALIDITY {
        issued.warnings.push(format!(
            "`root` may read and change everything in `{}`, and etcd checks no revocation list: a copy of {} works until \
             {}; issue a certificate for a user with fewer rights, or leave --validity out (a day)",
            cluster.desired.name,
            issued.key.display(),
            issued.not_after.strftime("%Y-%m-%d %H:%M"),
        ));
    }
    if issued.not_after + SignedDuration::from_secs(1) < now + validity {
        issued.warnings.push(format!(
            "valid for {} instead of {}: the clients CA of `{}` ends then; `raftsman cert rotate clients` makes another",
            days(issued.not_after.duration_since(now)),
            days(SignedDuration::try_from(validity).unwrap_or(SignedDuration::MAX)),
            cluster.desired.name,
        ));
    }
    Ok(issued)
}

/// Signs a certificate for a client of the agents, into `<dir>/<name>.crt`, `.key` and `fleet-ca.crt`.
pub fn issue_for_agents(fleet: &Arc<Fleet>, role: Role, request: IssueRequest<'_>) -> Result<Issued, OpError> {
    if request.name.is_empty() {
        return Err(OpError::UserName(String::new()));
    }
    let now = Timestamp::now();
    let authority = &fleet.authority;
    let validity = request.validity.unwrap_or(USER_VALIDITY);
    let leaf = Leaf { authority, organization: role.organization(), trust: fleet.trust_pem.clone() };
    let mut issued = leaf.write(request, "fleet-ca.crt", validity, now)?;
    if issued.not_after + SignedDuration::from_secs(1) < now + validity {
        issued.warnings.push(format!(
            "valid for {} instead of {}: the fleet's CA ends then",
            days(issued.not_after.duration_since(now)),
            days(SignedDuration::try_from(validity).unwrap_or(SignedDuration::MAX)),
        ));
    }
    Ok(issued)
}

/// How long, for people.
fn days(span: SignedDuration) -> String {
    match span.as_hours() {
        hours if hours >= 48 => format!("{} days", hours / 24),
        hours => format!("{hours} hours"),
    }
}

/// The authority and the profile of a client certificate.
struct Leaf<'a> {
    authority: &'a pki::Authority,
    organization: &'a str,
    /// What the client checks servers against.
    trust: String,
}

impl Leaf<'_> {
    fn write(
        &self,
        request: IssueRequest<'_>,
        ca: &str,
        validity: Duration,
        now: Timestamp,
    ) -> Result<Issued, OpError> {
        let IssueRequest { name, dir, existing, .. } = request;
        let fits = |c: char| c.is_alphanumeric() || "-_.@".contains(c);
        if name.starts_with(['.', '-']) || !name.chars().all(fits) {
            return Err(OpError::UserName(name.to_owned()));
        }
        let stem = if name.is_empty() { "anonymous" } else { name };
        let [certificate, key, ca] = [format!("{stem}.crt"), format!("{stem}.key"), ca.to_owned()].map(|f| dir.join(f));
        if existing == Existing::Keep {
            // The directory may hold another user's certificate from the same CA.
            let same = std::fs::read(&ca).is_ok_and(|there| there == self.trust.as_bytes());
            for path in [&certificate, &key, &ca] {
                if path.symlink_metadata().is_ok() && !(path == &ca && same) {
                    return Err(OpError::FileExists(path.clone()));
                }
            }
        }
        let (chain, private) = self.authority.issue_client(name, Some(self.organization), validity, now)?;
        let not_after = pki::describe(&chain)?.not_after;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|source| OpError::File { action: "make", path: dir.to_owned(), source })?;
        write_file(&key, private.expose_secret().as_bytes(), 0o600)?;
        write_file(&certificate, chain.as_bytes(), 0o644)?;
        write_file(&ca, self.trust.as_bytes(), 0o644)?;
        Ok(Issued { certificate, key, ca, not_after, warnings: Vec::new() })
    }
}
