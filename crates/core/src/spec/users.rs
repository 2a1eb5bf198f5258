//! Access rights, as the file says them → roles with their permissions, users with their roles.

use std::fmt;

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::types::Secret;

/// Every role of a cluster, by name.
pub type Roles = IndexMap<String, Vec<Permission>>;

/// Every user of a cluster but `root`, by name.
pub type Users = IndexMap<String, User>;

/// One user of etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct User {
    /// The roles that the user has. A user without any can do nothing.
    pub roles: Vec<String>,
    /// The user's password. Without one the user can log in by certificate only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
}

/// Something that a role may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// Read these keys.
    Read(Keys),
    /// Write these keys, without reading them.
    Write(Keys),
    /// Read and write these keys.
    Readwrite(Keys),
}

/// Keys of etcd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Keys {
    /// This one.
    Key(String),
    /// All that begin with this.
    Prefix(String),
    /// From the first, which is included, to the second, which is not.
    Range(KeyRange),
    /// This one and all that come after it.
    From(String),
}

/// Two keys: `[/a, /b]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key.
    pub from: String,
    /// The key after the last.
    pub to: String,
}

impl Serialize for KeyRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        [&self.from, &self.to].serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for KeyRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Two;
        impl<'de> Visitor<'de> for Two {
            type Value = KeyRange;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two keys such as `[/a, /b]`")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<KeyRange, A::Error> {
                const TWO: &str = "a range is two keys\nwrite the first and the one after the last: `range: [/a, /b]`";
                match (list.next_element()?, list.next_element()?, list.next_element::<String>()?) {
                    (Some(from), Some(to), None) => Ok(KeyRange { from, to }),
                    _ => Err(A::Error::custom(TWO)),
                }
            }
        }
        deserializer.deserialize_seq(Two)
    }
}

impl JsonSchema for KeyRange {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KeyRange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Two keys: `[/a, /b]`. The first is included, the second is not.",
            "type": "array",
            "items": { "type": "string" },
            "minItems": 2,
            "maxItems": 2,
        })
    }
}

/// How much may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    Readwrite,
}

impl Level {
    /// Whether this allows all that the other does.
    pub fn covers(self, other: Self) -> bool {
        self == Self::Readwrite || self == other
    }

    /// What either of them allows.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        if self == other { self } else { Self::Readwrite }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Readwrite => "readwrite",
        })
    }
}

impl Permission {
    /// How much may be done, and with which keys.
    pub fn parts(&self) -> (Level, &Keys) {
        match self {
            Self::Read(keys) => (Level::Read, keys),
            Self::Write(keys) => (Level::Write, keys),
            Self::Readwrite(keys) => (Level::Readwrite, keys),
        }
    }

    /// The same from its parts.
    pub fn of(level: Level, keys: Keys) -> Self {
        match level {
            Level::Read => Self::Read(keys),
            Level::Write => Self::Write(keys),
            Level::Readwrite => Self::Readwrite(keys),
        }
    }
}

/// Keys as etcd knows them: from the first to the one after the last. An empty end stands for the first alone, a zero
/// byte for no end at all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeySpan {
    /// The first key.
    pub key: Vec<u8>,
    /// The key after the last.
    pub end: Vec<u8>,
}

/// No end at all; as a key, the first that there can be.
const ZERO: [u8; 1] = [0];

impl Keys {
    /// The same as etcd knows it.
    pub fn span(&self) -> KeySpan {
        match self {
            Self::Key(key) => KeySpan { key: key.as_bytes().to_vec(), end: Vec::new() },
            // etcd takes no empty key.
            Self::Prefix(all) | Self::From(all) if all.is_empty() => KeySpan { key: ZERO.to_vec(), end: ZERO.to_vec() },
            Self::Prefix(prefix) => KeySpan { key: prefix.as_bytes().to_vec(), end: after(prefix.as_bytes()) },
            Self::Range(range) => KeySpan { key: range.from.as_bytes().to_vec(), end: range.to.as_bytes().to_vec() },
            Self::From(key) => KeySpan { key: key.as_bytes().to_vec(), end: ZERO.to_vec() },
        }
    }
}

/// The first key that does not begin with this.
fn after(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte < 0xff);
    let Some(last) = kept else { return ZERO.to_vec() };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end
}

