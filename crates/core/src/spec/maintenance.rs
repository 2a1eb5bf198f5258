//! The section `maintenance:` of a cluster → when and where its database is made smaller without being asked.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use jiff::civil::{Time, Weekday};
use jiff::tz::TimeZone;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::units::{ByteSize, UnitError, as_text, quoted};

/// What `apply` does to keep the database small, and when.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Maintenance {
    /// Defragment a member whose database file has become much larger than its data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub defragment: Option<Defragmentation>,
    /// Only in this time. Always by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
}

/// When it pays to defragment a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Defragmentation {
    /// So much of the file must be free …
    pub free: Percent,
    /// … and this much at least.
    pub at_least: ByteSize,
}

/// A time of the week, in UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// The days on which it begins. Every day by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Day>,
    /// It begins at this time, UTC.
    pub from: TimeOfDay,
    /// It ends at this time, UTC; on the next day when that is not later than its beginning.
    pub to: TimeOfDay,
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Day {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

impl Maintenance {
    /// Whether nothing is to be done.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this is a time for it.
    pub fn open_at(&self, now: Timestamp) -> bool {
        self.window.as_ref().is_none_or(|window| window.contains(now))
    }
}

impl Default for Defragmentation {
    fn default() -> Self {
        Self { free: Percent(50), at_least: ByteSize::mib(100) }
    }
}

impl Defragmentation {
    /// What is worth a rewrite that an operator requested: below that a file stays about as large as it is.
    pub const ASKED: Self = Self { free: Percent(10), at_least: ByteSize::mib(1) };

    /// Whether it pays to defragment a file of this size with so much in use.
    pub fn pays(&self, size: i64, in_use: i64) -> bool {
        let (size, free) = (i128::from(size), i128::from(size) - i128::from(in_use));
        free >= i128::from(self.at_least.bytes()) && free * 100 >= size * i128::from(self.free.0) && free > 0
    }
}

impl Window {
    /// Whether it is open at this moment.
    pub fn contains(&self, now: Timestamp) -> bool {
        let now = now.to_zoned(TimeZone::UTC);
        let begins = |day: Weekday| self.days.is_empty() || self.days.iter().any(|d| d.weekday() == day);
        let (today, time) = (now.weekday(), TimeOfDay::of(now.time()));
        match self.from < self.to {
            true => begins(today) && self.from <= time && time < self.to,
            // Over midnight: it began today, or yesterday.
            false => begins(today) && self.from <= time || begins(today.previous()) && time < self.to,
        }
    }
}

impl Day {
    fn weekday(self) -> Weekday {
        match self {
            Self::Mon => Weekday::Monday,
            Self::Tue => Weekday::Tuesday,
            Self::Wed => Weekday::Wednesday,
            Self::Thu => Weekday::Thursday,
            Self::Fri => Weekday::Friday,
            Self::Sat => Weekday::Saturday,
            Self::Sun => Weekday::Sunday,
        }
    }
}

/// A part of a hundred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    /// The number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Reads `50%`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let bad = |help: &str| UnitError::new(format!("expected a part such as `50%`, found {}", quoted(text)), help);
        let Some(number) = text.trim().strip_suffix('%') else { return Err(bad("write it with a `%`")) };
        match number.trim_end().parse::<u8>() {
            Ok(number) if number <= 100 && !text.contains('+') => Ok(Self(number)),
            _ => Err(bad("a whole number from 0 to 100")),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", self.0))
    }
}

/// A time of the day, in minutes since midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    fn of(time: Time) -> Self {
        Self(u16::from(time.hour().unsigned_abs()) * 60 + u16::from(time.minute().unsigned_abs()))
    }

    /// Reads `02:00`.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let bad = |help: &str| {
            UnitError::new(format!("expected a time of the day such as `02:00`, found {}", quoted(text)), help)
        };
        let two = |part: &str| (part.len() == 2).then(|| part.parse::<u16>().ok()).flatten();
        let parts = text.trim().split_once(':').and_then(|(hour, minute)| Some((two(hour)?, two(minute)?)));
        match parts.filter(|_| !text.contains(['+', '-'])) {
            Some((hour, minute)) if hour < 24 && minute < 60 => Ok(Self(hour * 60 + minute)),
            Some((24, 0)) => Err(bad("the end of the day is `00:00` of the next")),
            _ => Err(bad("two digits each for the hour and the minute, in UTC")),
        }
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:02}:{:02}", self.0 / 60, self.0 % 60))
    }
}

