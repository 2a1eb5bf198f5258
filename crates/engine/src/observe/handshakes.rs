//! Members and authorities → results of TLS handshakes: agents between members, and raftsman at every port.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use raftsman_api::v1::{HandshakeRequest, Target};
use raftsman_core::desired::{CLIENT_PORT, PEER_PORT};
use raftsman_core::observed::{HandshakeResult, Handshakes, TrustDomain};
use raftsman_core::spec::Name;
use raftsman_etcd::{CALL_TIMEOUT, Credentials};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::agent::AgentLink;
use super::etcd::EtcdLink;
use crate::stack::ClusterCredentials;

/// An agent gives its targets three seconds each, all at the same time.
const AGENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Tests all handshakes: from this member to the others, and with a client of every authority at its ports of these
/// sides.
pub(super) async fn of_member(
    agent: &AgentLink,
    etcd: &EtcdLink,
    others: &BTreeMap<Name, IpAddr>,
    sides: &[TrustDomain],
    credentials: &ClusterCredentials,
) -> Handshakes {
    let tried = credentials.vouched.iter().filter(|((side, _), _)| sides.contains(side));
    let results = tried.map(|((side, key), credentials)| async move {
        (*side, key.clone(), handshake(etcd.to().at.ip(), *side, credentials).await)
    });
    let (peers, results) = tokio::join!(among_members(agent, others), join_all(results));
    let mut handshakes = Handshakes { peers, let_in: BTreeMap::new() };
    for (side, key, handshake) in results {
        handshakes.let_in.entry(side).or_default().insert(key, handshake);
    }
    handshakes
}

async fn among_members(agent: &AgentLink, others: &BTreeMap<Name, IpAddr>) -> BTreeMap<Name, Option<String>> {
    let targets = others.iter().map(|(name, address)| Target { name: name.to_string(), address: address.to_string() });
    let request = HandshakeRequest { targets: targets.collect() };
    let asked =
        async { Ok::<_, super::LinkError>(agent.client().await?.handshake(request).await?.into_inner().results) };
    match tokio::time::timeout(AGENT_TIMEOUT, asked).await {
        Ok(Ok(results)) => {
            let result = |r: raftsman_api::v1::HandshakeResult| {
                Some((Name::parse(&r.name).ok()?, Some(r.error).filter(|error| !error.is_empty())))
            };
            results.into_iter().filter_map(result).collect()
        }
        Ok(Err(error)) => others.keys().map(|name| (name.clone(), Some(error.to_string()))).collect(),
        Err(_) => others.keys().map(|name| (name.clone(), Some("the agent does not answer".to_owned()))).collect(),
    }
}

/// The result of a handshake with these credentials. With TLS 1.3 etcd verifies the client's certificate only after the
/// client's side of the handshake is done: it then answers a request, or sends an alert instead.
async fn handshake(address: IpAddr, side: TrustDomain, credentials: &Credentials) -> HandshakeResult {
    let port = match side {
        TrustDomain::Peers => PEER_PORT,
        TrustDomain::Clients => CLIENT_PORT,
    };
    let asked = async {
        let tcp = TcpStream::connect(SocketAddr::new(address, port)).await?;
        let mut stream = credentials.connector().connect(address.into(), tcp).await?;
        stream.write_all(b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n").await?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(CALL_TIMEOUT, asked).await {
        Ok(Ok(answer)) if answer == *b"HTTP/" => HandshakeResult::Accepted,
        Ok(Ok(_)) => HandshakeResult::Unclear("what answers there is no etcd".to_owned()),
        // Only an explicit alert counts as a rejection: a connection may close for any reason.
        Ok(Err(error)) if turned_away(&error) => HandshakeResult::Refused(error.to_string()),
        Ok(Err(error)) => HandshakeResult::Unclear(error.to_string()),
        Err(_) => HandshakeResult::Unclear("no answer".to_owned()),
    }
}

fn turned_away(error: &std::io::Error) -> bool {
    let source = error.get_ref().and_then(|source| source.downcast_ref::<rustls::Error>());
    matches!(source, Some(rustls::Error::AlertReceived(_)))
}
