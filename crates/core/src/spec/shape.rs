//! The section `machines:` → what a machine is made of, to be compared with those that were made before.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::incus::IncusKind;
use super::libvirt::{Firmware, Link};
use super::machines::{Machines, Provider};

/// What a machine is made of: its size, its image, its networks, each under its key. What a machine is told when it boots
/// is not in it, and replaces none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(BTreeMap<String, String>);

const DATA_DISK: &str = "data disk";

impl Machines {
    /// What machines are made of, where they are made for the fleet from an image.
    pub fn shape(&self) -> Option<Shape> {
        let mut parts = match self.provider {
            Provider::Incus => self.incus_parts(),
            Provider::Libvirt => self.libvirt_parts(),
            Provider::Local | Provider::Hosts | Provider::Openstack | Provider::Aws => return None,
        };
        let text = |value: Option<String>| value.unwrap_or_else(|| "as given".to_owned());
        parts.extend([
            ("image", text(self.image.clone())),
            ("vcpus", text(self.vcpus.map(|n| n.to_string()))),
            ("memory", text(self.memory.map(|size| size.to_string()))),
            ("disk", text(self.disk.map(|size| size.to_string()))),
            (DATA_DISK, if self.data_disk.is_some() { "yes" } else { "no" }.to_owned()),
        ]);
        Some(Shape(parts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()))
    }

    fn incus_parts(&self) -> Vec<(&'static str, String)> {
        let incus = self.incus.clone().unwrap_or_default();
        let kind = match incus.kind {
            IncusKind::Container => "container",
            IncusKind::VirtualMachine => "virtual-machine",
        };
        vec![
            ("type", kind.to_owned()),
            ("network", incus.network.unwrap_or_else(|| "as given".to_owned())),
            ("profiles", incus.profiles.map_or_else(|| "default".to_owned(), |profiles| profiles.join(", "))),
        ]
    }

    fn libvirt_parts(&self) -> Vec<(&'static str, String)> {
        let libvirt = self.libvirt.clone().unwrap_or_default();
        let link = |link: Link<'_>| match link {
            Link::Network(network) => network.to_owned(),
            Link::Macvtap(interface) => format!("macvtap {interface}"),
        };
        let interfaces: Vec<String> = libvirt.interfaces.iter().map(|interface| link(interface.link())).collect();
        let firmware = match libvirt.firmware {
            Firmware::Bios => "bios",
            Firmware::Uefi => "uefi",
        };
        vec![
            ("network", link(libvirt.link())),
            ("interfaces", if interfaces.is_empty() { "none".to_owned() } else { interfaces.join(", ") }),
            ("firmware", firmware.to_owned()),
        ]
    }
}

impl Shape {
    /// What it says of this key, such as `network`.
    pub fn part(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// One line, to be written on the machine.
    pub fn text(&self) -> String {
        serde_json::Value::from_iter(self.0.clone()).to_string()
    }

    /// The reverse.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether etcd's data is on a disk of its own, which outlives the machine.
    pub fn keeps_data(&self) -> bool {
        self.0.get(DATA_DISK).is_some_and(|value| value == "yes")
    }

    /// What would have to change to make this one like that one, in words. A key that one of them lacks is no difference:
    /// another version of raftsman made it.
    pub fn change_to(&self, wanted: &Self) -> Option<String> {
        let differs = |(key, value): (&String, &String)| {
            let other = wanted.0.get(key).filter(|other| *other != value)?;
            Some(format!("{key}: {value} → {other}"))
        };
        let changes: Vec<String> = self.0.iter().filter_map(differs).collect();
        (!changes.is_empty()).then(|| changes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(yaml: &str) -> Shape {
        let text = format!("fleet: lab\nmachines:\n{yaml}\netcd:\n  main:\n    members: 3\n    version: 3.6.15\n");
        let reading = crate::spec::read(&text);
        let spec = reading.spec.unwrap_or_else(|| panic!("{:?}", reading.diagnostics));
        spec.machines.shape().expect("a shape")
    }

    #[test]
    fn what_changes_is_said() {
        let before =
            shape("  provider: incus\n  image: a\n  memory: 2GiB\n  incus: { network: n }\n  subnet: 10.1.0.0/24");
        assert_eq!(before.change_to(&before), None);
        assert_eq!(Shape::parse(&before.text()), Some(before.clone()));
        let after =
            shape("  provider: incus\n  image: b\n  memory: 4GiB\n  incus: { network: n }\n  subnet: 10.1.0.0/24");
        insta::assert_snapshot!(before.change_to(&after).expect("a change"), @"
        image: a → b, memory: 2GiB → 4GiB
        ");
        // What another version knows of is no difference.
        let mut older = before.clone();
        older.0.remove("vcpus");
        assert_eq!(older.change_to(&before), None);
        assert_eq!(before.change_to(&older), None);
    }

    #[test]
    fn what_is_told_at_boot_is_no_part_of_it() {
        let before = shape("  provider: incus\n  image: a\n  incus: { network: n }\n  subnet: 10.1.0.0/24");
        let after = shape(
            "  provider: incus\n  image: a\n  incus: { network: n, acls: [x] }\n  subnet: 10.1.0.0/24\n  \
             dns: { servers: [10.1.0.1] }\n  node_exporter: true\n  updates: off\n  gateway: 10.1.0.1",
        );
        assert_eq!(before.change_to(&after), None);
    }
}
