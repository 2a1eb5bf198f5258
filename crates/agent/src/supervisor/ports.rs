//! addresses that a program needs → which of them another process holds, and which process that is.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use crate::supervisor::process;

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// A port that a program needs and does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortInUse {
    /// The port.
    pub port: u16,
    /// The process that holds it, as far as is known.
    pub holder: String,
}

/// Those of the addresses that cannot be bound now.
pub fn taken(addresses: &[SocketAddr]) -> Vec<PortInUse> {
    addresses
        .iter()
        .filter_map(|address| {
            let error = TcpListener::bind(address).err()?;
            let holder = match error.kind() {
                io::ErrorKind::AddrInUse => holder(*address).unwrap_or_else(|| "another process".to_owned()),
                io::ErrorKind::AddrNotAvailable => {
                    format!("no process: this machine does not have the address {}", address.ip())
                }
                _ => format!("no process: {error}"),
            };
            Some(PortInUse { port: address.port(), holder })
        })
        .collect()
}

/// Whether a process listens on every one of the addresses. Reports are made several times a second while a program
/// starts, and a table costs a millisecond: one that need not be read is not.
pub fn listening(addresses: &[SocketAddr]) -> bool {
    let mut left = addresses.to_vec();
    for table in TABLES.iter().filter_map(|table| fs::read_to_string(table).ok()) {
        left.retain(|address| listening_inode(&table, *address).is_none());
        if left.is_empty() {
            return true;
        }
    }
    false
}

fn holder(address: SocketAddr) -> Option<String> {
    let inode = TABLES
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .find_map(|table| listening_inode(&table, address))?;
    let pid = process::holding(&format!("socket:[{inode}]"))?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("{} (pid {pid})", name.trim()))
}

fn listening_inode(table: &str, address: SocketAddr) -> Option<String> {
    const LISTEN: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (ip, port) = fields.get(1)?.split_once(':')?;
        let same_port = u16::from_str_radix(port, 16).ok()? == address.port();
        let ip = kernel_address(ip)?;
        let same_ip = ip == address.ip() || ip.is_unspecified();
        (same_port && same_ip && *fields.get(3)? == LISTEN).then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    })
}

/// The kernel prints each 32 bit word of an address in the machine's byte order.
fn kernel_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => word(0).map(|bytes| Ipv4Addr::from(bytes).into()),
        32 => {
            let mut bytes = [0_u8; 16];
            for part in 0..4 {
                bytes[part * 4..part * 4 + 4].copy_from_slice(&word(part * 8)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_named() {
        let listener = TcpListener::bind("127.77.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let found = taken(&[address]);
        assert_eq!(found.len(), 1);
        assert!(found[0].holder.contains(&format!("(pid {})", std::process::id())), "{found:?}");
        assert!(listening(&[address]));
        drop(listener);
        assert!(taken(&[address]).is_empty());
        assert!(!listening(&[address]));
    }
}
