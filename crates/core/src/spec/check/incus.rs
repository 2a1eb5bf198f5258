//! The section `machines.incus` → a server that cannot be reached, and machines that it could not make.

use super::super::diagnostic::Path;
use super::super::incus::Incus;
use super::super::machines::{Machines, Provider};
use super::super::units::quoted;
use super::{Finding, Findings, overrides};

fn at(key: &str) -> Path {
    Path::of(&["machines", "incus"]).key(key)
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let machines = &findings.spec.machines;
    if machines.provider != Provider::Incus {
        return;
    }
    let provider = || Path::of(&["machines", "provider"]);
    if !overrides::every_machine(findings.spec, |machines| machines.image.is_some()) {
        findings.add(
            Finding::error("image-none", provider(), "machines on Incus are made of an image, and none is named")
                .uses(Path::of(&["machines", "image"]))
                .uses(Path::of(&["etcd"]))
                .uses(Path::of(&["postgres"]))
                .help("add `image`, an alias or a fingerprint as in `incus image list`"),
        );
    }
    let none = Incus::default();
    let incus = machines.incus.as_ref().unwrap_or(&none);
    let connected = |machines: &Machines| machines.incus.as_ref().is_some_and(|incus| incus.network.is_some());
    if !overrides::every_machine(findings.spec, connected) {
        findings.add(
            Finding::error(
                "network-none",
                provider(),
                "machines on Incus have an address in a network, and none is named",
            )
            .uses(at("network"))
            .uses(Path::of(&["etcd"]))
            .uses(Path::of(&["postgres"]))
            .help("add `incus: { network: incusbr0 }`, or another as in `incus network list`"),
        );
    }
    pooled(findings, &|key| Path::of(&["machines", key]), machines.disk.is_some(), machines.data_disk.is_some());
    server(findings, &at, incus);
    names(findings, &at, incus.profiles.as_deref().unwrap_or_default(), "profiles");
    names(findings, &at, &incus.acls, "acls");
    names(findings, &at, &incus.targets, "targets");
    for (key, name) in [("project", &incus.project), ("network", &incus.network), ("pool", &incus.pool)] {
        if let Some(name) = name {
            named(findings, || at(key), name);
        }
    }
}

/// Disks of a size need a storage pool to be made in.
pub(super) fn pooled(findings: &mut Findings<'_>, here: &dyn Fn(&str) -> Path, disk: bool, data_disk: bool) {
    let machines = &findings.spec.machines;
    let pooled = |machines: &Machines| machines.incus.as_ref().is_some_and(|incus| incus.pool.is_some());
    let pool = overrides::every_machine(findings.spec, pooled);
    if machines.provider != Provider::Incus || pool {
        return;
    }
    for (key, _) in [("disk", disk), ("data_disk", data_disk)].iter().filter(|(_, given)| *given) {
        findings.add(
            Finding::error("pool-none", here(key), format!("a {} needs a storage pool", key.replace('_', " ")))
                .on_key()
                .uses(at("pool"))
                .help(
                    "add `incus: { pool: default }` to the fleet's `machines`, or another as in `incus storage list`",
                ),
        );
    }
}

/// Names of a list, as Incus knows them.
pub(super) fn names(findings: &mut Findings<'_>, at: &dyn Fn(&str) -> Path, names: &[String], key: &str) {
    for (index, name) in names.iter().enumerate() {
        named(findings, || at(key).index(index), name);
    }
}

pub(super) fn named(findings: &mut Findings<'_>, path: impl Fn() -> Path, name: &str) {
    if name.is_empty()
        || name.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '&' | '%'))
    {
        findings.add(
            Finding::error("incus-name-invalid", path(), format!("Incus has nothing of the name {}", quoted(name)))
                .help("write the name as `incus … list` shows it"),
        );
    }
}

/// The server, as the fleet or a zone says.
pub(super) fn server(findings: &mut Findings<'_>, at: &dyn Fn(&str) -> Path, incus: &Incus) {
    let files =
        [("certificate", &incus.certificate), ("key", &incus.key), ("server_certificate", &incus.server_certificate)];
    for (key, file) in files {
        if let Some(file) = file {
            findings.file(|| at(key), file);
        }
    }
    let server = incus.server();
    let remote = match incus.remote() {
        Some((host, port)) => {
            if !super::machines::host(host) || port.is_none() {
                findings.add(
                    Finding::error(
                        "incus-server-invalid",
                        at("server"),
                        format!("{} is not a server's URL", quoted(server)),
                    )
                    .help("`https://host:8443`, as in `incus remote list`"),
                );
            }
            true
        }
        None if server.starts_with('/') => false,
        None => {
            findings.add(
                Finding::error(
                    "incus-server-invalid",
                    at("server"),
                    format!("{} is neither a socket nor a URL", quoted(server)),
                )
                .help("the path of a socket, such as `/var/lib/incus/unix.socket`, or `https://host:8443`"),
            );
            return;
        }
    };
    for (key, file) in files {
        if remote && file.is_none() {
            let finding = Finding::error(
                "incus-trust",
                at("server"),
                format!("a server that is reached by network needs `{key}`"),
            )
            .uses(at(key))
            .why("both sides authenticate with certificates that the other side trusts");
            findings.add(finding.help(match key {
                "server_certificate" => {
                    "save what the server shows: `incus query /1.0 | jq -r .environment.certificate`"
                }
                _ => "make a certificate, and have the server trust it: `incus config trust add-certificate FILE`",
            }));
        } else if !remote && file.is_some() {
            findings.add(
                Finding::warning("ignored-by-provider", at(key), format!("a socket needs no `{key}`"))
                    .on_key()
                    .uses(at("server"))
                    .help("remove it, or name a server by `https://…`"),
            );
        }
    }
}
