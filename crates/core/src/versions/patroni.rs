//! A version of Patroni, a version of etcd or PostgreSQL → whether they work together, and how that is known.

use std::ops::RangeInclusive;

use crate::spec::{EtcdVersion, PatroniVersion, PostgresVersion};

/// Whether two versions work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Tried on real servers.
    Tested,
    /// By their release notes and sources.
    Expected,
    /// They do not, for this reason.
    Refused(&'static str),
}

/// The least version of Patroni that raftsman runs.
pub const LEAST_PATRONI: PatroniVersion = PatroniVersion::new(4, 1, 4);
/// The major versions of PostgreSQL that raftsman runs: Patroni 4 rewinds and promotes these.
pub const POSTGRES: RangeInclusive<u32> = 13..=18;

/// The SHA-256 of the bundle of this version that is shipped with raftsman.
pub fn shipped(version: PatroniVersion) -> Option<&'static str> {
    (version == PatroniVersion::new(4, 1, 5)).then(|| include_str!("../../../../tools/patroni/4.1.5.sha256").trim())
}

/// The versions of a line, from this patch on.
const fn line(minor: u64, from: u64) -> RangeInclusive<EtcdVersion> {
    EtcdVersion::new(3, minor, from)..=EtcdVersion::new(3, minor, u64::MAX)
}

const fn patroni(minor: u32, patch: u32) -> PatroniVersion {
    PatroniVersion::new(4, minor, patch)
}

const AUTH_FAILS: &str = "Patroni before 4.1.1 cannot list the members of an etcd with auth from 3.5.28 and 3.6.9 on";
const DEMOTES: &str =
    "Patroni before 4.1.4 can demote a healthy primary when etcd's leader changes ('not a primary lessor')";
const END_OF_LIFE: &str = "etcd 3.4 gets no more fixes";
const NOT_LISTED: &str = "raftsman has no row for them in its matrix of Patroni's and etcd's versions";

const ALL: RangeInclusive<PatroniVersion> = PatroniVersion::new(0, 0, 0)..=patroni(u32::MAX, u32::MAX);
const BEFORE_4_1_1: RangeInclusive<PatroniVersion> = PatroniVersion::new(0, 0, 0)..=patroni(1, 0);
const BEFORE_4_1_4: RangeInclusive<PatroniVersion> = PatroniVersion::new(0, 0, 0)..=patroni(1, 3);
const FROM_4_1_4: RangeInclusive<PatroniVersion> = LEAST_PATRONI..=patroni(u32::MAX, u32::MAX);

/// The first row that has both decides.
const MATRIX: [(RangeInclusive<PatroniVersion>, RangeInclusive<EtcdVersion>, Verdict); 10] = [
    (ALL, line(4, 0), Verdict::Refused(END_OF_LIFE)),
    (BEFORE_4_1_1, line(5, 28), Verdict::Refused(AUTH_FAILS)),
    (BEFORE_4_1_1, line(6, 9), Verdict::Refused(AUTH_FAILS)),
    (BEFORE_4_1_1, line(7, 0), Verdict::Refused(AUTH_FAILS)),
    (BEFORE_4_1_4, line(5, 0), Verdict::Refused(DEMOTES)),
    (BEFORE_4_1_4, line(6, 0), Verdict::Refused(DEMOTES)),
    (BEFORE_4_1_4, line(7, 0), Verdict::Refused(DEMOTES)),
    (FROM_4_1_4, line(5, 28), Verdict::Expected),
    (FROM_4_1_4, line(6, 9), Verdict::Expected),
    (FROM_4_1_4, line(7, 0), Verdict::Expected),
];

/// What was tried on real servers, one by one and mixed during an upgrade.
const TESTED: [(PatroniVersion, EtcdVersion); 2] =
    [(patroni(1, 5), EtcdVersion::new(3, 6, 15)), (patroni(1, 5), EtcdVersion::new(3, 7, 2))];

/// Whether this Patroni works on this etcd, with auth on.
pub fn on_etcd(patroni: PatroniVersion, etcd: EtcdVersion) -> Verdict {
    if TESTED.contains(&(patroni, etcd)) {
        return Verdict::Tested;
    }
    let row = MATRIX.iter().find(|(patronis, etcds, _)| patronis.contains(&patroni) && etcds.contains(&etcd));
    row.map_or(Verdict::Refused(NOT_LISTED), |(_, _, verdict)| *verdict)
}

/// Whether raftsman runs this Patroni at all.
pub fn is_known(patroni: PatroniVersion) -> bool {
    patroni >= LEAST_PATRONI && patroni.major == LEAST_PATRONI.major
}

/// Whether raftsman runs this PostgreSQL.
pub fn runs(postgres: PostgresVersion) -> bool {
    POSTGRES.contains(&postgres.major)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix() {
        let versions = |patroni: &str, etcd: &str| {
            let parsed = (PatroniVersion::parse(patroni).expect("Patroni"), EtcdVersion::parse(etcd).expect("etcd"));
            on_etcd(parsed.0, parsed.1)
        };
        for (patroni, etcd, verdict) in [
            ("4.1.5", "3.6.15", Verdict::Tested),
            ("4.1.5", "3.7.2", Verdict::Tested),
            ("4.1.5", "3.5.34", Verdict::Expected),
            ("4.1.4", "3.6.9", Verdict::Expected),
            ("4.2.0", "3.7.9", Verdict::Expected),
            ("4.1.5", "3.6.8", Verdict::Refused(NOT_LISTED)),
            ("4.1.5", "3.5.27", Verdict::Refused(NOT_LISTED)),
            ("4.1.5", "3.8.0", Verdict::Refused(NOT_LISTED)),
            ("5.0.0", "3.6.15", Verdict::Refused(NOT_LISTED)),
            ("4.1.3", "3.6.15", Verdict::Refused(DEMOTES)),
            ("4.1.1", "3.5.20", Verdict::Refused(DEMOTES)),
            // Debian's.
            ("4.0.7", "3.6.15", Verdict::Refused(AUTH_FAILS)),
            ("3.0.2", "3.5.28", Verdict::Refused(AUTH_FAILS)),
            ("4.1.5", "3.4.37", Verdict::Refused(END_OF_LIFE)),
        ] {
            assert_eq!(versions(patroni, etcd), verdict, "Patroni {patroni}, etcd {etcd}");
        }
    }

    #[test]
    fn known_versions() {
        let patroni = |text| is_known(PatroniVersion::parse(text).expect("a version"));
        assert_eq!(["4.0.7", "4.1.3", "4.1.4", "4.2.0", "5.0.0"].map(patroni), [false, false, true, true, false]);
        let postgres = |text| runs(PostgresVersion::parse(text).expect("a version"));
        assert_eq!(["9.6", "12", "13", "17.11", "18", "19"].map(postgres), [false, false, true, true, true, false]);
    }
}
