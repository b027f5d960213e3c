//! What limited a run, and what to change.
//!
//! ```text
//! Totals, Need -- Evidence --- verdict: pure ---> Verdict --- Display ---> end of the summary
//! ```
//! Memory that cannot be paged comes before waits: where it takes more than the limit, pages have
//! the least that processes keep, and waits follow from that.
//!
//! The memory that would have avoided most reads is estimated from reuse distances
//! (`Snapshot::frames_to_avoid`). These are measured per process, so the estimate is given only if
//! one process made nearly all reads, and if the budget was the same at the end. How much faster
//! the run would have been on compressed memory follows from a sample of the pages that were
//! written, and from the latencies of minor and major faults. The recommended device keeps the
//! present device behind the compressed memory, for pages that compress less than the sample.

use crate::need::{self, Need, Why};
use crate::options::Memory;
use crate::swap::only_slow;
use crate::totals::{Totals, reads};
use highwater_devices::{Algorithm, Area, Sample, Spec};
use highwater_mm::stats::Counter;
use highwater_session::{MARGIN, Scope};
use highwater_units::{Bytes, PAGE_SHIFT};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The option of a budget that counts all memory.
const OF_ALL: &str = "--memory";
/// Part of the run's time, in percent, below which waiting for memory does not matter.
const STALLED_MIN: u64 = 2;
/// The estimate of a process counts if it made at least this part of all reads, in percent.
const READS_MIN: u64 = 90;
/// Part of the reads that the larger budget should avoid.
const AVOIDED: f64 = 0.9;
/// Least number of pages in a sample that counts.
const SAMPLED_MIN: u64 = 16;
/// Compressed memory is recommended if the run would have been this many times as fast, ...
const TIMES_MIN: f64 = 1.2;
/// ... and the data becomes this many times smaller: pages that compress less would bypass the
/// compressed memory.
const COMPRESSES_MIN: f64 = 2.0;

/// What limited a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum LimitedBy {
    /// Threads hardly waited for memory.
    Nothing,
    /// Threads waited for pages that were read from swap.
    SwapReads,
    /// Threads waited for memory to be freed.
    Reclaim,
    /// Memory that cannot be paged, and the least pages of each process, exceeded the limit.
    Unpaged,
    /// Memory and swap were full: a process was ended, or the program failed and had requests for
    /// memory refused.
    Full,
    /// The kernel's OOM killer ended a process of the run's memory cgroup.
    Kernel,
}

/// What limited a run, and what would help.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Verdict {
    /// What limited it.
    pub(crate) limited_by: LimitedBy,
    /// Time in which at least one thread waited for memory, in percent of the run.
    pub(crate) stalled_percent: u64,
    /// The budget with which many reads from swap would not have been made (nine of ten, by the
    /// reuse distances seen), and in which memory that cannot be paged has room, in bytes; none if
    /// too little is known.
    pub(crate) budget_bytes: Option<u64>,
    /// The option that sets that budget.
    pub(crate) option: &'static str,
    /// What swap in compressed memory would do; none if little, or if too little is known.
    pub(crate) zram: Option<Zram>,
    /// The memory needed beyond the limit on all memory; none if the limit sufficed, or if the
    /// budget is for pages alone.
    pub(crate) shortage: Option<Shortage>,
}

/// The memory that a run needed beyond a limit on all memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Shortage {
    /// Beyond the limit.
    pub(crate) excess_bytes: u64,
    /// Memory that cannot be paged.
    pub(crate) unpaged_bytes: u64,
    /// The least pages of all processes.
    pub(crate) pages_bytes: u64,
    /// The kind of most of the unpaged memory, or the reason that the largest process cannot be
    /// served; none if neither is known.
    pub(crate) why: Option<String>,
}

impl Shortage {
    fn of(need: &Need, limit: Bytes) -> Shortage {
        Shortage {
            excess_bytes: need.needed.0 - limit.0,
            unpaged_bytes: need.unpaged.0,
            pages_bytes: need.needed.0 - need.unpaged.0,
            why: match &need.why {
                Why::Mostly(kind) => Some(format!("most of it is {kind}")),
                Why::NotServed(name, why) => Some(format!("{name} {why}")),
                Why::Unknown => None,
            },
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { excess_bytes, unpaged_bytes, pages_bytes, why } = self;
        let [excess, unpaged] = [*excess_bytes, *unpaged_bytes].map(Bytes);
        write!(f, "the run needed {excess} more than {OF_ALL}: {unpaged} cannot be paged")?;
        if let Some(why) = why {
            write!(f, " ({why})")?;
        }
        match *pages_bytes {
            0 => Ok(()),
            pages => write!(f, ", and pages need {}", Bytes(pages)),
        }
    }
}

/// Swap in compressed memory before the device that the run had.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Zram {
    /// How many times as fast the run would have been.
    pub(crate) times: f64,
    /// How many times smaller the data becomes.
    pub(crate) compresses: f64,
    /// The device to give.
    pub(crate) swap: String,
    /// The compressed memory of it, in bytes.
    pub(crate) swap_bytes: u64,
    /// The budget with which pages have as much memory as now, in bytes.
    pub(crate) budget_bytes: u64,
}

