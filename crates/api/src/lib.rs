//! `.proto` files → the protocol between a workstation and the agent on a machine, and the rules of both sides.

mod access;
pub mod claim;
pub mod deadline;
pub mod fence;
pub mod hex;
pub mod roles;
pub mod tls;

pub use access::access_digest;

/// Version 1 of the protocol, generated from `proto/raftsman/agent/v1/agent.proto`.
#[allow(missing_docs, unreachable_pub, unused_qualifications, clippy::all)]
pub mod v1 {
    tonic::include_proto!("raftsman.agent.v1");
}
