//! a machine to be made → what cloud-init reads: user data, network configuration, NoCloud's meta-data.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::digest;
use super::first_boot::{FirstBoot, NO_CLUSTER};
use super::yaml::{block, list, quoted};
use crate::boot::Boot;
use crate::spec::{Dns, Machines, Subnet};

/// As much user data as every cloud takes (AWS takes no more).
pub const LONGEST: usize = 16 * 1024;

/// Why there is no user data.
#[derive(Debug, thiserror::Error)]
pub enum UserDataError {
    /// More than a cloud takes.
    #[error(
        "the user data of machine `{machine}` has {bytes} bytes, and clouds take {LONGEST}: \
         list fewer SSH keys or shorter ones (ed25519), or fewer networks in the firewall's sources"
    )]
    TooLong {
        /// The machine.
        machine: String,
        /// How many bytes.
        bytes: usize,
    },
    /// The boot data is not what it should be.
    #[error("the boot data of machine `{machine}` cannot be written")]
    Boot {
        /// The machine.
        machine: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// The user data: `#cloud-config`.
pub fn user_data(first: &FirstBoot<'_>) -> Result<String, UserDataError> {
    let machine = || first.boot.machine.clone();
    let mut out = String::with_capacity(12 * 1024);
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line("#cloud-config".to_owned());
    line(format!("hostname: {}", quoted(&first.boot.machine)));
    // So that sudo finds the machine's own name without a name server.
    line("manage_etc_hosts: localhost".to_owned());
    // Generating a locale takes a minute on a small machine, and no service here uses it. A text, because cloud-init up
    // to 23 wants one.
    line("locale: \"false\"".to_owned());
    line("disable_root: true".to_owned());
    line("ssh_pwauth: false".to_owned());
    match &first.machines.admin {
        // Not even the image's own user: a list without it makes none, and an empty list is refused.
        None => line("users: [{ name: root, lock_passwd: true }]".to_owned()),
        Some(admin) => {
            line("users:".to_owned());
            line(format!("- name: {}", quoted(admin.user.as_str())));
            line("  groups: [adm, sudo, systemd-journal]".to_owned());
            line("  sudo: \"ALL=(ALL) NOPASSWD:ALL\"".to_owned());
            line("  shell: /bin/bash".to_owned());
            line("  lock_passwd: true".to_owned());
            if !admin.ssh_keys.is_empty() {
                line("  ssh_authorized_keys:".to_owned());
                admin.ssh_keys.iter().for_each(|key| line(format!("  - {}", quoted(key.trim()))));
            }
        }
    }
    if let Some(mirror) = &first.machines.mirror {
        line("apt:".to_owned());
        for (key, uri) in
            [("primary", &mirror.packages), ("security", mirror.security.as_ref().unwrap_or(&mirror.packages))]
        {
            line(format!("  {key}: [{{ arches: [default], uri: {} }}]", quoted(uri)));
        }
    }
    let packages = first.packages();
    if !packages.is_empty() {
        line("package_update: true".to_owned());
        line(format!("packages: {}", list(packages)));
    }
    if !first.files_in_place {
        // Written after the packages are installed, which would overwrite some of them or ask about them; but for the one
        // that they are to find.
        line("write_files:".to_owned());
        for file in first.files().map_err(|source| UserDataError::Boot { machine: machine(), source })? {
            line(format!("- path: {}", quoted(&file.path)));
            line(format!("  permissions: \"{:04o}\"", file.mode));
            if file.path != NO_CLUSTER {
                line("  defer: true".to_owned());
            }
            line(format!("  content: {}", block(&file.contents, 4)));
        }
    }
    let commands = first.commands();
    if !commands.is_empty() {
        line("runcmd:".to_owned());
        commands.into_iter().for_each(|command| line(format!("- {}", list(command))));
    }
    match out.len() {
        bytes if bytes > LONGEST => Err(UserDataError::TooLong { machine: machine(), bytes }),
        _ => Ok(out),
    }
}

/// An interface of a machine besides the one that etcd listens on.
#[derive(Debug, Clone, Copy)]
pub struct FurtherInterface<'a> {
    /// Its hardware address.
    pub mac: &'a str,
    /// Its address; by DHCP where there is none or no subnet.
    pub address: Option<IpAddr>,
    /// The network that the address is in.
    pub subnet: Option<Subnet>,
    /// The gateway, for what the first interface does not reach.
    pub gateway: Option<IpAddr>,
    /// Name servers and search domains.
    pub dns: Option<&'a Dns>,
}

