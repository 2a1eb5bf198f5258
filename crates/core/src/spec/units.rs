//! Names, sizes, durations and versions as users write them → checked values.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::secrecy;

/// Why a text is not the value it should be, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct UnitError {
    /// What is wrong with it.
    pub what: String,
    /// What to write instead.
    pub help: Option<String>,
}

impl UnitError {
    pub(super) fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: Some(help.into()) }
    }

    /// serde carries one text only: the first line is the message, the second the help.
    pub(super) fn into_serde<E: de::Error>(self) -> E {
        match self.help {
            Some(help) => E::custom(format_args!("{}\n{help}", self.what)),
            None => E::custom(self.what),
        }
    }
}

/// Quotes a piece of the user's text in a message: short, and without anything a terminal would obey.
pub(super) fn quoted(text: &str) -> String {
    const LONGEST: usize = 40;
    if !secrecy::places_in_text(text).is_empty() {
        return "`********`".to_owned();
    }
    let mut out = String::with_capacity(text.len().min(LONGEST) + 2);
    out.push('`');
    for (count, c) in text.chars().enumerate() {
        // One line is enough to be recognised, and what follows may be anything.
        if count == LONGEST || c == '\n' {
            out.push('…');
            break;
        }
        if c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out.push('`');
    out
}

/// A name: a DNS label in lower case, because it becomes part of host names and certificates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// The longest name.
    pub const LONGEST: usize = 63;

    /// A name known to be valid, such as a default.
    pub fn fixed(text: &'static str) -> Self {
        debug_assert!(Self::parse(text).is_ok());
        Self(text.to_owned())
    }

    /// Checks that the text is 1 to 63 letters a–z, digits and hyphens, with no hyphen at either end.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        const RULE: &str = "a name is 1 to 63 lower-case letters, digits and hyphens, with no hyphen at either end";
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let what = if text.is_empty() {
            "the name is empty".to_owned()
        } else if text.len() > Self::LONGEST && text.chars().all(fine) {
            format!(
                "the name {} is {} characters long, at most {} are allowed",
                quoted(text),
                text.len(),
                Self::LONGEST
            )
        } else if !text.chars().all(fine) || text.starts_with('-') || text.ends_with('-') {
            format!("{} is not a valid name", quoted(text))
        } else {
            return Ok(Self(text.to_owned()));
        };
        let near: String = text.to_lowercase().chars().map(|c| if fine(c) { c } else { '-' }).collect();
        let near = near.trim_matches('-');
        // A guess that drops letters is worse than none.
        let plausible = text.is_ascii()
            && near.chars().any(|c| c.is_ascii_alphanumeric())
            && near.len() <= Self::LONGEST
            && near != text;
        Err(if plausible && !text.is_empty() {
            UnitError::new(what, format!("{RULE}: `{near}` would do"))
        } else {
            UnitError::new(what, RULE)
        })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for Name {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        Self::parse(text)
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

/// Largest first within each family, binary before decimal: the first that divides is how a size is shown.
const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

impl ByteSize {
    /// So many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// So many MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// So many GiB.
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Reads `8GiB`, `512MiB`, `100MB` or plain bytes.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let text = text.trim();
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = unit.trim();
        let bad =
            |help: String| UnitError::new(format!("expected a size such as `8GiB`, found {}", quoted(text)), help);
        const UNITS: &str = "a size is a whole number and one of KiB, MiB, GiB, TiB, kB, MB, GB, TB";
        if number.is_empty() {
            return Err(bad(UNITS.to_owned()));
        }
        let factor = SIZE_UNITS.iter().find(|(name, _)| *name == unit || unit.is_empty() && *name == "B");
        let Some((_, factor)) = factor else {
            // `8G`, `8Gi`, `8gib`, `8KB`: say what was probably meant.
            let first = unit.chars().next().map(|c| c.to_ascii_uppercase());
            let near = SIZE_UNITS[..4].iter().find(|(name, _)| name.chars().next() == first);
            return Err(bad(match near {
                Some((name, _)) if unit.len() <= 3 && unit.is_ascii() => format!("write `{number}{name}`"),
                _ if unit.starts_with('.') => {
                    format!("{UNITS}; for a part of one use the next smaller unit, such as `1536MiB`")
                }
                _ => UNITS.to_owned(),
            }));
        };
        let count: Option<u64> = number.parse().ok();
        match count.and_then(|count| count.checked_mul(*factor)) {
            Some(bytes) => Ok(Self(bytes)),
            None => Err(UnitError::new(
                format!("the size {} is too large", quoted(text)),
                "the largest is 16383PiB or so; 8GiB is a usual quota",
            )),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.pad("0");
        }
        let (name, factor) = SIZE_UNITS.iter().find(|(_, factor)| self.0.is_multiple_of(*factor)).unwrap_or(&("B", 1));
        f.pad(&format!("{}{name}", self.0 / factor))
    }
}

/// A length of time, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A year is 365 days here: the leap day does not matter for renewals.
const TIME_UNITS: [(&str, u64); 7] =
    [("y", 365 * DAY), ("w", 7 * DAY), ("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1)];

/// Longer than any certificate or time-out; keeps date arithmetic away from its limits.
const LONGEST: u64 = 200 * 365 * DAY;

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// So many hours.
    pub const fn from_hours(hours: u64) -> Self {
        Self(hours * HOUR)
    }

    /// So many days.
    pub const fn from_days(days: u64) -> Self {
        Self(days * DAY)
    }

    /// The number of milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The same, as the standard library has it.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }

    /// Reads `100ms`, `1s`, `10m`, `12h`, `90d`, `2w`, `1y`, and sums such as `1h30m`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        const UNITS: &str = "the units are ms, s, m (minutes), h, d, w and y; sums such as `1h30m` are fine";
        let text = text.trim();
        let bad =
            |help: String| UnitError::new(format!("expected a duration such as `10m`, found {}", quoted(text)), help);
        if text == "0" {
            return Ok(Self(0));
        }
        let mut rest = text;
        let mut total: u64 = 0;
        if rest.is_empty() {
            return Err(bad(UNITS.to_owned()));
        }
        while !rest.is_empty() {
            let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
            if number.is_empty() {
                return Err(bad(if rest.starts_with('-') {
                    "a duration cannot be negative".to_owned()
                } else {
                    UNITS.to_owned()
                }));
            }
            let (unit, after) = after.split_at(after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len()));
            if unit.is_empty() && after.starts_with(' ') {
                return Err(match Self::parse(&text.replace(' ', "")) {
                    Ok(meant) => bad(format!("without spaces: `{meant}`")),
                    Err(error) => error,
                });
            }
            if unit.is_empty() && after.starts_with('.') {
                return Err(bad("only whole numbers: write `1h30m` rather than `1.5h`".to_owned()));
            }
            if unit.is_empty() {
                return Err(UnitError::new(
                    format!("the duration {} has no unit", quoted(text)),
                    format!("write `{number}ms` or `{number}s`, whichever you mean"),
                ));
            }
            let Some((_, factor)) = TIME_UNITS.iter().find(|(name, _)| *name == unit) else {
                let lower = unit.to_ascii_lowercase();
                let near = match lower.as_str() {
                    "sec" | "secs" | "second" | "seconds" => Some("s"),
                    "min" | "mins" | "minute" | "minutes" => Some("m"),
                    "hour" | "hours" | "hr" | "hrs" => Some("h"),
                    "day" | "days" => Some("d"),
                    "week" | "weeks" => Some("w"),
                    "year" | "years" => Some("y"),
                    _ if unit != "M" => TIME_UNITS.iter().find(|(name, _)| *name == lower).map(|(name, _)| *name),
                    _ => None,
                };
                return Err(bad(near.map_or_else(|| UNITS.to_owned(), |near| format!("write `{number}{near}`"))));
            };
            let part = number.parse::<u64>().ok().and_then(|count| count.checked_mul(*factor));
            total = match part.and_then(|part| total.checked_add(part)) {
                Some(total) if total <= LONGEST => total,
                _ => {
                    return Err(UnitError::new(format!("the duration {} is too long", quoted(text)), "at most `200y`"));
                }
            };
            rest = after;
        }
        Ok(Self(total))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut out = String::new();
        // Days are the largest unit shown: `90d` says more than `12w6d`.
        for (name, factor) in &TIME_UNITS[2..] {
            if rest >= *factor {
                out.push_str(&format!("{}{name}", rest / factor));
                rest %= factor;
            }
        }
        f.pad(if out.is_empty() { "0" } else { &out })
    }
}

