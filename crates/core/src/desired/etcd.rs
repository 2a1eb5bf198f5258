//! One cluster of the file → its members with their configuration and certificates.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use jiff::SignedDuration;

use super::addresses::{Allotment, Spot};
use super::{Access, Config, DesireError, HEALTH_PORT};
use crate::observed::{Ledger, Origin, Purpose, TrustDomain};
use crate::render;
use crate::render::etcd::ClientAccess;
use crate::render::haproxy::Backend;
use crate::spec::{
    Archive, AuthMode, Authorities, Authority, Backups, Certificates, Checksums, EtcdCluster, EtcdVersion,
    KeyAlgorithm, Members, Name, RaftTimers, Secret, Source,
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

/// What etcd's request time-out has besides twice the election time-out.
const REQUEST_MS: u64 = 5000;

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
    /// To be a client.
    Client,
}

impl LeafProfile {
    /// For as long as the file says.
    pub(super) fn new(
        common_name: String,
        organization: String,
        mut names: Vec<String>,
        mut addresses: Vec<IpAddr>,
        usage: Usage,
        given: &Certificates,
    ) -> Self {
        names.sort();
        names.dedup();
        addresses.sort();
        addresses.dedup();
        let (validity_ms, renew_before_ms) = (given.validity.as_millis(), given.renew_before.as_millis());
        Self { common_name, organization, names, addresses, usage, validity_ms, renew_before_ms }
    }

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

/// One etcd cluster that should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Etcd {
    /// Its version.
    pub version: EtcdVersion,
    /// Where the binary comes from.
    pub source: Source,
    /// The versions that can be had from there, the wanted one among them.
    pub available: BTreeSet<EtcdVersion>,
    /// How clients authenticate.
    pub auth: AuthMode,
    /// The password of `root`, when the file refers to one.
    pub root_password: Option<Secret>,
    /// Made or brought authorities.
    pub authorities: Authorities,
    /// Organization in certificates.
    pub organization: String,
    /// Key algorithm of the authorities that are made.
    pub algorithm: KeyAlgorithm,
    /// How long made authorities are valid, in milliseconds.
    pub ca_validity_ms: u64,
    /// Tells clusters apart while they form.
    pub token: String,
    /// A member that is down for so many milliseconds is replaced automatically.
    pub replace_after_ms: Option<u64>,
    /// A learner that makes no progress for so many milliseconds is removed again.
    pub learner_patience_ms: u64,
    /// Roles and users.
    pub access: Access,
    /// The backups that its machines make by themselves, where the file has a schedule.
    pub backups: Option<Arc<Backups>>,
    /// The cluster's section of the file, for configurations of versions on the way.
    pub settings: Arc<EtcdCluster>,
    /// Whether a balancer stands in front of it, and checks its members' health.
    pub fronted: bool,
    /// Its members, in order: those whose address is known.
    pub members: Vec<Member>,
}

/// One member that should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its name.
    pub name: Name,
    /// The machine that it runs on: of the same name.
    pub machine: Name,
    /// Where it serves: its machine's address.
    pub address: IpAddr,
    /// etcd's configuration file at the version of the file, with etcd's own time-outs where they are to be measured.
    pub config: Config,
    /// The certificate that it presents to other members.
    pub peer: LeafProfile,
    /// The certificate that it presents to clients.
    pub server: LeafProfile,
}

impl Etcd {
    /// The member of this name.
    pub fn member(&self, name: &Name) -> Option<&Member> {
        self.members.iter().find(|m| m.name == *name)
    }

    /// These members as backends of a balancer, where they serve now.
    pub fn backends(&self, members: &[Name], ledger: &Ledger) -> Vec<Backend> {
        let members = members.iter().filter_map(|name| self.member(name));
        members
            .map(|member| {
                let known = ledger.etcd.members.get(&member.name).and_then(|url| address_of(url));
                super::balancer::backend(&member.name, known.unwrap_or(member.address))
            })
            .collect()
    }

    /// The authority of this side, as the file says.
    pub fn authority(&self, side: TrustDomain) -> &Authority {
        match side {
            TrustDomain::Peers => &self.authorities.peers,
            TrustDomain::Clients => &self.authorities.clients,
        }
    }

    /// How long before the end of an authority that raftsman made another one is made: long enough for the certificates
    /// that it signed to be renewed by the other, and no longer than the other one lasts.
    pub fn renew_authority_before(&self) -> SignedDuration {
        let leaves = self.settings.certificates.validity.as_millis().saturating_mul(2);
        span(leaves.min(self.ca_validity_ms / 2))
    }

    /// The addresses of all present and future members: they reach each other.
    pub fn neighbours(&self, ledger: &Ledger) -> BTreeSet<IpAddr> {
        let here = ledger.etcd.members.values().filter_map(|url| address_of(url));
        self.members.iter().map(|member| member.address).chain(here).collect()
    }

    /// The heartbeat and election time-outs of every member: those of the file, or those that were measured; nothing
    /// while they are to be measured and have not been.
    pub fn timers(&self, ledger: &Ledger) -> Option<RaftTimers> {
        self.settings.timers.given().or_else(|| ledger.etcd.preflight.as_ref().map(|preflight| preflight.timers))
    }

