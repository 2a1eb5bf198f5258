//! The history of a cluster's timelines, positions of acknowledged writes → those that a later timeline does not have.

use std::collections::BTreeMap;

/// The statement that tells the current timeline and the ends of those before it.
pub const HISTORY: &str = "select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) || chr(10) || \
                           coalesce(pg_read_file('pg_wal/' || max(name)), '') \
                           from pg_ls_dir('pg_wal') name where name like '%.history'";

/// Timelines on which a write was acknowledged that the cluster left behind: it has another past now.
pub fn left_behind(highest: &BTreeMap<u32, u64>, history: &str) -> Vec<String> {
    let mut lines = history.lines();
    let current = lines.next().and_then(|hex| u32::from_str_radix(hex.trim(), 16).ok()).expect("a timeline");
    let ends: BTreeMap<u32, u64> = lines.filter_map(end).collect();
    let wrong = highest.iter().filter(|(timeline, position)| match ends.get(timeline) {
        Some(end) => *position >= end,
        None => **timeline != current,
    });
    wrong.map(|(timeline, position)| format!("timeline {timeline} up to {position:X}: {history}")).collect()
}

/// A line of a file of history, such as `1<tab>0/5000148<tab>no recovery target specified`.
fn end(line: &str) -> Option<(u32, u64)> {
    let mut fields = line.split_whitespace();
    let timeline = fields.next()?.parse().ok()?;
    let (high, low) = fields.next()?.split_once('/')?;
    let half = |text: &str| u32::from_str_radix(text, 16).ok().map(u64::from);
    Some((timeline, (half(high)? << 32) | half(low)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: &str = "00000003\n1\t0/5000148\tno recovery target specified\n\n2\t1/6000000\tno recovery target\n";

    fn found(highest: &[(u32, u64)]) -> usize {
        left_behind(&highest.iter().copied().collect(), HISTORY).len()
    }

    #[test]
    fn what_was_acknowledged_after_a_fork_is_found() {
        assert_eq!(found(&[(1, 0x500_0147), (2, 0x1_05FF_FFFF), (3, u64::MAX)]), 0);
        assert_eq!(found(&[(1, 0x500_0148)]), 1);
        assert_eq!(found(&[(2, 0x1_0600_0000)]), 1);
        assert_eq!(found(&[(4, 1)]), 1, "a timeline that this one does not descend from");
        assert_eq!(left_behind(&[(1, 9)].into(), "00000001\n").len(), 0);
    }
}
