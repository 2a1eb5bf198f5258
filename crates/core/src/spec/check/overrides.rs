//! What clusters and members say of their machines → sizes too small, keys that the provider ignores, invalid links.

use super::super::diagnostic::Path;
use super::super::machines::{Firewall, Machines, Provider};
use super::super::overrides::{ClusterMachines, Size};
use super::super::types::Spec;
use super::super::units::Name;
use super::groups::{Group, groups};
use super::{Findings, boot, incus, libvirt, machines};

pub(super) fn check(findings: &mut Findings<'_>) {
    let spec = findings.spec;
    for group in groups(spec) {
        if let Some(ours) = group.machines {
            of_cluster(findings, &group, ours);
        }
        for (index, listed) in group.listed().enumerate() {
            let Some(ours) = listed.machine else { continue };
            let here = |key: &str| group.list_at().index(index).key("machine").key(key);
            of_size(findings, &here, &ours.size());
        }
    }
}

fn of_cluster(findings: &mut Findings<'_>, group: &Group<'_>, ours: &ClusterMachines) {
    let here = |key: &str| group.machines_at().key(key);
    of_size(findings, &here, &ours.size());
    let fleet = &findings.spec.machines;
    let further = [
        ("firewall", ours.firewall.is_some()),
        ("node_exporter", ours.node_exporter.is_some()),
        ("logs", ours.logs.is_some()),
    ];
    ignored(findings, &here, &further);
    if let Some(logs) = &ours.logs {
        let tags = [
            ("etcd_tag", &logs.etcd_tag),
            ("node_exporter_tag", &logs.node_exporter_tag),
            ("patroni_tag", &logs.patroni_tag),
        ];
        machines::tags(findings, &|key| here("logs").key(key), &tags);
        if group.section == "etcd" {
            machines::not_yet(findings, here("logs"), "tags of logs that differ between clusters are");
        }
    }
    for (key, given, whose) in
        [("incus", ours.incus.is_some(), Provider::Incus), ("libvirt", ours.libvirt.is_some(), Provider::Libvirt)]
    {
        if given && fleet.provider != whose {
            machines::of_another_provider(findings, here(key), key, whose);
        }
    }
    let merged = fleet.with_cluster(Some(ours));
    if let Some(Firewall::Sources(sources)) = &ours.firewall {
        boot::sources(findings, &here, merged.node_exporter == Some(true), sources);
    }
    if let Some(settings) = ours.incus.as_ref().filter(|_| fleet.provider == Provider::Incus) {
        let at = |key: &str| here("incus").key(key);
        incus::names(findings, &at, settings.profiles.as_deref().unwrap_or_default(), "profiles");
        incus::names(findings, &at, settings.acls.as_deref().unwrap_or_default(), "acls");
        if let Some(network) = &settings.network {
            incus::named(findings, || at("network"), network);
        }
    }
    if let Some(settings) = ours.libvirt.as_ref().filter(|_| fleet.provider == Provider::Libvirt) {
        let at = |key: &str| here("libvirt").key(key);
        for (key, text) in [("network", &settings.network), ("macvtap", &settings.macvtap)] {
            if let Some(text) = text {
                libvirt::named(findings, at(key), text);
            }
        }
        let merged = merged.libvirt.clone().unwrap_or_default();
        libvirt::linked(findings, &merged, &at);
    }
}

fn of_size(findings: &mut Findings<'_>, here: &dyn Fn(&str) -> Path, size: &Size<'_>) {
    machines::size(findings, here, size);
    ignored(findings, here, &size.keys());
    incus::pooled(findings, here, size.disk.is_some(), size.data_disk.is_some());
}

fn ignored(findings: &mut Findings<'_>, here: &dyn Fn(&str) -> Path, keys: &[(&'static str, bool)]) {
    if let Some(ignorant) = machines::ignorant(findings.spec.machines.provider) {
        for (key, _) in keys.iter().filter(|(_, given)| *given) {
            machines::is_ignored(findings, here(key), key, ignorant);
        }
    }
}

/// Whether every machine of the file has what this looks for, be it the fleet's, its cluster's or its own.
pub(super) fn every_machine(spec: &Spec, has: impl Fn(&Machines) -> bool) -> bool {
    let zones: Vec<Option<&Name>> = match spec.machines.zones.is_empty() {
        true => vec![None],
        false => spec.machines.zones.keys().map(Some).collect(),
    };
    groups(spec).all(|group| {
        zones.iter().all(|zone| {
            let machines = spec.machines.with_zone(*zone);
            let ours = machines.with_cluster(group.machines);
            let listed = !group.counted && group.number > 0;
            has(&ours) || listed && group.listed().all(|listed| has(&ours.with_member(listed.machine)))
        })
    })
}
