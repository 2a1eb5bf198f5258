//! The `machines` section → what its provider cannot do, ignores, or would fail on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use super::super::diagnostic::Path;
use super::super::machines::{Admin, LogDynamic, LogForward, Logs, Machines, Provider, Ssh, Time, TimeSource};
use super::super::overrides::Size;
use super::super::units::{ByteSize, quoted};
use super::{Finding, Findings};

/// A /24 of loopback addresses.
pub(super) struct Network([u8; 3]);

impl Network {
    /// .0 and .255 are left out, as on any network.
    pub(super) const USABLE: u64 = 254;

    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let Some((address, prefix)) = text.trim().split_once('/') else {
            return Err("the prefix length is missing");
        };
        let Ok(address) = address.parse::<Ipv4Addr>() else {
            return Err("it does not start with an IPv4 address");
        };
        if prefix != "24" {
            return Err("its prefix length is not 24");
        }
        match address.octets() {
            [127, b, c, 0] => Ok(Self([127, b, c])),
            [127, ..] => Err("a /24 ends in `.0`"),
            _ => Err("the local provider uses loopback addresses only"),
        }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(v4) if v4.octets()[..3] == self.0)
    }

    pub(super) fn host(&self, number: u8) -> Ipv4Addr {
        let [a, b, c] = self.0;
        Ipv4Addr::new(a, b, c, number)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/24", self.host(0))
    }
}

fn at(key: &str) -> Path {
    Path::of(&["machines", key])
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let machines = &findings.spec.machines;
    provider(findings, machines);
    if let Some(directory) = &machines.directory {
        findings.file(|| at("directory"), directory);
    }
    if let Some(text) = &machines.network {
        match Network::parse(text) {
            Err(reason) => findings.add(
                Finding::error(
                    "network-invalid",
                    at("network"),
                    format!("{} is not a network that can be used: {reason}", quoted(text)),
                )
                .uses(at("provider"))
                .help("write a loopback network such as `127.0.42.0/24`, or leave it out and let raftsman choose"),
            ),
            Ok(Network([127, 0, 0])) => findings.add(
                Finding::warning(
                    "network-localhost",
                    at("network"),
                    "127.0.0.0/24 holds 127.0.0.1, where everything else on this computer listens",
                )
                .help("use another, such as `127.0.42.0/24`"),
            ),
            Ok(_) => {}
        }
    }
    size(findings, &at, &machines.size());
    if let Some(settings) = &machines.ssh {
        ssh(findings, settings);
    }
    if let Some(settings) = &machines.admin {
        admin(findings, settings);
    }
    if let Some(settings) = &machines.time {
        time(findings, settings);
    }
    if let Some(settings) = &machines.logs {
        logs(findings, settings);
    }
}

/// What the fleet, a cluster or a member says of a machine's size.
pub(super) fn size(findings: &mut Findings<'_>, at: &dyn Fn(&str) -> Path, size: &Size<'_>) {
    if size.vcpus == Some(0) {
        findings.add(
            Finding::error("size-zero", at("vcpus"), "a machine needs at least one CPU")
                .help("`2` is a good start for etcd"),
        );
    }
    for (key, given, least) in [
        ("memory", size.memory, ByteSize::mib(512)),
        ("disk", size.disk, ByteSize::gib(2)),
        ("data_disk", size.data_disk, ByteSize::gib(1)),
    ] {
        if let Some(given) = given.filter(|given| *given < least) {
            findings.add(
                Finding::error(
                    "size-small",
                    at(key),
                    format!("{given} of {} is too little for a machine", key.replace('_', " ")),
                )
                .help(format!("at least `{least}`")),
            );
        }
    }
    if let Some(image) = size.image {
        if image.trim().is_empty() {
            findings.add(
                Finding::error("image-empty", at("image"), "the image's name is empty")
                    .help("name an image as the provider knows it"),
            );
        } else if image.starts_with('-') || image.contains(|c: char| c.is_control()) {
            findings.add(
                Finding::error("image-invalid", at("image"), format!("{} cannot be an image's name", quoted(image)))
                    .why("programs take a name that starts with `-` for an option")
                    .help("name an image as the provider knows it"),
            );
        }
    }
}

