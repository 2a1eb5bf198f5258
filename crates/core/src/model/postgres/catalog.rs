//! A step on roles and databases of PostgreSQL, on the simulated world → which there are.

use super::super::World;
use super::super::effects::Impossible;
use crate::desired::{Postgres, Stack};
use crate::observed::{Catalog, CatalogDatabase, CatalogRole, Password, RoleAttribute};
use crate::spec::Name;

impl World {
    /// What its primary shows of roles and databases; nothing where no primary can be asked.
    pub(super) fn observe_catalog(&self, cluster: &Postgres) -> Option<Result<Catalog, String>> {
        if !cluster.has_catalog() {
            return None;
        }
        self.asked_primary(&cluster.name)?;
        Some(Ok(self.postgres.get(&cluster.name).map(|truth| truth.catalog.clone()).unwrap_or_default()))
    }

    /// The machine whose agent leads to the primary.
    fn asked_primary<'w>(&'w self, cluster: &'w Name) -> Option<&'w Name> {
        let leads = self.patroni_keys(cluster)?.leader.as_ref()?;
        let mut nodes = self.nodes_of(cluster);
        let found = nodes.find(|(_, machine)| {
            let node = &machine.postgres;
            let named = node.node.as_ref().is_some_and(|node| node.name == *leads);
            machine.agent_up && machine.claimed && named && node.is_primary()
        });
        found.map(|(name, _)| name)
    }

    fn catalog_of(&mut self, cluster: &Name) -> Result<&mut Catalog, Impossible> {
        match self.asked_primary(cluster) {
            Some(_) => Ok(&mut self.postgres.entry(cluster.clone()).or_default().catalog),
            None => Err(Impossible("there is no primary to ask".to_owned())),
        }
    }

    pub(super) fn set_role(&mut self, desired: &Stack, cluster: &Name, role: &str) -> Result<(), Impossible> {
        let roles = desired.postgres(cluster).and_then(|cluster| cluster.section.roles.as_ref());
        let wanted = roles.and_then(|roles| roles.get(role));
        let wanted = wanted.ok_or_else(|| Impossible(format!("{role} is not in the file")))?;
        let catalog = self.catalog_of(cluster)?;
        if let Some(missing) = wanted.member_of.iter().find(|of| !catalog.has_role(of)) {
            return Err(Impossible(format!("there is no role {missing}")));
        }
        let needed = catalog.roles.get(role).is_some_and(|has| has.needed);
        catalog.roles.insert(role.to_owned(), CatalogRole { needed, ..CatalogRole::from(wanted) });
        Ok(())
    }

    pub(super) fn set_node_password(&mut self, cluster: &Name, role: &str) -> Result<(), Impossible> {
        if let Some(has) = self.catalog_of(cluster)?.roles.get_mut(role) {
            has.password = Password::Right;
        }
        Ok(())
    }

    pub(super) fn drop_role(&mut self, cluster: &Name, role: &str) -> Result<(), Impossible> {
        let catalog = self.catalog_of(cluster)?;
        let Some(has) = catalog.roles.get_mut(role) else { return Ok(()) };
        if has.needed {
            has.attributes.remove(&RoleAttribute::Login);
            return Ok(());
        }
        catalog.roles.remove(role);
        for other in catalog.roles.values_mut() {
            other.member_of.remove(role);
        }
        Ok(())
    }

    pub(super) fn set_database(&mut self, desired: &Stack, cluster: &Name, name: &str) -> Result<(), Impossible> {
        let databases = desired.postgres(cluster).and_then(|cluster| cluster.section.databases.as_ref());
        let wanted = databases.and_then(|databases| databases.get(name));
        let wanted = CatalogDatabase::from(wanted.ok_or_else(|| Impossible(format!("{name} is not in the file")))?);
        let catalog = self.catalog_of(cluster)?;
        if !catalog.has_role(&wanted.owner) {
            return Err(Impossible(format!("there is no role {}", wanted.owner)));
        }
        let before = catalog.databases.get(name).map(|has| has.owner.clone());
        catalog.databases.entry(name.to_owned()).or_insert_with(|| wanted.clone());
        if let Some(has) = catalog.databases.get_mut(name) {
            has.owner.clone_from(&wanted.owner);
            has.extensions.extend(wanted.extensions);
        }
        if let Some(owner) = catalog.roles.get_mut(&wanted.owner) {
            owner.needed = true;
        }
        // It may own another one.
        let owns = |owner: &String| catalog.databases.values().any(|database| database.owner == *owner);
        let needed = before.as_ref().is_some_and(owns);
        if let Some(owner) = before.and_then(|owner| catalog.roles.get_mut(&owner)) {
            owner.needed = needed;
        }
        Ok(())
    }
}
