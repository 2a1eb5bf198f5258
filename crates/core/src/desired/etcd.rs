//! One cluster of the file → its members with their configuration and certificates.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use jiff::SignedDuration;

use super::addresses::{Allotment, Spot};
use super::{Agents, Config, DesireError, HEALTH_PORT, Member, Stack, machines};
use crate::render;
use crate::render::etcd::ClientAccess;
use crate::spec::{
    Archive, AuthMode, Checksums, EtcdCluster, EtcdVersion, Machines, Members, Name, RaftTimers, Source,
};

/// Where an agent listens.
pub const AGENT_PORT: u16 = 2378;
/// Where etcd listens for clients.
pub const CLIENT_PORT: u16 = 2379;
/// Where etcd listens for other members.
pub const PEER_PORT: u16 = 2380;
/// Where etcd serves metrics and the like, where they have a listener of their own.
pub const HTTP_PORT: u16 = 2381;
/// The client port of members that no client may reach yet.
pub const CLOSED_PORT: u16 = 2382;

/// What a certificate must say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafProfile {
    /// Common name.
    pub common_name: String,
    /// Organization.
    pub organization: String,
    /// Names, sorted.
    pub names: Vec<String>,
    /// Addresses, sorted.
    pub addresses: Vec<IpAddr>,
    /// What it may be used for.
    pub usage: Usage,
    /// How long it is valid, in milliseconds.
    pub validity_ms: u64,
    /// How long before its end it is renewed, in milliseconds.
    pub renew_before_ms: u64,
}

/// What a certificate may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// To be a server.
    Server,
    /// To be a server and a client: peers are both.
    ServerAndClient,
}

impl LeafProfile {
    /// The same with this address in it, too.
    pub fn with(&self, also: Option<IpAddr>) -> Cow<'_, Self> {
        match also.filter(|address| !self.addresses.contains(address)) {
            None => Cow::Borrowed(self),
            Some(address) => {
                let mut profile = self.clone();
                profile.addresses.push(address);
                profile.addresses.sort();
                Cow::Owned(profile)
            }
        }
    }

    /// How long before its end it is renewed.
    pub fn renew_before(&self) -> SignedDuration {
        span(self.renew_before_ms)
    }

    /// Names and addresses as a certificate's facts list them.
    pub fn all_names(&self) -> Vec<String> {
        let mut all: Vec<String> = self.names.clone();
        all.extend(self.addresses.iter().map(ToString::to_string));
        all.sort();
        all
    }
}

pub(super) fn span(ms: u64) -> SignedDuration {
    SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX))
}

pub(super) fn url(address: IpAddr, port: u16) -> String {
    format!("https://{}", std::net::SocketAddr::new(address, port))
}

/// Whether `/metrics`, `/debug/vars`, `/version` and `/health` have a listener of their own. etcd asks for no credentials
/// there, so that with passwords every client that reaches its port could read them; and it cannot serve its gateway apart
/// from them.
pub(super) fn serves_http_apart(spec: &EtcdCluster) -> bool {
    spec.auth.mode == AuthMode::Password && spec.gateway == Some(false)
}

/// etcd's configuration of a member at this version.
pub(super) fn config(
    spec: &EtcdCluster,
    member: &Name,
    address: IpAddr,
    version: EtcdVersion,
    timers: RaftTimers,
    access: ClientAccess,
    fronted: bool,
) -> Config {
    // The gateway is a client of its own member, with a certificate that a closed listener does not accept.
    let gateway = access == ClientAccess::Open && spec.gateway.unwrap_or(spec.auth.mode == AuthMode::Password);
    let text = render::etcd::config(&render::etcd::Member {
        name: member,
        client_url: url(address, CLIENT_PORT),
        http_url: serves_http_apart(spec).then(|| url(address, HTTP_PORT)),
        health_url: fronted.then(|| format!("http://{}", std::net::SocketAddr::new(address, HEALTH_PORT))),
        peer_url: url(address, PEER_PORT),
        version,
        gateway,
        timers,
        access,
        cluster: spec,
    });
    Config { digest: render::digest(&text), text }
}

/// The same for a member that listens for clients at [`CLOSED_PORT`], and accepts only raftsman.
pub(super) fn closed(
    spec: &EtcdCluster,
    member: &Name,
    address: IpAddr,
    version: EtcdVersion,
    timers: RaftTimers,
) -> Config {
    let mut spec = spec.clone();
    // Members that start together wait for each other in it, and they are compared anyway.
    spec.corruption_checks.initial = false;
    let text = render::etcd::config(&render::etcd::Member {
        name: member,
        client_url: url(address, CLOSED_PORT),
        http_url: None,
        health_url: None,
        peer_url: url(address, PEER_PORT),
        version,
        gateway: false,
        timers,
        access: ClientAccess::Closed,
        cluster: &spec,
    });
    Config { digest: render::digest(&text), text }
}

