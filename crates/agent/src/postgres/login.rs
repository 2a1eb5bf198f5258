//! Patroni's file and etcd's CA certificates on the disk → whether each member of etcd lets Patroni in anew, and read its
//! keys.
//!
//! Patroni itself keeps its connections and its token: it would not notice before it needs another one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use raftsman_api::tls::{self, TlsError};
use raftsman_api::v1;
use raftsman_core::render::patroni::{self, ETCD_CA, PgSecret};
use rustls::ClientConfig;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::files::{self, FileError};
use crate::postgres::http::{self, Ask};
use crate::postgres::{config, lines};
use crate::root::Root;

/// For a member's both answers.
const LIMIT: Duration = Duration::from_secs(3);
/// The length to which etcd's words are cut.
const LONGEST_WORDS: usize = 200;

/// Why no login was tried.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// Not there yet.
    #[error("Patroni is not configured: write its configuration first")]
    NotConfigured,
    /// The CA certificates cannot be used.
    #[error("the CA certificates that members of etcd are checked by cannot be used: configure Patroni again")]
    Trust(#[source] TlsError),
    /// The library does not accept them.
    #[error("the CA certificates that members of etcd are checked by cannot be used: configure Patroni again")]
    Unusable(#[source] rustls::Error),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// How Patroni logs in.
struct Login {
    tls: Arc<ClientConfig>,
    user: String,
    password: SecretString,
    /// What all of Patroni's keys begin with.
    prefix: String,
}

/// Logs in to all members of the file at the same time.
pub async fn test(root: &Root) -> Result<v1::LogInToEtcdReply, LoginError> {
    // Hosts out of the text that only the agent writes.
    let sent = config::sent(root)?.ok_or(LoginError::NotConfigured)?;
    let filled = config::with_secrets(root)?.ok_or(LoginError::NotConfigured)?;
    let trust = files::read(&root.path().join(ETCD_CA))?.ok_or(LoginError::NotConfigured)?;
    let tls = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(LoginError::Unusable)?
        .with_root_certificates(tls::roots(&trust).map_err(LoginError::Trust)?)
        .with_no_client_auth();
    let of = |section, key| patroni::value(&sent, section, key).ok_or(LoginError::NotConfigured);
    let login = Arc::new(Login {
        tls: Arc::new(tls),
        user: of("etcd3", "username")?,
        password: lines::secret(&filled, PgSecret::Dcs).ok_or(LoginError::NotConfigured)?,
        prefix: prefix(&of("", "namespace")?, &of("", "scope")?),
    });
    let tries = patroni::hosts(&sent).into_iter().map(|host| {
        let login = Arc::clone(&login);
        async move {
            let tried = timeout(LIMIT, log_in(&login, host)).await;
            let tried = tried.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())));
            v1::EtcdLogin { host: host.to_string(), error: tried.err().unwrap_or_default() }
        }
    });
    let logins = futures::future::join_all(tries).await;
    Ok(v1::LogInToEtcdReply { user: login.user.clone(), logins })
}

/// `/service/pg/`, as Patroni makes it.
fn prefix(namespace: &str, scope: &str) -> String {
    let path = format!("{namespace}/{scope}");
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    format!("/{}/", parts.join("/"))
}

async fn log_in(login: &Login, host: SocketAddr) -> Result<(), String> {
    let begun = Instant::now();
    let body = json!({ "name": login.user, "password": login.password.expose_secret() });
    let answer = ask(login, host, "/v3/auth/authenticate", "", &body, begun).await?;
    let token = answer.get("token").and_then(Value::as_str).ok_or("it gave no token: is its auth on?")?;
    let mut end = login.prefix.clone().into_bytes();
    // The prefix ends with a slash, which is not the last of all bytes.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let range = json!({
        "key": STANDARD.encode(&login.prefix), "range_end": STANDARD.encode(&end), "serializable": true,
        "keys_only": true, "limit": 1,
    });
    ask(login, host, "/v3/kv/range", token, &range, begun).await.map(drop)
}

async fn ask(
    login: &Login,
    host: SocketAddr,
    path: &str,
    authorization: &str,
    body: &Value,
    begun: Instant,
) -> Result<Value, String> {
    let ask = Ask { method: "POST", path, authorization, body: body.to_string() };
    let left = LIMIT.saturating_sub(begun.elapsed());
    let (status, text) = http::ask(Arc::clone(&login.tls), host, ask, left).await.map_err(|error| error.to_string())?;
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    if status == 200 {
        return Ok(answer);
    }
    // `error` in gateways before 3.6, `message` in all.
    let words = ["message", "error"].iter().find_map(|key| answer.get(key)?.as_str()).unwrap_or("no reason given");
    Err(format!("{} (HTTP status {status})", words.chars().take(LONGEST_WORDS).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_begin_as_patroni_has_it() {
        assert_eq!(prefix("/service/", "pg"), "/service/pg/");
        assert_eq!(prefix("service", "pg"), "/service/pg/");
        assert_eq!(prefix("/", "pg"), "/pg/");
    }
}
