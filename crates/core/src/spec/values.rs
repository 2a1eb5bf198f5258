//! Values of more than one shape → members, checksums, timers, retention, firewall, flags, with a message of their own each.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::decode::TEXT_OR_MORE;
use super::machines::{Firewall, FirewallSources};
use super::types::{Checksums, FlagValue, Members, RaftTimers, Retention, Timers, TimersFound};
use super::units::{Duration, UnitError};

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of members such as `3`, or a list of them")
            }
            fn visit_u64<E: Error>(self, count: u64) -> Result<Members, E> {
                u32::try_from(count)
                    .map(Members::Count)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(count), &self))
            }
            fn visit_i64<E: Error>(self, count: i64) -> Result<Members, E> {
                u32::try_from(count).map(Members::Count).map_err(|_| E::invalid_value(Unexpected::Signed(count), &self))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Members, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(Members::List)
            }
            fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Members, A::Error> {
                Err(A::Error::custom(
                    "expected a number of members such as `3`, or a list of them, found a mapping\nwrite each member as an item of a list: `- name: etcd-1`",
                ))
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}

impl<'de> Deserialize<'de> for Checksums {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = Checksums;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a SHA-256, or one for each version such as `{ 3.6.15: … }`")
            }
            fn visit_str<E: Error>(self, sha256: &str) -> Result<Checksums, E> {
                Ok(Checksums::One(sha256.to_owned()))
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Checksums, D::Error> {
                deserializer.deserialize_any(self)
            }
            fn visit_map<A: MapAccess<'de>>(self, each: A) -> Result<Checksums, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(each)).map(Checksums::Each)
            }
        }
        deserializer.deserialize_newtype_struct(TEXT_OR_MORE, Shapes)
    }
}

impl<'de> Deserialize<'de> for Timers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = Timers;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`measured`, or both times such as `{ heartbeat: 100ms, election: 1s }`")
            }
            fn visit_str<E: Error>(self, word: &str) -> Result<Timers, E> {
                match word {
                    "measured" => Ok(Timers::Found(TimersFound::Measured)),
                    _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
                }
            }
            // A key with nothing below: everything under it may be commented out.
            fn visit_unit<E: Error>(self) -> Result<Timers, E> {
                Ok(Timers::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, timers: A) -> Result<Timers, A::Error> {
                RaftTimers::deserialize(MapAccessDeserializer::new(timers)).map(Timers::Given)
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}

impl<'de> Deserialize<'de> for Firewall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = Firewall;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`true`, `false`, or its sources such as `{ ssh_from: [10.0.0.0/8] }`")
            }
            fn visit_bool<E: Error>(self, on: bool) -> Result<Firewall, E> {
                Ok(Firewall::Switch(on))
            }
            fn visit_map<A: MapAccess<'de>>(self, sources: A) -> Result<Firewall, A::Error> {
                FirewallSources::deserialize(MapAccessDeserializer::new(sources)).map(Firewall::Sources)
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}

impl<'de> Deserialize<'de> for Retention {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl Visitor<'_> for Shapes {
            type Value = Retention;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of revisions such as `1000`, or a duration such as `1h`")
            }
            fn visit_u64<E: Error>(self, revisions: u64) -> Result<Retention, E> {
                Ok(Retention::Revisions(revisions))
            }
            fn visit_i64<E: Error>(self, revisions: i64) -> Result<Retention, E> {
                u64::try_from(revisions)
                    .map(Retention::Revisions)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(revisions), &self))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Retention, E> {
                // etcd's own examples quote the number: `"1000"`.
                if let Ok(revisions) = text.parse() {
                    return Ok(Retention::Revisions(revisions));
                }
                Duration::parse(text).map(Retention::Age).map_err(|mut error| {
                    error.what = error.what.replace(
                        "expected a duration such as `10m`",
                        &format!("expected {}", &self as &dyn serde::de::Expected),
                    );
                    UnitError::into_serde(error)
                })
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}

impl<'de> Deserialize<'de> for FlagValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = FlagValue;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`true`, `false`, a whole number or a text")
            }
            fn visit_bool<E: Error>(self, value: bool) -> Result<FlagValue, E> {
                Ok(FlagValue::Bool(value))
            }
            fn visit_i64<E: Error>(self, value: i64) -> Result<FlagValue, E> {
                Ok(FlagValue::Integer(value))
            }
            fn visit_u64<E: Error>(self, value: u64) -> Result<FlagValue, E> {
                i64::try_from(value)
                    .map(FlagValue::Integer)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(value), &self))
            }
            fn visit_f64<E: Error>(self, value: f64) -> Result<FlagValue, E> {
                Ok(FlagValue::Text(value.to_string()))
            }
            fn visit_str<E: Error>(self, value: &str) -> Result<FlagValue, E> {
                Ok(FlagValue::Text(value.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<FlagValue, A::Error> {
                Err(A::Error::custom("expected one value, found a list\njoin the items with commas, in one text"))
            }
            fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<FlagValue, A::Error> {
                Err(A::Error::custom("expected one value, found a mapping"))
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}