fn provider(findings: &mut Findings<'_>, machines: &Machines) {
    let name = match machines.provider {
        Provider::Local | Provider::Hosts | Provider::Incus | Provider::Libvirt => None,
        Provider::Openstack => Some("openstack"),
        Provider::Aws => Some("aws"),
    };
    if let Some(name) = name {
        findings.add(
            Finding::error(
                "provider-not-yet",
                at("provider"),
                format!("the provider `{name}` is not in this version yet"),
            )
            .why(
                "this version has `local`, which runs every machine on this computer, `hosts`, which exist already, \
                 `incus` and `libvirt`",
            )
            .help("set `provider: local`, `hosts`, `incus` or `libvirt`, or wait for a later version"),
        );
        return;
    }
    for (key, given, whose) in [
        ("directory", machines.directory.is_some(), Provider::Local),
        ("network", machines.network.is_some(), Provider::Local),
        ("ssh", machines.ssh.is_some(), Provider::Hosts),
        ("incus", machines.incus.is_some(), Provider::Incus),
        ("libvirt", machines.libvirt.is_some(), Provider::Libvirt),
    ] {
        if given && machines.provider != whose {
            of_another_provider(findings, at(key), key, whose);
        }
    }
    let Some(ignorant) = ignorant(machines.provider) else { return not_fetched(findings, machines) };
    let further = [
        ("admin", machines.admin.is_some()),
        ("time", machines.time.is_some()),
        ("logs", machines.logs.is_some()),
        ("subnet", machines.subnet.is_some()),
        ("gateway", machines.gateway.is_some()),
        ("dns", machines.dns.is_some()),
        ("firewall", machines.firewall.is_some()),
        ("node_exporter", machines.node_exporter.is_some()),
        ("updates", machines.updates.is_some()),
        ("install_dependencies", machines.install_dependencies.is_some()),
        ("mirror", machines.mirror.is_some()),
    ];
    for (key, _) in machines.size().keys().iter().chain(&further).filter(|(_, given)| *given) {
        is_ignored(findings, at(key), key, ignorant);
    }
}

/// A provider that makes no machines from an image: how it is called, and why it ignores what machines are made of.
pub(super) fn ignorant(provider: Provider) -> Option<(&'static str, &'static str)> {
    match provider {
        Provider::Local => Some((
            "the local provider",
            "its machines are directories and processes of this computer, not machines that boot",
        )),
        Provider::Hosts => Some(("the provider `hosts`", "hosts that exist are set up already, and stay as they are")),
        Provider::Incus | Provider::Libvirt | Provider::Openstack | Provider::Aws => None,
    }
}

/// The warning of a key that this provider ignores.
pub(super) fn is_ignored(findings: &mut Findings<'_>, path: Path, key: &str, (who, why): (&str, &str)) {
    findings.add(
        Finding::warning("ignored-by-provider", path, format!("{who} ignores `{key}`"))
            .on_key()
            .uses(at("provider"))
            .why(why)
            .help("remove it, or keep it for another provider"),
    );
}

/// The warning of a key that belongs to another provider.
pub(super) fn of_another_provider(findings: &mut Findings<'_>, path: Path, key: &str, whose: Provider) {
    let whose = format!("{whose:?}").to_lowercase();
    findings.add(
        Finding::warning("ignored-by-provider", path, format!("only the provider `{whose}` uses `{key}`"))
            .on_key()
            .uses(at("provider"))
            .help(format!("remove it, or set `provider: {whose}`")),
    );
}

