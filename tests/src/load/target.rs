//! A lab's cluster → where its members are, and the files that a client shows and trusts.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use raftsman_api::tls::Identity;
use raftsman_etcd::{Credentials, EtcdError};
use secrecy::SecretString;

use crate::lab::Lab;

/// Where a load goes and with which credentials. The files are read anew at every connection that is made.
#[derive(Debug, Clone)]
pub struct Target {
    /// Members to begin with.
    pub endpoints: Vec<IpAddr>,
    /// The CA or CAs that members' certificates are checked against.
    pub ca: PathBuf,
    /// A certificate to show and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A file with the password of etcd's `root`, where passwords are used.
    pub password: Option<PathBuf>,
}

impl Target {
    /// Asks raftsman where a cluster of a lab is, and lets it issue a certificate of the load's own: `raftsman env`
    /// writes that of `etcdctl` anew whenever a test uses it.
    #[track_caller]
    pub fn of(lab: &Lab, cluster: &str) -> Self {
        Self::by(lab, cluster, lab.run(&["env", cluster, "--json"]).ok().json())
    }

    /// The same for clients that know only this balancer.
    #[track_caller]
    pub fn via(lab: &Lab, cluster: &str, balancer: &str) -> Self {
        Self::by(lab, cluster, lab.run(&["env", cluster, "--via", balancer, "--json"]).ok().json())
    }

    #[track_caller]
    fn by(lab: &Lab, cluster: &str, env: serde_json::Value) -> Self {
        let dir = lab.path().join(".load").join(cluster);
        let out = dir.to_string_lossy().into_owned();
        lab.run(&["cert", "issue", "root", "--cluster", cluster, "--out", &out, "--force"]).ok();
        let endpoints = env["endpoints"].as_array().expect("endpoints").iter();
        let endpoints = endpoints.map(|url| address(url.as_str().expect("a URL")).expect("an address")).collect();
        Self {
            endpoints,
            ca: dir.join("ca.crt"),
            certificate: env["certificate"].is_string().then(|| (dir.join("root.crt"), dir.join("root.key"))),
            password: env["password_file"].as_str().map(PathBuf::from),
        }
    }

    /// What the files hold now.
    pub(super) fn texts(&self) -> std::io::Result<Texts> {
        let read = |path: &Path| std::fs::read_to_string(path);
        Ok(Texts {
            ca: read(&self.ca)?,
            certificate: match &self.certificate {
                Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
                None => None,
            },
            password: self.password.as_deref().map(read).transpose()?,
        })
    }
}

/// The contents of a target's files.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Texts {
    ca: String,
    certificate: Option<(String, String)>,
    password: Option<String>,
}

impl Texts {
    pub(super) fn credentials(&self) -> Result<Credentials, EtcdError> {
        let identity = self.certificate.as_ref().map(|(chain, key)| Identity::from_pem(chain, key)).transpose()?;
        let password = self.password.as_ref().map(|password| SecretString::from(password.trim_end().to_owned()));
        Credentials::new(&self.ca, identity.as_ref(), password)
    }
}

/// The address in a member's client URL.
pub(super) fn address(url: &str) -> Option<IpAddr> {
    let host = url.strip_prefix("https://")?.rsplit_once(':')?.0;
    host.trim_matches(['[', ']']).parse().ok()
}
