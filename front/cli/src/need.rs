//! The memory that a run needed, if that exceeds a limit on all memory: memory that cannot be
//! paged, and the least pages of its processes.
//!
//! ```text
//! Budget: sums ---\
//! Pss of each -----+-- need: pure --> Need --\  every 250 ms
//! figures of the largest process --> Need ---+-- most: pure ---> Verdict
//! peak of the kernel -------------------------/
//! ```
//! The sums of the budget add figures that processes measured at different times: of shared memory
//! that more and more processes map, they count too much for a second or two. So if the sums exceed
//! the limit, all processes are measured, one after another. That takes milliseconds.

use highwater_mm::stats::{Counter, Snapshot};
use highwater_units::Bytes;
use std::fmt;
use std::time::Duration;

/// The least pages of a served process.
const PAGES_MIN: Bytes = Bytes(1 << 20);
/// Shorter runs may have ended before their processes were measured.
const MEASURED: Duration = Duration::from_secs(1);

/// A kind of memory that cannot be paged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Shared,
    Files,
    Executable,
    SwapInRam,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Shared => "shared memory",
            Kind::Files => "mapped files",
            Kind::Executable => "generated code",
            Kind::SwapInRam => "swap in RAM",
        })
    }
}

/// Why memory is not paged, where it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// More than half of it is of this kind.
    Mostly(Kind),
    /// The process with the most memory cannot be served: its name, and why.
    NotServed(String, &'static str),
    Unknown,
}

/// The memory that the processes of a run needed at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// In all: `unpaged`, and the least pages of each process.
    pub(crate) needed: Bytes,
    /// Memory that cannot be paged.
    pub(crate) unpaged: Bytes,
    pub(crate) why: Why,
}

/// Figures of the budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    pub(crate) limit: Bytes,
    pub(crate) unpaged: Bytes,
    /// The least pages of each process.
    pub(crate) least: Bytes,
}

/// The memory of all processes, measured one after another. A page that is mapped several times
/// counts once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    pub(crate) all: Bytes,
    pub(crate) shared: Bytes,
    pub(crate) files: Bytes,
    pub(crate) swap_in_ram: Bytes,
    /// The name of the process with the most memory, and why it cannot be served.
    pub(crate) not_served: Option<(String, &'static str)>,
}

/// The memory that processes need, if it exceeds the limit.
pub(crate) fn need(sums: Sums, taken: impl FnOnce() -> Taken) -> Option<Need> {
    let Sums { limit, unpaged, least } = sums;
    let known = Bytes(unpaged.0 + least.0);
    if known <= limit {
        return None;
    }
    let taken = taken();
    let needed = known.min(taken.all);
    let unpaged = Bytes(needed.0.saturating_sub(least.0));
    (needed > limit).then(|| Need { needed, unpaged, why: why(unpaged, taken) })
}

fn why(unpaged: Bytes, taken: Taken) -> Why {
    let Taken { shared, files, swap_in_ram, not_served, .. } = taken;
    let kinds = [(Kind::Shared, shared), (Kind::Files, files), (Kind::SwapInRam, swap_in_ram)];
    match not_served {
        Some((name, why)) => Why::NotServed(name, why),
        None => mostly(unpaged, &kinds),
    }
}

fn mostly(unpaged: Bytes, kinds: &[(Kind, Bytes)]) -> Why {
    let most = kinds.iter().find(|(_, bytes)| bytes.0 > unpaged.0 / 2);
    most.map_or(Why::Unknown, |(kind, _)| Why::Mostly(*kind))
}

/// A run that has ended.
pub(crate) struct Ended<'a> {
    pub(crate) limit: Bytes,
    pub(crate) elapsed: Duration,
    /// The most that it was seen to need beyond the limit.
    pub(crate) seen: Option<&'a Need>,
    /// The last figures of its largest process; `None`: no process published any.
    pub(crate) largest: Option<&'a Snapshot>,
    /// The kernel's peak of one process.
    pub(crate) max_rss: Bytes,
}

/// The most that a run needed, if that is more than the limit.
pub(crate) fn most(run: &Ended<'_>) -> Option<Need> {
    let &Ended { limit, elapsed, seen, largest, max_rss } = run;
    let of_kernel = || {
        let why = seen.map_or(Why::Unknown, |seen| seen.why.clone());
        Need { needed: max_rss, unpaged: max_rss, why }
    };
    let last = match largest {
        Some(process) => Some(of_process(process)),
        None => (elapsed < MEASURED).then(of_kernel),
    };
    let needs = [seen.cloned(), last].into_iter().flatten();
    needs.filter(|need| need.needed > limit).max_by_key(|need| need.needed)
}