/// Where fluent-bit's configuration is to come from is delivered; nothing of raftsman's fetches it.
fn not_fetched(findings: &mut Findings<'_>, machines: &Machines) {
    if machines.logs.as_ref().is_some_and(|logs| logs.dynamic.is_some()) {
        findings.add(
            Finding::warning(
                "not-fetched-yet",
                at("logs").key("dynamic"),
                "nothing of raftsman's fetches fluent-bit's configuration from etcd in this version yet",
            )
            .on_key()
            .why("where it is, and the secrets for it, get to machines as `/etc/raftsman/logs/dynamic.json`")
            .help("have a program of yours read that file, or forward logs with `forward`"),
        );
    }
}

/// An argument for the program `ssh` must be the value that it stands for, never an option.
fn ssh(findings: &mut Findings<'_>, settings: &Ssh) {
    let here = |key: &str| at("ssh").key(key);
    if let Some(user) = &settings.user
        && let Err(reason) = ssh_user(user)
    {
        findings.add(
            Finding::error("ssh-user-invalid", here("user"), format!("{} cannot log in: {reason}", quoted(user)))
                .why("it is an argument of the program `ssh`, which runs commands that its options name")
                .help("the user's name alone, such as `deploy`"),
        );
    }
    if settings.port == Some(0) {
        findings.add(
            Finding::error("port-zero", here("port"), "no SSH server listens on port 0").help("22 is the usual port"),
        );
    }
    if let Some(config) = &settings.config {
        findings.file(|| here("config"), config);
    }
}

fn ssh_user(user: &str) -> Result<(), &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+');
    if user.is_empty() {
        Err("the name is empty")
    } else if user.starts_with('-') {
        Err("`ssh` takes a name that starts with `-` for an option")
    } else if !user.chars().all(plain) {
        Err("a user's name has letters, digits, `.`, `_`, `+` and `-` in it, and nothing else")
    } else {
        Ok(())
    }
}

/// Whether the program `ssh` can take this for a host: a name, an address or an alias of its configuration.
pub(super) fn ssh_destination(text: &str) -> Result<(), &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '%');
    let (user, host) = match text.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, text),
    };
    if let Some(user) = user {
        ssh_user(user)?;
    }
    if host.is_empty() {
        Err("the name is empty")
    } else if text.starts_with('-') || host.starts_with('-') {
        Err("`ssh` takes a name that starts with `-` for an option")
    } else if !host.chars().all(plain) {
        Err("a host's name has letters, digits, `.`, `_` and `-` in it, and nothing else")
    } else {
        Ok(())
    }
}

fn admin(findings: &mut Findings<'_>, admin: &Admin) {
    let here = || at("admin");
    if admin.user.as_str() == "root" {
        findings.add(
            Finding::error("admin-root", here().key("user"), "the admin user cannot be root")
                .why("raftsman makes this user and lets it use sudo; root exists already, and may not log in")
                .help("use another name; `admin` is the default"),
        );
    } else if !admin.user.as_str().starts_with(|c: char| c.is_ascii_lowercase()) || admin.user.as_str().len() > 32 {
        findings.add(
            Finding::error(
                "admin-user-invalid",
                here().key("user"),
                format!("Linux has no user `{}`: a user's name starts with a letter and has at most 32", admin.user),
            )
            .help("`admin` is the default"),
        );
    } else if admin.user.as_str().starts_with("raftsman-") {
        findings.add(
            Finding::error(
                "admin-user-taken",
                here().key("user"),
                "names that start with `raftsman-` are raftsman's own",
            )
            .why("etcd runs as such a user, which must not use sudo")
            .help("use another name; `admin` is the default"),
        );
    }
    if admin.ssh_keys.is_empty() && admin.console_password.is_none() {
        findings.add(
            Finding::warning(
                "admin-locked-out",
                here(),
                "no operator can log in: there is neither an SSH key nor a console password",
            )
            .on_key()
            .uses(here().key("ssh_keys"))
            .uses(here().key("console_password"))
            .help("add a public key to `ssh_keys`"),
        );
    }
    for (index, key) in admin.ssh_keys.iter().enumerate() {
        let path = || here().key("ssh_keys").index(index);
        if key.contains("PRIVATE KEY") {
            findings.add(
                Finding::error("ssh-key-private", path(), "this is a private key")
                    .why("every user that can read this file can now log in")
                    .help("make a new key pair, and put the public half here: the contents of `~/.ssh/id_ed25519.pub`"),
            );
        } else if let Err(reason) = ssh_key(key) {
            findings.add(
                Finding::error("ssh-key-invalid", path(), format!("this is not a public SSH key: {reason}"))
                    .help("copy the one line of a `.pub` file, such as `ssh-ed25519 AAAA… name@host`"),
            );
        } else if admin.ssh_keys[..index].contains(key) {
            findings.add(
                Finding::warning("ssh-key-twice", path(), "this SSH key is listed twice").help("remove one of them"),
            );
        }
    }
    if let Some(secret) = &admin.console_password {
        findings.secret(|| here().key("console_password"), secret);
    }
}