/// A version of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtcdVersion {
    /// The first number.
    pub major: u64,
    /// The second number: what may be upgraded one at a time.
    pub minor: u64,
    /// The third number.
    pub patch: u64,
}

impl EtcdVersion {
    /// A version from its three numbers.
    pub const fn new(major: u64, minor: u64, patch: u64) -> Self {
        Self { major, minor, patch }
    }

    /// Its line, such as 3.6.
    pub const fn minor_line(self) -> (u64, u64) {
        (self.major, self.minor)
    }

    /// Reads `3.6.15` or `v3.6.15`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let bare = text.trim();
        let bare = bare.strip_prefix('v').unwrap_or(bare);
        let bad =
            |help: &str| UnitError::new(format!("expected a version such as `3.6.15`, found {}", quoted(text)), help);
        let mut numbers = [0u64; 3];
        let mut count = 0;
        for part in bare.split('.') {
            let plain = !part.is_empty() && part.len() < 10 && part.bytes().all(|b| b.is_ascii_digit());
            match (numbers.get_mut(count), part.parse()) {
                (Some(slot), Ok(number)) if plain => *slot = number,
                _ if part.contains(['-', '+']) => {
                    return Err(bad("only released versions: no pre-releases, no build tags"));
                }
                _ => return Err(bad("three whole numbers with dots between: major.minor.patch")),
            }
            count += 1;
        }
        match count {
            3 => Ok(Self { major: numbers[0], minor: numbers[1], patch: numbers[2] }),
            _ => Err(bad("give all three numbers: raftsman installs exactly what the file says")),
        }
    }
}