impl Zram {
    /// The options to give; `option` sets the budget.
    pub(crate) fn options(&self, option: &str) -> String {
        format!("{option} {}M --swap {}", self.budget_bytes >> 20, self.swap)
    }
}

/// The evidence.
#[derive(Clone, Debug)]
struct Evidence {
    elapsed: Duration,
    /// The lack of memory that has ended a process.
    ended_by: Option<LimitedBy>,
    /// Time in which at least one thread waited for memory: a sum over processes, at most the
    /// length of the run.
    stalled: Duration,
    /// Time that threads waited for reads from swap, summed over all threads.
    reading: Duration,
    /// Time in which threads freed memory themselves, summed over all threads.
    reclaiming: Duration,
    /// Pages that all processes read from swap.
    reads: u64,
    /// The reads of the process that read most, ...
    reads_of_one: u64,
    /// ... and the frames that would have avoided most of them.
    frames: Option<u64>,
    /// Written pages that were compressed.
    sample: Sample,
    /// The swap device, if there is only one, and it has no level in memory.
    slow: Option<Area>,
    /// Mean latencies of faults.
    minor: Duration,
    major: Duration,
    /// Pages that were in swap at once.
    swapped: Bytes,
    /// The budget; `None`: it was different at the end.
    budget: Option<Bytes>,
    /// Peak resident memory of the process that read most, beyond the budget; 0 if it is within.
    /// Memory that is not paged may need more than the budget.
    excess: Bytes,
    scope: Option<Scope>,
    /// The memory that the processes needed, if it exceeds the limit on all memory.
    need: Option<Need>,
    /// The limit at the start or at the end, if that was larger.
    limit: Bytes,
}

impl Evidence {
    fn of(totals: &Totals, run: &Run<'_>, ended_by: Option<LimitedBy>) -> Evidence {
        let &Run { memory, swap, elapsed, limit_at_end, need, max_rss } = run;
        let (all, reader) = (&totals.all, totals.reader.as_ref());
        let paged = Bytes::of_pages(all.get(Counter::PagedPeak));
        let budget = memory.budget();
        let scope = memory.shared.map(|shared| shared.scope);
        let peak = match scope {
            Some(Scope::Everything) => reader.map_or(0, |one| one.get(Counter::CountedPeak)),
            Some(Scope::Paged) | None => 0,
        };
        let limit = limit_at_end.unwrap_or(budget).max(budget);
        let largest = totals.largest.as_ref().map(|(_, largest)| largest);
        let ended = need::Ended { limit, elapsed, seen: need, largest, max_rss };
        let sum = |count: u64, mean: u64| Duration::from_nanos(count.saturating_mul(mean));
        Evidence {
            elapsed,
            ended_by,
            stalled: Duration::from_micros(all.get(Counter::PsiSomeMicros)).min(elapsed),
            reading: sum(all.major.count(), all.major.mean().0),
            reclaiming: sum(all.reclaims.count(), all.reclaims.mean().0),
            reads: reads(all),
            reads_of_one: reader.map_or(0, reads),
            frames: reader.and_then(|reader| reader.frames_to_avoid(AVOIDED)),
            sample: Sample {
                pages: all.get(Counter::SampledPages),
                bytes: all.get(Counter::SampledBytes),
                nanos: all.get(Counter::SampledNanos),
                ..Sample::default()
            },
            slow: only_slow(swap).cloned(),
            minor: Duration::from_nanos(all.minor.mean().0),
            major: Duration::from_nanos(all.major.mean().0),
            swapped: Bytes(paged.0.saturating_sub(all.get(Counter::ArenaBytes))),
            budget: (limit_at_end.unwrap_or(budget) == budget).then_some(budget),
            excess: Bytes(peak.saturating_sub(budget.0)),
            scope,
            need: (scope == Some(Scope::Everything)).then(|| need::most(&ended)).flatten(),
            limit,
        }
    }