fn ssh_key(key: &str) -> Result<(), &'static str> {
    const KINDS: [&str; 7] = [
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        "ecdsa-sha2-nistp384",
        "ecdsa-sha2-nistp521",
        "sk-ssh-ed25519@openssh.com",
        "sk-ecdsa-sha2-nistp256@openssh.com",
    ];
    // A second line would be a second key, with options such as `command=` in front of it.
    if key.trim_end().contains(|c: char| c.is_control()) {
        return Err("a line break or another control character is in it");
    }
    let mut words = key.split_whitespace();
    match words.next() {
        None => return Err("it is empty"),
        Some("ssh-dss") => return Err("DSA keys are refused by today's servers"),
        Some(kind) if !KINDS.contains(&kind) => return Err("it does not start with a kind of key"),
        Some(_) => {}
    }
    let body = words.next().unwrap_or_default();
    let base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
    if !body.starts_with("AAAA") || body.len() < 60 || !body.bytes().all(base64) {
        return Err("what follows the kind is not the whole key");
    }
    Ok(())
}

fn time(findings: &mut Findings<'_>, time: &Time) {
    let here = || at("time");
    if time.servers.is_empty() && time.pools.is_empty() {
        findings.add(
            Finding::warning("time-none", here(), "no time servers are named")
                .on_key()
                .uses(here().key("servers"))
                .uses(here().key("pools"))
                .help("name some under `servers` or `pools`, or remove `time`"),
        );
    }
    let sources = [("servers", &time.servers), ("pools", &time.pools)];
    for (key, index, source) in
        sources.iter().flat_map(|(key, list)| list.iter().enumerate().map(move |(index, source)| (key, index, source)))
    {
        let TimeSource { url, options } = source;
        if !host(url) {
            findings.add(
                Finding::error(
                    "time-source-invalid",
                    here().key(key).index(index).key("url"),
                    format!("{} is not a host name or an address", quoted(url)),
                )
                .help("the name alone, such as `0.pool.ntp.org`: no scheme, no port, no options"),
            );
        }
        for (at, option) in options.iter().enumerate() {
            if option.is_empty() || option.contains(|c: char| c.is_control() || matches!(c, '#' | ';' | '!')) {
                findings.add(
                    Finding::error(
                        "time-option-invalid",
                        here().key(key).index(index).key("options").index(at),
                        "this is not an option of chrony",
                    )
                    .help("one option an item, such as `iburst` or `minpoll 4`"),
                );
            }
        }
    }
    if let Some(step) = time.makestep {
        if !step.threshold.is_finite() || step.threshold <= 0.0 {
            findings.add(
                Finding::error(
                    "makestep-invalid",
                    here().key("makestep").key("threshold"),
                    "the threshold must be more than 0 seconds",
                )
                .help("`1.0` steps when the clock is off by more than a second"),
            );
        }
        if step.limit == 0 || step.limit < -1 {
            findings.add(
                Finding::error(
                    "makestep-invalid",
                    here().key("makestep").key("limit"),
                    format!("a limit of {} means never", step.limit),
                )
                .help("`3` for the first three updates after the start, `-1` for always"),
            );
        }
    }
}

