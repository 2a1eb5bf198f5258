//! a call about a program, by its name or by etcd's → an order to the supervisor.

use std::sync::Arc;
use std::time::Duration;

use raftsman_api::v1;
use tokio::task::spawn_blocking;
use tonic::{Status, Streaming};

use crate::etcd::prestart;
use crate::server::{Server, Turn, finish, next, second_head};
use crate::status::Coded;
use crate::supervisor::binaries::{self, Binary, BinaryError, Download, Wanted};
use crate::supervisor::config::{self, ConfigError};
use crate::supervisor::pins;
use crate::supervisor::program::{Expected, Program};

const USUAL_GRACE: u32 = 10;
const LONGEST_GRACE: u32 = 600;

/// A message of a stream that installs a binary.
pub(super) enum Piece {
    /// Which binary.
    Head,
    /// Some of its bytes.
    Chunk(Vec<u8>),
}

impl Server {
    /// Installs a binary from the machine's own artifacts, or from the bytes that follow; returns whether they must
    /// follow.
    pub(super) async fn install<M>(
        &self,
        turn: Turn,
        mut parts: Streaming<M>,
        wanted: Wanted,
        piece: fn(M) -> Option<Piece>,
    ) -> Result<bool, Status> {
        pins::check(&self.agent.root, &wanted).map_err(|error| error.status())?;
        let (binary, version) = (wanted.binary(), wanted.version().to_owned());

        let (agent, local) = (Arc::clone(&self.agent), wanted.clone());
        let there = finish(spawn_blocking(move || {
            binaries::clean(&agent.root, binary.program());
            Ok::<_, BinaryError>(local.is_installed(&agent.root)? || local.install_artifact(&agent.root)?)
        }))
        .await?
        .into_inner();
        if there {
            tracing::info!(version, "{binary} installed");
            return Ok(false);
        }
        let Some(mut part) = next(&mut parts, piece).await? else { return Ok(true) };

        let root = self.agent.root.clone();
        let mut download = finish(spawn_blocking(move || Download::begin(&root, wanted))).await?.into_inner();
        loop {
            let Piece::Chunk(bytes) = part else { return Err(second_head()) };
            download = finish(spawn_blocking(move || download.write(&bytes).map(|()| download))).await?.into_inner();
            match next(&mut parts, piece).await? {
                Some(more) => part = more,
                None => break,
            }
        }
        self.change(turn, move |agent| {
            download.finish(&agent.root)?;
            tracing::info!(version, "{binary} installed from the bytes that were sent");
            Ok::<_, BinaryError>(())
        })
        .await?;
        Ok(false)
    }

    /// Writes a program's configuration file.
    pub(super) async fn configure(
        &self,
        turn: Turn,
        program: Program,
        config: String,
        digest: String,
    ) -> Result<(), Status> {
        self.change(turn, move |agent| {
            config::write(&agent.root, program, &config, &digest)?;
            tracing::info!(digest, "{program} configured");
            Ok::<_, ConfigError>(())
        })
        .await?;
        Ok(())
    }

    /// Starts a program; returns its process id.
    pub(super) async fn start(&self, turn: Turn, version: String, expected: Expected) -> Result<u32, Status> {
        let service = self.agent.supervisor.of(expected.program()).clone();
        let started = finish(tokio::spawn(async move {
            let _turn = turn;
            service.start(version, expected).await
        }));
        Ok(started.await?.into_inner())
    }

    /// Stops a program and starts it again; returns its process id.
    pub(super) async fn restart(
        &self,
        turn: Turn,
        version: String,
        expected: Expected,
        grace: Duration,
    ) -> Result<u32, Status> {
        let service = self.agent.supervisor.of(expected.program()).clone();
        let restarted = finish(tokio::spawn(async move {
            let _turn = turn;
            service.restart(version, expected, grace).await
        }));
        Ok(restarted.await?.into_inner())
    }

