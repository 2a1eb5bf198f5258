//! A connection for each zone → one provider: a machine is searched in all of them, and made in its own.
//!
//! A connection that does not answer makes its own machines unknown, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use raftsman_core::spec::{Machines, Name};
use tokio::time::timeout;

use crate::{Connection, MachineOrder, MachineRecord, Provider, ProviderError};

/// The limit of a query through one connection. Two of them, one after the other, stay below the engine's limit (60 s),
/// so that a dead host does not make the others' machines unknown.
const LOOK_LIMIT: Duration = Duration::from_secs(20);

/// One connection, and the zones that are reached by it.
#[derive(Debug, Clone)]
pub struct Part {
    /// More than one where a server knows its zones itself, such as the members of an Incus cluster.
    pub zones: Vec<Name>,
    /// The connection.
    pub connection: Connection,
}

/// All connections of a fleet.
#[derive(Debug)]
pub struct Zoned {
    parts: Vec<Part>,
    /// The zone that each machine is in as far as the ledger records it, or will be in.
    placement: BTreeMap<String, Name>,
}

type Lookup = Result<Option<MachineRecord>, ProviderError>;
/// A machine, and the connection that has it.
type Held<'a> = (&'a Part, MachineRecord);

impl Part {
    /// A server with one zone is that zone.
    fn placed(&self, machine: MachineRecord) -> MachineRecord {
        let only = match self.zones.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        };
        MachineRecord { zone: machine.zone.or(only), ..machine }
    }

    fn is(&self, other: &Self) -> bool {
        self.zones == other.zones
    }

    fn name(&self) -> String {
        self.zones.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
    }

    async fn within<T>(&self, asked: impl Future<Output = Result<T, ProviderError>>) -> Result<T, ProviderError> {
        let silent = || ProviderError::Silent { zones: self.name(), limit: LOOK_LIMIT };
        timeout(LOOK_LIMIT, asked).await.unwrap_or_else(|_| Err(silent()))
    }

    async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError> {
        let machines = self.within(self.connection.inventory()).await?;
        Ok(machines.into_iter().map(|machine| self.placed(machine)).collect())
    }

    async fn machines(&self, names: &[String]) -> Vec<Lookup> {
        let asked = async { Ok(self.connection.machines(names).await) };
        match self.within(asked).await {
            Ok(found) => found.into_iter().map(|found| Ok(found?.map(|machine| self.placed(machine)))).collect(),
            Err(_) => {
                let silent = |_| Err(ProviderError::Silent { zones: self.name(), limit: LOOK_LIMIT });
                names.iter().map(silent).collect()
            }
        }
    }
}

impl Zoned {
    /// These connections as one. It connects to nothing yet.
    pub fn new(parts: Vec<Part>, placement: BTreeMap<String, Name>) -> Self {
        Self { parts, placement }
    }

    /// One answer of several: where the machine is; else that it does not exist, if the connection that it belongs to
    /// says so.
    fn one_of<'a>(&'a self, name: &str, answers: Vec<(&'a Part, Lookup)>) -> Result<Option<Held<'a>>, ProviderError> {
        let mut held: Option<Held<'a>> = None;
        let (mut unknown, mut denied) = (None, false);
        let is_home = |part: &Part| self.placement.get(name).is_some_and(|home| part.zones.contains(home));
        for (part, answer) in answers {
            match answer {
                Ok(Some(machine)) => match &held {
                    None => held = Some((part, machine)),
                    Some((first, _)) => {
                        let zones = format!("{} and {}", first.name(), part.name());
                        return Err(ProviderError::Twice { name: name.to_owned(), zones });
                    }
                },
                Ok(None) => denied |= is_home(part),
                Err(error) => {
                    if unknown.is_none() || is_home(part) {
                        unknown = Some(error);
                    }
                }
            }
        }
        match (held, unknown) {
            (Some(held), _) => Ok(Some(held)),
            (None, Some(error)) if !denied => Err(error),
            (None, _) => Ok(None),
        }
    }

    /// The connection that this machine is recorded at, or will be made at.
    fn home(&self, name: &str) -> Option<&Part> {
        self.of_zone(self.placement.get(name)?)
    }

    /// The connection that reaches this zone.
    fn of_zone(&self, zone: &Name) -> Option<&Part> {
        self.parts.iter().find(|part| part.zones.contains(zone))
    }

    /// Each of these machines with the connection that has it. Where all of them belong to one connection, and it has
    /// them, no other is asked: a dead one costs nothing then.
    async fn all(&self, names: &[String]) -> Vec<Result<Option<Held<'_>>, ProviderError>> {
        let first = names.first().and_then(|name| self.home(name));
        let shared = first.filter(|part| names.iter().all(|name| self.home(name).is_some_and(|home| home.is(part))));
        let mut asked = Vec::new();
        if let Some(part) = shared {
            let found = part.machines(names).await;
            if found.iter().all(|found| matches!(found, Ok(Some(_)))) {
                return found.into_iter().map(|found| Ok(found?.map(|machine| (part, machine)))).collect();
            }
            asked.push((part, found.into_iter()));
        }
        let others = self.parts.iter().filter(|part| !shared.is_some_and(|shared| shared.is(part)));
        let others = others.map(|part| async move { (part, part.machines(names).await.into_iter()) });
        asked.extend(join_all(others).await);
        let answers = |name: &String| {
            let all = asked.iter_mut().filter_map(|(part, found)| Some((*part, found.next()?)));
            self.one_of(name, all.collect())
        };
        names.iter().map(answers).collect()
    }

