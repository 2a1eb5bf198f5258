//! A cluster and a rate → clients at work on it, everything they saw, and whether all of it may be true.
//!
//! ```no_run
//! use raftsman_tests::lab::Lab;
//! use raftsman_tests::load::{Load, LoadSettings};
//!
//! let lab = Lab::cluster(3, "3.6.15", &[]);
//! lab.apply();
//! let load = Load::start(&lab, LoadSettings::default());
//! // … whatever is done to the cluster …
//! load.finish().assert_clean();
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use etcd_client::{Client, Error, GetOptions};
use futures::future::join_all;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle as Task;

use crate::dice::Dice;
use crate::lab::Lab;

pub mod call;
pub mod check;
pub mod history;
mod members;
mod target;
mod watch;
mod worker;

pub use check::{Figures, Verdict, Violation};
pub use members::Members;
pub use target::Target;

use call::Spelling;
use history::{Ending, Final, History, Line, Recorder, Replay};
use watch::Watch;
use worker::{Pace, Shared};

/// A cluster that acknowledges no write for so long is down, before the load or because of it.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// How hard to work.
#[derive(Debug, Clone)]
pub struct LoadSettings {
    /// Which cluster of the lab.
    pub cluster: String,
    /// Writes a second; reads come on top.
    pub rate: u32,
    /// How many calls may be under way at the same time.
    pub workers: u32,
    /// On how many keys.
    pub keys: u32,
    /// How long a value is at least.
    pub value_bytes: usize,
    /// How long one try of a call may take.
    pub try_timeout: Duration,
    /// How long a client waits before its one retry. One that comes back at once meets the same election: a follower
    /// forwards its write to a leader that is stopping and drops it silently.
    pub retry_pause: Duration,
    /// Whether to go where etcd's member list says, or only where the test says.
    pub follow_members: bool,
    /// The balancer that clients know instead of the members.
    pub via: Option<&'static str>,
    /// For the dice.
    pub seed: u64,
}

impl Default for LoadSettings {
    fn default() -> Self {
        Self {
            cluster: "main".to_owned(),
            rate: 300,
            workers: 32,
            keys: 32,
            value_bytes: 64,
            try_timeout: Duration::from_secs(3),
            retry_pause: Duration::from_millis(100),
            follow_members: true,
            via: None,
            seed: 7,
        }
    }
}

#[track_caller]
fn target(lab: &Lab, cluster: &str, via: Option<&str>) -> Target {
    via.map_or_else(|| Target::of(lab, cluster), |balancer| Target::via(lab, cluster, balancer))
}

/// Clients at work. They go on until `finish`, or until this is dropped.
pub struct Load {
    runtime: Option<Runtime>,
    shared: Arc<Shared>,
    cluster: String,
    via: Option<&'static str>,
    workers: Vec<Task<()>>,
    background: Vec<Task<()>>,
    watched: Arc<AtomicI64>,
    first_revision: i64,
    writer: JoinHandle<History>,
    file: tempfile::TempPath,
}

impl Load {
    /// Begins to work on a lab's cluster. When this returns, a write has been acknowledged.
    #[track_caller]
    pub fn start(lab: &Lab, settings: LoadSettings) -> Self {
        Self::against(target(lab, &settings.cluster, settings.via), settings)
    }