    /// Which clients members accept now. Where auth is wanted, every client that is accepted before it is on is a
    /// superuser: raftsman first sees that auth is on, in this very cluster, and then opens members to clients.
    pub fn client_access(&self, ledger: &Ledger) -> ClientAccess {
        let rebuilt = ledger.etcd.is_built_anew();
        let secured = !rebuilt && ledger.etcd.secured.is_some() && ledger.etcd.secured == ledger.etcd.cluster;
        match self.auth {
            AuthMode::None => ClientAccess::Open,
            AuthMode::Certificate | AuthMode::Password if secured => ClientAccess::Open,
            // So far the file let every client do everything.
            AuthMode::Certificate if ledger.etcd.auth == Some(AuthMode::None) => ClientAccess::Open,
            // No certificate was issued yet but raftsman's own.
            AuthMode::Certificate if ledger.etcd.secured.is_none() && self.is_sole_issuer(ledger) => ClientAccess::Open,
            AuthMode::Certificate | AuthMode::Password => ClientAccess::Closed,
        }
    }

    /// Whether raftsman made every authority whose client certificates are accepted.
    fn is_sole_issuer(&self, ledger: &Ledger) -> bool {
        match &ledger.etcd.clients {
            Some(trust) => trust.trusted().iter().all(|authority| authority.origin == Origin::Made),
            None => self.authorities.clients == Authority::Made,
        }
    }

    /// A member's configuration at this version, which may be one on the way to the file's.
    pub fn config<'a>(
        &self,
        member: &'a Member,
        version: EtcdVersion,
        timers: RaftTimers,
        access: ClientAccess,
    ) -> Cow<'a, Config> {
        self.config_at(member, version, member.address, timers, access)
    }

    /// The same at this address: a member that changes its address is configured for the new one when it moves.
    pub fn config_at<'a>(
        &self,
        member: &'a Member,
        version: EtcdVersion,
        address: IpAddr,
        timers: RaftTimers,
        access: ClientAccess,
    ) -> Cow<'a, Config> {
        let rendered = self.settings.timers.given().unwrap_or_default();
        let same = version == self.version && address == member.address && timers == rendered;
        if same && access == ClientAccess::Open {
            return Cow::Borrowed(&member.config);
        }
        Cow::Owned(config(&self.settings, &member.name, address, version, timers, access, self.fronted))
    }

    /// A member's configuration while it is compared with the others: it listens at [`CLOSED_PORT`].
    pub fn closed_config(&self, member: &Member, version: EtcdVersion, timers: RaftTimers) -> Config {
        closed(&self.settings, &member.name, member.address, version, timers)
    }

    /// For how long clients that watch can hold a member that is told to stop; nothing where it does not wait for them.
    /// With its gateway, etcd serves gRPC through an HTTP server, and gives that one its request time-out to end.
    pub fn stop_held_ms(&self, ledger: &Ledger) -> Option<u64> {
        let election = self.timers(ledger).unwrap_or_default().election.as_millis();
        let held = self.settings.serves_gateway() && self.client_access(ledger) == ClientAccess::Open;
        held.then_some(election.saturating_mul(2).saturating_add(REQUEST_MS))
    }

    /// How many members the file has, also those without an address.
    pub fn size(&self) -> usize {
        usize::try_from(self.settings.members.number()).unwrap_or(usize::MAX)
    }
}

impl Member {
    /// Where clients reach it.
    pub fn client_url(&self) -> String {
        url(self.address, CLIENT_PORT)
    }

    /// Where other members reach it.
    pub fn peer_url(&self) -> String {
        peer_url(self.address)
    }

    /// The certificate for this purpose.
    pub fn profile(&self, purpose: Purpose) -> &LeafProfile {
        match purpose {
            Purpose::Peer => &self.peer,
            Purpose::Server => &self.server,
        }
    }
}

/// Where other members reach a member at this address.
pub fn peer_url(address: IpAddr) -> String {
    url(address, PEER_PORT)
}

/// The address in a peer URL of ours.
pub fn address_of(peer_url: &str) -> Option<IpAddr> {
    let place = peer_url.strip_prefix("https://")?;
    place.parse::<std::net::SocketAddr>().ok().map(|place| place.ip())
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
    let gateway = access == ClientAccess::Open && spec.serves_gateway();
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

/// Makes every choice that the file leaves open about an etcd cluster; and its machines, those among them that have no
/// address yet.
pub(super) fn resolve(
    fleet: &Name,
    name: &Name,
    spec: &EtcdCluster,
    backups: Option<Arc<Backups>>,
    fronted: bool,
    addresses: &mut Allotment,
) -> Result<(Etcd, Vec<Spot>), DesireError> {
    let mut places = named(name, spec)?;
    for (member, address) in places.iter_mut().filter(|(_, address)| address.is_none()) {
        *address = addresses.allot(name, member)?;
    }
    let token = spec.token.clone().unwrap_or_else(|| format!("{fleet}-{name}"));
    let organization = spec.certificates.organization.clone().unwrap_or_else(|| fleet.to_string());
    let known = places.iter().filter_map(|(member, address)| Some((member.clone(), (*address)?)));
    let members = known
        .map(|(member, address)| {
            let timers = spec.timers.given().unwrap_or_default();
            let config = config(spec, &member, address, spec.version, timers, ClientAccess::Open, fronted);
            let profile = |usage, names, addresses| {
                LeafProfile::new(member.to_string(), organization.clone(), names, addresses, usage, &spec.certificates)
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
    let etcd = Etcd {
        backups,
        fronted,
        settings: Arc::new(spec.clone()),
        token,
        learner_patience_ms: spec.learner_patience.as_millis(),
        access: super::users::resolve(spec),
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
    };
    Ok((etcd, places))
}

/// The versions that the file itself says can be had.
fn available(spec: &EtcdCluster) -> BTreeSet<EtcdVersion> {
    let named = match &spec.source {
        Source::Archive(Archive { sha256: Checksums::Each(each), .. }) => each.keys().copied().collect(),
        Source::Archive(_) | Source::Path | Source::File(_) | Source::Directory(_) | Source::Package(_) => Vec::new(),
    };
    named.into_iter().chain([spec.version]).collect()
}
