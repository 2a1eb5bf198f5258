//! The topics of lives → the clusters that they are made of, each with the files that it changes between.

use raftsman_core::desired::Stack;
use raftsman_core::spec::EtcdVersion;

use super::{access, addresses, agents, balancer, maintenance, pki, postgres, shape, users, zones};
use crate::fixtures;

/// The clusters that runs are made of; built once, because reading files is not what is simulated.
#[derive(Debug, Clone)]
pub struct Cast {
    pub(super) sizes: Vec<Vec<Stack>>,
    /// Whether operators change CAs.
    pub(super) rotates: bool,
}

impl Cast {
    /// Sizes 1, 3, 5 and 7, each with three configurations to change between; and lives in which the members change:
    /// their number, their names, their addresses.
    pub fn new() -> Self {
        let [one, two, _] = users::FILES;
        let settings: [&[&str]; 3] = [&[], &["quota: 4GiB", one[0], one[1]], &["log_level: warn", two[0], two[1]]];
        let mut sizes = [1, 3, 5, 7].map(|n| settings.map(|s| fixtures::cluster(n, s)).to_vec()).to_vec();
        let grown = |n| fixtures::cluster(n, &["replace_after: 10m"]);
        sizes.push(vec![grown(3), grown(5), grown(1), grown(7), grown(2), grown(4)]);
        sizes.push(vec![fixtures::cluster(5, &[]), fixtures::cluster(3, &[]), fixtures::cluster(5, &["quota: 4GiB"])]);
        let named = |members: &[(&str, u8)]| {
            let list = members.iter().map(|(n, a)| format!("{{ name: {n}, address: 127.0.42.{a} }}"));
            fixtures::cluster_of(&format!("[{}]", list.collect::<Vec<_>>().join(", ")), &[])
        };
        sizes.push(vec![
            named(&[("a", 1), ("b", 2), ("c", 3)]),
            named(&[("a", 1), ("b", 2), ("d", 4)]),
            named(&[("d", 4), ("e", 5), ("f", 6)]),
            named(&[("a", 1), ("b", 12), ("c", 3)]),
            named(&[("a", 11), ("b", 12), ("c", 13), ("d", 14), ("e", 15)]),
        ]);
        Self { sizes, rotates: false }
    }

    /// Sizes 1, 3 and 5, whose files differ in their CAs, and operators that rotate them.
    pub fn with_rotations() -> Self {
        let cluster = |n, line: &str| fixtures::cluster(n, &[line]);
        let mut sizes = [1, 3, 5].map(|n| pki::FILES.map(|line| cluster(n, line)).to_vec()).to_vec();
        sizes.push(vec![
            cluster(3, pki::FILES[0]),
            cluster(5, pki::FILES[0]),
            cluster(3, "auth: { mode: certificate }"),
        ]);
        sizes.push(vec![cluster(3, "auth: { mode: password }")]);
        Self { sizes, rotates: true }
    }

    /// Sizes 1 and 3, whose files differ in their roles and users.
    pub fn with_users() -> Self {
        let cluster = |n, [roles, users]: [&str; 2]| fixtures::cluster(n, &[roles, users]);
        let mut sizes = [1, 3].map(|n| users::FILES.map(|file| cluster(n, file)).to_vec()).to_vec();
        sizes[1].push(fixtures::cluster(3, &["quota: 4GiB", users::FILES[0][0], users::FILES[0][1]]));
        Self { sizes, rotates: false }
    }

    /// Sizes 1, 3 and 5 whose clients need no certificate, or have one that raftsman did not sign.
    pub fn with_access() -> Self {
        let of = |n, files: &[[&str; 2]]| files.iter().map(|file| fixtures::cluster(n, file)).collect();
        let [passwords, brought] = [&access::FILES[..2], &access::FILES[2..]];
        let sizes = [1, 3, 5].into_iter().flat_map(|n| [of(n, passwords), of(n, brought)]);
        Self { sizes: sizes.collect(), rotates: false }
    }

    /// Sizes 1, 3 and 5 that are operated with one raftsman and then with another, newer or older.
    pub fn with_agents() -> Self {
        let of = |n: usize| agents::SHIPPED.map(|ships| agents::shipping(fixtures::cluster(n, &[]), ships)).to_vec();
        Self { sizes: [1, 3, 5].map(of).to_vec(), rotates: false }
    }

    /// Sizes 1, 3 and 5 on machines that the file has made otherwise now and then.
    pub fn with_shapes() -> Self {
        let sizes = [1, 3, 5].map(|n| shape::FILES.map(|file| fixtures::on_machines(n, file)).to_vec());
        Self { sizes: sizes.to_vec(), rotates: false }
    }

    /// Sizes 3 and 5 whose members the file puts into other zones now and then.
    pub fn with_zones() -> Self {
        let sizes = zones::PLACES.map(|places| places.iter().map(|zones| zones::placed(zones)).collect());
        Self { sizes: sizes.to_vec(), rotates: false }
    }

    /// Members and balancers that come and go, on machines whose addresses the provider assigns.
    pub fn with_addresses() -> Self {
        Self { sizes: addresses::files(), rotates: false }
    }

    /// Sizes 1, 3 and 4 behind balancers that come and go, on this computer and on machines.
    pub fn with_balancers() -> Self {
        let mut sizes = [1, 3, 4].map(balancer::on_this_computer).to_vec();
        sizes.push(balancer::on_machines());
        Self { sizes, rotates: false }
    }

    /// etcd beneath PostgreSQL: nodes and members that come and go, fail, and are changed.
    pub fn with_postgres() -> Self {
        Self { sizes: postgres::files(), rotates: false }
    }

    /// The same, and operators that rotate etcd's CAs.
    pub fn with_postgres_and_rotations() -> Self {
        Self { sizes: postgres::files(), rotates: true }
    }

    /// Sizes 3 and 5, each with versions to change between, some of them with a way over others.
    pub fn versions() -> Self {
        let versions = ["3.6.15", "3.5.30", "3.5.34", "3.6.10", "3.6.14", "3.7.2"];
        let available = || versions.iter().filter_map(|v| EtcdVersion::parse(v).ok());
        let of = |size: usize, version: &str| {
            let mut cluster = fixtures::cluster(size, &[&format!("version: {version}")]);
            cluster.etcd.available.extend(available());
            cluster
        };
        Self { sizes: [3, 5].map(|size| versions.iter().map(|v| of(size, v)).collect()).to_vec(), rotates: false }
    }

    /// Sizes 1, 3 and 5 with small quotas, whose databases fill up.
    pub fn with_maintenance() -> Self {
        Self {
            sizes: [1, 3, 5].map(|n| maintenance::FILES.map(|file| fixtures::cluster(n, file)).to_vec()).to_vec(),
            rotates: false,
        }
    }
}

impl Default for Cast {
    fn default() -> Self {
        Self::new()
    }
}
