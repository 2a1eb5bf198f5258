//! A cluster, so many clients → unique ids that they write, which of them were acknowledged, and whether all of those survive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::clients::Clients;
use super::connect::Tls;

/// A client waits this long between two writes.
const PAUSE: Duration = Duration::from_millis(10);
/// And this long after an error.
const AFTER_ERROR: Duration = Duration::from_millis(20);
/// A write without an answer for so long is given up; its outcome is undetermined.
const LIMIT: Duration = Duration::from_secs(20);
/// A cluster that takes no write for so long at the beginning or at the end is down.
const DOWN: Duration = Duration::from_secs(120);

/// Its answer comes with the commit: the timeline, and a position before that of the commit.
const INSERT: &str = "insert into ledger (id) values ($1) returning \
                      substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8), \
                      pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8";

/// Clients at work.
pub struct Ledger<'a> {
    cluster: &'a Clients,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Written>>,
    begun: Instant,
}

/// What one client wrote.
#[derive(Default)]
struct Written {
    acknowledged: Vec<(String, Instant)>,
    /// For each timeline: the highest position that an acknowledged write had begun at.
    highest: BTreeMap<u32, u64>,
    errors: BTreeMap<String, u64>,
}

/// What came of all writes.
#[derive(Debug)]
pub struct Accounts {
    /// How many writes were acknowledged.
    pub acknowledged: usize,
    /// Errors, and how often clients saw each: the outcome of such a write is undetermined.
    pub errors: BTreeMap<String, u64>,
    /// The longest time between two acknowledged writes of one client.
    pub longest_gap: Duration,
    /// Ids that were acknowledged and are not there.
    pub lost: Vec<String>,
    /// For each timeline: the highest position that an acknowledged write had begun at.
    pub highest: BTreeMap<u32, u64>,
}

impl<'a> Ledger<'a> {
    /// Starts so many clients, and waits until each could write.
    #[track_caller]
    pub fn start(cluster: &'a Clients, clients: usize) -> Self {
        let tls = cluster.tls();
        make_table(cluster, &cluster.config());
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let run = jiff::Timestamp::now().as_millisecond();
        let clients = (0..clients).map(|number| {
            let (config, tls, stop, acknowledged) =
                (cluster.config_of(number), tls.clone(), Arc::clone(&stop), Arc::clone(&acknowledged));
            cluster.runtime().spawn(write(config, tls, format!("{run}-{number}"), stop, acknowledged))
        });
        let clients = clients.collect();
        let mut ledger = Self { cluster, stop, acknowledged, clients, begun: Instant::now() };
        ledger.await_writes(20);
        ledger.begun = Instant::now();
        ledger
    }

    /// Waits until so many further writes were acknowledged.
    #[track_caller]
    pub fn await_writes(&self, more: u64) {
        let (begun, wanted) = (Instant::now(), self.acknowledged.load(Ordering::Relaxed) + more);
        while self.acknowledged.load(Ordering::Relaxed) < wanted {
            assert!(begun.elapsed() < DOWN, "no {more} writes in {DOWN:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends all clients, and looks for every id that was acknowledged.
    #[track_caller]
    pub fn finish(self) -> Accounts {
        let ended = Instant::now();
        self.stop.store(true, Ordering::Relaxed);
        let (config, tls) = (self.cluster.config(), self.cluster.tls());
        self.cluster.runtime().block_on(async {
            let mut written = Vec::new();
            for client in self.clients {
                written.push(client.await.expect("a client"));
            }
            let begun = Instant::now();
            let there = loop {
                match ids(&config, &tls).await {
                    Ok(ids) => break ids,
                    Err(error) => assert!(begun.elapsed() < DOWN, "the ids cannot be read: {error}"),
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            };
            let all = written.iter().flat_map(|client| &client.acknowledged);
            let lost = all.filter(|(id, _)| !there.contains(id)).map(|(id, _)| id.clone()).collect();
            let mut errors = BTreeMap::new();
            for (text, times) in written.iter().flat_map(|client| &client.errors) {
                *errors.entry(text.clone()).or_default() += times;
            }
            let mut highest = BTreeMap::new();
            for (timeline, position) in written.iter().flat_map(|client| &client.highest) {
                raise(&mut highest, *timeline, *position);
            }
            let gaps = written.iter().map(|client| longest_gap(self.begun, &client.acknowledged, ended));
            Accounts {
                acknowledged: written.iter().map(|client| client.acknowledged.len()).sum(),
                errors,
                longest_gap: gaps.max().unwrap_or_default(),
                lost,
                highest,
            }
        })
    }
}

fn raise(highest: &mut BTreeMap<u32, u64>, timeline: u32, position: u64) {
    let known = highest.entry(timeline).or_default();
    *known = position.max(*known);
}

/// Waits until a client that knows only the balancer in front of the cluster could write.
#[track_caller]
pub fn written_through(cluster: &Clients) {
    make_table(cluster, &cluster.config_of(1));
}

#[track_caller]
fn make_table(cluster: &Clients, config: &tokio_postgres::Config) {
    let tls = cluster.tls();
    cluster.runtime().block_on(async {
        let begun = Instant::now();
        let made = "create table if not exists ledger (id text primary key)";
        while let Err(error) = once(config, &tls, made).await {
            assert!(begun.elapsed() < DOWN, "no table could be made: {error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// The longest time without an acknowledged write between these two moments.
fn longest_gap(begun: Instant, acknowledged: &[(String, Instant)], ended: Instant) -> Duration {
    let within = acknowledged.iter().map(|(_, at)| *at).filter(|at| (begun..ended).contains(at));
    let moments: Vec<Instant> = std::iter::once(begun).chain(within).chain([ended]).collect();
    moments.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

async fn connect(config: &tokio_postgres::Config, tls: &Tls) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(tls.clone()).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn once(config: &tokio_postgres::Config, tls: &Tls, statement: &str) -> Result<(), tokio_postgres::Error> {
    connect(config, tls).await?.batch_execute(statement).await
}

async fn ids(config: &tokio_postgres::Config, tls: &Tls) -> Result<BTreeSet<String>, tokio_postgres::Error> {
    let rows = connect(config, tls).await?.query("select id from ledger", &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

async fn write(
    config: tokio_postgres::Config,
    tls: Tls,
    name: String,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
) -> Written {
    let mut written = Written::default();
    let mut client: Option<Client> = None;
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let id = format!("{name}-{number}");
        let attempt = async {
            let connected = match client.take() {
                Some(connected) if !connected.is_closed() => connected,
                Some(_) | None => connect(&config, &tls).await?,
            };
            let row = connected.query_one(INSERT, &[&id]).await?;
            Ok::<_, tokio_postgres::Error>((connected, row))
        };
        match tokio::time::timeout(LIMIT, attempt).await {
            Ok(Ok((connected, row))) => {
                client = Some(connected);
                let timeline = u32::from_str_radix(row.get(0), 16).expect("a timeline");
                raise(&mut written.highest, timeline, u64::try_from(row.get::<_, i64>(1)).expect("a position"));
                written.acknowledged.push((id, Instant::now()));
                acknowledged.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;
            }
            Ok(Err(error)) => {
                *written.errors.entry(describe(&error)).or_default() += 1;
                tokio::time::sleep(AFTER_ERROR).await;
            }
            Err(_) => *written.errors.entry(format!("no answer in {LIMIT:?}")).or_default() += 1,
        }
    }
    written
}

fn describe(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}
