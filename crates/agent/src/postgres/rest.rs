//! what is asked of this machine's Patroni → its answer, by REST with the node's own certificate and password.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use raftsman_api::tls::{self, TlsError};
use raftsman_core::desired::PARAMETERS;
use raftsman_core::render::patroni::{self, PgSecret, REST_TLS, REST_USER, setting_allowed};
use rustls::ClientConfig;
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};

use crate::access::certs::{CertsError, Store};
use crate::files::FileError;
use crate::postgres::http::{self, Ask, HttpError};
use crate::postgres::{config, lines};
use crate::root::Root;

/// A report waits for no longer.
const REPORT_LIMIT: Duration = Duration::from_secs(2);
/// Patroni answers once PostgreSQL has written its memory to the disk, and has started again.
const RESTART_LIMIT: Duration = Duration::from_secs(600);
/// Patroni answers once the candidate is the leader, or after a while without one.
const SWITCHOVER_LIMIT: Duration = Duration::from_secs(300);
/// For what Patroni only writes to etcd, or begins.
const ORDER_LIMIT: Duration = Duration::from_secs(30);
/// The length to which Patroni's words are cut.
const LONGEST_WORDS: usize = 600;

/// Why Patroni was not asked, or did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RestError {
    /// Not there yet.
    #[error("Patroni is not configured: write its configuration first")]
    NotConfigured,
    /// Not there yet.
    #[error("Patroni's REST interface has no certificate: request and store one first")]
    NoCertificate,
    /// A setting that is none of raftsman's.
    #[error("`{0}` with this value is no setting that raftsman makes: nothing was changed")]
    Setting(String),
    /// It says why not.
    #[error("Patroni refused: {words} (HTTP status {status})")]
    Refused {
        /// HTTP's code.
        status: u16,
        /// Patroni's own words.
        words: String,
    },
    /// It is not reached, or does not answer.
    #[error("Patroni's REST interface at {0}")]
    Http(#[from] HttpError),
    /// The certificate is at fault.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// The certificate cannot be used.
    #[error("the certificate of Patroni's REST interface cannot be used: request a new one")]
    Unusable(#[source] rustls::Error),
    /// Its CA certificates cannot be used.
    #[error("the CA certificates of Patroni's REST interface cannot be used: store others")]
    Trust(#[source] TlsError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What a node must be to be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes writes.
    Primary,
    /// It follows.
    Replica,
}

/// What became of a switchover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchedOver {
    /// It is done.
    Done,
    /// Patroni did not say: it may be done, or may come.
    Undetermined,
}

/// This machine's own Patroni.
pub struct Rest {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    authorization: String,
}

impl Rest {
    /// As its files on the disk say.
    pub fn open(root: &Root) -> Result<Self, RestError> {
        let text = config::sent(root)?.ok_or(RestError::NotConfigured)?;
        let address = patroni::value(&text, "restapi", "listen").and_then(|address| address.parse().ok());
        let address = address.ok_or(RestError::NotConfigured)?;
        let filled = config::with_secrets(root)?.ok_or(RestError::NotConfigured)?;
        let password = lines::secret(&filled, PgSecret::Rest).ok_or(RestError::NotConfigured)?;
        let login = STANDARD.encode(format!("{REST_USER}:{}", password.expose_secret()));
        let credentials = Store::new(root.path().join(REST_TLS)).credentials()?;
        let (identity, trust) = credentials.ok_or(RestError::NoCertificate)?;
        let tls = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(RestError::Unusable)?
            .with_root_certificates(tls::roots(&trust).map_err(RestError::Trust)?)
            .with_client_auth_cert(identity.chain, identity.key)
            .map_err(RestError::Unusable)?;
        Ok(Self { address, tls: Arc::new(tls), authorization: format!("Basic {login}") })
    }

    /// What it answers to `GET /patroni`, whatever PostgreSQL does.
    pub async fn facts(&self) -> Result<String, RestError> {
        // The certificate is enough to read: the password stays here.
        let ask = Ask { method: "GET", path: "/patroni", authorization: "", body: String::new() };
        match http::ask(Arc::clone(&self.tls), self.address, ask, REPORT_LIMIT).await? {
            (200 | 503, answer) if answer.starts_with('{') => Ok(answer),
            (status, words) => Err(refused(status, &words)),
        }
    }

    /// Restarts PostgreSQL, if the node has this role.
    pub async fn restart(&self, role: Role) -> Result<(), RestError> {
        let role = match role {
            Role::Primary => "primary",
            Role::Replica => "replica",
        };
        self.order("POST", "/restart", &json!({ "role": role }), RESTART_LIMIT).await
    }

    /// Begins to delete the node's data, and to copy the primary's.
    pub async fn reinitialize(&self) -> Result<(), RestError> {
        self.order("POST", "/reinitialize", &json!({}), ORDER_LIMIT).await
    }

    /// Hands the primary's place over, to a standby that has every acknowledged commit: Patroni refuses another one.
    pub async fn switch_over(&self, from: &str, to: &str) -> Result<SwitchedOver, RestError> {
        let body = json!({ "leader": from, "candidate": to });
        match self.order("POST", "/switchover", &body, SWITCHOVER_LIMIT).await {
            Ok(()) => Ok(SwitchedOver::Done),
            Err(RestError::Http(HttpError::NoAnswer { .. })) => Ok(SwitchedOver::Undetermined),
            Err(RestError::Refused { status, words }) if status >= 500 => {
                tracing::warn!(status, words, "Patroni does not say whether it switched over");
                Ok(SwitchedOver::Undetermined)
            }
            Err(error) => Err(error),
        }
    }

    /// Changes settings of the whole cluster: of each its path, and its value in JSON, or nothing to remove it.
    pub async fn set(&self, settings: &[(String, String)]) -> Result<(), RestError> {
        let body = patch(settings)?;
        self.order("PATCH", "/config", &body, ORDER_LIMIT).await
    }

    async fn order(&self, method: &str, path: &str, body: &Value, limit: Duration) -> Result<(), RestError> {
        let ask = Ask { method, path, authorization: &self.authorization, body: body.to_string() };
        match http::ask(Arc::clone(&self.tls), self.address, ask, limit).await? {
            (200, _) => Ok(()),
            (status, words) => Err(refused(status, &words)),
        }
    }
}

fn refused(status: u16, words: &str) -> RestError {
    RestError::Refused { status, words: words.trim().chars().take(LONGEST_WORDS).collect() }
}

/// The settings as one object. Each is one that raftsman makes.
fn patch(settings: &[(String, String)]) -> Result<Value, RestError> {
    let mut patch = Map::new();
    for (path, text) in settings {
        let wrong = || RestError::Setting(path.clone());
        let value = match text.as_str() {
            "" if is_removable(path) => Value::Null,
            text if setting_allowed(path, text) => serde_json::from_str(text).map_err(|_| wrong())?,
            _ => return Err(wrong()),
        };
        // A parameter's own name may have dots.
        let sections: Vec<&str> = match path.strip_prefix(PARAMETERS) {
            Some(parameter) => PARAMETERS.split_terminator('.').chain([parameter]).collect(),
            None => path.split('.').collect(),
        };
        let (key, sections) = sections.split_last().ok_or_else(wrong)?;
        let mut object = &mut patch;
        for section in sections {
            let inner = object.entry(*section).or_insert_with(|| Value::Object(Map::new()));
            object = inner.as_object_mut().ok_or_else(wrong)?;
        }
        if object.insert((*key).to_owned(), value).is_some() {
            return Err(wrong());
        }
    }
    Ok(Value::Object(patch))
}

/// Whether some value of this setting is one that raftsman makes.
fn is_removable(path: &str) -> bool {
    ["1", "true", "\"quorum\"", "\"on\"", "\"1MB\"", "\"1s\"", "1000"].iter().any(|value| setting_allowed(path, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(settings: &[(&str, &str)]) -> Result<String, String> {
        let settings: Vec<_> = settings.iter().map(|(path, json)| ((*path).to_owned(), (*json).to_owned())).collect();
        patch(&settings).map(|value| value.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn only_settings_that_raftsman_makes() {
        let good = [
            ("ttl", "30"),
            ("postgresql.parameters.max_connections", "200"),
            ("postgresql.parameters.pg_stat_statements.track", "\"none\""),
            ("postgresql.parameters.work_mem", ""),
            ("postgresql.use_slots", "true"),
        ];
        assert_eq!(
            patched(&good).expect("settings"),
            r#"{"ttl":30,"postgresql":{"parameters":{"max_connections":200,"pg_stat_statements.track":"none","work_mem":null},"use_slots":true}}"#
        );
        for (path, json) in [
            ("postgresql.parameters.archive_command", "\"sh -c id\""),
            ("postgresql.parameters.archive_command", ""),
            ("postgresql.parameters.shared_preload_libraries", "\"/tmp/x\""),
            ("postgresql.recovery_conf.restore_command", "\"id\""),
            ("postgresql", "{\"parameters\":{\"ssl\":\"off\"}}"),
            ("postgresql.pg_hba", "[]"),
            ("standby_cluster", "{\"host\":\"192.0.2.1\"}"),
            ("standby_cluster", ""),
            ("pause", "true"),
            ("ttl", "30, \"pause\": true"),
            ("ttl", "null"),
            ("", ""),
        ] {
            patched(&[(path, json)]).expect_err(path);
        }
        patched(&[("ttl", "30"), ("ttl", "40")]).expect_err("twice");
    }
}
