//! The figures of each process of a run: the part `by_process` of the report, and its table.
//!
//! ```text
//! Published, per image of a process --- add ---> Processes --- by_process ---> ByProcess -- JSON
//!                                                                                        \- table
//! ```
//! A run may have many thousands of processes. The processes with the largest peaks are kept; the
//! others count in the sums only. Locks: none.

use highwater_command::{count, counted};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_session::Published;
use highwater_units::Bytes;
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Most processes that the report lists.
const LISTED_MAX: usize = 1000;
/// Most processes that the table shows.
const SHOWN_MAX: usize = 8;

/// Width of the first column of the summary, to which the table is aligned.
const FIRST_WIDTH: usize = 18;

/// The processes of a run, while it goes on.
#[derive(Default)]
pub(crate) struct Processes(BTreeMap<u32, ProcessFigures>);

/// The figures of one process, all its images (exec) together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ProcessFigures {
    /// Process number, as the process sees it.
    pub(crate) pid: u32,
    /// Name of its last image, from the time when its first memory was paged.
    pub(crate) name: String,
    /// Most memory of the budget that was in use at once.
    pub(crate) peak_paged_bytes: u64,
    /// Faults, traffic and lost time.
    #[serde(flatten)]
    pub(crate) events: Events,
}

/// Faults, traffic and lost time, which add up over processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Events {
    /// Faults served from memory.
    pub(crate) faults_minor: u64,
    /// Faults that waited for a device read.
    pub(crate) faults_major: u64,
    /// Read from swap.
    pub(crate) swapped_in_bytes: u64,
    /// Written to swap.
    pub(crate) swapped_out_bytes: u64,
    /// Time in which a thread waited for memory or swap.
    pub(crate) stalled_seconds: f64,
}

/// The processes of a run that has ended.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ByProcess {
    /// Those with the largest peaks, the largest first.
    pub(crate) listed: Vec<ProcessFigures>,
    /// How many others there were.
    pub(crate) not_listed: usize,
    /// Over all processes, those that are not listed included.
    pub(crate) sum: Events,
    /// The largest `peak_paged_bytes` of any process.
    pub(crate) largest_peak_paged_bytes: u64,
}

impl Events {
    fn of(snapshot: &Snapshot) -> Events {
        let major = snapshot.get(Counter::PgMajFault);
        Events {
            faults_minor: snapshot.get(Counter::PgFault).saturating_sub(major),
            faults_major: major,
            swapped_in_bytes: Bytes::of_pages(snapshot.get(Counter::PswpIn)).0,
            swapped_out_bytes: Bytes::of_pages(snapshot.get(Counter::PswpOut)).0,
            stalled_seconds: snapshot.get(Counter::PsiSomeMicros) as f64 / 1e6,
        }
    }

    fn add(&mut self, other: &Events) {
        self.faults_minor += other.faults_minor;
        self.faults_major += other.faults_major;
        self.swapped_in_bytes += other.swapped_in_bytes;
        self.swapped_out_bytes += other.swapped_out_bytes;
        self.stalled_seconds += other.stalled_seconds;
    }
}

impl Processes {
    /// Adds an image of a served process. Images of a pid are added in order of age, the oldest
    /// first.
    pub(crate) fn add(&mut self, pid: u32, published: &Published) {
        let Published { name, snapshot, .. } = published;
        let process = self.0.entry(pid).or_default();
        process.pid = pid;
        process.name.clone_from(name);
        let peak = snapshot.get(Counter::ArenaBytes);
        process.peak_paged_bytes = process.peak_paged_bytes.max(peak);
        process.events.add(&Events::of(snapshot));
        if self.0.len() > 2 * LISTED_MAX {
            let largest = largest_first(std::mem::take(&mut self.0).into_values().collect());
            let kept = largest.into_iter().take(LISTED_MAX);
            self.0 = kept.map(|process| (process.pid, process)).collect();
        }
    }

    /// The figures of the report. `all`: sums over the `served` processes.
    pub(crate) fn by_process(&self, all: &Snapshot, served: usize) -> ByProcess {
        let mut listed = largest_first(self.0.values().cloned().collect());
        listed.truncate(LISTED_MAX);
        ByProcess {
            not_listed: served.saturating_sub(listed.len()),
            listed,
            sum: Events::of(all),
            largest_peak_paged_bytes: all.get(Counter::ArenaBytes),
        }
    }
}

/// Sorted by peak. Processes that all filled their budget have equal peaks: of these, the ones that
/// waited for swap more often come first.
fn largest_first(mut processes: Vec<ProcessFigures>) -> Vec<ProcessFigures> {
    processes.sort_by_key(|process| {
        (Reverse((process.peak_paged_bytes, process.events.faults_major)), process.pid)
    });
    processes
}

const TITLES: [&str; 7] =
    ["  by process", "peak paged", "minor", "major", "swapped in", "swapped out", "stalled"];

