//! `machines.zones`, and each member's zone → zones that do not exist, are the same, or whose loss costs quorum.

use std::collections::{BTreeMap, BTreeSet};

use super::super::diagnostic::Path;
use super::super::machines::{Machines, Provider};
use super::super::types::EtcdCluster;
use super::super::units::Name;
use super::super::zones::{Zone, spread};
use super::groups::{Group, groups};
use super::{Finding, Findings, Severity, incus, libvirt, machines};

fn at(zone: &Name) -> Path {
    Path::of(&["machines", "zones"]).key(zone.as_str())
}

pub(super) fn check(findings: &mut Findings<'_>) {
    let spec = findings.spec;
    for (name, zone) in &spec.machines.zones {
        one(findings, name, zone);
    }
    same_place(findings);
    for group in groups(spec) {
        named(findings, &group);
    }
}

/// What a file that is right otherwise is warned of.
pub(super) fn advise(findings: &mut Findings<'_>) {
    // Which member is where rests on all of it.
    if !findings.tainted.is_empty() || findings.found.iter().any(|finding| finding.severity == Severity::Error) {
        return;
    }
    let spec = findings.spec;
    for (name, cluster) in &spec.etcd {
        quorum(findings, name, cluster);
    }
}

fn one(findings: &mut Findings<'_>, name: &Name, zone: &Zone) {
    let provider = findings.spec.machines.provider;
    for (key, given, whose) in
        [("incus", zone.incus.is_some(), Provider::Incus), ("libvirt", zone.libvirt.is_some(), Provider::Libvirt)]
    {
        if given && provider != whose {
            machines::of_another_provider(findings, at(name).key(key), key, whose);
        }
    }
    let merged = findings.spec.machines.with_zone(Some(name));
    if let Some(ours) = zone.libvirt.as_ref().filter(|_| provider == Provider::Libvirt) {
        let here = |key: &str| at(name).key("libvirt").key(key);
        let pools = [("pool", &ours.pool), ("image_pool", &ours.image_pool), ("data_pool", &ours.data_pool)];
        let links = [("seed_pool", &ours.seed_pool), ("network", &ours.network), ("macvtap", &ours.macvtap)];
        for (key, text) in pools.into_iter().chain(links).filter_map(|(key, text)| Some((key, text.as_ref()?))) {
            libvirt::named(findings, here(key), text);
        }
        if let Some(uri) = &ours.uri {
            libvirt::connection(findings, || here("uri"), uri);
        }
        if ours.network.is_some() || ours.macvtap.is_some() {
            libvirt::linked(findings, &merged.libvirt.clone().unwrap_or_default(), &here);
        }
    }
    if let Some(ours) = zone.incus.as_ref().filter(|_| provider == Provider::Incus) {
        let here = |key: &str| at(name).key("incus").key(key);
        let names =
            [("project", &ours.project), ("target", &ours.target), ("network", &ours.network), ("pool", &ours.pool)];
        for (key, text) in names.into_iter().filter_map(|(key, text)| Some((key, text.as_ref()?))) {
            incus::named(findings, || here(key), text);
        }
        if ours.server.is_some() {
            incus::server(findings, &here, &merged.incus.clone().unwrap_or_default());
        }
    }
}

/// Where the machines of a zone are made: two zones with the same answer fail together.
fn place(machines: &Machines) -> Option<String> {
    match machines.provider {
        Provider::Libvirt => Some(machines.libvirt.clone().unwrap_or_default().uri),
        Provider::Incus => {
            let incus = machines.incus.clone().unwrap_or_default();
            let project = incus.project.as_deref().unwrap_or("default");
            Some(format!("{} {project} {}", incus.server(), incus.targets.join(",")))
        }
        Provider::Local | Provider::Hosts | Provider::Openstack | Provider::Aws => None,
    }
}

fn same_place(findings: &mut Findings<'_>) {
    let machines = &findings.spec.machines;
    let mut seen: BTreeMap<String, &Name> = BTreeMap::new();
    for name in machines.zones.keys() {
        let Some(place) = place(&machines.with_zone(Some(name))) else { return };
        let Some(other) = seen.insert(place, name) else { continue };
        let (what, help) = match machines.provider {
            Provider::Libvirt => ("KVM host", "give each zone a `libvirt: { uri: … }` of its own"),
            _ => ("server", "give each zone an `incus: { server: … }` or `incus: { target: … }` of its own"),
        };
        findings.add(
            Finding::error("zone-same", at(name), format!("the zones `{other}` and `{name}` are one {what}"))
                .on_key()
                .also(at(other), "the other zone")
                .uses(Path::of(&["machines"]))
                .why("a zone is what fails together")
                .help(help),
        );
    }
}

