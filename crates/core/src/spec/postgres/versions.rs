//! Versions of PostgreSQL and Patroni as users write them → checked values.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::spec::units::{UnitError, as_text, quoted};

/// A version of PostgreSQL: a major version, with or without its minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PostgresVersion {
    /// The major version: another one needs another cluster.
    pub major: u32,
    /// The minor version. Without it, the one that the source has.
    pub minor: Option<u32>,
}

impl PostgresVersion {
    /// Reads `17` or `17.11`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let bad = |help: &str| {
            UnitError::new(format!("expected a version such as `17` or `17.11`, found {}", quoted(text)), help)
        };
        let bare = text.trim();
        let (major, minor) = match bare.split_once('.') {
            Some((major, minor)) => (major, Some(minor)),
            None => (bare, None),
        };
        if minor.is_some_and(|minor| minor.contains('.')) {
            return Err(bad("PostgreSQL's versions have two numbers: major.minor"));
        }
        let number = |part: &str| number(part).ok_or_else(|| bad("one or two whole numbers: `17`, or `17.11`"));
        Ok(Self { major: number(major)?, minor: minor.map(number).transpose()? })
    }
}

impl Default for PostgresVersion {
    fn default() -> Self {
        Self { major: 17, minor: None }
    }
}

impl fmt::Display for PostgresVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minor {
            Some(minor) => f.pad(&format!("{}.{minor}", self.major)),
            None => f.pad(&self.major.to_string()),
        }
    }
}

/// A version of Patroni.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PatroniVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl PatroniVersion {
    /// A version from its three numbers.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Reads `4.1.5` or `v4.1.5`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let bare = text.trim();
        let bare = bare.strip_prefix('v').unwrap_or(bare);
        let parts: Option<Vec<u32>> = bare.split('.').map(number).collect();
        match parts.as_deref() {
            Some([major, minor, patch]) => Ok(Self::new(*major, *minor, *patch)),
            _ => Err(UnitError::new(
                format!("expected a version such as `4.1.5`, found {}", quoted(text)),
                "three whole numbers with dots between: raftsman installs exactly what the file says",
            )),
        }
    }
}

impl Default for PatroniVersion {
    fn default() -> Self {
        Self::new(4, 1, 5)
    }
}

impl fmt::Display for PatroniVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}.{}", self.major, self.minor, self.patch))
    }
}

/// A part of a version: digits, and nothing else.
fn number(part: &str) -> Option<u32> {
    let plain = !part.is_empty() && part.len() < 10 && part.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| part.parse().ok()).flatten()
}

as_text!(
    PostgresVersion,
    deserialize_str,
    "a version such as `17` or `17.11`",
    json_schema!({
        "description": "A version of PostgreSQL, such as `17` or `17.11`.",
        "type": ["string", "number"],
        "pattern": "^[0-9]+(\\.[0-9]+)?$"
    })
);
as_text!(
    PatroniVersion,
    deserialize_str,
    "a version such as `4.1.5`",
    json_schema!({
        "description": "A version of Patroni, such as `4.1.5`.",
        "type": "string",
        "pattern": "^v?[0-9]+\\.[0-9]+\\.[0-9]+$"
    })
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_survive_being_written_and_read_again() {
        for text in ["17", "17.11", "17.10", "9.6"] {
            assert_eq!(PostgresVersion::parse(text).map(|version| version.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(PatroniVersion::parse("v4.1.5"), Ok(PatroniVersion::default()));
        for text in ["", "17.", ".1", "17.1.1", "17beta1", "-17", "99999999999"] {
            assert!(PostgresVersion::parse(text).is_err(), "{text}");
        }
        for text in ["", "4", "4.1", "4.1.x", "4.1.5.1", "4.1.0rc1"] {
            assert!(PatroniVersion::parse(text).is_err(), "{text}");
        }
    }
}