as_text!(
    Percent,
    deserialize_any,
    "a part such as `50%`",
    json_schema!({
        "description": "A part, such as `50%`.",
        "type": "string",
        "pattern": "^(100|[0-9]{1,2}) *%$"
    })
);
as_text!(
    TimeOfDay,
    deserialize_str,
    "a time of the day such as `02:00`",
    json_schema!({
        "description": "A time of the day in UTC, such as `02:00`.",
        "type": "string",
        "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"
    })
);

#[cfg(test)]
mod tests {
    use super::*;

    fn window(days: &[Day], from: &str, to: &str) -> Window {
        let time = |text| TimeOfDay::parse(text).expect("a time");
        Window { days: days.to_vec(), from: time(from), to: time(to) }
    }

    fn open(window: &Window, at: &str) -> bool {
        window.contains(at.parse().expect("a timestamp"))
    }

    #[test]
    fn a_window_is_open_on_its_days_and_hours() {
        // 2026-03-01 is a Sunday.
        let sunday = window(&[Day::Sun], "02:00", "04:00");
        assert!(open(&sunday, "2026-03-01T02:00:00Z"));
        assert!(open(&sunday, "2026-03-01T03:59:59Z"));
        assert!(!open(&sunday, "2026-03-01T04:00:00Z"));
        assert!(!open(&sunday, "2026-03-01T01:59:59Z"));
        assert!(!open(&sunday, "2026-03-02T03:00:00Z"));
        assert!(open(&window(&[], "02:00", "04:00"), "2026-03-02T03:00:00Z"));
    }

    #[test]
    fn a_window_over_midnight_belongs_to_the_day_on_which_it_begins() {
        let saturday = window(&[Day::Sat], "22:00", "04:00");
        assert!(open(&saturday, "2026-02-28T23:00:00Z"));
        assert!(open(&saturday, "2026-03-01T03:00:00Z"));
        assert!(!open(&saturday, "2026-02-28T03:00:00Z"), "that one began on a Friday");
        assert!(!open(&saturday, "2026-03-01T23:00:00Z"));
        assert!(open(&window(&[], "00:00", "00:00"), "2026-03-01T12:00:00Z"), "a whole day");
    }

    #[test]
    fn it_pays_when_both_hold() {
        let rule = Defragmentation { free: Percent(50), at_least: ByteSize::mib(100) };
        let mib = |n: i64| n << 20;
        assert!(rule.pays(mib(300), mib(150)));
        assert!(!rule.pays(mib(300), mib(151)), "less than half");
        assert!(!rule.pays(mib(150), mib(51)), "less than 100 MiB");
        let always = Defragmentation { free: Percent(0), at_least: ByteSize::new(0) };
        assert!(always.pays(2, 1) && !always.pays(2, 2));
    }

    #[test]
    fn parts_and_times_survive_being_written_and_read_again() {
        for text in ["0%", "50%", "100%"] {
            assert_eq!(Percent::parse(text).map(|p| p.to_string()), Ok(text.to_owned()));
        }
        for text in ["00:00", "02:30", "23:59"] {
            assert_eq!(TimeOfDay::parse(text).map(|t| t.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "50", "101%", "-1%", "+5%", "%", "a%"] {
            assert!(Percent::parse(text).is_err(), "{text}");
        }
        for text in ["", "2:00", "24:00", "23:60", "02-00", "02:00:00", "+2:00"] {
            assert!(TimeOfDay::parse(text).is_err(), "{text}");
        }
    }
}