fn logs(findings: &mut Findings<'_>, logs: &Logs) {
    let here = || at("logs");
    let given = [
        ("etcd_tag", &logs.etcd_tag),
        ("node_exporter_tag", &logs.node_exporter_tag),
        ("patroni_tag", &logs.patroni_tag),
    ];
    tags(findings, &|key| here().key(key), &given);
    if logs.patroni_tag.is_some() && findings.spec.postgres.is_empty() {
        findings.add(
            Finding::warning("postgres-none", here().key("patroni_tag"), "no machine of the file has this log")
                .on_key()
                .uses(Path::of(&["postgres"]))
                .help("it is for machines of PostgreSQL clusters: remove it"),
        );
    }
    if logs.buffer.is_some() {
        not_yet(findings, here().key("buffer"), "limits of fluent-bit's buffers are");
    }
    if logs.forward.is_none() && logs.dynamic.is_none() {
        findings.add(
            Finding::warning("logs-nowhere", here(), "logs are tagged, but sent nowhere")
                .on_key()
                .uses(here().key("forward"))
                .uses(here().key("dynamic"))
                .help("add `forward` or `dynamic`, or remove `logs`"),
        );
    }
    if let Some(forward) = &logs.forward {
        log_forward(findings, forward);
    }
    if let Some(dynamic) = &logs.dynamic {
        log_dynamic(findings, dynamic);
    }
}

/// Tags of logs that fluent-bit cannot have.
pub(super) fn tags(findings: &mut Findings<'_>, at: &dyn Fn(&str) -> Path, tags: &[(&str, &Option<String>)]) {
    for (key, tag) in tags {
        if tag.as_ref().is_some_and(|tag| {
            tag.is_empty() || tag.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '$'))
        }) {
            findings.add(
                Finding::error("log-tag-invalid", at(key), "a tag is one word, without `*` and `$`")
                    .help("such as `etcd.main`"),
            );
        }
    }
}

/// A key that is checked and has no effect in this version.
pub(super) fn not_yet(findings: &mut Findings<'_>, path: Path, what: &str) {
    findings.add(
        Finding::error("not-in-this-version", path, format!("{what} not in this version yet"))
            .on_key()
            .help("remove it, or wait for a later version"),
    );
}

fn log_forward(findings: &mut Findings<'_>, forward: &LogForward) {
    let here = |key: &str| at("logs").key("forward").key(key);
    if !host(&forward.host) {
        findings.add(
            Finding::error(
                "log-host-invalid",
                here("host"),
                format!("{} is not a host name or an address", quoted(&forward.host)),
            )
            .help("the name alone; the port has a key of its own, `port`"),
        );
    }
    if let Some(name) = forward.hostname.as_ref().filter(|name| !host(name)) {
        findings.add(
            Finding::error(
                "log-hostname-invalid",
                here("hostname"),
                format!("{} is not a host name or an address", quoted(name)),
            )
            .help("leave it out, and each machine calls itself by its own name"),
        );
    }
    if forward.port == 0 {
        findings.add(
            Finding::error("port-zero", here("port"), "no receiver listens on port 0")
                .help("24224 is fluentd's usual port"),
        );
    }
    findings.file(|| here("ca_cert"), &forward.ca_cert);
    findings.secret(|| here("shared_key"), &forward.shared_key);
}

