//! Calls and events as they happen → the history, in memory and line by line in a file.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::call::{Call, Key, Value};

/// One change of a key, as a watch delivered it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it arrived: nanoseconds since the load's start.
    pub at: u64,
    /// Of the change.
    pub revision: i64,
    /// Which key.
    pub key: Key,
    /// What was written; none when the key was deleted, or when it was not the load that wrote.
    pub value: Option<Value>,
    /// How many times the key was written since it was made: etcd counts, so that a gap shows.
    pub version: i64,
}

/// A key at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Final {
    /// Which key.
    pub key: Key,
    /// What is there.
    pub value: Option<Value>,
    /// Since which revision.
    pub revision: i64,
}

/// The whole history of the prefix, as one member returns it afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    /// Which member.
    pub member: IpAddr,
    /// Every change from the load's start to its end; none when the beginning is compacted away.
    pub events: Option<Vec<Event>>,
}

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    /// A call that ended.
    Call(Call),
    /// An event of the watch that ran along.
    Event(Event),
    /// The watch broke, or went silent, and was taken up from this revision.
    Rewatch {
        /// When.
        at: u64,
        /// From which revision.
        revision: i64,
        /// Why.
        why: String,
    },
    /// A test's own marker.
    Mark {
        /// When.
        at: u64,
        /// The marker.
        text: String,
    },
    /// The end: what the checks need beside the rest.
    End(Ending),
}

/// What was found when the load had ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// When the workers were stopped.
    pub stopped: u64,
    /// The store's revision before the first call.
    pub first_revision: i64,
    /// The store's revision at the last read, after the last call.
    pub last_revision: i64,
    /// Every key, read linearizably.
    pub finals: Vec<Final>,
    /// The history, as each member returns it.
    pub replays: Vec<Replay>,
    /// What could not be found out at the end, and why.
    pub problems: Vec<String>,
}

/// All that happened.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// In the order of their ends.
    pub calls: Vec<Call>,
    /// Of the watch that ran along, in the order of arrival.
    pub events: Vec<Event>,
    /// How many times the watch was taken up again.
    pub rewatches: usize,
    /// A test's own markers.
    pub marks: Vec<(u64, String)>,
    /// What was found at the end.
    pub ending: Option<Ending>,
}

impl History {
    /// Reads a file that a load wrote.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let mut history = Self::default();
        for line in BufReader::new(File::open(path)?).lines() {
            history.push(serde_json::from_str(&line?)?);
        }
        Ok(history)
    }

    /// Adds a line.
    pub fn push(&mut self, line: Line) {
        match line {
            Line::Call(call) => self.calls.push(call),
            Line::Event(event) => self.events.push(event),
            Line::Rewatch { .. } => self.rewatches += 1,
            Line::Mark { at, text } => self.marks.push((at, text)),
            Line::End(ending) => self.ending = Some(ending),
        }
    }
}

/// Takes lines from everywhere, with times on one clock.
#[derive(Clone)]
pub(super) struct Recorder {
    start: Instant,
    lines: mpsc::Sender<Line>,
}

impl Recorder {
    /// Writes to this file; the history comes out of the thread when the last recorder is dropped.
    pub(super) fn new(path: &Path) -> std::io::Result<(Self, JoinHandle<History>)> {
        let mut file = BufWriter::new(File::create(path)?);
        let (lines, inbox) = mpsc::channel::<Line>();
        let writer = std::thread::spawn(move || {
            let mut history = History::default();
            for line in inbox {
                // A full disk must not end the load: the history in memory is whole.
                if serde_json::to_writer(&mut file, &line).is_ok() {
                    let _ = file.write_all(b"\n");
                }
                history.push(line);
            }
            let _ = file.flush();
            history
        });
        Ok((Self { start: Instant::now(), lines }, writer))
    }

    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn record(&self, line: Line) {
        let _ = self.lines.send(line);
    }
}