impl ByProcess {
    /// The table of the summary, for several processes: those with the largest peaks, and sums.
    pub(crate) fn table(&self) -> Vec<String> {
        let all = self.listed.len() + self.not_listed;
        if all < 2 {
            return Vec::new();
        }
        let shown = self.listed.iter().take(SHOWN_MAX);
        let rows = shown.map(|process| {
            let peak = Bytes(process.peak_paged_bytes).to_string();
            row(process.title(), peak, &process.events)
        });
        let titles = [TITLES.map(str::to_owned)];
        let sum = row("    sum of all".to_owned(), "-".to_owned(), &self.sum);
        let mut lines = aligned(&titles.into_iter().chain(rows).chain([sum]).collect::<Vec<_>>());
        let more = all.saturating_sub(SHOWN_MAX);
        if more > 0 {
            let others = counted(more as u64, "more process", "more processes");
            lines.insert(lines.len() - 1, format!("    {others}"));
        }
        lines
    }
}

impl ProcessFigures {
    fn title(&self) -> String {
        let name = if self.name.is_empty() { "?" } else { &self.name };
        format!("    {name} ({})", self.pid)
    }
}

fn row(title: String, peak: String, events: &Events) -> [String; 7] {
    [
        title,
        peak,
        count(events.faults_minor),
        count(events.faults_major),
        Bytes(events.swapped_in_bytes).to_string(),
        Bytes(events.swapped_out_bytes).to_string(),
        format!("{:.2} s", events.stalled_seconds),
    ]
}

/// The rows as lines: the first column to the left, the others to the right.
fn aligned(rows: &[[String; 7]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let least = |column| if column == 0 { FIRST_WIDTH } else { 0 };
    let widths: [usize; 7] =
        std::array::from_fn(|column| width(column).unwrap_or(0).max(least(column)));
    let line = |row: &[String; 7]| {
        let first = format!("{:<width$}", row[0], width = widths[0]);
        let others = row.iter().zip(widths).skip(1);
        others.fold(first, |line, (cell, width)| format!("{line}  {cell:>width$}"))
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(name: &str, counts: &[(Counter, u64)]) -> Published {
        let mut snapshot = Snapshot::empty();
        counts.iter().for_each(|(counter, value)| snapshot.counters[*counter as usize] = *value);
        Published { name: name.to_owned(), snapshot, parts: None, malloc: None }
    }

    fn of_peaks(peaks: impl Iterator<Item = u64>) -> ByProcess {
        let (mut processes, mut all, mut served) = (Processes::default(), Snapshot::empty(), 0);
        for (pid, mib) in (1..).zip(peaks) {
            let counts = [(Counter::ArenaBytes, mib << 20), (Counter::PgFault, 1)];
            let published = published("python3", &counts);
            all.merge(&published.snapshot);
            processes.add(pid, &published);
            served += 1;
        }
        processes.by_process(&all, served)
    }

    #[test]
    fn images_of_a_process_are_one_row() {
        let mut processes = Processes::default();
        let counts = |faults, peak| {
            [
                (Counter::PgFault, faults),
                (Counter::PgMajFault, 4),
                (Counter::PswpIn, 1),
                (Counter::PswpOut, 2),
                (Counter::PsiSomeMicros, 250_000),
                (Counter::ArenaBytes, peak),
            ]
        };
        processes.add(7, &published("sh", &counts(10, 300)));
        processes.add(7, &published("sort", &counts(20, 200)));
        let found = processes.by_process(&Snapshot::empty(), 1);
        let events = Events {
            faults_minor: 22,
            faults_major: 8,
            swapped_in_bytes: 8192,
            swapped_out_bytes: 16384,
            stalled_seconds: 0.5,
        };
        let name = "sort".to_owned();
        let expected = ProcessFigures { pid: 7, name, peak_paged_bytes: 300, events };
        assert_eq!((found.listed, found.not_listed), (vec![expected], 0));
    }

    #[test]
    fn the_largest_are_kept_and_all_are_in_the_sums() {
        let drawn = || (1..=5000).map(|n| n * 7919 % 5003);
        let found = of_peaks(drawn());
        assert_eq!((found.listed.len(), found.not_listed), (LISTED_MAX, 4000));
        let peaks: Vec<u64> = found.listed.iter().map(|it| it.peak_paged_bytes >> 20).collect();
        let mut largest: Vec<u64> = drawn().collect();
        largest.sort_by_key(|peak| Reverse(*peak));
        assert_eq!(peaks, largest[..LISTED_MAX]);
        assert_eq!((found.sum.faults_minor, found.largest_peak_paged_bytes), (5000, 5002 << 20));
    }

    #[test]
    fn the_table_has_the_largest_and_says_how_many_more() {
        assert!(of_peaks([5].into_iter()).table().is_empty());
        let two = of_peaks([5, 64].into_iter()).table();
        assert_eq!(
            two,
            [
                "  by process        peak paged  minor  major  swapped in  swapped out  stalled",
                "    python3 (2)         64 MiB      1      0         0 B          0 B   0.00 s",
                "    python3 (1)          5 MiB      1      0         0 B          0 B   0.00 s",
                "    sum of all               -      2      0         0 B          0 B   0.00 s",
            ]
        );
        let many = of_peaks(1..=20).table();
        assert_eq!(many.len(), 1 + SHOWN_MAX + 2);
        assert_eq!(many[SHOWN_MAX + 1], "    12 more processes");
    }
}
