//! A call → whether its caller may make it, and its turn: there is one change at a time.

use std::sync::Arc;

use raftsman_api::fence;
use raftsman_api::roles::Role;
use raftsman_api::tls::Peer;
use tokio::sync::OwnedMutexGuard;
use tokio::task::{JoinHandle, spawn_blocking};
use tonic::{Request, Response, Status};

use crate::Agent;
use crate::server::Server;
use crate::status::{Coded, describe};

/// Held while a change is under way.
pub(super) type Turn = OwnedMutexGuard<()>;

impl Server {
    /// The role check for every call.
    pub(super) fn allow<'r, T>(&self, request: &'r Request<T>, needed: Role) -> Result<&'r Peer, Status> {
        let peer = request
            .extensions()
            .get::<Peer>()
            .ok_or_else(|| Status::unauthenticated("the connection has no client certificate"))?;
        if !self.agent.claim.tls().accepts(peer) {
            return Err(Status::unauthenticated(
                "the client certificate is revoked, has ended, or its CA is not trusted any more",
            ));
        }
        match &peer.role {
            Ok(role) if *role >= needed => Ok(peer),
            Ok(role) => Err(Status::permission_denied(format!(
                "this call needs the role {needed}, the client certificate has the role {role}"
            ))),
            Err(error) => Err(Status::permission_denied(format!("this call needs the role {needed}: {error}"))),
        }
    }

    /// The role, claim and fence checks for every change, and its turn.
    pub(super) async fn admit<T>(&self, request: &Request<T>) -> Result<Turn, Status> {
        self.admit_as(request, Role::Operator).await
    }

    /// The same, for a change that needs this role.
    pub(super) async fn admit_as<T>(&self, request: &Request<T>, needed: Role) -> Result<Turn, Status> {
        let generation = self.fenced_as(request, needed)?;
        let turn = Arc::clone(&self.changes).lock_owned().await;
        // Checked after the wait for its turn: an operator with a newer lock may have called meanwhile.
        self.pass(generation).await?;
        Ok(turn)
    }

    /// The role and claim checks for every call with a generation; returns that generation.
    pub(super) fn fenced<T>(&self, request: &Request<T>) -> Result<u64, Status> {
        self.fenced_as(request, Role::Operator)
    }

    fn fenced_as<T>(&self, request: &Request<T>, needed: Role) -> Result<u64, Status> {
        self.allow(request, needed)?;
        let generation = fence::read(request)?;
        if !self.agent.claim.is_claimed() {
            return Err(Status::failed_precondition("this machine is not claimed yet: claim it first"));
        }
        Ok(generation)
    }

    /// Obeys this generation, and writes it to the disk first.
    pub(super) async fn pass(&self, generation: u64) -> Result<(), Status> {
        let agent = Arc::clone(&self.agent);
        finish(spawn_blocking(move || agent.fence.pass(generation))).await.map(Response::into_inner)
    }

    /// Runs a change to its end, even when the caller disconnects in the middle.
    pub(super) async fn change<R, E>(
        &self,
        turn: Turn,
        work: impl FnOnce(&Agent) -> Result<R, E> + Send + 'static,
    ) -> Result<Response<R>, Status>
    where
        R: Send + 'static,
        E: Coded + Send + 'static,
    {
        let agent = Arc::clone(&self.agent);
        finish(spawn_blocking(move || {
            let _turn = turn;
            work(&agent)
        }))
        .await
    }
}

/// The outcome of a task, which goes on where its caller disconnects.
pub(super) async fn finish<R, E: Coded>(task: JoinHandle<Result<R, E>>) -> Result<Response<R>, Status> {
    match task.await {
        Ok(Ok(reply)) => Ok(Response::new(reply)),
        Ok(Err(error)) => {
            let status = error.status();
            tracing::warn!(code = ?status.code(), error = status.message(), "call refused or failed");
            Err(status)
        }
        Err(error) => Err(Status::internal(format!("the agent failed: {}", describe(&error)))),
    }
}
