//! `raftsman cert`: what is signed, until when, and new certificates for clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use raftsman_core::observed::{AuthorityRecord, Side, Trust};
use raftsman_core::spec::{self, Name};
use secrecy::ExposeSecret;
use serde::Serialize;

use super::{OpError, for_each_cluster, pick_cluster};
use crate::fleet::Fleet;
use crate::observe::Observer;
use crate::pki;

/// One certificate.
#[derive(Debug, Clone, Serialize)]
pub struct Certificate {
    /// Which cluster; none for the fleet's own.
    pub cluster: Option<Name>,
    /// What: `fleet CA`, `peers CA`, `clients CA`, `agent`, `peer`, `server`.
    pub what: &'static str,
    /// While an authority changes: `signs`, `signs next`, `still trusted`, `trusted no more`.
    pub standing: Option<&'static str>,
    /// Whose.
    pub whose: String,
    /// From when.
    pub not_before: Timestamp,
    /// Until when.
    pub not_after: Timestamp,
    /// When it is renewed, or another authority is made; never for those that are brought.
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
    let lists = for_each_cluster(fleet, only, |cluster| async move {
        let name = &cluster.desired.name;
        let mut certificates = Vec::new();
        for side in Side::ALL {
            let Some(trust) = cluster.ledger().trust(side).cloned() else { continue };
            for (standing, records) in standings(&trust) {
                for record in records {
                    let facts = pki::describe(&record.certificate)?;
                    let standing = Some(standing).filter(|_| trust.rotates());
                    let what = if side == Side::Peers { "peers CA" } else { "clients CA" };
                    let made = *cluster.desired.authority(side) == spec::Authority::Made;
                    let before = cluster.desired.renew_authority_before();
                    let renewal = facts.not_after.checked_sub(before).ok().filter(|_| made && record == &trust.current);
                    certificates.push(Certificate { standing, renewal, ..of_authority(Some(name), what, &facts) });
                }
            }
        }
        let observed = Observer::new(Arc::clone(&cluster))?.look().await?;
        let mut silent = Vec::new();
        for member in &cluster.desired.members {
            let Some(report) = observed.members.get(&member.name).and_then(|m| m.report()) else {
                silent.push(member.name.to_string());
                continue;
            };
            let mut push = |what, facts: &raftsman_core::observed::CertificateFacts, renewal| {
                certificates.push(Certificate {
                    cluster: Some(name.clone()),
                    what,
                    standing: None,
                    whose: member.name.to_string(),
                    not_before: facts.not_before,
                    not_after: facts.not_after,
                    renewal,
                    fingerprint: facts.fingerprint.clone(),
                    names: facts.names.clone(),
                });
            };
            if let Some(own) = &report.certificate {
                push("agent", own, None);
            }
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

/// A side's authorities by what they are to it.
fn standings(trust: &Trust) -> [(&'static str, Vec<&AuthorityRecord>); 4] {
    [
        ("signs", vec![&trust.current]),
        ("signs next", trust.next.iter().collect()),
        ("still trusted", trust.old.iter().collect()),
        ("trusted no more", trust.retired.iter().collect()),
    ]
}

fn of_authority(cluster: Option<&Name>, what: &'static str, facts: &pki::CertificateFacts) -> Certificate {
    Certificate {
        cluster: cluster.cloned(),
        what,
        standing: None,
        whose: facts.subject.clone(),
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
    /// Its key, readable by nobody else.
    pub key: PathBuf,
    /// The CAs that members' certificates are checked against.
    pub ca: PathBuf,
    /// Until when it is valid.
    pub not_after: Timestamp,
}

/// Signs a certificate for a user of etcd, into `<dir>/<user>.crt`, `.key` and `ca.crt`.
pub fn issue(
    fleet: &Arc<Fleet>,
    cluster: Option<&str>,
    user: &str,
    dir: &Path,
    validity: Duration,
) -> Result<Issued, OpError> {
    let fits = |c: char| c.is_alphanumeric() || "-_.@".contains(c);
    if user.starts_with('.') || !user.chars().all(fits) {
        return Err(OpError::UserName(user.to_owned()));
    }
    let cluster = pick_cluster(fleet, cluster)?;
    let now = Timestamp::now();
    let trust = cluster.trust(Side::Clients)?;
    let authority = cluster.kept(Side::Clients, &trust.current)?;
    let (chain, key) = authority.issue_client(user, Some(&cluster.desired.organization), validity, now)?;
    let not_after = pki::describe(&chain)?.not_after;
    let stem = if user.is_empty() { "anonymous" } else { user };
    let issued = Issued {
        certificate: dir.join(format!("{stem}.crt")),
        key: dir.join(format!("{stem}.key")),
        ca: dir.join("ca.crt"),
        not_after,
    };
    std::fs::create_dir_all(dir).map_err(|source| OpError::File { action: "make", path: dir.to_owned(), source })?;
    crate::store::write_file(&issued.key, key.expose_secret().as_bytes(), 0o600)?;
    crate::store::write_file(&issued.certificate, chain.as_bytes(), 0o644)?;
    crate::store::write_file(&issued.ca, trust.bundle().as_bytes(), 0o644)?;
    Ok(issued)
}
