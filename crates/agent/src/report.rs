//! the state of the machine → the report. Reads only, on a thread that may block; the only waits are one of a second at
//! most for HAProxy, and one of two seconds at most for Patroni.

use jiff::Timestamp;
use raftsman_api::v1;
use tokio::runtime::Handle;

use crate::Agent;
use crate::access::certs::{CertsError, Store};
use crate::balancer;
use crate::etcd::db;
use crate::etcd::prestart::{Started, Trust};
use crate::etcd::wal::{self, Data, End};
use crate::files::FileError;
use crate::machine::delivery;
use crate::machine::disk;
use crate::machine::firewall;
use crate::machine::upgrade::UpgradeError;
use crate::postgres;
use crate::supervisor::launch::Launcher;
use crate::supervisor::packages::UNKNOWN;
use crate::supervisor::ports;
use crate::supervisor::program::{Own, Program, Source};
use crate::supervisor::service::{State, View};
use crate::supervisor::{binaries, config};

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A certificate could not be read.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// This program was on trial, and could not be confirmed.
    #[error(transparent)]
    Upgrade(#[from] UpgradeError),
}

/// All facts about the machine.
pub fn report(agent: &Agent, into_data: bool) -> Result<v1::ReportReply, ReportError> {
    let boot = agent.claim.boot();
    let (free_bytes, total_bytes) = disk::disk(&agent.root)?;
    let (firewall_digest, delivery_stamp) = match agent.launcher {
        Launcher::Unit(_) => (firewall::rules()?.unwrap_or_default(), delivery::stamp()?.unwrap_or_default()),
        Launcher::Child => Default::default(),
    };
    let (etcd, program) = etcd_report(agent, into_data)?;
    let mut programs = vec![program];
    for program in [Program::Haproxy, Program::Keepalived] {
        programs.push(program_report(agent, program)?.0);
    }
    let (postgres, program) = postgres_report(agent)?;
    programs.push(program);
    let balances = matches!(agent.supervisor.of(Program::Haproxy).view().state, State::Running(_));
    Ok(v1::ReportReply {
        fleet_id: boot.fleet_id,
        machine: boot.machine,
        incarnation: agent.claim.incarnation().to_owned(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        generation: agent.fence.newest(),
        now: Some(moment(Timestamp::now())),
        agent_certificate: agent.claim.describe()?,
        etcd: Some(etcd),
        disk: Some(v1::Disk { free_bytes, total_bytes }),
        firewall_digest,
        delivery_stamp,
        backups: agent.backup_scheduler.report(&agent.root),
        access_digest: agent.claim.access_digest().unwrap_or_default(),
        agent_program: Some(agent.upgrade.report(&agent.root)),
        programs,
        balancer: balancer::report(&agent.root, balances)?,
        postgres,
    })
}

/// The part of the report that all programs share, with the view and the configuration file that it comes from.
fn program_report(agent: &Agent, program: Program) -> Result<(v1::ProgramReport, View, String), ReportError> {
    let root = &agent.root;
    let service = agent.supervisor.of(program);
    let (config_digest, config) = config::read(root, program)?.unwrap_or_default();
    // Read last, so that the ports are not attributed to another process while the program starts.
    let mut view = service.view();
    let mut ports_taken = Vec::new();
    let listeners = match config.as_str() {
        "" => Vec::new(),
        config => program.listeners(config, agent.claim.boot().address),
    };
    if !matches!(view.state, State::Running(_)) {
        if !listeners.is_empty() {
            ports_taken = ports::taken(&program.needs_free(root, &config, agent.claim.boot().address));
        }
        // The program may have started in between: then it holds them itself.
        view = service.view();
        if matches!(view.state, State::Running(_)) {
            ports_taken.clear();
        }
    }
    let View { record, state, .. } = &view;
    let runs = matches!(state, State::Running(_));
    let (service_state, pid) = match state {
        State::Stopped => (v1::ServiceState::Stopped, 0),
        State::Running(pid) => (v1::ServiceState::Running, *pid),
        State::Backoff => (v1::ServiceState::Backoff, 0),
    };
    let (installed, current) = match program.source() {
        Source::Pinned(binary) => (binaries::installed(root, binary), binaries::current(root, program)),
        Source::Package(package) => {
            let version = match config.as_str() {
                // What is not used here is not run: every agent's first report would wait for it.
                "" => package.is_installed().then(|| UNKNOWN.to_owned()),
                _ => Handle::current().block_on(package.version(agent.launcher.unprivileged())),
            };
            (version.iter().map(|version| (version.clone(), String::new())).collect(), version)
        }
    };
    let installed = installed.into_iter();
    let ports_taken = ports_taken.into_iter();
    let report = v1::ProgramReport {
        program: wire(program).into(),
        installed: installed.map(|(version, sha256)| v1::InstalledVersion { version, sha256 }).collect(),
        current_version: current.unwrap_or_default(),
        config: match program {
            Program::Etcd => String::new(),
            Program::Haproxy | Program::Keepalived | Program::Patroni => config::as_sent(root, program, &config),
        },
        config_digest,
        running_config_digest: if runs { record.config_digest.clone() } else { String::new() },
        running_version: if runs { record.version.clone() } else { String::new() },
        service: Some(v1::Service {
            state: service_state.into(),
            pid,
            since: record.since.map(moment),
            restarts: record.restarts,
            last_exit: record.last_exit.clone(),
        }),
        ports_taken: ports_taken
            .map(|taken| v1::PortTaken { port: u32::from(taken.port), holder: taken.holder })
            .collect(),
        listening: runs && !listeners.is_empty() && ports::listening(&listeners),
    };
    Ok((report, view, config))
}

/// A program's name in the protocol.
fn wire(program: Program) -> v1::Program {
    match program {
        Program::Etcd => v1::Program::Etcd,
        Program::Haproxy => v1::Program::Haproxy,
        Program::Keepalived => v1::Program::Keepalived,
        Program::Patroni => v1::Program::Patroni,
    }
}

fn etcd_report(agent: &Agent, into_data: bool) -> Result<(v1::EtcdReport, v1::ProgramReport), ReportError> {
    let root = &agent.root;
    let mut certificates = Vec::new();
    for (purpose, dir) in [(v1::Purpose::EtcdPeer, root.peer_tls()), (v1::Purpose::EtcdServer, root.server_tls())] {
        certificates.extend(Store::new(dir).describe(purpose, "")?);
    }
    let (program, view, config) = program_report(agent, Program::Etcd)?;
    let View { own, state, .. } = view;
    let started = match own {
        Own::Etcd(started) => started,
        Own::Package(_) | Own::Patroni(_) => Started::default(),
    };
    let runs = matches!(state, State::Running(_));
    let data = data(agent, !runs || into_data);
    let report = v1::EtcdReport {
        installed: program.installed.clone(),
        current_version: program.current_version.clone(),
        config: config::as_sent(root, Program::Etcd, &config),
        config_digest: program.config_digest.clone(),
        running_config_digest: program.running_config_digest.clone(),
        running_version: program.running_version.clone(),
        certificates,
        service: program.service.clone(),
        had_data: started.ids.is_some() || data.state() == v1::DataState::Present,
        data: Some(data),
        ports_taken: program.ports_taken.clone(),
        running_trust: if runs { running_trust(started.trust) } else { Vec::new() },
    };
    Ok((report, program))
}

fn postgres_report(agent: &Agent) -> Result<(Option<v1::PostgresReport>, v1::ProgramReport), ReportError> {
    let (program, view, _) = program_report(agent, Program::Patroni)?;
    let started = match view.own {
        Own::Patroni(started) => started,
        Own::Etcd(_) | Own::Package(_) => postgres::prestart::Started::default(),
    };
    let runs = matches!(view.state, State::Running(_));
    Ok((postgres::report(&agent.root, &agent.launcher, &started, runs)?, program))
}

fn running_trust(trust: Trust) -> Vec<v1::RunningTrust> {
    [(v1::Purpose::EtcdPeer, trust.peer), (v1::Purpose::EtcdServer, trust.server)]
        .into_iter()
        // Nothing is known of an etcd that an older agent started.
        .filter(|(_, digest)| !digest.is_empty())
        .map(|(purpose, digest)| v1::RunningTrust { purpose: purpose.into(), digest })
        .collect()
}

fn data(agent: &Agent, closely: bool) -> v1::Data {
    let dir = agent.root.data();
    let empty = v1::Data { state: v1::DataState::Empty.into(), ..v1::Data::default() };
    match wal::look(&dir) {
        Data::Empty => empty,
        Data::Present(ids) => {
            // While etcd writes it, the end moves, and searching it costs time.
            let end = if closely { wal::end(&dir) } else { End::default() };
            let applied = if closely { db::applied(&dir.join("member/snap/db")).ok() } else { None };
            v1::Data {
                state: v1::DataState::Present.into(),
                member_id: ids.member,
                cluster_id: ids.cluster,
                bytes: wal::bytes(&dir),
                problem: String::new(),
                last_term: end.term,
                last_index: end.index,
                commit_index: end.commit,
                revision: applied.map_or(0, |applied| applied.revision),
                applied_index: applied.map_or(0, |applied| applied.index),
            }
        }
        Data::Unreadable(problem) => {
            v1::Data { state: v1::DataState::Unreadable.into(), bytes: wal::bytes(&dir), problem, ..empty }
        }
    }
}

/// A point in time as the protocol has it.
pub fn moment(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
}
