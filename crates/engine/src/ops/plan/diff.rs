//! The configuration files that machines have, and those of the file → how each would change, line by line.

use raftsman_core::desired::{ClientAccess, Config, Stack};
use raftsman_core::ledger::Ledger;
use raftsman_core::observed::{AgentReport, BalancerOnMachine, Observed, PackagedProgram};
use raftsman_core::render::changes::diff;
use raftsman_core::render::{haproxy, keepalived};
use raftsman_core::spec::Name;
use serde::Serialize;

/// How a configuration file would change on some machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigDiff {
    /// Its name: `etcd.yaml`, `haproxy.cfg` or `keepalived.conf`.
    pub file: &'static str,
    /// On these, alike.
    pub machines: Vec<Name>,
    /// Removed lines begin with `-`, added ones with `+`.
    pub diff: String,
}

/// How the files of all members and of all instances of balancers would change.
pub(super) fn diffs(desired: &Stack, observed: &Observed) -> Vec<ConfigDiff> {
    let mut diffs = Vec::new();
    if observed.ledger.etcd.adopted().is_some() {
        return diffs;
    }
    if let Some(timers) = desired.etcd.timers(&observed.ledger) {
        for member in &desired.etcd.members {
            let Some(report) = known(observed, &member.name) else { continue };
            let has = report.and_then(|report| report.etcd.config_text.as_deref()).unwrap_or_default();
            let wanted = desired.etcd.config(member, desired.etcd.version, timers, ClientAccess::Open);
            note(&mut diffs, "etcd.yaml", &member.name, diff(has, &wanted.text));
        }
    }
    // As it is once all members of the file have a vote, at the addresses of the file.
    for (balancer, instance) in desired.instances() {
        let Some(report) = known(observed, &instance.name) else { continue };
        let seen = report.and_then(|report| report.balancer.as_ref());
        let certificate = seen.and_then(|seen| Some(seen.certificate.as_ref()?.fingerprint.as_str()));
        let servers = desired.servers(balancer, &Ledger::default());
        // The file names the certificate: where that is still to be signed, it is not known.
        if let Some(wanted) = desired.haproxy((balancer, instance), &servers, certificate, &Ledger::default()) {
            note(&mut diffs, haproxy::FILE, &instance.name, changed(seen, |seen| &seen.haproxy, &wanted));
        }
        if let Some(wanted) = &instance.keepalived {
            note(&mut diffs, keepalived::FILE, &instance.name, changed(seen, |seen| &seen.keepalived, wanted));
        }
    }
    diffs
}

/// The report of a machine's agent, nothing of a machine that does not exist; none where what it has is not known.
fn known<'a>(observed: &'a Observed, machine: &Name) -> Option<Option<&'a AgentReport>> {
    match observed.machines.get(machine).map(|seen| (seen.report(), seen.machine.is_absent())) {
        Some((Some(report), _)) => Some(Some(report)),
        None | Some((None, true)) => Some(None),
        Some((None, false)) => None,
    }
}

/// How the file of a program of a balancer would change; empty where it does not, or where an agent of an earlier version
/// does not tell what is in it.
fn changed(
    seen: Option<&BalancerOnMachine>,
    program: impl Fn(&BalancerOnMachine) -> &PackagedProgram,
    wanted: &Config,
) -> String {
    let has = seen.map(program);
    match has.map(|has| (&has.config, &has.config_text)) {
        None | Some((None, _)) => diff("", &wanted.text),
        Some((Some(digest), _)) if *digest == wanted.digest => String::new(),
        Some((Some(_), None)) => String::new(),
        Some((Some(_), Some(text))) => {
            // Which interface it is, the agent finds out: that of the file that it has.
            let interface = keepalived::interface(text).unwrap_or(keepalived::INTERFACE);
            diff(text, &wanted.text.replace(keepalived::INTERFACE, interface))
        }
    }
}

fn note(diffs: &mut Vec<ConfigDiff>, file: &'static str, machine: &Name, text: String) {
    match diffs.iter_mut().find(|other| other.file == file && other.diff == text) {
        Some(same) => same.machines.push(machine.clone()),
        None if text.is_empty() => {}
        None => diffs.push(ConfigDiff { file, machines: vec![machine.clone()], diff: text }),
    }
}

#[cfg(test)]
mod tests {
    use raftsman_core::observed::{BalancerFacts, Service, ServiceState};

    use super::*;

    fn program(config: Option<&str>, text: Option<&str>) -> PackagedProgram {
        PackagedProgram {
            installed: None,
            config: config.map(str::to_owned),
            config_text: text.map(str::to_owned),
            running_config: None,
            service: Service { state: ServiceState::Stopped, pid: None, since: None, restarts: 0, last_exit: None },
            ports_taken: Vec::new(),
        }
    }

    #[test]
    fn the_file_that_a_machine_has_is_compared_with_the_wanted_one() {
        let wanted = Config { text: "interface {interface}\npriority 200\n".to_owned(), digest: "new".to_owned() };
        let of = |config: Option<&str>, text: Option<&str>| {
            let seen = BalancerOnMachine {
                haproxy: program(None, None),
                keepalived: program(config, text),
                facts: BalancerFacts::default(),
                problem: None,
                has_virtual_address: false,
                certificate: None,
            };
            changed(Some(&seen), |seen| &seen.keepalived, &wanted)
        };
        assert_eq!(of(None, None), "+interface {interface}\n+priority 200\n");
        assert_eq!(changed(None, |seen| &seen.keepalived, &wanted), of(None, None), "no machine yet");
        assert_eq!(of(Some("new"), Some("interface eth0\npriority 200\n")), "", "only the agent's own choice differs");
        assert_eq!(of(Some("old"), None), "", "what it has is not known");
        let text = of(Some("old"), Some("interface eth0\npriority 100\n"));
        assert_eq!(text, " interface eth0\n-priority 100\n+priority 200\n");
    }
}
