//! What is asked of etcd and what came back → one line of the history.

use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use serde::{Deserialize, Serialize};

/// One of the load's keys.
pub type Key = u32;
/// What is written. No value is written twice in a run, so that a value identifies the call that wrote it.
pub type Value = u64;

/// One call of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// Writes.
    Put {
        /// Where.
        key: Key,
        /// What.
        value: Value,
    },
    /// Reads, linearizable.
    Get {
        /// Where.
        key: Key,
    },
    /// Writes if the key still has the value that was seen last.
    Swap {
        /// Where.
        key: Key,
        /// What was seen last; none for a key that was not there.
        expected: Option<Value>,
        /// What.
        value: Value,
    },
    /// Writes several keys in one transaction.
    PutAll {
        /// Where and what.
        pairs: Vec<(Key, Value)>,
    },
    /// Reads several keys in one transaction.
    GetAll {
        /// Where.
        keys: Vec<Key>,
    },
}

impl Ask {
    /// What it would write, and where.
    pub fn writes(&self) -> Vec<(Key, Value)> {
        match self {
            Self::Put { key, value } | Self::Swap { key, value, .. } => vec![(*key, *value)],
            Self::PutAll { pairs } => pairs.clone(),
            Self::Get { .. } | Self::GetAll { .. } => Vec::new(),
        }
    }

    /// What it would read, in the order of the answer.
    pub fn reads(&self) -> Vec<Key> {
        match self {
            Self::Get { key } => vec![*key],
            Self::GetAll { keys } => keys.clone(),
            Self::Put { .. } | Self::Swap { .. } | Self::PutAll { .. } => Vec::new(),
        }
    }

    /// Its name in tables.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Get { .. } => "get",
            Self::Swap { .. } => "swap",
            Self::PutAll { .. } => "put all",
            Self::GetAll { .. } => "get all",
        }
    }
}

/// How a call ended for its client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Acknowledged, at this revision.
    Written {
        /// Of the write.
        revision: i64,
    },
    /// Read, at this revision.
    Read {
        /// Of the store when it was read.
        revision: i64,
        /// One for each key; none for a key that is not there.
        values: Vec<Option<Value>>,
    },
    /// Not swapped: something else was there.
    Kept {
        /// Of the store when it was looked at.
        revision: i64,
        /// What was there.
        found: Option<Value>,
    },
    /// Not swapped by the second try. The first, whose answer was lost, may have swapped and been overwritten since.
    Ambiguous {
        /// What was there.
        found: Option<Value>,
    },
    /// Both tries failed. A write may have been applied, and may still be.
    Unknown {
        /// Why the second try failed.
        error: String,
    },
}

/// One call of a client, with its retry, as the client saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The worker that made it.
    pub worker: u32,
    /// When it began: nanoseconds since the load's start.
    pub begin: u64,
    /// When it ended.
    pub end: u64,
    /// What was asked.
    #[serde(flatten)]
    pub ask: Ask,
    /// What came back.
    #[serde(flatten)]
    pub answer: Answer,
    /// Why the first try failed, and through which member, if it did.
    pub first_failure: Option<String>,
}

impl Call {
    /// The revision of an acknowledged write.
    pub fn acknowledged(&self) -> Option<i64> {
        match self.answer {
            Answer::Written { revision } => Some(revision),
            Answer::Read { .. } | Answer::Kept { .. } | Answer::Ambiguous { .. } | Answer::Unknown { .. } => None,
        }
    }
}

/// How keys and values are spelt in etcd.
#[derive(Debug, Clone)]
pub struct Spelling {
    /// What all keys of this load begin with.
    pub prefix: String,
    /// How long a value is at least.
    pub value_bytes: usize,
}

impl Spelling {
    /// A key's name.
    pub fn key(&self, key: Key) -> String {
        format!("{}{key:04}", self.prefix)
    }

    /// Which key has this name.
    pub fn read_key(&self, name: &[u8]) -> Option<Key> {
        std::str::from_utf8(name).ok()?.strip_prefix(&self.prefix)?.parse().ok()
    }

    /// A value's bytes.
    pub fn value(&self, value: Value) -> String {
        format!("{value:.<width$}", width = self.value_bytes)
    }

    /// Which value these bytes are.
    pub fn read_value(&self, bytes: &[u8]) -> Option<Value> {
        std::str::from_utf8(bytes).ok()?.trim_end_matches('.').parse().ok()
    }

    fn found(&self, kvs: &[KeyValue]) -> Result<Option<(Value, i64)>, Error> {
        let Some(kv) = kvs.first() else { return Ok(None) };
        let value = self.read_value(kv.value());
        let value = value.ok_or_else(|| Error::Internal(format!("a value that no call wrote: {:?}", kv.value())))?;
        Ok(Some((value, kv.mod_revision())))
    }
}

/// What one try of a call brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    Written(i64),
    Read(i64, Vec<Option<Value>>),
    /// Revision of the store; what is there and since which revision.
    Kept(i64, Option<(Value, i64)>),
}

/// Asks one member, once.
pub(super) async fn ask(client: &mut Client, spelling: &Spelling, ask: &Ask) -> Result<Reply, Error> {
    let headless = || Error::Internal("an answer without a header".to_owned());
    match ask {
        Ask::Put { key, value } => {
            let response = client.put(spelling.key(*key), spelling.value(*value), None).await?;
            Ok(Reply::Written(response.header().ok_or_else(headless)?.revision()))
        }
        Ask::Get { key } => {
            let response = client.get(spelling.key(*key), None).await?;
            let value = spelling.found(response.kvs())?.map(|(value, _)| value);
            Ok(Reply::Read(response.header().ok_or_else(headless)?.revision(), vec![value]))
        }
        Ask::Swap { key, expected, value } => {
            let name = spelling.key(*key);
            let compare = match expected {
                Some(expected) => Compare::value(name.clone(), CompareOp::Equal, spelling.value(*expected)),
                None => Compare::version(name.clone(), CompareOp::Equal, 0),
            };
            let txn = Txn::new()
                .when([compare])
                .and_then([TxnOp::put(name.clone(), spelling.value(*value), None)])
                .or_else([TxnOp::get(name, None)]);
            let response = client.txn(txn).await?;
            let revision = response.header().ok_or_else(headless)?.revision();
            match response.op_responses().first() {
                Some(TxnOpResponse::Get(get)) => Ok(Reply::Kept(revision, spelling.found(get.kvs())?)),
                _ => Ok(Reply::Written(revision)),
            }
        }
        Ask::PutAll { pairs } => {
            let puts: Vec<TxnOp> =
                pairs.iter().map(|(key, value)| TxnOp::put(spelling.key(*key), spelling.value(*value), None)).collect();
            let response = client.txn(Txn::new().and_then(puts)).await?;
            Ok(Reply::Written(response.header().ok_or_else(headless)?.revision()))
        }
        Ask::GetAll { keys } => {
            let gets: Vec<TxnOp> =
                keys.iter().map(|key| TxnOp::get(spelling.key(*key), Some(GetOptions::new()))).collect();
            let response = client.txn(Txn::new().and_then(gets)).await?;
            let mut values = Vec::new();
            for op in response.op_responses() {
                if let TxnOpResponse::Get(get) = op {
                    values.push(spelling.found(get.kvs())?.map(|(value, _)| value));
                }
            }
            if values.len() != keys.len() {
                return Err(Error::Internal(format!("{} answers to {} questions", values.len(), keys.len())));
            }
            Ok(Reply::Read(response.header().ok_or_else(headless)?.revision(), values))
        }
    }
}
