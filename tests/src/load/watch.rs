//! A prefix and a revision → every change since, from one member after the other, or from one member afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error, WatchOptions, WatchResponse, WatchStream};

use super::call::Spelling;
use super::history::{Event, Line, Recorder};
use super::members::Members;

/// A watch without a message for so long is restarted: its member may be cut off without noticing.
const SILENCE: Duration = Duration::from_secs(2);
/// A member that tells nothing more of the past for so long does not tell it. There is no limit for all of it: etcd reads
/// everything to the end again for each thousand revisions that it sends.
const STALLED: Duration = Duration::from_secs(60);
/// Between two tries to take a watch up.
const PAUSE: Duration = Duration::from_millis(20);

/// The watch that runs along with a load.
pub(super) struct Watch {
    pub(super) members: Arc<Members>,
    pub(super) spelling: Spelling,
    pub(super) recorder: Recorder,
    /// The revision up to which events have arrived.
    pub(super) seen: Arc<AtomicI64>,
}

enum Broken {
    Because(String),
    /// Everything before this revision is gone.
    Compacted(i64),
}

impl Watch {
    /// Follows the prefix from the revision after `seen`, for ever.
    pub(super) async fn run(self) {
        loop {
            let why = match self.follow().await {
                Broken::Because(why) => why,
                Broken::Compacted(revision) => {
                    // Nothing will bring these events back: the checks say which are missing.
                    self.seen.store(revision - 1, Ordering::Release);
                    format!("compacted up to {revision}")
                }
            };
            let revision = self.seen.load(Ordering::Acquire) + 1;
            self.recorder.record(Line::Rewatch { at: self.recorder.now(), revision, why });
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn follow(&self) -> Broken {
        let link = match self.members.link(None, SILENCE).await {
            Ok(link) => link,
            Err(why) => return Broken::Because(why),
        };
        let broken = |error: String| Broken::Because(format!("{}: {error}", link.address));
        let mut client = link.client.clone();
        let from = self.seen.load(Ordering::Acquire) + 1;
        let mut stream = match tokio::time::timeout(SILENCE, open(&mut client, &self.spelling.prefix, from)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.members.lost(&link);
                return broken(error.to_string());
            }
            Err(_) => return broken("no answer".to_owned()),
        };
        loop {
            let response = match tokio::time::timeout(SILENCE, stream.message()).await {
                Ok(Ok(Some(response))) => response,
                Ok(Ok(None)) => return broken("the stream ended".to_owned()),
                Ok(Err(error)) => return broken(error.to_string()),
                Err(_) => return broken("silent".to_owned()),
            };
            if response.compact_revision() != 0 {
                return Broken::Compacted(response.compact_revision());
            }
            if response.canceled() {
                return broken(format!("cancelled: {}", response.cancel_reason()));
            }
            let events = events(&response, &self.spelling, self.recorder.now());
            let last = events.last().map(|event| event.revision);
            for event in events {
                self.recorder.record(Line::Event(event));
            }
            if let Some(last) = last {
                self.seen.store(last, Ordering::Release);
            }
        }
    }
}

async fn open(client: &mut Client, prefix: &str, from: i64) -> Result<WatchStream, Error> {
    client.watch(prefix, Some(WatchOptions::new().with_prefix().with_start_revision(from))).await
}

fn events(response: &WatchResponse, spelling: &Spelling, at: u64) -> Vec<Event> {
    let event = |event: &etcd_client::Event| {
        let kv = event.kv()?;
        // A key that is not one of ours: another client writes below the prefix. No call explains it: a violation.
        let key = spelling.read_key(kv.key()).unwrap_or(u32::MAX);
        let value = spelling.read_value(kv.value());
        Some(Event { at, revision: kv.mod_revision(), key, value, version: kv.version() })
    };
    response.events().iter().filter_map(event).collect()
}

/// Asks one member for everything from one revision to another, both included. None: the beginning is compacted away.
pub(super) async fn replay(
    client: &mut Client,
    spelling: &Spelling,
    from: i64,
    to: i64,
) -> Result<Option<Vec<Event>>, Error> {
    let mut all = Vec::new();
    if to < from {
        return Ok(Some(all));
    }
    let mut stream = open(client, &spelling.prefix, from).await?;
    while all.last().is_none_or(|event: &Event| event.revision < to) {
        let response = tokio::time::timeout(STALLED, stream.message());
        let Ok(response) = response.await else {
            return Err(Error::WatchError(format!("nothing more for {} s", STALLED.as_secs())));
        };
        let Some(response) = response? else {
            return Err(Error::WatchError("the stream ended".to_owned()));
        };
        if response.compact_revision() != 0 {
            return Ok(None);
        }
        if response.canceled() {
            return Err(Error::WatchError(response.cancel_reason().to_owned()));
        }
        all.extend(events(&response, spelling, 0));
    }
    all.retain(|event| event.revision <= to);
    Ok(Some(all))
}