/// The zones that a cluster and its members or nodes name.
fn named(findings: &mut Findings<'_>, group: &Group<'_>) {
    let zones = &findings.spec.machines.zones;
    let known = |findings: &mut Findings<'_>, path: Path, zone: &Name| {
        let there = zones.contains_key(zone);
        if !there {
            let names: Vec<String> = zones.keys().map(|zone| format!("`{zone}`")).collect();
            let help = match names.is_empty() {
                true => format!("name it under `machines`: `zones: {{ {zone}: {{}} }}`"),
                false => format!("the zones of the file are {}", names.join(", ")),
            };
            findings.add(
                Finding::error("zone-unknown", path, format!("the file has no zone `{zone}`"))
                    .uses(Path::of(&["machines", "zones"]))
                    .help(help),
            );
        }
        there
    };
    let ours = group.machines.and_then(|ours| ours.zones.as_ref());
    let here = || group.machines_at().key("zones");
    if ours.is_some_and(Vec::is_empty) {
        findings.add(
            Finding::error("zones-none", here(), "the cluster's machines would be in no zone")
                .help(format!("list the zones that its {}s are spread over, or leave it out: all of them", group.what)),
        );
    }
    let mut seen = BTreeSet::new();
    for (index, zone) in ours.into_iter().flatten().enumerate() {
        if known(findings, here().index(index), zone) && !seen.insert(zone) {
            findings.add(
                Finding::error("zone-twice", here().index(index), format!("the zone `{zone}` is listed twice"))
                    .help(format!("remove one of them: {}s are spread evenly", group.what)),
            );
        }
    }
    for (index, member) in group.listed().enumerate() {
        let path = || group.list_at().index(index);
        match member.zone {
            Some(zone) => {
                let there = known(findings, path().key("zone"), zone);
                if there && ours.is_some_and(|ours| !ours.contains(zone)) {
                    findings.add(
                        Finding::error(
                            "zone-outside",
                            path().key("zone"),
                            format!("the cluster's machines are not in the zone `{zone}`"),
                        )
                        .also(here(), "the cluster's zones")
                        .help(format!("add `{zone}` there, or name another zone here")),
                    );
                }
            }
            None if !zones.is_empty() && findings.spec.machines.provider == Provider::Hosts => findings.add(
                Finding::error("zone-none", path(), format!("in which zone is the host `{}`?", member.name))
                    .uses(Path::of(&["machines", "zones"]))
                    .why("hosts exist already: raftsman cannot choose where they are")
                    .help(format!("add `zone: {}`, or another", zones.keys().next().map_or("…", Name::as_str))),
            ),
            None => {}
        }
    }
}

/// Whether the loss of one zone takes the cluster down.
fn quorum(findings: &mut Findings<'_>, cluster: &Name, settings: &EtcdCluster) {
    let machines = &findings.spec.machines;
    let number = usize::try_from(settings.members.number()).unwrap_or(usize::MAX);
    // One or two members cannot lose any, which is a warning of its own.
    if !(3..=9).contains(&number) {
        return;
    }
    let path = Path::of(&["etcd", cluster.as_str(), "members"]);
    let needed = number / 2 + 1;
    if machines.zones.is_empty() {
        if machines.provider == Provider::Libvirt {
            let uri = machines.libvirt.clone().unwrap_or_default().uri;
            findings.add(
                Finding::warning("zones-quorum", path, format!("all {number} members are on one KVM host, {uri}"))
                    .uses(Path::of(&["machines"]))
                    .why("they fail together: when the host is lost, so is the cluster")
                    .help(
                        "name more hosts under `machines`: `zones: { kvm1: { libvirt: { uri: … } }, … }`, three at best; \
                         or accept it: `accept_warnings: [zones-quorum]`",
                    ),
            );
        }
        return;
    }
    let ours = settings.machines.as_ref().and_then(|ours| ours.zones.as_ref());
    let zones: Vec<&Name> = ours.map_or_else(|| machines.zones.keys().collect(), |ours| ours.iter().collect());
    let mut given: Vec<Option<Name>> = settings.listed().iter().map(|member| member.zone.clone()).collect();
    given.resize(number, None);
    let placed = spread(&zones, &given);
    let count = |zone: &&Name| placed.iter().flatten().filter(|placed| placed == zone).count();
    let Some(largest) = zones.iter().copied().max_by_key(|zone| (count(zone), std::cmp::Reverse(*zone))) else {
        return;
    };
    let held = count(&largest);
    if number - held >= needed {
        return;
    }
    let message = match held == number {
        true => format!("all {number} members are in the zone `{largest}`"),
        false => format!("{held} of {number} members are in the zone `{largest}`"),
    };
    findings.add(
        Finding::warning("zones-quorum", path, message)
            .uses(Path::of(&["machines"]))
            .why(match number - held {
                0 => "they fail together: when the zone is lost, so is the cluster".to_owned(),
                1 => format!("when the zone is lost, one is left, which is no majority: {needed} are needed"),
                left => format!("when the zone is lost, {left} are left, which is no majority: {needed} are needed"),
            })
            .help("spread the members over three zones or more; or accept it: `accept_warnings: [zones-quorum]`"),
    );
}