    /// The connection that has this machine, if one has it.
    async fn holder(&self, name: &str) -> Result<Option<&Part>, ProviderError> {
        let mut held = self.all(&[name.to_owned()]).await;
        Ok(held.pop().transpose()?.flatten().map(|(part, _)| part))
    }

    async fn present(&self, name: &str) -> Result<&Part, ProviderError> {
        self.holder(name).await?.ok_or_else(|| ProviderError::Nowhere { name: name.to_owned() })
    }
}

#[async_trait]
impl Provider for Zoned {
    async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError> {
        let mut machines = Vec::new();
        for inventory in join_all(self.parts.iter().map(Part::inventory)).await {
            machines.extend(inventory?);
        }
        machines.sort_by(|a: &MachineRecord, b| a.name.cmp(&b.name));
        Ok(machines)
    }

    fn connections(&self) -> Vec<String> {
        self.parts.iter().map(Part::name).collect()
    }

    fn connection_of(&self, name: &str) -> Option<String> {
        self.home(name).map(Part::name)
    }

    async fn inventory_of(&self, connection: &str) -> Result<Vec<MachineRecord>, ProviderError> {
        match self.parts.iter().find(|part| part.name() == connection) {
            Some(part) => part.inventory().await,
            None => Ok(Vec::new()),
        }
    }

    async fn machine(&self, name: &str) -> Result<Option<MachineRecord>, ProviderError> {
        let mut found = self.machines(&[name.to_owned()]).await;
        found.pop().unwrap_or(Ok(None))
    }

    async fn machines(&self, names: &[String]) -> Vec<Result<Option<MachineRecord>, ProviderError>> {
        let held = self.all(names).await;
        held.into_iter().map(|held| Ok(held?.map(|(_, machine)| machine))).collect()
    }

    async fn assign(
        &self,
        name: &str,
        zone: Option<&Name>,
        machines: &Machines,
        taken: &BTreeSet<IpAddr>,
    ) -> Result<IpAddr, ProviderError> {
        let part = zone.and_then(|zone| self.of_zone(zone)).or_else(|| self.home(name));
        let part = part.ok_or_else(|| ProviderError::Nowhere { name: name.to_owned() })?;
        part.within(part.connection.assign(name, zone, machines, taken)).await
    }

    async fn create(&self, order: &MachineOrder) -> Result<MachineRecord, ProviderError> {
        // An incomplete one is completed where it is.
        let holder = self.holder(&order.name).await?;
        let wanted = || order.zone.as_ref().and_then(|zone| self.of_zone(zone));
        let part = holder.or_else(wanted).ok_or_else(|| ProviderError::Nowhere { name: order.name.clone() })?;
        Ok(part.placed(part.connection.create(order).await?))
    }

    async fn start(&self, name: &str) -> Result<(), ProviderError> {
        self.present(name).await?.connection.start(name).await
    }

    async fn readdress(&self, name: &str, address: IpAddr) -> Result<(), ProviderError> {
        self.present(name).await?.connection.readdress(name, address).await
    }