    /// The option that sets the budget.
    fn option(&self) -> &'static str {
        match self.scope {
            Some(Scope::Everything) => OF_ALL,
            Some(Scope::Paged) => "--paged",
            None => "--memory-per-process",
        }
    }
}

/// A run to be judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) swap: &'a [Area],
    pub(crate) elapsed: Duration,
    /// The budget at the end, if processes shared one.
    pub(crate) limit_at_end: Option<Bytes>,
    /// The most that its processes were seen to need beyond the limit.
    pub(crate) need: Option<&'a Need>,
    /// The kernel's peak of one process.
    pub(crate) max_rss: Bytes,
}

impl Verdict {
    /// The verdict on a run. `ended_by`: the lack of memory that has ended a process of the run.
    pub(crate) fn of(totals: &Totals, run: &Run<'_>, ended_by: Option<LimitedBy>) -> Verdict {
        verdict(&Evidence::of(totals, run, ended_by))
    }
}

fn verdict(evidence: &Evidence) -> Verdict {
    let &Evidence { elapsed, ended_by, stalled, reading, reclaiming, .. } = evidence;
    let stalled_percent = (stalled.as_micros() * 100 / elapsed.as_micros().max(1)) as u64;
    let limited_by = match ended_by {
        Some(lack) => lack,
        None if evidence.need.is_some() => LimitedBy::Unpaged,
        None if stalled_percent < STALLED_MIN => LimitedBy::Nothing,
        None if reclaiming > reading => LimitedBy::Reclaim,
        None => LimitedBy::SwapReads,
    };
    let is_stalled = stalled_percent >= STALLED_MIN;
    // Both estimates are for one process.
    let is_of_one = evidence.reads_of_one * 100 >= evidence.reads * READS_MIN;
    let avoids = budget(evidence).filter(|_| is_of_one && is_stalled);
    let (budget_bytes, zram) = match limited_by {
        LimitedBy::Nothing | LimitedBy::Full | LimitedBy::Kernel => (None, None),
        LimitedBy::Unpaged => (room(evidence).max(avoids), None),
        LimitedBy::SwapReads => (avoids, zram(evidence).filter(|_| is_of_one)),
        LimitedBy::Reclaim => (avoids, None),
    };
    let need = evidence.need.as_ref().filter(|_| limited_by == LimitedBy::Unpaged);
    let shortage = need.map(|need| Shortage::of(need, evidence.limit));
    let option = evidence.option();
    Verdict { limited_by, stalled_percent, budget_bytes, option, zram, shortage }
}

/// The limit in which the needed memory has room beside the part that is kept free.
fn room(evidence: &Evidence) -> Option<u64> {
    let needed = evidence.need.as_ref()?.needed.0;
    Some(in_mib(needed + needed / (MARGIN - 1)))
}

/// Rounded up to whole MiB, in bytes.
fn in_mib(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    bytes.div_ceil(MIB) * MIB
}

/// The budget that would have avoided most reads, if that is larger than the one that the run had.
fn budget(evidence: &Evidence) -> Option<u64> {
    let (budget, more) = (evidence.budget?, Bytes::of_pages(evidence.frames?));
    let larger = in_mib(budget.0 + evidence.excess.0 + more.0);
    (larger > in_mib(budget.0)).then_some(larger)
}

/// The gain by compressed memory: a major fault then takes the time of a minor fault plus the time
/// to decompress a page. The compressed memory is a quarter larger than the data needs. A budget
/// that counts compressed memory is at least twice as large, because compressed memory gets half of
/// it.
fn zram(evidence: &Evidence) -> Option<Zram> {
    let &Evidence { elapsed, stalled, minor, major, swapped, sample, .. } = evidence;
    let (slow, budget) = (evidence.slow.clone()?, evidence.budget?);
    if sample.pages < SAMPLED_MIN || sample.bytes == 0 || major.is_zero() || swapped.0 == 0 {
        return None;
    }
    let read = minor + Duration::from_nanos(sample.nanos / sample.pages);
    let left = read.as_secs_f64() / major.as_secs_f64();
    let would_take = elapsed.as_secs_f64() - stalled.as_secs_f64() * (1.0 - left);
    let times = elapsed.as_secs_f64() / would_take;
    let compresses = (sample.pages << PAGE_SHIFT) as f64 / sample.bytes as f64;
    let takes = (swapped.0 as f64 / compresses) as u64;
    let swap_bytes = in_mib(takes + takes / 4);
    let budget_bytes = match evidence.scope {
        Some(Scope::Everything) => in_mib(budget.0 + takes).max(2 * swap_bytes),
        // Swap in memory is not in these budgets.
        Some(Scope::Paged) | None => in_mib(budget.0),
    };
    let fast = Spec::Zram { size: Bytes(swap_bytes), algorithm: Algorithm::default() };
    let spec = Spec::Tier { fast: Box::new(fast), slow: Box::new(slow.spec) };
    let swap = Area { spec, ..slow }.to_string();
    let helps = times >= TIMES_MIN && compresses >= COMPRESSES_MIN;
    helps.then_some(Zram { times, compresses, swap, swap_bytes, budget_bytes })
}

