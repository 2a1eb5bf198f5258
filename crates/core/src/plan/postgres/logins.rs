//! What the next plan would wait for → the nodes of which Patroni's login to etcd has to be tried.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{machines_of, node};
use crate::desired::{Postgres, Stack};
use crate::observed::Observed;
use crate::plan::{PostgresWaiting, Waiting};
use crate::spec::Name;

/// For each cluster, its nodes whose logins are missing in the observation and would be needed now. etcd computes for each
/// login on purpose, and the step that one allows may come once in a month: it is not tried at every look.
pub fn logins_to_try(desired: &Stack, observed: &Observed, now: Timestamp) -> BTreeMap<Name, BTreeSet<Name>> {
    if desired.postgres.is_empty() {
        return BTreeMap::new();
    }
    let waiting = crate::plan::plan(desired, observed, now).waiting;
    let untried = |cluster: &Postgres| {
        let machines = machines_of(cluster, observed);
        waiting.iter().any(|waiting| match waiting {
            Waiting::Postgres(PostgresWaiting::LoginFailed { machine, error, .. }) => {
                error == PostgresWaiting::UNTRIED && machines.contains(machine)
            }
            _ => false,
        })
    };
    let written = |machine: &&Name| node(observed, machine).is_some_and(|node| node.written.is_some());
    let of = |cluster: &Postgres| {
        let machines = machines_of(cluster, observed).into_iter().filter(written).cloned().collect();
        (cluster.name.clone(), machines)
    };
    desired.postgres.iter().filter(|cluster| untried(cluster)).map(of).collect()
}
