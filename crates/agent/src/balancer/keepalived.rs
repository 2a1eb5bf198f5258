//! keepalived's configuration → the virtual address in it; and the interface that only the machine knows.

use std::net::IpAddr;

use raftsman_core::render::keepalived::INTERFACE;

use crate::machine::addresses;

/// The configuration with this machine's interface in it; none where it needs one that cannot be determined.
pub fn placed(config: &str, address: IpAddr) -> Option<String> {
    if !config.contains(INTERFACE) {
        return Some(config.to_owned());
    }
    addresses::interface_of(address).map(|interface| config.replace(INTERFACE, &interface))
}

/// The address that one of the instances has at a time.
pub fn virtual_address(config: &str) -> Option<IpAddr> {
    let mut lines = config.lines().map(str::trim).skip_while(|line| !line.starts_with("virtual_ipaddress"));
    lines.nth(1)?.split(['/', ' ']).next()?.parse().ok()
}

/// The last line of its log that says why it ended.
pub fn fatal(log: &[String]) -> Option<String> {
    let is_reason = |line: &&String| ["Unable", "Error", "error", "terminat"].iter().any(|word| line.contains(word));
    log.iter().rev().find(is_reason).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use raftsman_core::render::keepalived::{Keepalived, config};
    use raftsman_core::spec::Name;

    #[test]
    fn the_virtual_address_is_read_out_of_the_file_that_raftsman_writes() {
        let (balancer, instance) = (Name::parse("front").expect("a name"), Name::parse("front-1").expect("a name"));
        for address in ["10.0.0.100", "fd00::99"] {
            let expected: IpAddr = address.parse().expect("an address");
            let text = config(&Keepalived {
                balancer: &balancer,
                instance: &instance,
                interface: None,
                router_id: 100,
                priority: 200,
                address: IpAddr::from([127, 0, 0, 1]),
                peers: &[IpAddr::from([10, 0, 0, 22])],
                virtual_address: expected,
            });
            assert_eq!(virtual_address(&text), Some(expected), "{text}");
        }
        assert_eq!(virtual_address(""), None);
        assert_eq!(placed("interface eth7\n", IpAddr::from([10, 0, 0, 1])).as_deref(), Some("interface eth7\n"));
    }
}
