//! Who makes the machines → what can be done with them.

use crate::spec::Provider;

/// What can be done with a fleet's machines. The planner reads this, never a provider's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// They are made and deleted. Without it they are there already: taken in once, and left clean.
    pub makes: bool,
    /// One gets another address while what runs on it goes on.
    pub moves: bool,
    /// They boot as they are told, with a firewall of their own.
    pub boots: bool,
}

impl Capabilities {
    /// Of the machines of this provider.
    pub fn of(provider: Provider) -> Self {
        match provider {
            Provider::Local => Self { makes: true, moves: true, boots: false },
            Provider::Hosts => Self { makes: false, moves: false, boots: false },
            Provider::Incus | Provider::Libvirt | Provider::Openstack | Provider::Aws => {
                Self { makes: true, moves: false, boots: true }
            }
        }
    }
}
