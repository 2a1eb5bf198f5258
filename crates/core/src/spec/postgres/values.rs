//! Values of PostgreSQL's section that have more than one shape → nodes, the etcd beneath, checksums.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::{BundleChecksums, DcsOf, ExternalEtcd, Nodes};
use crate::spec::decode::TEXT_OR_MORE;
use crate::spec::units::{Name, UnitError};

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = Nodes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of nodes such as `3`, or a list of them")
            }
            fn visit_u64<E: Error>(self, count: u64) -> Result<Nodes, E> {
                u32::try_from(count).map(Nodes::Count).map_err(|_| E::invalid_value(Unexpected::Unsigned(count), &self))
            }
            fn visit_i64<E: Error>(self, count: i64) -> Result<Nodes, E> {
                u32::try_from(count).map(Nodes::Count).map_err(|_| E::invalid_value(Unexpected::Signed(count), &self))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Nodes, A::Error> {
                Deserialize::deserialize(SeqAccessDeserializer::new(list)).map(Nodes::List)
            }
            fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Nodes, A::Error> {
                Err(A::Error::custom(
                    "expected a number of nodes such as `3`, or a list of them, found a mapping\n\
                     write each node as an item of a list: `- name: pg-1`",
                ))
            }
        }
        deserializer.deserialize_any(Shapes)
    }
}

impl<'de> Deserialize<'de> for DcsOf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = DcsOf;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an etcd cluster of this file, or `{ endpoints, ca_cert, username, password }`")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<DcsOf, E> {
                Name::parse(name).map(DcsOf::Cluster).map_err(UnitError::into_serde)
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<DcsOf, D::Error> {
                deserializer.deserialize_any(self)
            }
            fn visit_map<A: MapAccess<'de>>(self, external: A) -> Result<DcsOf, A::Error> {
                ExternalEtcd::deserialize(MapAccessDeserializer::new(external)).map(DcsOf::External)
            }
        }
        deserializer.deserialize_newtype_struct(TEXT_OR_MORE, Shapes)
    }
}

impl<'de> Deserialize<'de> for BundleChecksums {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = BundleChecksums;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a SHA-256, or one for each version such as `{ 4.1.5: … }`")
            }
            fn visit_str<E: Error>(self, sha256: &str) -> Result<BundleChecksums, E> {
                Ok(BundleChecksums::One(sha256.to_owned()))
            }
            fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<BundleChecksums, D::Error> {
                deserializer.deserialize_any(self)
            }
            fn visit_map<A: MapAccess<'de>>(self, each: A) -> Result<BundleChecksums, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(each)).map(BundleChecksums::Each)
            }
        }
        deserializer.deserialize_newtype_struct(TEXT_OR_MORE, Shapes)
    }
}