/// The memory that one process needed, however short its life was.
fn of_process(process: &Snapshot) -> Need {
    let of = |counter| Bytes(process.get(counter));
    let unpaged = Bytes(of(Counter::ElsewhereBytes).0 + of(Counter::MetaBytes).0);
    let least = if process.get(Counter::Processes) > 0 { PAGES_MIN } else { Bytes(0) };
    let kinds = [
        (Kind::Shared, of(Counter::ElsewhereShared)),
        (Kind::Files, of(Counter::ElsewhereFiles)),
        (Kind::Executable, of(Counter::ElsewhereExecutable)),
    ];
    Need { needed: Bytes(unpaged.0 + least.0), unpaged, why: mostly(unpaged, &kinds) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMS: Sums = Sums { limit: Bytes(100), unpaged: Bytes(90), least: Bytes(11) };

    fn taken(all: u64, shared: u64) -> Taken {
        Taken { all: Bytes(all), shared: Bytes(shared), ..Taken::default() }
    }

    #[test]
    fn processes_need_their_least_pages_besides_what_cannot_be_paged() {
        let unused = || unreachable!("within the limit, nothing is measured");
        assert_eq!(need(Sums { least: Bytes(10), ..SUMS }, unused), None);
        let exceeds = |why| Some(Need { needed: Bytes(101), unpaged: Bytes(90), why });
        assert_eq!(need(SUMS, || taken(120, 45)), exceeds(Why::Unknown));
        assert_eq!(need(SUMS, || taken(120, 46)), exceeds(Why::Mostly(Kind::Shared)));
        let not_served = Some(("prog".to_owned(), "is static"));
        let found = need(SUMS, || Taken { not_served, ..taken(120, 46) });
        assert_eq!(found, exceeds(Why::NotServed("prog".to_owned(), "is static")));
    }

    #[test]
    fn sums_of_different_times_are_corrected() {
        // Of 100 shared bytes, two processes have counted 100 and 50.
        let sums = Sums { unpaged: Bytes(160), ..SUMS };
        assert_eq!(need(sums, || taken(100, 90)), None);
        let needed = Some((Bytes(121), Bytes(110)));
        assert_eq!(need(sums, || taken(121, 100)).map(|need| (need.needed, need.unpaged)), needed);
    }

    fn process(counts: &[(Counter, u64)]) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        counts.iter().for_each(|(counter, value)| snapshot.counters[*counter as usize] = *value);
        snapshot
    }

    #[test]
    fn a_run_that_was_too_short_to_be_measured_is_judged_by_its_last_figures() {
        let [shared, served] = [
            [(Counter::ElsewhereBytes, 104), (Counter::ElsewhereShared, 90)],
            [(Counter::ElsewhereBytes, 70), (Counter::Processes, 1)],
        ]
        .map(|counts| process(&counts));
        let seen = Need { needed: Bytes(103), unpaged: Bytes(103), why: Why::Mostly(Kind::Files) };
        let run = Ended {
            limit: Bytes(100),
            elapsed: Duration::ZERO,
            seen: None,
            largest: None,
            max_rss: Bytes(150),
        };
        let needed = |run| most(&run).map(|need| (need.needed.0, need.why));
        let of_shared = Some((104, Why::Mostly(Kind::Shared)));
        for (run, expected) in [
            (Ended { ..run }, Some((150, Why::Unknown))),
            (Ended { max_rss: Bytes(100), ..run }, None),
            (Ended { elapsed: MEASURED, ..run }, None),
            (Ended { seen: Some(&seen), ..run }, Some((150, Why::Mostly(Kind::Files)))),
            (
                Ended { seen: Some(&seen), elapsed: MEASURED, ..run },
                Some((103, Why::Mostly(Kind::Files))),
            ),
            (Ended { largest: Some(&shared), ..run }, of_shared.clone()),
            (Ended { largest: Some(&shared), seen: Some(&seen), ..run }, of_shared),
            (Ended { largest: Some(&served), limit: Bytes(2 << 20), ..run }, None),
            (
                Ended { largest: Some(&served), limit: PAGES_MIN, ..run },
                Some((PAGES_MIN.0 + 70, Why::Unknown)),
            ),
            (Ended { seen: Some(&seen), limit: Bytes(103), elapsed: MEASURED, ..run }, None),
        ] {
            assert_eq!(needed(run), expected);
        }
    }
}
