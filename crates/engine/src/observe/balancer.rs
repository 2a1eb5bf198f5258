//! What an agent reports of HAProxy and keepalived → the instance of a balancer on its machine.

use std::collections::BTreeMap;

use raftsman_api::v1::{self, Program, ProgramReport};
use raftsman_core::observed::{BalancerFacts, BalancerOnMachine, PackagedProgram, ServerFacts, ServerState};
use raftsman_core::spec::Name;

use super::agent::{ports_taken, process};

/// Nothing where the agent is of a version that supervises no HAProxy.
pub(super) fn understand(
    programs: &[ProgramReport],
    report: Option<v1::BalancerReport>,
) -> Result<Option<BalancerOnMachine>, String> {
    let of = |program: Program| programs.iter().find(|report| report.program() == program).cloned().map(packaged);
    let (Some(haproxy), Some(keepalived)) = (of(Program::Haproxy), of(Program::Keepalived)) else { return Ok(None) };
    let v1::BalancerReport { servers, problem, has_virtual_address, replicas, certificate } =
        report.unwrap_or_default();
    let all = |wire: Vec<v1::ServerReport>| wire.into_iter().map(server).collect::<Result<BTreeMap<_, _>, String>>();
    let facts = BalancerFacts { servers: all(servers)?, replicas: all(replicas)? };
    Ok(Some(BalancerOnMachine {
        haproxy: haproxy?,
        keepalived: keepalived?,
        facts,
        problem: Some(problem).filter(|problem| !problem.is_empty()),
        has_virtual_address,
        certificate: certificate.map(super::agent::certificate).transpose()?.map(|(_, facts)| facts),
    }))
}

fn packaged(wire: ProgramReport) -> Result<PackagedProgram, String> {
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    Ok(PackagedProgram {
        installed: wire.installed.into_iter().next().map(|one| one.version),
        config: given(wire.config_digest),
        config_text: given(wire.config),
        running_config: given(wire.running_config_digest),
        service: process(wire.service.ok_or("nothing about a program's process")?)?,
        ports_taken: ports_taken(wire.ports_taken),
    })
}

fn server(wire: v1::ServerReport) -> Result<(Name, ServerFacts), String> {
    let state = match wire.state() {
        v1::ServerState::Up => ServerState::Up,
        v1::ServerState::Draining => ServerState::Draining,
        v1::ServerState::Down => ServerState::Down,
        v1::ServerState::Maintenance => ServerState::Maintenance,
        v1::ServerState::Unspecified => return Err(format!("an unknown state of `{}` at the balancer", wire.name)),
    };
    let name = Name::parse(&wire.name).map_err(|error| error.to_string())?;
    Ok((name, ServerFacts { state, connections: wire.connections }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(program: Program, installed: &[&str]) -> ProgramReport {
        let version = |version: &&str| v1::InstalledVersion { version: (*version).to_owned(), sha256: String::new() };
        ProgramReport {
            program: program.into(),
            installed: installed.iter().map(version).collect(),
            service: Some(v1::Service { state: v1::ServiceState::Running.into(), ..v1::Service::default() }),
            ..ProgramReport::default()
        }
    }

    #[test]
    fn an_agent_that_knows_only_etcd_has_no_balancer_and_no_error() {
        assert_eq!(understand(&[], None), Ok(None));
        assert_eq!(understand(&[program(Program::Etcd, &["3.6.15"])], None), Ok(None));
    }

    #[test]
    fn members_keep_their_states_and_an_unknown_one_is_an_error() {
        let programs = [program(Program::Haproxy, &["2.6.12"]), program(Program::Keepalived, &[])];
        let report = |state: i32| {
            let server = v1::ServerReport { name: "main-1".to_owned(), state, connections: 3 };
            Some(v1::BalancerReport { servers: vec![server], has_virtual_address: true, ..Default::default() })
        };
        let seen = understand(&programs, report(v1::ServerState::Draining.into())).unwrap().unwrap();
        assert_eq!((seen.haproxy.installed.as_deref(), seen.keepalived.installed), (Some("2.6.12"), None));
        assert!(seen.has_virtual_address && seen.problem.is_none());
        let main_1 = seen.facts.servers[&Name::parse("main-1").unwrap()];
        assert_eq!(main_1, ServerFacts { state: ServerState::Draining, connections: 3 });
        assert!(understand(&programs, report(0)).is_err());
        assert!(understand(&programs, None).unwrap().unwrap().facts.servers.is_empty(), "it does not run");
    }
}