    async fn dismantle(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError> {
        self.present(name).await?.connection.dismantle(name, seen).await
    }

    async fn delete(&self, name: &str, seen: Option<&str>) -> Result<(), ProviderError> {
        match self.holder(name).await? {
            Some(part) => part.connection.delete(name, seen).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Power;

    /// A connection that has these machines, or answers nothing.
    #[derive(Debug)]
    struct Server(Option<Vec<&'static str>>);

    #[async_trait]
    impl Provider for Server {
        async fn inventory(&self) -> Result<Vec<MachineRecord>, ProviderError> {
            let record = |name: &&str| MachineRecord {
                name: (*name).to_owned(),
                id: None,
                address: IpAddr::from([10, 0, 0, 1]),
                agent_port: 2378,
                power: Power::Running,
                finished: true,
                shape: None,
                zone: None,
            };
            match &self.0 {
                Some(names) => Ok(names.iter().map(record).collect()),
                None => Err(ProviderError::NoDataDisk("no answer".to_owned())),
            }
        }

        async fn machine(&self, name: &str) -> Result<Option<MachineRecord>, ProviderError> {
            Ok(self.inventory().await?.into_iter().find(|machine| machine.name == name))
        }

        async fn create(&self, _: &MachineOrder) -> Result<MachineRecord, ProviderError> {
            Err(ProviderError::NoDataDisk("not asked for".to_owned()))
        }

        async fn start(&self, _: &str) -> Result<(), ProviderError> {
            Ok(())
        }

        async fn readdress(&self, _: &str, _: IpAddr) -> Result<(), ProviderError> {
            Ok(())
        }

        async fn dismantle(&self, _: &str, _: Option<&str>) -> Result<(), ProviderError> {
            Ok(())
        }

        async fn delete(&self, _: &str, _: Option<&str>) -> Result<(), ProviderError> {
            Ok(())
        }
    }

    fn zoned(servers: [Option<Vec<&'static str>>; 3]) -> Zoned {
        let names = ["kvm1", "kvm2", "kvm3"].map(Name::fixed);
        let part = |(zone, server)| Part { zones: vec![zone], connection: std::sync::Arc::new(Server(server)) };
        let placement = [("m1", "kvm1"), ("m2", "kvm2"), ("m3", "kvm3")];
        let placement = placement.map(|(name, zone)| (name.to_owned(), Name::fixed(zone)));
        Zoned::new(names.into_iter().zip(servers).map(part).collect(), placement.into())
    }

    /// Where each of the machines is, or that it is not, or that this is unknown.
    async fn described(zoned: &Zoned) -> Vec<String> {
        let names = ["m1", "m2", "m3", "m4"].map(str::to_owned);
        let word = |found: Result<Option<MachineRecord>, ProviderError>| match found {
            Ok(Some(machine)) => machine.zone.map_or_else(|| "somewhere".to_owned(), |zone| zone.to_string()),
            Ok(None) => "absent".to_owned(),
            Err(ProviderError::Twice { zones, .. }) => zones,
            Err(_) => "unknown".to_owned(),
        };
        zoned.machines(&names).await.into_iter().map(word).collect()
    }

    #[tokio::test]
    async fn a_connection_that_is_dead_hides_its_own_machines_only() {
        let all = zoned([Some(vec!["m1"]), Some(vec!["m2"]), Some(vec!["m3"])]);
        assert_eq!(described(&all).await, ["kvm1", "kvm2", "kvm3", "absent"]);
        assert_eq!(all.inventory().await.expect("all answer").len(), 3);
        // It is unknown whether a machine exists that is recorded nowhere.
        let dead = zoned([Some(vec!["m1"]), None, Some(vec![])]);
        assert_eq!(described(&dead).await, ["kvm1", "unknown", "absent", "unknown"]);
        dead.inventory().await.expect_err("one does not answer");
        let mut lists = Vec::new();
        for connection in dead.connections() {
            lists.push(dead.inventory_of(&connection).await.is_ok());
        }
        assert_eq!(lists, [true, false, true]);
        assert_eq!((dead.connection_of("m2").as_deref(), dead.connection_of("m4")), (Some("kvm2"), None));
        // The dead one is not asked for machines that belong elsewhere.
        assert!(dead.machine("m1").await.is_ok_and(|found| found.is_some()));
        let moved = zoned([Some(vec!["m1", "m2"]), None, Some(vec!["m3"])]);
        assert_eq!(described(&moved).await, ["kvm1", "kvm1", "kvm3", "unknown"]);
        let twice = zoned([Some(vec!["m1", "m2"]), Some(vec!["m2"]), Some(vec![])]);
        assert_eq!(described(&twice).await, ["kvm1", "kvm1 and kvm2", "absent", "absent"]);
    }
}
