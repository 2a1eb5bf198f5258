//! The status of a balancer → its lines in `raftsman status`.

use raftsman_core::observed::ServerState;
use raftsman_engine::ops::status::{BackendStatus, BalancerStatus, InstanceStatus};

use super::{Paint, Table};

/// Its endpoints, its instances and the servers behind each, and what is wrong with them.
pub(super) fn render(balancer: &BalancerStatus, paint: Paint) -> String {
    let name = paint.bold(&format!("balancer {}", balancer.name));
    let before = balancer.postgres.as_ref().map(|cluster| format!(", in front of {cluster}")).unwrap_or_default();
    let mut out = format!("  {name}   {}{before}\n", balancer.endpoints.join(", "));
    let address = balancer.virtual_address.map(|address| address.to_string());
    let mut table = Table::indented(4);
    let heads = ["INSTANCE", "ADDRESS", "STATE", "HAPROXY", "RESTARTS"];
    let heads = heads.into_iter().chain(address.as_deref()).chain(match &balancer.postgres {
        Some(_) => vec!["PRIMARY (CONNECTIONS)", "STANDBYS (CONNECTIONS)"],
        None => vec!["MEMBERS (CONNECTIONS)"],
    });
    table.row(heads.map(|head| paint.dim(head)));
    for instance in &balancer.instances {
        table.row(row(instance, address.is_some(), balancer.postgres.is_some(), paint));
    }
    out.push_str(&table.render());
    for instance in &balancer.instances {
        if let Some(problem) = &instance.problem {
            out.push_str(&format!("    {}: {problem}\n", instance.machine));
        }
    }
    out
}

fn row(instance: &InstanceStatus, shared: bool, postgres: bool, paint: Paint) -> Vec<String> {
    let dash = || "-".to_owned();
    let state = match instance.state {
        "running" => paint.green(instance.state),
        "unknown" => paint.yellow(instance.state),
        other => paint.red(other),
    };
    let has = match instance.has_virtual_address {
        Some(true) => "here".to_owned(),
        Some(false) => dash(),
        None => "unknown".to_owned(),
    };
    let listed = |of: &[BackendStatus]| -> String {
        // Of nodes, those that do not have the role are down: that is as it should be.
        let shown = of.iter().filter(|server| !postgres || server.state != ServerState::Down);
        let shown: Vec<String> = shown.map(|server| backend(server, paint)).collect();
        if shown.is_empty() { dash() } else { shown.join(", ") }
    };
    let first = [
        instance.machine.to_string(),
        instance.address.to_string(),
        state,
        instance.version.clone().unwrap_or_else(dash),
        instance.restarts.map_or_else(dash, |restarts| restarts.to_string()),
    ];
    let servers = [Some(listed(&instance.members)), postgres.then(|| listed(&instance.replicas))];
    first.into_iter().chain(shared.then_some(has)).chain(servers.into_iter().flatten()).collect()
}

fn backend(member: &BackendStatus, paint: Paint) -> String {
    let state = match member.state {
        ServerState::Up => "up".to_owned(),
        ServerState::Draining => paint.yellow("draining"),
        ServerState::Down => paint.red("down"),
        ServerState::Maintenance => paint.yellow("maintenance"),
    };
    format!("{} {state} ({})", member.member, member.connections)
}

#[cfg(test)]
mod tests {
    use raftsman_core::spec::Name;

    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).expect("a name")
    }

    fn instance(number: u8, state: &'static str, members: Vec<BackendStatus>) -> InstanceStatus {
        let problem = (state != "running").then(|| "exit code 1".to_owned());
        InstanceStatus {
            machine: name(&format!("front-{number}")),
            address: [10, 0, 0, number].into(),
            state,
            problem,
            version: Some("2.6.12".to_owned()),
            pid: Some(7),
            restarts: Some(0),
            has_virtual_address: (number < 3).then_some(number == 1),
            members,
            replicas: Vec::new(),
            agent: None,
        }
    }

    #[test]
    fn every_instance_has_a_row_with_the_members_behind_it() {
        let member = |member: &str, state, connections| BackendStatus { member: name(member), state, connections };
        let up = vec![member("main-1", ServerState::Up, 2), member("main-2", ServerState::Draining, 1)];
        let balancer = BalancerStatus {
            name: name("front"),
            postgres: None,
            endpoints: vec!["https://10.0.0.9:2379".to_owned()],
            virtual_address: Some([10, 0, 0, 9].into()),
            instances: vec![
                instance(1, "running", up),
                instance(2, "failing", Vec::new()),
                instance(3, "unknown", Vec::new()),
            ],
        };
        let expected = "  balancer front   https://10.0.0.9:2379
    INSTANCE  ADDRESS   STATE    HAPROXY  RESTARTS  10.0.0.9  MEMBERS (CONNECTIONS)
    front-1   10.0.0.1  running  2.6.12   0         here      main-1 up (2), main-2 draining (1)
    front-2   10.0.0.2  failing  2.6.12   0         -         -
    front-3   10.0.0.3  unknown  2.6.12   0         unknown   -
    front-2: exit code 1
    front-3: exit code 1
";
        assert_eq!(render(&balancer, Paint::plain()), expected);
    }

    #[test]
    fn in_front_of_postgresql_the_primary_and_standbys_are_shown() {
        let member = |member: &str, state, connections| BackendStatus { member: name(member), state, connections };
        let nodes = vec![member("app-1", ServerState::Down, 0), member("app-2", ServerState::Up, 3)];
        let replicas = vec![member("app-1", ServerState::Up, 1), member("app-2", ServerState::Down, 0)];
        let balancer = BalancerStatus {
            name: name("db"),
            postgres: Some(name("app")),
            endpoints: vec!["10.0.0.1:5432".to_owned()],
            virtual_address: None,
            instances: vec![InstanceStatus { replicas, ..instance(1, "running", nodes) }],
        };
        let expected = "  balancer db   10.0.0.1:5432, in front of app
    INSTANCE  ADDRESS   STATE    HAPROXY  RESTARTS  PRIMARY (CONNECTIONS)  STANDBYS (CONNECTIONS)
    front-1   10.0.0.1  running  2.6.12   0         app-2 up (3)           app-1 up (1)
";
        assert_eq!(render(&balancer, Paint::plain()), expected);
    }
}