    /// Begins to work on any cluster.
    #[track_caller]
    pub fn against(target: Target, settings: LoadSettings) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let file = tempfile::Builder::new().prefix("raftsman-history-").suffix(".jsonl").tempfile();
        let file = file.expect("a file for the history").into_temp_path();
        let (recorder, writer) = Recorder::new(&file).expect("a file for the history");
        let members = Arc::new(Members::new(target));
        let spelling = Spelling { prefix: prefix(), value_bytes: settings.value_bytes };
        let mut background = vec![runtime.spawn(Arc::clone(&members).keep())];
        let first_revision = runtime.block_on(first_revision(&members, &spelling));
        let watched = Arc::new(AtomicI64::new(first_revision));
        let watch = Watch {
            members: Arc::clone(&members),
            spelling: spelling.clone(),
            recorder: recorder.clone(),
            seen: Arc::clone(&watched),
        };
        background.push(runtime.spawn(watch.run()));
        if settings.follow_members && settings.via.is_none() {
            background.push(runtime.spawn(Arc::clone(&members).follow()));
        }
        let shared = Arc::new(Shared {
            members,
            spelling,
            recorder,
            pace: Pace::new(settings.rate),
            keys: settings.keys.max(1),
            try_timeout: settings.try_timeout,
            retry_pause: settings.retry_pause,
            stop: AtomicBool::new(false),
            next_value: AtomicU64::new(1),
            seen: (0..settings.keys.max(1)).map(|_| AtomicU64::new(0)).collect(),
            acknowledged: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        let mut dice = Dice::new(settings.seed);
        let workers = (0..settings.workers.max(1))
            .map(|worker| runtime.spawn(worker::work(worker, Arc::clone(&shared), Dice::new(dice.bits()))))
            .collect();
        let load = Self {
            runtime: Some(runtime),
            shared,
            cluster: settings.cluster,
            via: settings.via,
            workers,
            background,
            watched,
            first_revision,
            writer,
            file,
        };
        load.await_writes(1);
        load
    }

    /// Waits until so many more writes have been acknowledged than have been now.
    #[track_caller]
    pub fn await_writes(&self, more: u64) {
        let (begun, goal) = (Instant::now(), self.acknowledged() + more);
        while self.acknowledged() < goal {
            assert!(begun.elapsed() < RETRY_FOR, "no write was acknowledged for {} s", RETRY_FOR.as_secs());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How many writes have been acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// How many calls have failed so far, with their retry.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Puts a marker of the test into the history.
    pub fn mark(&self, text: &str) {
        let at = self.shared.recorder.now();
        self.shared.recorder.record(Line::Mark { at, text: text.to_owned() });
    }

    /// Where the clients connect. By default they follow etcd's own list of members.
    pub fn members(&self) -> &Members {
        &self.shared.members
    }

    /// Asks raftsman again for endpoints and a certificate, as a client's owner does after a rotation of CAs.
    #[track_caller]
    pub fn refresh(&self, lab: &Lab) {
        self.shared.members.retarget(target(lab, &self.cluster, self.via));
    }

    /// Ends the load, asks every member for the past, and judges.
    pub fn finish(self) -> Verdict {
        let (history, file) = self.end();
        Verdict::of(&history, Some(file))
    }

    /// Ends the load and asks every member for the past: the history, and the file that it is in.
    pub fn end(mut self) -> (History, tempfile::TempPath) {
        let runtime = self.runtime.take().expect("a load is finished once");
        self.shared.stop.store(true, Ordering::Relaxed);
        let stopped = self.shared.recorder.now();
        let ending = runtime.block_on(async {
            for worker in std::mem::take(&mut self.workers) {
                worker.await.expect("a worker does not panic");
            }
            let mut ending = look_back(&self.shared, self.first_revision, stopped).await;
            // What was acknowledged is there, and the watch must deliver it, however late.
            let last = ending.finals.iter().map(|found| found.revision).max().unwrap_or(0);
            let begun = Instant::now();
            while self.watched.load(Ordering::Acquire) < last {
                if begun.elapsed() >= RETRY_FOR {
                    ending.problems.push(format!("the watch did not come to revision {last}"));
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            ending
        });
        for task in &self.background {
            task.abort();
        }
        self.shared.recorder.record(Line::End(ending));
        // All tasks are gone before the recorder is, so that the writer sees the end of its inbox.
        drop(runtime);
        let Self { shared, writer, file, .. } = self;
        drop(shared);
        let history = writer.join().expect("the writer does not panic");
        (history, file)
    }
}

/// Every load has keys of its own, also the second on the same cluster.
fn prefix() -> String {
    static LOADS: AtomicU32 = AtomicU32::new(0);
    let load = LOADS.fetch_add(1, Ordering::Relaxed);
    format!("load/{}-{load}/", std::process::id())
}

async fn first_revision(members: &Members, spelling: &Spelling) -> i64 {
    let begun = Instant::now();
    loop {
        let why = match members.link(None, RETRY_FOR).await {
            Ok(mut link) => match range(&mut link.client, spelling).await {
                Ok((revision, _)) => return revision,
                Err(error) => error.to_string(),
            },
            Err(why) => why,
        };
        assert!(begun.elapsed() < RETRY_FOR, "no load on a cluster that cannot be read: {why}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn range(client: &mut Client, spelling: &Spelling) -> Result<(i64, Vec<Final>), Error> {
    let prefix = GetOptions::new().with_prefix();
    let read = client.get(spelling.prefix.as_str(), Some(prefix));
    let silent = || Error::Internal("no answer".to_owned());
    let read = tokio::time::timeout(Duration::from_secs(5), read).await.map_err(|_| silent())??;
    let revision = read.header().ok_or_else(silent)?.revision();
    let found = read.kvs().iter().map(|kv| Final {
        key: spelling.read_key(kv.key()).unwrap_or(u32::MAX),
        value: spelling.read_value(kv.value()),
        revision: kv.mod_revision(),
    });
    Ok((revision, found.collect()))
}

/// Reads every key, and the history from every member.
async fn look_back(shared: &Shared, first_revision: i64, stopped: u64) -> Ending {
    let mut problems = Vec::new();
    let begun = Instant::now();
    let (last_revision, finals) = loop {
        let why = match shared.members.link(None, RETRY_FOR).await {
            Ok(mut link) => match range(&mut link.client, &shared.spelling).await {
                Ok(read) => break read,
                Err(error) => {
                    shared.members.lost(&link);
                    error.to_string()
                }
            },
            Err(why) => why,
        };
        if begun.elapsed() >= RETRY_FOR {
            problems.push(format!("the keys cannot be read at the end: {why}"));
            break (first_revision, Vec::new());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    // A member that has just come back is connected within moments.
    let all = shared.members.endpoints().len();
    let begun = Instant::now();
    while shared.members.links().len() < all && begun.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let last_change = finals.iter().map(|found| found.revision).max().unwrap_or(0);
    let tellings = shared.members.links().into_iter().map(|mut link| async move {
        match watch::replay(&mut link.client, &shared.spelling, first_revision + 1, last_change).await {
            Ok(events) => Ok(Replay { member: link.address, events }),
            Err(error) => Err(format!("{} does not tell the past up to revision {last_change}: {error}", link.address)),
        }
    });
    let mut replays = Vec::new();
    for output in join_all(tellings).await {
        match output {
            Ok(replay) => replays.push(replay),
            Err(problem) => problems.push(problem),
        }
    }
    Ending { stopped, first_revision, last_revision, finals, replays, problems }
}

/// Keeps the history of a load that violated a rule, for the analysis.
fn kept(file: tempfile::TempPath) -> Option<PathBuf> {
    file.keep().ok()
}
