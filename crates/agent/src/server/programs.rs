//! a call about a program, by its name or by etcd's → an order to the supervisor.

use std::sync::Arc;
use std::time::Duration;

use raftsman_api::v1;
use raftsman_core::spec::Name;
use tokio::task::spawn_blocking;
use tonic::{Status, Streaming};

use crate::balancer::haproxy::{self, Admin};
use crate::etcd::prestart;
use crate::server::postgres::postgres_expected;
use crate::server::{Server, Turn, finish, next, second_head};
use crate::status::Coded;
use crate::supervisor::binaries::{self, Binary, BinaryError, Download, Wanted};
use crate::supervisor::config::{self, ConfigError};
use crate::supervisor::pins;
use crate::supervisor::program::{Expected, Program, Source};
use crate::supervisor::service::{ServiceError, State};

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
            config::write(&agent.root, program, agent.claim.boot().address, &config, &digest)?;
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

    /// Has a program take up its configuration file.
    pub(super) async fn reload(&self, turn: Turn, program: Program) -> Result<(), Status> {
        let service = self.agent.supervisor.of(program).clone();
        let reloaded = finish(tokio::spawn(async move {
            let _turn = turn;
            service.reload().await
        }));
        reloaded.await.map(drop)
    }

    /// Drains a member at HAProxy, or lets it have connections again.
    pub(super) async fn set_balanced(&self, turn: Turn, member: Name, admin: Admin) -> Result<(), Status> {
        if !matches!(self.agent.supervisor.of(Program::Haproxy).view().state, State::Running(_)) {
            return Err(ServiceError::NotRunning(Program::Haproxy).status());
        }
        let root = self.agent.root.clone();
        let set = finish(tokio::spawn(async move {
            let _turn = turn;
            haproxy::set_server(&root, &member, admin).await?;
            tracing::info!(%member, ?admin, "set at HAProxy");
            Ok::<_, haproxy::AdminError>(())
        }));
        set.await.map(drop)
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
        Ok(v1::Program::Haproxy) => Ok(Program::Haproxy),
        Ok(v1::Program::Keepalived) => Ok(Program::Keepalived),
        Ok(v1::Program::Patroni) => Ok(Program::Patroni),
        Ok(v1::Program::Unspecified) => {
            Err(Status::invalid_argument("say which program: etcd, HAProxy, keepalived or Patroni"))
        }
        Err(_) => Err(Status::invalid_argument(format!(
            "this agent does not know the program {number}: a newer agent may; this one supervises etcd, HAProxy, \
             keepalived and Patroni"
        ))),
    }
}

/// What a call wants installed.
pub(super) fn wanted(head: &v1::InstallProgramHead) -> Result<Wanted, Status> {
    let program = named(head.program)?;
    let binary = match (program.source(), head.binary.as_str()) {
        (Source::Package(package), _) => {
            return Err(Status::failed_precondition(format!(
                "{program} is not installed by a call, but from Debian's package: `apt install {}`",
                package.name
            )));
        }
        (Source::Pinned(binary), "") => binary,
        (Source::Pinned(_), name) => Binary::new(name).map_err(|error| error.status())?,
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

/// What a call wants of a member at HAProxy. The name becomes part of a command, so it must contain nothing else.
pub(super) fn server(request: &v1::SetServerRequest) -> Result<(Name, Admin), Status> {
    let wrong = |error| Status::invalid_argument(format!("`{}` is not a member's name: {error}", request.member));
    let member = Name::parse(&request.member).map_err(wrong)?;
    match request.admin() {
        v1::ServerAdmin::Ready => Ok((member, Admin::Ready)),
        v1::ServerAdmin::Drain => Ok((member, Admin::Drain)),
        v1::ServerAdmin::Unspecified => {
            Err(Status::invalid_argument(format!("say what `{member}` should be: ready or drain")))
        }
    }
}

/// What a start of a Debian package's program expects: nothing. It has one version and no data.
fn package_expected(expected: Expected, version: &str, says_data: bool) -> Result<Expected, Status> {
    if version.is_empty() && !says_data {
        return Ok(expected);
    }
    let program = expected.program();
    Err(Status::invalid_argument(format!(
        "{program} comes from Debian's package and has no data: send neither a version nor what is expected"
    )))
}

/// What a start that names a program expects of its data.
pub(super) fn start_expected(
    program: Program,
    version: &str,
    expected: Option<v1::start_program_request::Expected>,
) -> Result<Expected, Status> {
    use v1::start_program_request::Expected as Wire;
    match (program, expected) {
        (Program::Etcd, Some(Wire::Etcd(expected))) => etcd_expected(expected),
        (Program::Etcd, _) => Err(Status::invalid_argument("say what data of etcd is expected: empty or present")),
        (Program::Patroni, Some(Wire::Postgres(expected))) => postgres_expected(expected),
        (Program::Patroni, _) => {
            Err(Status::invalid_argument("say what data of PostgreSQL is expected: empty or present"))
        }
        (Program::Haproxy, expected) => package_expected(Expected::Haproxy, version, expected.is_some()),
        (Program::Keepalived, expected) => package_expected(Expected::Keepalived, version, expected.is_some()),
    }
}

/// What a restart that names a program expects of its data: that it continues as it was.
pub(super) fn restart_expected(
    program: Program,
    version: &str,
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
        (Program::Patroni, Some(Wire::Postgres(expected))) if expected.data() == v1::DataState::Present => {
            postgres_expected(expected)
        }
        (Program::Patroni, _) => {
            Err(Status::invalid_argument("Patroni is restarted on data of PostgreSQL that is there: say so"))
        }
        (Program::Haproxy, expected) => package_expected(Expected::Haproxy, version, expected.is_some()),
        (Program::Keepalived, expected) => package_expected(Expected::Keepalived, version, expected.is_some()),
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
