//! A lab's cluster → a client that writes and deletes much at once.

use std::net::IpAddr;

use etcd_client::{Client, DeleteOptions, Error, Txn, TxnOp};
use futures::future::ready;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use raftsman_api::tls::Identity;
use raftsman_etcd::{Credentials, EtcdError, dial};
use tokio::runtime::Runtime;

use crate::dice::Dice;
use crate::lab::Lab;
use crate::load::Target;

/// Values in a transaction.
const BATCH: usize = 4;
/// Transactions at the same time.
const UNDER_WAY: usize = 8;

/// A value of this length, another one for every number.
fn text(bytes: usize, number: usize) -> Vec<u8> {
    (0..bytes).map(|at| b'a' + ((at * 31 + number * 17) % 26) as u8).collect()
}

/// A client that writes in bulk.
pub struct Bulk {
    runtime: Runtime,
    credentials: Credentials,
    endpoints: Vec<IpAddr>,
}

impl Bulk {
    /// A client of this lab's cluster `main`, as `root`.
    #[track_caller]
    pub fn of(lab: &Lab) -> Self {
        let target = Target::of(lab, "main");
        let read = |path: &std::path::Path| std::fs::read_to_string(path).expect("a file of the target");
        let (certificate, key) = target.certificate.as_ref().expect("a cluster with certificates");
        let identity = Identity::from_pem(&read(certificate), &read(key)).expect("a certificate");
        let credentials = Credentials::new(&read(&target.ca), Some(&identity), None).expect("credentials");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { runtime, credentials, endpoints: target.endpoints }
    }

    /// Does something with the first member that answers.
    #[track_caller]
    pub fn with<T>(&self, work: impl AsyncFnOnce(Client) -> T) -> T {
        self.runtime.block_on(async {
            for _ in 0..100 {
                for address in &self.endpoints {
                    let dialled: Result<Client, EtcdError> = dial(*address, &self.credentials).await;
                    if let Ok(client) = dialled {
                        return work(client).await;
                    }
                }
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            panic!("no member answers")
        })
    }

    /// Writes values of this size, `count` of them, over and over to `keys` keys below the prefix. The first error.
    #[track_caller]
    pub fn fill(&self, prefix: &str, keys: usize, count: usize, bytes: usize) -> Result<(), Error> {
        self.with(async |mut client| {
            for i in 0..count {
                client.put(format!("{prefix}{:06}", i % keys), text(bytes, i), None).await?;
            }
            Ok(())
        })
    }

    /// Writes so many bytes in values of this size: several in a transaction, several transactions under way.
    #[track_caller]
    pub fn pour(&self, prefix: &str, total: usize, bytes: usize) -> Result<(), Error> {
        self.pour_values(prefix, total, bytes, text)
    }

    /// The same with random hexadecimal digits: no compression gets below half the size.
    #[track_caller]
    pub fn pour_noise(&self, prefix: &str, total: usize, bytes: usize) -> Result<(), Error> {
        let noise = |bytes: usize, number: usize| {
            let mut dice = Dice::new(number as u64);
            (0..bytes.div_ceil(16)).flat_map(|_| format!("{:016x}", dice.bits()).into_bytes()).take(bytes).collect()
        };
        self.pour_values(prefix, total, bytes, noise)
    }

    /// Reads the whole snapshot of a member, and keeps nothing of it. How many bytes.
    #[track_caller]
    pub fn drain(&self) -> u64 {
        self.with(async |mut client| {
            let mut snapshot = client.snapshot().await.expect("a snapshot");
            let mut bytes = 0;
            while let Some(piece) = snapshot.message().await.expect("all of it") {
                bytes += piece.blob().len() as u64;
            }
            bytes
        })
    }

    #[track_caller]
    fn pour_values(
        &self,
        prefix: &str,
        total: usize,
        bytes: usize,
        value: impl Fn(usize, usize) -> Vec<u8>,
    ) -> Result<(), Error> {
        let value = &value;
        let count = total.div_ceil(bytes * BATCH);
        self.with(async |client| {
            let transactions = (0..count).map(|number| {
                let mut client = client.clone();
                async move {
                    let put = |i: usize| {
                        let number = number * BATCH + i;
                        TxnOp::put(format!("{prefix}{number:08}"), value(bytes, number), None)
                    };
                    client.txn(Txn::new().and_then((0..BATCH).map(put).collect::<Vec<_>>())).await.map(|_| ())
                }
            });
            stream::iter(transactions).buffer_unordered(UNDER_WAY).try_for_each(|()| ready(Ok(()))).await
        })
    }

    /// Deletes everything below the prefix.
    #[track_caller]
    pub fn delete(&self, prefix: &str) {
        let deleted = self.with(async |mut client| {
            client.delete(prefix, Some(DeleteOptions::new().with_prefix())).await.map(|reply| reply.deleted())
        });
        assert!(deleted.expect("deleting works") > 0);
    }

    /// Writes one key.
    pub fn put(&self, key: &str, value: &str) -> Result<(), Error> {
        self.with(async |mut client| client.put(key, value, None).await.map(|_| ()))
    }

    /// Reads one key through a majority.
    #[track_caller]
    pub fn get(&self, key: &str) -> Option<String> {
        let read = self.with(async |mut client| client.get(key, None).await).expect("reading works");
        read.kvs().first().map(|kv| kv.value_str().expect("text").to_owned())
    }
}