/// The network configuration, version 2: for NoCloud. Clouds that give out addresses themselves need none.
pub fn network_config(first: &FirstBoot<'_>) -> String {
    network_config_of(first, &[])
}

/// The network configuration of a machine with further interfaces.
pub fn network_config_of(first: &FirstBoot<'_>, further: &[FurtherInterface<'_>]) -> String {
    let Machines { subnet, gateway, dns, .. } = first.machines;
    // Cards get these names: cloud-init's writer for networkd looks for a card of the name that is written here, whatever
    // else is to match.
    let mut out = String::from("version: 2\nethernets:\n  eth0:\n");
    match first.mac {
        Some(mac) => matched(&mut out, 0, mac),
        // It is the only one.
        None => out.push_str("    match: { name: \"e*\" }\n"),
    }
    card(&mut out, Some(first.boot.address), *subnet, *gateway, None, dns.as_ref());
    for (index, interface) in (1..).zip(further) {
        let FurtherInterface { mac, address, subnet, gateway, dns } = *interface;
        let _ = writeln!(out, "  eth{index}:");
        matched(&mut out, index, mac);
        // The first card's gateway is preferred.
        card(&mut out, address, address.and(subnet), gateway, Some(1000 + index), dns);
    }
    out
}

fn matched(out: &mut String, index: usize, mac: &str) {
    let mac = quoted(&mac.to_ascii_lowercase());
    let _ = writeln!(out, "    match: {{ macaddress: {mac} }}\n    set-name: eth{index}");
}

fn card(
    out: &mut String,
    address: Option<IpAddr>,
    subnet: Option<Subnet>,
    gateway: Option<IpAddr>,
    metric: Option<usize>,
    dns: Option<&Dns>,
) {
    match (address, subnet) {
        (Some(address), Some(subnet)) => {
            let _ = writeln!(out, "    addresses: [\"{address}/{}\"]", subnet.prefix());
            if let Some(gateway) = gateway {
                // Not `default`: cloud-init's writer for networkd ends with an exception there.
                let everything = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
                let metric = metric.map(|metric| format!(", metric: {metric}")).unwrap_or_default();
                let _ = writeln!(out, "    routes: [{{ to: \"{everything}\", via: \"{gateway}\"{metric} }}]");
            }
        }
        (address, _) => {
            let _ = writeln!(out, "    dhcp{}: true", if address.is_none_or(|it| it.is_ipv4()) { 4 } else { 6 });
        }
    }
    if let Some(dns) = dns {
        out.push_str("    nameservers:\n");
        let servers = dns.servers.iter().map(ToString::to_string);
        for (key, items) in [("addresses", list(servers)), ("search", list(&dns.search))] {
            let _ = writeln!(out, "      {key}: {items}");
        }
    }
}

/// NoCloud's meta-data.
pub fn meta_data(boot: &Boot) -> String {
    format!("instance-id: {}\nlocal-hostname: {}\n", quoted(&instance_id(boot)), quoted(&boot.machine))
}

/// The instance id, which tells a rebuilt machine from the previous one: a machine that is rebuilt has another join
/// token, one that was not claimed in time has another deadline, and both do their first boot again.
pub fn instance_id(boot: &Boot) -> String {
    let token = boot.join_token.as_deref().unwrap_or_default();
    let deadline = boot.join_deadline.map(|at| format!("\n{at}")).unwrap_or_default();
    let life = digest(&format!("{}\n{}\n{token}{deadline}", boot.fleet_id, boot.machine));
    format!("{}-{}", boot.machine, life.get(..16).unwrap_or(&life))
}