/// Its members' names, in order, each with the address that the file gives it.
pub(super) fn named(cluster: &Name, spec: &EtcdCluster) -> Result<Vec<Spot>, DesireError> {
    match &spec.members {
        Members::Count(count) => {
            let numbered = |index| Name::parse(&format!("{cluster}-{index}")).map(|member| (member, None));
            let named = (1..=*count).map(numbered).collect::<Result<_, _>>();
            named.map_err(|_| DesireError::NameTooLong { cluster: cluster.clone() })
        }
        Members::List(list) => Ok(list.iter().map(|member| (member.name.clone(), member.address)).collect()),
    }
}

pub(super) fn resolve(
    fleet: &Name,
    name: &Name,
    spec: &EtcdCluster,
    machines: &Arc<Machines>,
    zones: Option<&BTreeMap<Name, Name>>,
    fronted: bool,
    addresses: &mut Allotment,
) -> Result<Stack, DesireError> {
    let mut places = named(name, spec)?;
    for (member, address) in places.iter_mut().filter(|(_, address)| address.is_none()) {
        *address = addresses.allot(name, member)?;
    }
    let token = spec.token.clone().unwrap_or_else(|| format!("{fleet}-{name}"));
    let organization = spec.certificates.organization.clone().unwrap_or_else(|| fleet.to_string());
    let machines = machines::resolve(machines, spec, &places, zones);
    let members = places
        .into_iter()
        .filter_map(|(member, address)| Some((member, address?)))
        .map(|(member, address)| {
            let timers = spec.timers.given().unwrap_or_default();
            let config = config(spec, &member, address, spec.version, timers, ClientAccess::Open, fronted);
            let profile = |usage, names: Vec<String>, addresses: Vec<IpAddr>| {
                let (mut names, mut addresses) = (names, addresses);
                names.sort();
                names.dedup();
                addresses.sort();
                addresses.dedup();
                LeafProfile {
                    common_name: member.to_string(),
                    organization: organization.clone(),
                    names,
                    addresses,
                    usage,
                    validity_ms: spec.certificates.validity.as_millis(),
                    renew_before_ms: spec.certificates.renew_before.as_millis(),
                }
            };
            let extra = &spec.certificates;
            let mut server_names = extra.extra_names.clone();
            server_names.push(member.to_string());
            let mut server_addresses = extra.extra_addresses.clone();
            server_addresses.push(address);
            // Peers are checked by their source address, and on this computer every peer connects from 127.0.0.1.
            let mut peer_addresses = vec![address];
            if address.is_loopback() {
                peer_addresses.push(IpAddr::V4(Ipv4Addr::LOCALHOST));
            }
            Member {
                config,
                peer: profile(Usage::ServerAndClient, vec![member.to_string()], peer_addresses),
                server: profile(Usage::Server, server_names, server_addresses),
                machine: member.clone(),
                name: member,
                address,
            }
        })
        .collect();
    Ok(Stack {
        agents: Agents::default(),
        balancers: Vec::new(),
        unplaced: None,
        name: name.clone(),
        backups: None,
        settings: Arc::new(spec.clone()),
        token,
        learner_patience_ms: spec.learner_patience.as_millis(),
        access: super::users::resolve(spec),
        machines,
        replace_after_ms: spec.replace_after.map(|after| after.as_millis()),
        version: spec.version,
        source: spec.source.clone(),
        available: available(spec),
        auth: spec.auth.mode,
        root_password: spec.auth.root_password.clone(),
        authorities: spec.ca.clone(),
        organization,
        algorithm: spec.ca.algorithm,
        ca_validity_ms: spec.certificates.ca_validity.as_millis(),
        members,
    })
}

/// The versions that the file itself says can be had.
fn available(spec: &EtcdCluster) -> BTreeSet<EtcdVersion> {
    let named = match &spec.source {
        Source::Archive(Archive { sha256: Checksums::Each(each), .. }) => each.keys().copied().collect(),
        Source::Archive(_) | Source::Path | Source::File(_) | Source::Directory(_) | Source::Package(_) => Vec::new(),
    };
    named.into_iter().chain([spec.version]).collect()
}
