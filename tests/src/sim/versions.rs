//! An action of a life → the rules of changing versions, held against the true world.

use raftsman_core::action::{Action, EtcdAction, MemberAction};
use raftsman_core::observed::{Data, Observed, View};
use raftsman_core::spec::{EtcdVersion, Name};
use raftsman_core::versions::{Line, REQUESTS_OF_TODAY, least_before};

use super::{Run, Violation};

impl Run {
    /// Whether this action may bring a member to another version now.
    pub(super) fn may_change_version(&self, observed: &Observed, action: &Action) -> Result<(), Violation> {
        let (machine, version) = match action {
            Action::Etcd(EtcdAction::RestartEtcd { machine, version, .. })
            | Action::Etcd(EtcdAction::StartEtcd { machine, version, .. })
            | Action::Member(MemberAction::UpdateMember { machine, version, .. }) => (machine, *version),
            _ => return Ok(()),
        };
        let truth = &self.world.machines[machine];
        let Data::Present { cluster, .. } = truth.data else { return Ok(()) };
        // A cluster that never formed has nothing to lose.
        let Some(agreed) = self.world.agreed.get(&cluster).filter(|a| a.formed) else { return Ok(()) };
        if truth.last_version.is_none_or(|last| last == version) {
            return Ok(());
        }
        let detail =
            format!("{machine} from {:?} to {version}, the cluster is at {:?}", truth.last_version, agreed.line);
        let line = Line::of(version);
        if agreed.line.is_some_and(|cluster| line > cluster.above()) {
            return Err(self.violation("no line is skipped", detail));
        }
        if agreed.line.is_some_and(|cluster| line < cluster) {
            return Err(self.violation("a downgrade is enabled first", detail));
        }
        if agreed.old_requests && line > REQUESTS_OF_TODAY {
            return Err(self.violation("no log of 3.5 meets 3.7", detail));
        }
        let last = || {
            let ids: Vec<_> = agreed.members.iter().map(|m| m.id).collect();
            let member = move |data: &Data| matches!(data, Data::Present { member, .. } if ids.contains(member));
            self.world.machines.values().filter(move |m| member(&m.data)).filter_map(|m| m.last_version)
        };
        let saved = self.world.ledger.etcd.snapshot.as_ref().is_some_and(|s| s.before == version);
        if !saved && !last().any(|v| v == version) {
            return Err(self.violation("a snapshot comes before a new version", detail));
        }
        if let Some(least) = least_before(line)
            && let Some(old) = last().find(|v| Line::of(*v) < line && *v < least)
        {
            return Err(self.violation("old patches do not meet the next line", format!("{detail}: {old}")));
        }
        if matches!(action, Action::Etcd(EtcdAction::RestartEtcd { .. }))
            && self.leads_before_others(observed, machine, version)
        {
            return Err(self.violation("the leader goes last", detail));
        }
        Ok(())
    }

    /// Whether the one that was seen to lead goes before one that was seen to be ready to go.
    fn leads_before_others(&self, observed: &Observed, machine: &Name, version: EtcdVersion) -> bool {
        let view = View::of(observed);
        let ready = |name: &Name| {
            let member = self.desired.etcd.member(name)?;
            observed.machine(name)?;
            let report = observed.report(name)?;
            let timers = self.desired.etcd.timers(&observed.ledger)?;
            let access = self.desired.etcd.client_access(&observed.ledger);
            let config = &self.desired.etcd.config(member, version, timers, access).digest;
            let ready = report.etcd.running_version? != version
                && report.etcd.config.as_ref() == Some(config)
                && report.etcd.installed.contains_key(&version)
                && report.clock_offset_ms == 0;
            (ready && view.healthy.contains(name)).then_some(())
        };
        view.leader == Some(machine) && view.healthy.iter().any(|name| *name != machine && ready(name).is_some())
    }
}
