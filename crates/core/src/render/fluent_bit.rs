//! log settings and what they refer to → fluent-bit's files: stubs for the first boot, all else delivered later.

use std::fmt::Write as _;

use super::delivery::{Deliverable, Delivered, DeliveryError, one_line};
use super::first_boot::File;
use crate::spec::{LogDynamic, Logs};

const EXPORTER: &str = "prometheus-node-exporter.service";

/// What the section `logs` refers to, read by the engine: files and secrets.
#[derive(Clone, Copy, Default)]
pub struct Referred<'a> {
    /// `forward.ca_cert`, PEM.
    pub forward_ca: Option<&'a str>,
    /// `forward.shared_key`.
    pub shared_key: Option<&'a str>,
    /// `dynamic.ca_cert`, PEM.
    pub dynamic_ca: Option<&'a str>,
    /// `dynamic.certificate`, PEM.
    pub dynamic_certificate: Option<&'a str>,
    /// `dynamic.key`, PEM.
    pub dynamic_key: Option<&'a str>,
    /// `dynamic.password`.
    pub dynamic_password: Option<&'a str>,
}

/// What a machine's first boot writes: fluent-bit looks for its configuration in our place, and waits until it is there.
pub(super) fn stubs() -> [File; 2] {
    let file = |path: &str, contents: String| File { path: path.to_owned(), mode: 0o644, contents };
    let (config, environment) = (Deliverable::LogConfig.path(), Deliverable::LogSecrets.path());
    [
        file("/etc/fluent-bit/fluent-bit.conf", format!("@INCLUDE {config}\n")),
        file(
            "/etc/systemd/system/fluent-bit.service.d/raftsman.conf",
            format!(
                "[Unit]\nConditionPathExists={config}\n\n\
                 [Service]\nEnvironmentFile=-{environment}\nStateDirectory=fluent-bit\n"
            ),
        ),
    ]
}

/// The files that a running agent is given, the one that makes them take effect last. `exporter` says whether there is
/// a node exporter.
pub fn delivered(
    machine: &str,
    logs: &Logs,
    exporter: bool,
    referred: &Referred<'_>,
) -> Result<Vec<Delivered>, DeliveryError> {
    let mut files = Vec::new();
    let mut add = |what: Deliverable, contents: String| files.push(Delivered { what, contents });
    if let Some(dynamic) = &logs.dynamic {
        let ca = required(referred.dynamic_ca, "the CA certificate", "machines.logs.dynamic.ca_cert")?;
        add(Deliverable::LogDynamicCa, ca.to_owned());
        if dynamic.certificate.is_some() {
            let what = "the client certificate";
            let certificate = required(referred.dynamic_certificate, what, "machines.logs.dynamic.certificate")?;
            add(Deliverable::LogDynamicCertificate, certificate.to_owned());
            let key = required(referred.dynamic_key, "the client's key", "machines.logs.dynamic.key")?;
            add(Deliverable::LogDynamicKey, key.to_owned());
        }
        add(Deliverable::LogDynamic, source(dynamic, referred)?);
    }
    if logs.forward.is_some() {
        let ca = required(referred.forward_ca, "the CA certificate", "machines.logs.forward.ca_cert")?;
        add(Deliverable::LogForwardCa, ca.to_owned());
        let key = required(referred.shared_key, "the shared key", "machines.logs.forward.shared_key")?;
        let key = one_line(key, "the key shared with the receiver of logs")?;
        add(Deliverable::LogSecrets, format!("RAFTSMAN_SHARED_KEY={}\n", environment(key)));
    }
    add(Deliverable::LogConfig, config(machine, logs, exporter));
    Ok(files)
}

fn required<'t>(text: Option<&'t str>, what: &'static str, key: &'static str) -> Result<&'t str, DeliveryError> {
    text.ok_or(DeliveryError::Missing { what, key })
}

/// fluent-bit's configuration. No secret is in it, and none could be: it replaces `${…}` in every value, so that a key
/// with these characters comes as a variable, which is not looked into again.
fn config(machine: &str, logs: &Logs, exporter: bool) -> String {
    let mut out = String::from("# Written by raftsman.\n[SERVICE]\n    flush 1\n    log_level info\n");
    let etcd = ("raftsman-etcd.service", logs.etcd_tag.as_deref().unwrap_or("etcd"), "etcd");
    let metrics = (EXPORTER, logs.node_exporter_tag.as_deref().unwrap_or("node-exporter"), "node-exporter");
    for (unit, tag, position) in [Some(etcd), exporter.then_some(metrics)].into_iter().flatten() {
        let _ = write!(
            out,
            "[INPUT]\n    name systemd\n    tag {tag}\n    systemd_filter _SYSTEMD_UNIT={unit}\n    \
             db /var/lib/fluent-bit/{position}.db\n    strip_underscores on\n"
        );
    }
    if let Some(forward) = &logs.forward {
        let _ = write!(
            out,
            "[OUTPUT]\n    name forward\n    match *\n    host {}\n    port {}\n    self_hostname {}\n    \
             shared_key ${{RAFTSMAN_SHARED_KEY}}\n    tls on\n    tls.verify on\n    tls.ca_file {}\n    \
             retry_limit no_limits\n",
            forward.host,
            forward.port,
            forward.hostname.as_deref().unwrap_or(machine),
            Deliverable::LogForwardCa.path()
        );
    }
    out
}

/// From where configuration is fetched, for the process that fetches it.
fn source(dynamic: &LogDynamic, referred: &Referred<'_>) -> Result<String, DeliveryError> {
    let mut source = serde_json::json!({
        "key_prefix": dynamic.key_prefix,
        "endpoints": dynamic.endpoints,
        "ca_cert": Deliverable::LogDynamicCa.path(),
    });
    if dynamic.certificate.is_some() {
        source["certificate"] = Deliverable::LogDynamicCertificate.path().into();
        source["key"] = Deliverable::LogDynamicKey.path().into();
    }
    if let Some(username) = &dynamic.username {
        let password = required(referred.dynamic_password, "the password", "machines.logs.dynamic.password")?;
        source["username"] = username.as_str().into();
        source["password"] = password.into();
    }
    Ok(format!("{source:#}\n"))
}

/// A value in a file of variables, as systemd reads it.
fn environment(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        if matches!(c, '"' | '\\' | '$' | '`') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}
