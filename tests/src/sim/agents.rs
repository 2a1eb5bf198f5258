//! Commands of different versions of raftsman → what must hold when agents are upgraded.

use raftsman_core::action::{Action, AgentAction};
use raftsman_core::desired::{AgentVersion, Shipped, Stack};
use raftsman_core::model::World;
use raftsman_core::plan::{Plan, Waiting};

/// Versions and programs of the agent; the last version is the newest.
pub(super) const SHIPPED: [(&str, &str); 4] = [("1.1.0", "a"), ("1.1.0", "b"), ("1.0.9", "c"), ("1.2.0", "d")];

/// The same cluster, operated with a raftsman that ships this agent.
pub fn shipping(mut cluster: Stack, (version, digest): (&str, &str)) -> Stack {
    let version = AgentVersion::parse(version).expect("a version");
    cluster.agents.shipped = Some(Shipped { version, digest: digest.to_owned(), size: 30 << 20 });
    cluster
}

/// The rule that is broken by this action.
pub(super) fn broken(desired: &Stack, world: &World, action: &Action) -> Option<&'static str> {
    let shipped = desired.agents.shipped.as_ref()?;
    let newer = |version: &str| AgentVersion::parse(version).is_some_and(|version| version > shipped.version);
    if let Action::Agent(AgentAction::UpgradeAgent { machine, .. }) = action {
        let found = world.machines.get(machine)?;
        return newer(&found.agent_version).then_some("no agent is downgraded");
    }
    None
}

/// The operator installs the newest raftsman, where an older one refuses to change anything.
pub(super) fn obey(variants: &[Stack], plan: &Plan) -> Option<Stack> {
    let refused = plan.blocked().any(|waiting| matches!(waiting, Waiting::AgentNewer { .. }));
    let version = |cluster: &&Stack| cluster.agents.shipped.as_ref().map(|shipped| shipped.version);
    variants.iter().max_by_key(version).filter(|_| refused).cloned()
}

/// What does not run as it should.
pub(super) fn unfinished(desired: &Stack, world: &World) -> Option<String> {
    let shipped = desired.agents.shipped.as_ref()?;
    desired.etcd.members.iter().find_map(|member| {
        let found = world.machines.get(&member.name)?.program.as_ref()?;
        (found.digest.as_ref() != Some(&shipped.digest)).then(|| format!("{} has another agent", member.name))
    })
}