impl Default for EtcdVersion {
    fn default() -> Self {
        Self::new(3, 6, 15)
    }
}

impl fmt::Display for EtcdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}.{}", self.major, self.minor, self.patch))
    }
}

/// All of them are written as text and read from text; a bare number is handed to the same parser, so that
/// its message can say which unit is missing.
macro_rules! as_text {
    ($type:ident, $deserialize:ident, $expecting:literal, $schema:expr) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        $type::parse(text).map_err(UnitError::into_serde)
                    }
                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$type, E> {
                        $type::parse(&number.to_string()).map_err(UnitError::into_serde)
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        Err(E::invalid_value(Unexpected::Signed(number), &self))
                    }
                }
                deserializer.$deserialize(Text)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

pub(super) use as_text;

as_text!(
    Name,
    deserialize_str,
    "a name",
    json_schema!({
        "description": "A name: 1 to 63 lower-case letters, digits and hyphens.",
        "type": "string",
        "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
    })
);
as_text!(
    ByteSize,
    deserialize_any,
    "a size such as `8GiB`",
    json_schema!({
        "description": "A size, such as `8GiB`, `512MiB`, `100MB`; a plain number is bytes.",
        "type": ["string", "integer"],
        "pattern": "^[0-9]+ *([KMGT]iB|[kMGT]?B)?$",
        "minimum": 0
    })
);
as_text!(
    Duration,
    deserialize_any,
    "a duration such as `10m`",
    json_schema!({
        "description": "A length of time, such as `100ms`, `10m`, `1h30m`, `90d`.",
        "anyOf": [{ "type": "string", "pattern": "^(0|([0-9]+(ms|s|m|h|d|w|y))+)$" }, { "const": 0 }]
    })
);
as_text!(
    EtcdVersion,
    deserialize_str,
    "a version such as `3.6.15`",
    json_schema!({
        "description": "A version of etcd, such as `3.6.15`.",
        "type": "string",
        "pattern": "^v?[0-9]+\\.[0-9]+\\.[0-9]+$"
    })
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_survive_being_written_and_read_again() {
        for text in ["8GiB", "512MiB", "100MB", "1537B", "3kB", "0"] {
            assert_eq!(ByteSize::parse(text).map(|size| size.to_string()), Ok(text.to_owned()));
        }
        for text in ["100ms", "1s", "10m", "12h", "90d", "1h30m", "1d1ms", "0"] {
            assert_eq!(Duration::parse(text).map(|time| time.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Duration::parse("2w1y"), Ok(Duration::from_days(379)));
        assert_eq!(EtcdVersion::parse("v3.6.15"), Ok(EtcdVersion::default()));
        assert_eq!(Name::parse("etcd-1").map(|name| name.to_string()), Ok("etcd-1".to_owned()));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "x", "8", "1.5h", "-1s", "99999999999999999999y", "300y", "1 h", "1h-", "5M"] {
            assert!(Duration::parse(text).is_err(), "{text}");
        }
        for text in ["", "GiB", "1.5GiB", "8G", "-1", "99999999999TiB", "8 X"] {
            assert!(ByteSize::parse(text).is_err(), "{text}");
        }
        for text in ["", "3", "3.6", "3.6.x", "3.6.1.2", "3.7.0-rc.0", "vv3.6.1", "3..1", "+3.6.1"] {
            assert!(EtcdVersion::parse(text).is_err(), "{text}");
        }
        for text in ["", "-a", "a-", "A", "a_b", "ä", "a.b", &"a".repeat(64)] {
            assert!(Name::parse(text).is_err(), "{text}");
        }
    }
}