fn log_dynamic(findings: &mut Findings<'_>, dynamic: &LogDynamic) {
    let here = |key: &str| at("logs").key("dynamic").key(key);
    let whole = || at("logs").key("dynamic");
    if dynamic.key_prefix.is_empty() {
        findings.add(
            Finding::error("key-prefix-empty", here("key_prefix"), "an empty prefix means every key")
                .help("such as `/fluent-bit/`"),
        );
    }
    for (key, text) in [("key_prefix", Some(&dynamic.key_prefix)), ("username", dynamic.username.as_ref())] {
        if text.is_some_and(|text| text.contains(|c: char| c.is_control())) {
            findings.add(
                Finding::error("control-character", here(key), "a control character is in it")
                    .help("write it on one line, without escapes"),
            );
        }
    }
    if dynamic.endpoints.is_empty() {
        findings.add(
            Finding::error("endpoints-none", here("endpoints"), "no endpoint is named")
                .on_key()
                .help("`address:port` of each member, such as `10.0.0.5:2379`"),
        );
    }
    for (index, text) in dynamic.endpoints.iter().enumerate() {
        if let Err(reason) = endpoint(text) {
            findings.add(
                Finding::error(
                    "endpoint-invalid",
                    here("endpoints").index(index),
                    format!("{} is not an endpoint: {reason}", quoted(text)),
                )
                .help("`address:port`, such as `10.0.0.5:2379` or `[fd00::5]:2379`"),
            );
        }
    }
    findings.file(|| here("ca_cert"), &dynamic.ca_cert);
    let certificate = dynamic.certificate.is_some() || dynamic.key.is_some();
    let password = dynamic.username.is_some() || dynamic.password.is_some();
    let all = |finding: Finding| {
        ["certificate", "key", "username", "password"].iter().fold(finding, |finding, key| finding.uses(here(key)))
    };
    match (certificate, password) {
        (true, true) => {
            findings.add(all(Finding::error("log-auth-both", whole(), "both a certificate and a password are given")
                .on_key()
                .help("keep `certificate` and `key`, or `username` and `password`")))
        }
        (false, false) => findings.add(all(Finding::warning(
            "log-auth-none",
            whole(),
            "neither a certificate nor a password is given",
        )
        .on_key()
        .why("etcd denies clients without credentials")
        .help("add `certificate` and `key`, or `username` and `password`"))),
        _ => {}
    }
    for (a, has_a, b, has_b) in [
        ("certificate", dynamic.certificate.is_some(), "key", dynamic.key.is_some()),
        ("username", dynamic.username.is_some(), "password", dynamic.password.is_some()),
    ] {
        if has_a != has_b {
            let (given, lacking) = if has_a { (a, b) } else { (b, a) };
            findings.add(
                Finding::error("log-auth-half", here(given), format!("`{given}` is of no use without `{lacking}`"))
                    .on_key()
                    .uses(here(lacking))
                    .help(format!("add `{lacking}`")),
            );
        }
    }
    if let Some(file) = &dynamic.certificate {
        findings.file(|| here("certificate"), file);
    }
    if let Some(secret) = &dynamic.key {
        findings.secret(|| here("key"), secret);
    }
    if let Some(secret) = &dynamic.password {
        findings.secret(|| here("password"), secret);
    }
}

/// Whether the text is a host name or an address, and nothing else.
pub(super) fn host(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok() || super::pki::dns_name(text, false).is_ok()
}

pub(super) fn endpoint(text: &str) -> Result<(), &'static str> {
    if text.contains("://") {
        return Err("it has a scheme");
    }
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once("]:").ok_or("the port is missing")?,
        None => text.rsplit_once(':').ok_or("the port is missing")?,
    };
    if !text.starts_with('[') && name.contains(':') {
        return Err("an IPv6 address needs brackets");
    }
    if port.parse::<u16>().is_ok_and(|port| port > 0) && host(name) {
        Ok(())
    } else {
        Err("it is not a host and a port from 1 to 65535")
    }
}
