//! A PostgreSQL cluster → its secrets and its certificate authority in the state.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use raftsman_core::desired::{Postgres, UserSlot};
use raftsman_core::observed::{AuthorityRecord, Delivery, Origin, Trust};
use raftsman_core::render::patroni::PgSecret;
use raftsman_core::spec::{self, Name};
use secrecy::{ExposeSecret as _, SecretString};

use crate::authorities::{brought_certificate, record};
use crate::delivery;
use crate::pki::{self, Authority, AuthorityKind};
use crate::secrets::{random_password, resolve};
use crate::stack::{StackError, StackHandle};
use crate::store::{Lock, StoreError};

/// The name in the state of the password that Patroni logs in to etcd with.
fn etcd_password_name(cluster: &Postgres, slot: UserSlot) -> String {
    format!("{}-patroni-etcd-{slot}", cluster.name)
}

/// The name in the state of a password of the cluster's own.
fn password_name(cluster: &Name, secret: PgSecret) -> String {
    format!("{cluster}-postgres-{}-password", secret.name())
}

/// The name in the state of the authority with this number.
fn authority_name(cluster: &Name, number: u32) -> String {
    format!("{cluster}-postgres-ca-{number}")
}

/// All names in the state of what belongs to a PostgreSQL cluster alone.
pub(crate) fn is_secret_of(name: &str, cluster: &Name) -> bool {
    let rest = name.strip_prefix(cluster.as_str());
    rest.is_some_and(|rest| rest.starts_with("-postgres-") || rest.starts_with("-patroni-etcd-"))
}

impl StackHandle {
    /// The PostgreSQL cluster whose Patroni has this user of etcd.
    pub(crate) fn patronis_user(&self, user: &str) -> Option<(&Postgres, UserSlot)> {
        let slots = |cluster| UserSlot::BOTH.map(|slot| (cluster, slot));
        let mut all = self.desired.postgres.iter().flat_map(slots);
        all.find(|(cluster, slot): &(&Postgres, UserSlot)| cluster.etcd_user(*slot) == user)
    }

    /// The password that the file refers to for this role of PostgreSQL.
    pub(crate) fn role_password(&self, cluster: &Postgres, role: &str) -> Result<Option<SecretString>, StackError> {
        let listed = cluster.section.roles.as_ref().and_then(|roles| roles.get(role));
        let reference = cluster.node_password(role).or(listed.and_then(|role| role.password.as_ref()));
        Ok(reference.map(|reference| resolve(reference, self.fleet.context.base())).transpose()?)
    }

    /// The password that Patroni logs in to etcd with, made where there is none yet.
    pub(crate) async fn make_etcd_password(
        &self,
        lock: &Lock,
        cluster: &Postgres,
        slot: UserSlot,
    ) -> Result<SecretString, StackError> {
        let name = etcd_password_name(cluster, slot);
        Ok(self.fleet.secrets.get_or_put(lock, &name, random_password()?).await?)
    }

    /// The password of a user that Patroni logs in to etcd as, where the state has it.
    pub(crate) async fn etcd_password(&self, user: &str) -> Result<Option<SecretString>, StoreError> {
        match self.patronis_user(user) {
            Some((cluster, slot)) => self.fleet.secrets.get(&etcd_password_name(cluster, slot)).await,
            None => Ok(None),
        }
    }

    /// Has Patroni log in to etcd as the other of its two users from now on.
    pub(crate) async fn change_etcd_user(&self, lock: &Lock, cluster: &Name) -> Result<(), StoreError> {
        self.remember(lock, |ledger| {
            let known = ledger.postgres.entry(cluster.clone()).or_default();
            known.user = known.user.other();
        })
        .await
    }

    /// Takes the password of a user that etcd does not have any more out of the state: the next one gets another.
    pub(crate) async fn forget_etcd_password(&self, lock: &Lock, user: &str) -> Result<(), StoreError> {
        match self.patronis_user(user) {
            Some((cluster, slot)) => {
                self.fleet.secrets.delete(lock, &etcd_password_name(cluster, slot)).await.map(drop)
            }
            None => Ok(()),
        }
    }