impl KeySpan {
    /// As the file would say it; nothing when a key is not text.
    pub fn keys(&self) -> Option<Keys> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let key = text(&self.key)?;
        Some(match self.end.as_slice() {
            [] => Keys::Key(key),
            end if end == ZERO && self.key == ZERO => Keys::Prefix(String::new()),
            end if end == ZERO => Keys::From(key),
            end if end == after(&self.key) => Keys::Prefix(key),
            end => Keys::Range(KeyRange { from: key, to: text(end)? }),
        })
    }

    /// Whether this key is among them.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self.end.as_slice() {
            [] => key == self.key,
            end if end == ZERO => key >= self.key.as_slice(),
            end => key >= self.key.as_slice() && key < end,
        }
    }
}

impl fmt::Display for KeySpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end.as_slice() {
            [] => write!(f, "key {}", escaped(&self.key)),
            end if end == ZERO && self.key == ZERO => f.write_str("all keys"),
            end if end == ZERO => write!(f, "all keys from {}", escaped(&self.key)),
            end if end == after(&self.key) => write!(f, "prefix {}", escaped(&self.key)),
            end => write!(f, "range {} to {}", escaped(&self.key), escaped(end)),
        }
    }
}

/// Bytes as text that can be read back: what is not printable, and the backslash itself, as `\xNN`.
fn escaped(bytes: &[u8]) -> String {
    let plain = std::str::from_utf8(bytes).ok().filter(|text| !text.contains(|c: char| c.is_control() || c == '\\'));
    match plain {
        Some(text) => text.to_owned(),
        None => bytes.iter().fold(String::new(), |mut out, byte| {
            match byte {
                b' '..=b'[' | b']'..=b'~' => out.push(char::from(*byte)),
                _ => out.push_str(&format!("\\x{byte:02x}")),
            }
            out
        }),
    }
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = match (first, more) {
            (b'\\', [b'x', high, low, more @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                more
            }
            (b'\\', _) => return None,
            _ => {
                bytes.push(*first);
                more
            }
        };
    }
    Some(bytes)
}

#[derive(Serialize, Deserialize)]
struct SpanText {
    key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    end: String,
}

impl Serialize for KeySpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SpanText { key: escaped(&self.key), end: escaped(&self.end) }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for KeySpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let SpanText { key, end } = SpanText::deserialize(deserializer)?;
        let bytes = |text: &str| unescaped(text).ok_or_else(|| D::Error::custom("a key with a broken escape"));
        Ok(Self { key: bytes(&key)?, end: bytes(&end)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(key: &[u8], end: &[u8]) -> KeySpan {
        KeySpan { key: key.to_vec(), end: end.to_vec() }
    }

    #[test]
    fn keys_are_spans_and_spans_are_keys() {
        let range = KeyRange { from: "/a".to_owned(), to: "/c".to_owned() };
        for (keys, expected, shown) in [
            (Keys::Key("/a".into()), span(b"/a", b""), "key /a"),
            (Keys::Prefix("/app/".into()), span(b"/app/", b"/app0"), "prefix /app/"),
            (Keys::Prefix(String::new()), span(b"\0", b"\0"), "all keys"),
            (Keys::From("/a".into()), span(b"/a", b"\0"), "all keys from /a"),
            (Keys::Range(range), span(b"/a", b"/c"), "range /a to /c"),
        ] {
            assert_eq!(keys.span(), expected);
            assert_eq!(expected.keys(), Some(keys));
            assert_eq!(expected.to_string(), shown);
        }
        assert_eq!(after(b"\xff\xff"), b"\0");
        assert_eq!(after(b"a\xff"), b"b");
        assert_eq!(span(b"\xfe", b"").keys(), None);
    }

    #[test]
    fn any_bytes_are_written_and_read_again() {
        for bytes in [&b"/app/"[..], b"\0", b"a\\x41", b"\xfe\xff", "für".as_bytes(), b"", b"a\nb"] {
            let whole = span(bytes, b"\0");
            let json = serde_json::to_string(&whole).expect("JSON");
            assert_eq!(serde_json::from_str::<KeySpan>(&json).expect("a span"), whole, "{json}");
        }
    }
}