impl Verdict {
    /// Whether the budget counts all memory.
    pub(crate) fn is_of_all_memory(&self) -> bool {
        self.option == OF_ALL
    }

    fn write_shortage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(shortage), Some(bytes)) = (&self.shortage, self.budget_bytes) {
            write!(f, "{shortage}; give {} {}M", self.option, bytes >> 20)?;
        }
        match self.stalled_percent {
            few if few < STALLED_MIN => Ok(()),
            percent => write!(f, "; a thread waited {percent} % of the time"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.limited_by {
            LimitedBy::Nothing => return f.write_str("memory did not slow the program"),
            LimitedBy::Full => return f.write_str("memory and swap were full"),
            LimitedBy::Kernel => return f.write_str("the kernel's OOM killer ended a process"),
            LimitedBy::Unpaged => return self.write_shortage(f),
            LimitedBy::SwapReads => "for reads from swap",
            LimitedBy::Reclaim => "for memory to be freed",
        };
        let percent = self.stalled_percent;
        write!(f, "a thread waited {percent} % of the time, mostly {reason}")?;
        let option = self.option;
        if let Some(bytes) = self.budget_bytes {
            write!(f, "; {option} {}M would avoid many reads", bytes >> 20)?;
        }
        if let Some(zram) = &self.zram {
            let Zram { times, compresses, .. } = zram;
            write!(f, "; {} would be {times:.1} times as fast", zram.options(option))?;
            write!(f, ", the data compresses {compresses:.1} times")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::need::Kind;

    const SLOW: Evidence = Evidence {
        elapsed: Duration::from_secs(100),
        ended_by: None,
        stalled: Duration::from_secs(46),
        reading: Duration::from_secs(60),
        reclaiming: Duration::from_secs(2),
        reads: 1000,
        reads_of_one: 900,
        frames: Some(1000),
        sample: Sample { pages: 0, bytes: 0, nanos: 0, small: 0, filled: 0 },
        slow: None,
        minor: Duration::from_micros(5),
        major: Duration::from_micros(60),
        swapped: Bytes(300 << 20),
        budget: Some(Bytes(64 << 20)),
        excess: Bytes(0),
        scope: Some(Scope::Everything),
        need: None,
        limit: Bytes(64 << 20),
    };
    const NEED: Need =
        Need { needed: Bytes(204 << 20), unpaged: Bytes(200 << 20), why: Why::Unknown };
    /// Compresses to a quarter, and is decompressed in 1 us.
    const COMPRESSING: Sample =
        Sample { pages: 100, bytes: 100 << 10, nanos: 100_000, small: 100, filled: 0 };
    const INCOMPRESSIBLE: Sample =
        Sample { pages: 100, bytes: 400 << 10, nanos: 0, small: 0, filled: 0 };

    /// The device of a run.
    fn disk() -> Option<Area> {
        Area::parse("dir:/var/tmp:1G,rotational=1").ok()
    }

    #[test]
    fn a_verdict_names_the_limit_and_the_remedy() {
        let secs = Duration::from_secs;
        let table = [
            (
                SLOW,
                "a thread waited 46 % of the time, mostly for reads from swap; --memory 68M would \
                 avoid many reads",
            ),
            (
                Evidence { excess: Bytes(10 << 20), ..SLOW },
                "a thread waited 46 % of the time, mostly for reads from swap; --memory 78M would \
                 avoid many reads",
            ),
            (Evidence { stalled: secs(1), ..SLOW }, "memory did not slow the program"),
            (Evidence { ended_by: Some(LimitedBy::Full), ..SLOW }, "memory and swap were full"),
            (
                Evidence { ended_by: Some(LimitedBy::Kernel), ..SLOW },
                "the kernel's OOM killer ended a process",
            ),
            (
                Evidence { reclaiming: secs(61), frames: None, ..SLOW },
                "a thread waited 46 % of the time, mostly for memory to be freed",
            ),
            (
                Evidence {
                    reads_of_one: 899,
                    stalled: secs(22),
                    sample: COMPRESSING,
                    slow: disk(),
                    ..SLOW
                },
                "a thread waited 22 % of the time, mostly for reads from swap",
            ),
            (
                Evidence { budget: None, sample: COMPRESSING, slow: disk(), ..SLOW },
                "a thread waited 46 % of the time, mostly for reads from swap",
            ),
            (
                Evidence { scope: Some(Scope::Paged), ..SLOW },
                "a thread waited 46 % of the time, mostly for reads from swap; --paged 68M would \
                 avoid many reads",
            ),
            (
                Evidence { frames: Some(0), ..SLOW },
                "a thread waited 46 % of the time, mostly for reads from swap",
            ),
        ];
        assert_verdicts(&table);
    }

    #[test]
    fn memory_that_cannot_be_paged_is_named_with_a_limit_that_holds_it() {
        let stalled = Duration::from_secs(1);
        let of = |why| Some(Need { why, ..NEED });
        let table = [
            (
                Evidence { need: of(Why::Mostly(Kind::Shared)), stalled, ..SLOW },
                "the run needed 140 MiB more than --memory: 200 MiB cannot be paged (most of it is \
                 shared memory), and pages need 4 MiB; give --memory 211M",
            ),
            (
                Evidence { need: of(Why::Unknown), ..SLOW },
                "the run needed 140 MiB more than --memory: 200 MiB cannot be paged, and pages \
                 need 4 MiB; give --memory 211M; a thread waited 46 % of the time",
            ),
            (
                Evidence {
                    need: Some(Need {
                        needed: Bytes(66 << 20),
                        unpaged: Bytes(66 << 20),
                        why: Why::NotServed("busybox".to_owned(), "is statically linked"),
                    }),
                    frames: Some(10_000),
                    ..SLOW
                },
                "the run needed 2 MiB more than --memory: 66 MiB cannot be paged (busybox is \
                 statically linked); give --memory 104M; a thread waited 46 % of the time",
            ),
            (
                Evidence { need: of(Why::Unknown), ended_by: Some(LimitedBy::Full), ..SLOW },
                "memory and swap were full",
            ),
        ];
        assert_verdicts(&table);
    }

    #[test]
    fn compressed_memory_is_named_before_the_only_device() {
        let secs = Duration::from_secs;
        let table = [
            // 75 MiB hold the 300 MiB; 46 s of 100 become 4.6.
            (
                Evidence { sample: COMPRESSING, slow: disk(), frames: None, ..SLOW },
                "a thread waited 46 % of the time, mostly for reads from swap; --memory 188M \
                 --swap tier:zram:94M:lz4+dir:/var/tmp:1G,rotational=1 would be 1.7 times as fast, \
                 the data compresses 4.0 times",
            ),
            (
                Evidence {
                    sample: COMPRESSING,
                    slow: disk(),
                    frames: None,
                    swapped: Bytes(100 << 20),
                    ..SLOW
                },
                "a thread waited 46 % of the time, mostly for reads from swap; --memory 89M \
                 --swap tier:zram:32M:lz4+dir:/var/tmp:1G,rotational=1 would be 1.7 times as fast, \
                 the data compresses 4.0 times",
            ),
            (
                Evidence { sample: COMPRESSING, frames: None, ..SLOW },
                "a thread waited 46 % of the time, mostly for reads from swap",
            ),
            (
                Evidence { sample: COMPRESSING, slow: disk(), frames: None, scope: None, ..SLOW },
                "a thread waited 46 % of the time, mostly for reads from swap; \
                 --memory-per-process 64M --swap \
                 tier:zram:94M:lz4+dir:/var/tmp:1G,rotational=1 would be 1.7 times as fast, the \
                 data compresses 4.0 times",
            ),
            (
                Evidence {
                    sample: COMPRESSING,
                    slow: disk(),
                    frames: None,
                    swapped: Bytes(0),
                    ..SLOW
                },
                "a thread waited 46 % of the time, mostly for reads from swap",
            ),
            (
                Evidence { sample: INCOMPRESSIBLE, slow: disk(), frames: None, ..SLOW },
                "a thread waited 46 % of the time, mostly for reads from swap",
            ),
            (
                Evidence {
                    sample: COMPRESSING,
                    slow: disk(),
                    stalled: secs(16),
                    frames: None,
                    ..SLOW
                },
                "a thread waited 16 % of the time, mostly for reads from swap",
            ),
        ];
        assert_verdicts(&table);
    }

    #[track_caller]
    fn assert_verdicts(table: &[(Evidence, &str)]) {
        for (evidence, expected) in table {
            assert_eq!(verdict(evidence).to_string(), *expected, "{evidence:?}");
        }
    }
}