    /// Every secret of Patroni's file with this user of etcd; those are made that raftsman makes and that are not there.
    pub(crate) async fn make_patroni_secrets(
        &self,
        lock: &Lock,
        cluster: &Postgres,
        slot: UserSlot,
    ) -> Result<BTreeMap<PgSecret, SecretString>, StackError> {
        let mut secrets = BTreeMap::new();
        for secret in PgSecret::ALL {
            let name = password_name(&cluster.name, secret);
            let value = match (secret, self.given(cluster, secret)?) {
                (PgSecret::Dcs, _) => self.make_etcd_password(lock, cluster, slot).await?,
                // Another one than before follows once PostgreSQL has it.
                (_, Some(given)) => self.fleet.secrets.get_or_put(lock, &name, given).await?,
                (_, None) => self.fleet.secrets.get_or_put(lock, &name, random_password()?).await?,
            };
            secrets.insert(secret, value);
        }
        Ok(secrets)
    }

    /// What the file refers to.
    fn given(&self, cluster: &Postgres, secret: PgSecret) -> Result<Option<SecretString>, StackError> {
        let reference = cluster.node_password(secret.name());
        Ok(reference.map(|reference| resolve(reference, self.fleet.context.base())).transpose()?)
    }

    /// The roles that nodes log in as and of which the state has another password than the file refers to.
    pub(crate) async fn unkept_node_passwords(&self, cluster: &Postgres) -> Vec<&'static str> {
        let mut unkept = Vec::new();
        for secret in [PgSecret::Replicator, PgSecret::Rewind] {
            let Ok(Some(given)) = self.given(cluster, secret) else { continue };
            let kept = self.fleet.secrets.get(&password_name(&cluster.name, secret)).await;
            if kept.ok().flatten().is_some_and(|kept| kept.expose_secret() != given.expose_secret()) {
                unkept.push(secret.name());
            }
        }
        unkept
    }

    /// PostgreSQL has this password of a role that nodes log in as: their files follow.
    pub(crate) async fn keep_node_password(
        &self,
        lock: &Lock,
        cluster: &Postgres,
        role: &str,
        password: &SecretString,
    ) -> Result<(), StackError> {
        let secret = [PgSecret::Replicator, PgSecret::Rewind].into_iter().find(|secret| secret.name() == role);
        if let Some(secret) = secret {
            self.fleet.secrets.put(lock, &password_name(&cluster.name, secret), password).await?;
        }
        Ok(())
    }

    /// Whether a node that reports this mark has the secrets that Patroni's file with this user needs.
    pub(crate) async fn has_patroni_secrets(&self, cluster: &Postgres, slot: UserSlot, stamp: &str) -> Delivery {
        let same = async {
            let mut secrets = BTreeMap::new();
            for secret in PgSecret::ALL {
                let name = match secret {
                    PgSecret::Dcs => etcd_password_name(cluster, slot),
                    PgSecret::Rest | PgSecret::Replicator | PgSecret::Rewind => password_name(&cluster.name, secret),
                };
                let Some(value) = self.fleet.secrets.get(&name).await? else { return Ok(false) };
                secrets.insert(secret, value);
            }
            let known = delivery::known_stamp(self, &parts(&secrets)).await?;
            Ok::<_, StackError>(known.is_some_and(|known| known == stamp))
        };
        match same.await {
            Ok(true) => Delivery::Current,
            Ok(false) => Delivery::Outdated,
            Err(error) => Delivery::Unknown(crate::error_chain(&error)),
        }
    }

    /// The mark of these secrets.
    pub(crate) async fn patroni_stamp(
        &self,
        lock: &Lock,
        secrets: &BTreeMap<PgSecret, SecretString>,
    ) -> Result<String, StackError> {
        delivery::new_stamp(self, lock, &parts(secrets)).await
    }

    /// Makes the cluster's first authority, or adds the one that the file brings.
    pub(crate) async fn make_postgres_authority(
        &self,
        lock: &Lock,
        cluster: &Postgres,
        now: Timestamp,
    ) -> Result<(), StackError> {
        if self.ledger().of_postgres(&cluster.name).trust.is_some() {
            return Ok(());
        }
        let (authority, origin) = match &cluster.section.ca {
            spec::Authority::Brought(reference) => (self.brought_postgres(reference, now)?, Origin::Brought),
            spec::Authority::Made => (self.made_postgres(cluster, now)?, Origin::Made),
        };
        let place = authority_name(&cluster.name, 1);
        self.fleet.secrets.put(lock, &place, &authority.key_pem()).await?;
        self.fleet.store.put_certificate(lock, &place, authority.certificate_pem()).await?;
        let made = record(&authority.facts().clone(), authority.certificate_pem(), 1, origin);
        let name = cluster.name.clone();
        let note = |ledger: &mut raftsman_core::observed::Ledger| {
            ledger.postgres.entry(name).or_default().trust.get_or_insert_with(|| Trust::new(made));
        };
        Ok(self.remember(lock, note).await?)
    }

    fn made_postgres(&self, cluster: &Postgres, now: Timestamp) -> Result<Authority, StackError> {
        let section = &cluster.section.certificates;
        let organization = section.organization.clone().unwrap_or_else(|| self.fleet.spec.fleet.to_string());
        let validity = Duration::from_millis(section.ca_validity.as_millis());
        let name: String = format!("{} {} CA", cluster.name, AuthorityKind::Postgres).chars().take(64).collect();
        let algorithm = self.desired.etcd.algorithm;
        Ok(Authority::make(AuthorityKind::Postgres, &name, Some(&organization), algorithm, now, validity)?)
    }

    fn brought_postgres(&self, reference: &spec::BroughtAuthority, now: Timestamp) -> Result<Authority, StackError> {
        let base = self.fleet.context.base();
        let (certificate, key) = (brought_certificate(reference, base)?, resolve(&reference.key, base)?);
        let authority = Authority::brought(AuthorityKind::Postgres, &certificate, &key, now)?;
        self.check_not_etcds(&authority.facts().public_key_sha256)?;
        Ok(authority)
    }

    /// The authority that signs for a PostgreSQL cluster.
    pub(crate) async fn postgres_authority(&self, cluster: &Name) -> Result<(Authority, Trust), StackError> {
        let trust = self.ledger().of_postgres(cluster).trust.clone();
        let trust = trust.ok_or_else(|| StackError::NotApplied(cluster.clone()))?;
        let AuthorityRecord { number, certificate, .. } = &trust.current;
        let key = self.fleet.secrets.get(&authority_name(cluster, *number)).await?;
        let key = key.ok_or(StackError::AuthorityMissing(AuthorityKind::Postgres))?;
        Ok((Authority::load(AuthorityKind::Postgres, certificate, &key)?, trust))
    }

    /// Whether what the file refers to for its PostgreSQL clusters exists and is valid.
    pub(crate) async fn check_postgres_references(&self, now: Timestamp) -> Result<(), StackError> {
        for cluster in &self.desired.postgres {
            for secret in PgSecret::ALL {
                self.given(cluster, secret)?;
            }
            for role in cluster.section.roles.iter().flat_map(|roles| roles.keys()) {
                self.role_password(cluster, role)?;
            }
            if let spec::Authority::Brought(reference) = &cluster.section.ca {
                let found = brought_certificate(reference, self.fleet.context.base())?;
                match self.ledger().of_postgres(&cluster.name).trust.as_ref() {
                    None => drop(self.brought_postgres(reference, now)?),
                    Some(known) if known.current.key != pki::describe(&found)?.public_key_sha256 => {
                        return Err(StackError::PostgresCaChanged(cluster.name.clone()));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}

fn parts(secrets: &BTreeMap<PgSecret, SecretString>) -> Vec<Vec<u8>> {
    let part = |(secret, value): (&PgSecret, &SecretString)| {
        [secret.name().as_bytes().to_vec(), value.expose_secret().as_bytes().to_vec()]
    };
    secrets.iter().flat_map(part).collect()
}