    /// Stops a program; permanently, or for this many seconds.
    pub(super) async fn stop(
        &self,
        turn: Turn,
        program: Program,
        grace: Duration,
        resume_after_seconds: u32,
    ) -> Result<(), Status> {
        let resume = Some(resume_after_seconds).filter(|seconds| *seconds > 0);
        let resume = resume.map(|seconds| Duration::from_secs(seconds.into()));
        let service = self.agent.supervisor.of(program).clone();
        finish(tokio::spawn(async move {
            let _turn = turn;
            service.stop(grace, resume).await
        }))
        .await?;
        Ok(())
    }
}

/// The program that a call names.
pub(super) fn named(number: i32) -> Result<Program, Status> {
    match v1::Program::try_from(number) {
        Ok(v1::Program::Etcd) => Ok(Program::Etcd),
        Ok(v1::Program::Unspecified) => Err(Status::invalid_argument("say which program: etcd")),
        Err(_) => Err(Status::invalid_argument(format!(
            "this agent does not know the program {number}: a newer agent may; this one supervises etcd"
        ))),
    }
}

/// What a call wants installed.
pub(super) fn wanted(head: &v1::InstallProgramHead) -> Result<Wanted, Status> {
    let program = named(head.program)?;
    let binary = match head.binary.as_str() {
        "" => program.binary(),
        name => Binary::new(name).map_err(|error| error.status())?,
    };
    if binary.program() != program {
        return Err(Status::invalid_argument(format!("{binary} is not a binary of {program}")));
    }
    Wanted::new(binary, &head.version, &head.sha256).map_err(|error| error.status())
}

/// What a call expects of etcd's data.
pub(super) fn etcd_expected(expected: v1::EtcdExpected) -> Result<Expected, Status> {
    let alone = expected.force_new_cluster;
    let expected = match (expected.data(), expected.cluster_id) {
        (v1::DataState::Empty, _) if alone => {
            return Err(Status::invalid_argument(
                "force_new_cluster goes with data that is there: there is nothing to go on with",
            ));
        }
        (v1::DataState::Empty, _) => prestart::Expected::Empty { bootstrap: expected.bootstrap },
        (v1::DataState::Present, 0) => return Err(no_cluster()),
        (v1::DataState::Present, id) => prestart::Expected::Cluster { id, alone },
        (v1::DataState::Unspecified | v1::DataState::Unreadable, _) => {
            return Err(Status::invalid_argument("say what data is expected: empty or present"));
        }
    };
    Ok(Expected::Etcd(expected))
}

/// What a start that names a program expects of its data.
pub(super) fn start_expected(
    program: Program,
    expected: Option<v1::start_program_request::Expected>,
) -> Result<Expected, Status> {
    use v1::start_program_request::Expected as Wire;
    match (program, expected) {
        (Program::Etcd, Some(Wire::Etcd(expected))) => etcd_expected(expected),
        (Program::Etcd, None) => Err(Status::invalid_argument("say what data of etcd is expected: empty or present")),
    }
}

/// What a restart that names a program expects of its data: that it continues as it was.
pub(super) fn restart_expected(
    program: Program,
    expected: Option<v1::restart_program_request::Expected>,
) -> Result<Expected, Status> {
    use v1::restart_program_request::Expected as Wire;
    match (program, expected) {
        (Program::Etcd, Some(Wire::Etcd(expected)))
            if expected.data() == v1::DataState::Present && !expected.force_new_cluster =>
        {
            etcd_expected(expected)
        }
        (Program::Etcd, _) => {
            Err(Status::invalid_argument("etcd is restarted on data that is there, with the other members: say so"))
        }
    }
}

/// A call about etcd's data that does not say of which cluster.
pub(super) fn no_cluster() -> Status {
    Status::invalid_argument("say which cluster the data must belong to: expected_cluster_id")
}

/// How long a program may take to end, as a call says.
pub(super) fn grace(seconds: u32) -> Duration {
    let seconds = if seconds == 0 { USUAL_GRACE } else { seconds.min(LONGEST_GRACE) };
    Duration::from_secs(seconds.into())
}
