//! What locks cost, by class and by phase, as in the lock tables of the published documents:
//!
//! ```text
//! lock.phase                  taken  contended       wait       hold   wait/CPU
//! zone.alloc                 1.20 M      4.10%     812 ns     230 ns      3.99%
//! all                        3.31 M      1.70%     820 ns     120 ns      4.61%
//! ```
//! `wait` is the mean over acquisitions that waited, `hold` the mean over all. `wait/CPU` is the
//! time waited by the CPU time of the run: the share of CPU time spent spinning. Sleep after
//! spinning is included, so the ratio can exceed that share.

use highwater_command::Unit;
use highwater_mm::{lock_class, phase};
use highwater_platform::{LockClass, LockRecord, LockStatistics, Phase};
use highwater_units::Nanos;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::fmt::Write;

/// The locks of a class in a phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRow {
    /// What the locks protect.
    pub class: String,
    /// The phase of the threads that took them.
    pub phase: String,
    /// Times they were taken.
    pub acquisitions: u64,
    /// How many of these waited.
    pub contended: u64,
    /// Time they waited.
    pub wait_ns: u64,
    /// Time they were held.
    pub hold_ns: u64,
}

impl LockRow {
    fn new(class: LockClass, phase: &Phase, record: &LockRecord) -> LockRow {
        LockRow {
            class: class.name().into(),
            phase: phase.name().into(),
            acquisitions: record.acquisitions,
            contended: record.contended,
            wait_ns: record.wait.0,
            hold_ns: record.hold.0,
        }
    }
}

/// All locks that were taken, sorted by wait time, then by hold time, the longest first.
pub fn lock_rows(statistics: &LockStatistics) -> Vec<LockRow> {
    let each = lock_class::ALL.into_iter().flat_map(|class| phase::ALL.map(|phase| (class, phase)));
    let row = |(class, phase)| LockRow::new(class, phase, statistics.get(class, phase));
    let mut rows: Vec<_> = each.map(row).filter(|row| row.acquisitions > 0).collect();
    rows.sort_by_key(|row| Reverse((row.wait_ns, row.hold_ns)));
    rows
}

/// The first `rows` of the locks that were taken, and their sum. `cpu`: all CPU time of the run.
pub fn lock_table(statistics: &LockStatistics, cpu: Nanos, rows: usize) -> String {
    table_of(&lock_rows(statistics), cpu, rows)
}

/// A table of rows, in their order.
pub fn table_of(rows: &[LockRow], cpu: Nanos, most: usize) -> String {
    let mut text = line("lock.phase", ["taken", "contended", "wait", "hold", "wait/CPU"]);
    for row in rows.iter().take(most) {
        text += &figures(&format!("{}.{}", row.class, row.phase), std::slice::from_ref(row), cpu);
    }
    text += &figures("all", rows, cpu);
    text.truncate(text.trim_end().len());
    text
}

/// A line of figures: the sum of `rows`.
fn figures(name: &str, rows: &[LockRow], cpu: Nanos) -> String {
    let sum = |part: fn(&LockRow) -> u64| rows.iter().map(part).sum::<u64>() as f64;
    let (taken, contended) = (sum(|row| row.acquisitions), sum(|row| row.contended));
    let (wait, hold) = (sum(|row| row.wait_ns), sum(|row| row.hold_ns));
    let ratio = |part: f64, whole: f64| (whole > 0.0).then(|| part / whole);
    let cells = [
        Unit::Count.show(Some(taken)),
        Unit::Share.show(ratio(contended, taken)),
        Unit::Time.show(ratio(wait, contended)),
        Unit::Time.show(ratio(hold, taken)),
        Unit::Share.show(ratio(wait, cpu.0 as f64)),
    ];
    line(name, cells.each_ref().map(String::as_str))
}

fn line(name: &str, cells: [&str; 5]) -> String {
    let mut line = format!("{name:22}");
    for cell in cells {
        let _ = write!(line, "{cell:>11}");
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(records: &[(LockClass, &Phase, [u64; 4])]) -> LockStatistics {
        let mut statistics = LockStatistics::default();
        for (class, phase, [acquisitions, contended, wait, hold]) in records.iter().copied() {
            let (wait, hold) = (Nanos(wait), Nanos(hold));
            *statistics.get_mut(class, phase) = LockRecord { acquisitions, contended, wait, hold };
        }
        statistics
    }

    #[test]
    fn waited_for_comes_before_held_and_the_sum_has_all() {
        let statistics = statistics(&[
            (lock_class::LRU, phase::RECLAIM, [500, 0, 0, 1_000]),
            (lock_class::ZONE, phase::ALLOC, [1_000_000, 40_000, 40_000_000, 200_000_000]),
            (lock_class::LRU_BATCH, phase::FAULT, [500, 0, 0, 2_000_000]),
            (lock_class::ZONE, phase::RECLAIM, [0, 0, 0, 0]),
        ]);
        assert_eq!(
            lock_table(&statistics, Nanos(1_000_000_000), 2),
            "\
lock.phase                  taken  contended       wait       hold   wait/CPU
zone.alloc                 1.00 M      4.00%    1.00 us     200 ns      4.00%
lru_batch.fault               500      0.00%          -    4.00 us      0.00%
all                        1.00 M      4.00%    1.00 us     202 ns      4.00%"
        );
        let names: Vec<_> = lock_rows(&statistics).into_iter().map(|row| row.class).collect();
        assert_eq!(names, ["zone", "lru_batch", "lru"]);
    }

    #[test]
    fn no_locks_and_no_time_divide_nothing() {
        let table = lock_table(&LockStatistics::default(), Nanos(0), 10);
        let all = table.lines().nth(1).expect("a sum");
        assert_eq!(all.split_whitespace().collect::<Vec<_>>(), ["all", "0", "-", "-", "-", "-"]);
        assert_eq!(table.lines().count(), 2);
    }
}
