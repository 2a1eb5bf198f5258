//! A step on an instance of a balancer → HAProxy and keepalived on its machine.

use jiff::Timestamp;
use raftsman_api::v1::{
    ConfigureProgramRequest, Program, ProgramReport, Purpose, ReloadProgramRequest, ReportRequest, ServerAdmin,
    ServiceState, SetServerRequest, StartProgramRequest, StopProgramRequest,
};
use raftsman_core::action::BalancerAction;
use raftsman_core::desired::{Balancer, Behind, Config, Instance};
use raftsman_core::spec::Name;

use super::pki::swap;
use super::{ActError, Executor};
use crate::observe::AgentCalls;
use crate::stack::signers_profile;

/// Both end at once when they are told to: SIGKILL is for a process that hangs.
const STOP_GRACE_SECONDS: u32 = 10;

/// Executes one action of this topic.
pub(super) async fn act(executor: Executor<'_>, action: &BalancerAction, now: Timestamp) -> Result<(), ActError> {
    match action {
        BalancerAction::IssueBalancerCertificate { machine } => executor.issue_balancer_certificate(machine, now).await,
        BalancerAction::ConfigureBalancer { machine, members, certificate, digest } => {
            executor.configure_balancer(machine, members, certificate.as_deref(), digest).await
        }
        BalancerAction::StartBalancer { machine } => executor.start_balancer(machine).await,
        BalancerAction::ReloadBalancer { machine } => executor.reload_balancer(machine).await,
        BalancerAction::StopBalancer { machine } => executor.stop_balancer(machine).await,
        BalancerAction::DrainMember { machine, member } => {
            executor.set_server(machine, member, ServerAdmin::Drain).await
        }
        BalancerAction::AdmitMember { machine, member } => {
            executor.set_server(machine, member, ServerAdmin::Ready).await
        }
    }
}

impl Executor<'_> {
    fn instance(&self, machine: &Name) -> Result<(&Balancer, &Instance), ActError> {
        self.cluster().desired.instance(machine).ok_or_else(|| ActError::NoSuchInstance(machine.clone()))
    }

    async fn issue_balancer_certificate(self, machine: &Name, now: Timestamp) -> Result<(), ActError> {
        let (balancer, instance) = self.instance(machine)?;
        let (Behind::Nodes(postgres), Some(profile)) = (&balancer.behind, &instance.probe) else {
            return Err(ActError::NoSuchInstance(machine.clone()));
        };
        let (authority, trust) = self.cluster().postgres_authority(postgres).await?;
        let sign = |csr: &[u8]| authority.sign_csr(csr, &signers_profile(profile), now);
        swap(self.agent(machine).await?, self.generation(), Purpose::Balancer, trust.bundle(), sign).await
    }

    async fn configure_balancer(
        self,
        machine: &Name,
        servers: &[Name],
        certificate: Option<&str>,
        digest: &str,
    ) -> Result<(), ActError> {
        let of = self.instance(machine)?;
        let haproxy = self.cluster().desired.haproxy(of, servers, certificate, &self.cluster().ledger());
        let haproxy = haproxy.filter(|haproxy| haproxy.digest == digest);
        let (haproxy, instance) = (haproxy.ok_or_else(|| ActError::OtherBackends(machine.clone()))?, of.1);
        let mut agent = self.agent(machine).await?;
        self.configure(&mut agent, Program::Haproxy, haproxy).await?;
        if let Some(keepalived) = &instance.keepalived {
            self.configure(&mut agent, Program::Keepalived, keepalived.clone()).await?;
        }
        // One that ends again and again tries the new file at once, not after its pause.
        let reported = agent.report(ReportRequest { into_data: false }).await?.into_inner().programs;
        if reported.iter().any(|program| program.program() == Program::Haproxy && backs_off(program)) {
            self.start(&mut agent, Program::Haproxy).await?;
        }
        Ok(())
    }

    async fn configure(self, agent: &mut AgentCalls, program: Program, config: Config) -> Result<(), ActError> {
        let Config { text, digest } = config;
        let request = ConfigureProgramRequest { program: program.into(), config: text, digest };
        agent.configure_program(self.stamped(request)).await?;
        Ok(())
    }

    /// HAProxy first: keepalived gives the virtual address to a machine that serves at it.
    async fn start_balancer(self, machine: &Name) -> Result<(), ActError> {
        let (_, instance) = self.instance(machine)?;
        let mut agent = self.agent(machine).await?;
        let address = instance.keepalived.as_ref().map(|_| Program::Keepalived);
        for program in [Program::Haproxy].into_iter().chain(address) {
            self.start(&mut agent, program).await?;
        }
        Ok(())
    }

    async fn start(self, agent: &mut AgentCalls, program: Program) -> Result<(), ActError> {
        let request = StartProgramRequest { program: program.into(), ..StartProgramRequest::default() };
        agent.start_program(self.stamped(request)).await?;
        Ok(())
    }

    /// Only what has another configuration than its file: a reload gives keepalived's address away for moments.
    async fn reload_balancer(self, machine: &Name) -> Result<(), ActError> {
        let (_, instance) = self.instance(machine)?;
        let mut agent = self.agent(machine).await?;
        let reported = agent.report(ReportRequest { into_data: false }).await?.into_inner().programs;
        for program in reported.into_iter().filter(differs) {
            match program.program() {
                Program::Keepalived if instance.keepalived.is_none() => {}
                program @ (Program::Haproxy | Program::Keepalived) => {
                    let request = ReloadProgramRequest { program: program.into() };
                    agent.reload_program(self.stamped(request)).await?;
                }
                Program::Etcd | Program::Patroni | Program::Unspecified => {}
            }
        }
        if instance.keepalived.is_none() {
            self.stop(&mut agent, Program::Keepalived).await?;
        }
        Ok(())
    }

    /// keepalived first: the virtual address goes to another machine before HAProxy ends here.
    async fn stop_balancer(self, machine: &Name) -> Result<(), ActError> {
        let mut agent = self.agent(machine).await?;
        self.stop(&mut agent, Program::Keepalived).await?;
        self.stop(&mut agent, Program::Haproxy).await
    }

    async fn stop(self, agent: &mut AgentCalls, program: Program) -> Result<(), ActError> {
        let request =
            StopProgramRequest { program: program.into(), grace_seconds: STOP_GRACE_SECONDS, resume_after_seconds: 0 };
        agent.stop_program(self.stamped(request)).await?;
        Ok(())
    }

    async fn set_server(self, machine: &Name, member: &Name, admin: ServerAdmin) -> Result<(), ActError> {
        let request = SetServerRequest { member: member.to_string(), admin: admin.into() };
        self.agent(machine).await?.set_server(self.stamped(request)).await?;
        Ok(())
    }
}

fn backs_off(program: &ProgramReport) -> bool {
    program.service.as_ref().is_some_and(|service| service.state() == ServiceState::Backoff)
}

/// Whether the running process has another configuration than its file.
fn differs(program: &ProgramReport) -> bool {
    !program.running_config_digest.is_empty() && program.running_config_digest != program.config_digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_running_program_whose_file_has_changed_is_reloaded() {
        let program = |running: &str, written: &str| ProgramReport {
            running_config_digest: running.to_owned(),
            config_digest: written.to_owned(),
            ..ProgramReport::default()
        };
        assert!(differs(&program("a", "b")));
        assert!(!differs(&program("b", "b")));
        assert!(!differs(&program("", "b")), "it does not run: it is started, not reloaded");
    }
}
