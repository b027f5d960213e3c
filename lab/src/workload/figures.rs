//! The figures of a run, as printed and as JSON.

use super::WORDS;
use super::highalloc::HighallocFigures;
use super::outcome::{Measured, Outcome, Pass};
use super::tally::Tally;
use crate::report::locks::{LockRow, lock_rows};
use hdrhistogram::Histogram;
use highwater_command::Unit;
use highwater_mm::slab::{CacheReport, Event};
use highwater_mm::stats::{Counter, HistogramSnapshot, Snapshot};
use highwater_units::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Times and counts of one run. "Major" faults waited for a device read; the others are "soft".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Threads that ran.
    pub threads: usize,
    /// Bytes of the set.
    pub set_bytes: u64,
    /// Wall time of the run.
    pub seconds: f64,
    /// Loads and stores.
    pub accesses: u64,
    /// Loads and stores per second, all threads together.
    pub accesses_per_s: f64,
    /// Faults that waited for a device read.
    pub major_faults: u64,
    /// All other faults.
    pub soft_faults: u64,
    /// Major faults / accesses: the miss ratio; none without accesses.
    pub major_faults_per_access: Option<f64>,
    /// Major faults per second.
    pub major_faults_per_s: f64,
    /// Soft faults per second.
    pub soft_faults_per_s: f64,
    /// threads * wall time / major faults; none without major faults.
    pub ns_per_major_fault_and_thread: Option<f64>,
    /// threads * wall time / all faults; none without faults.
    pub ns_per_fault_and_thread: Option<f64>,
    /// CPU time of the process / major faults: the figure that other programs disturb least. It
    /// includes Highwater's kswapd, but not the kernel's.
    pub cpu_ns_per_major_fault: Option<f64>,
    /// Interrupts that flush TLBs / major faults: those of the whole machine, including other
    /// programs'.
    pub tlb_interrupts_per_major_fault: Option<f64>,
    /// Context switches of the process, of all its threads / major faults.
    pub context_switches_per_major_fault: Option<f64>,
    /// System calls for pages (userfaultfd, madvise) / major faults; none where there are none.
    pub calls_per_major_fault: Option<f64>,
    /// By how much the second half of the run was faster than the first, as a share; none where
    /// halves are not measured.
    pub drift: Option<f64>,
    /// Half of all faults were served within this; none where the server does not time them.
    pub fault_p50_ns: Option<u64>,
    /// 99% of all faults were served within this.
    pub fault_p99_ns: Option<u64>,
    /// Half of all accesses took at most this.
    pub access_p50_ns: u64,
    /// 99% of all accesses took at most this.
    pub access_p99_ns: u64,
    /// Pages read from swap, or from the file, per second.
    pub pages_in_per_s: f64,
    /// CPUs that the process kept busy. The kernel's own threads are not in it.
    pub cpus: f64,
    /// CPUs that other programs, and the kernel's own threads, kept busy meanwhile. If there were
    /// any, the run was disturbed.
    pub other_cpus: Option<f64>,
    /// 10^9 bytes read from swap per second.
    pub swap_in_gb_per_s: f64,
    /// 10^9 bytes written to swap per second.
    pub swap_out_gb_per_s: f64,
    /// Direct reclaims per second; none where the kernel manages the memory.
    pub direct_reclaims_per_s: Option<f64>,
    /// Share of the time in which a thread was stalled for lack of memory; none where the kernel
    /// manages the memory.
    pub stalled: Option<f64>,
    /// 10^9 bytes per second of the pass that wrote the whole set first; none without such a pass.
    pub fill_gb_per_s: Option<f64>,
    /// 10^9 bytes per second of the pass that checked the whole set at the end; none without.
    pub sweep_gb_per_s: Option<f64>,
    /// Loads that were checked while the threads ran.
    pub checked_reads: u64,
    /// Words that were checked at the end: the whole set, except files that are only read.
    pub swept_words: u64,
    /// Transfers to which `flaky:` swap has injected faults, from the start.
    pub injected_faults: u64,
    /// CPU time of the process while the threads ran.
    pub cpu_ns: u64,
    /// What each task reached, where the workload is a pass of each.
    pub tasks: Option<TaskRates>,
    /// How long a small task beside the streams waited for pages; none where there is none.
    pub small: Option<SmallWaits>,
    /// Caches of objects, where there are any.
    pub slabs: Option<Vec<SlabFigures>>,
    /// What passes that asked for large blocks got; none where there are none.
    pub highalloc: Option<HighallocFigures>,
    /// What devices of two levels did; none where there is none.
    pub tiers: Option<TierFigures>,
    /// What locks cost meanwhile; none where the kernel manages the memory.
    pub locks: Option<Vec<LockRow>>,
}

impl Figures {
    /// The figures of a run.
    pub fn of(outcome: &Outcome) -> Figures {
        let Measured { run, cpu, kernel, calls, nanos_per_tick, before, after, locks } =
            &outcome.measured;
        let Tally { loads, stores, latency, first_half } = &outcome.tally;
        let seconds = run.as_secs_f64();
        let gained = Gained { before, after };
        let set = Bytes::of_pages(outcome.pages).0;
        let accesses = loads + stores;
        let major_faults = gained.count(Counter::PgMajFault);
        let soft_faults = gained.count(Counter::PgFault).saturating_sub(major_faults);
        let thread_ns = outcome.threads as f64 * seconds * 1e9;
        let per_fault = |faults| (faults > 0).then(|| thread_ns / faults as f64);
        let per_major_fault =
            |count: u64| (major_faults > 0).then(|| count as f64 / major_faults as f64);
        let drift =
            |first: u64| (first > 0).then(|| (accesses - first) as f64 / first as f64 - 1.0);
        let faults = gained.faults();
        let fault_ns = |share| (faults.count() > 0).then(|| faults.quantile(share).0);
        let access_ns = |share| (latency.value_at_quantile(share) as f64 * nanos_per_tick) as u64;
        let pages_in = gained.count(Counter::PswpIn);
        let read = pages_in + gained.count(Counter::PgFileIn);
        let ours = |figure: f64| locks.as_ref().map(|_| figure);
        let gb_per_s = |bytes: u64, seconds: f64| bytes as f64 / 1e9 / seconds;
        Figures {
            threads: outcome.threads,
            set_bytes: set,
            seconds,
            accesses,
            accesses_per_s: accesses as f64 / seconds,
            major_faults,
            soft_faults,
            major_faults_per_access: (accesses > 0).then(|| major_faults as f64 / accesses as f64),
            major_faults_per_s: major_faults as f64 / seconds,
            soft_faults_per_s: soft_faults as f64 / seconds,
            ns_per_major_fault_and_thread: per_fault(major_faults),
            ns_per_fault_and_thread: per_fault(major_faults + soft_faults),
            cpu_ns_per_major_fault: per_major_fault(cpu.total().0),
            tlb_interrupts_per_major_fault: kernel.tlb_interrupts.and_then(per_major_fault),
            context_switches_per_major_fault: kernel.context_switches.and_then(per_major_fault),
            calls_per_major_fault: calls.and_then(per_major_fault),
            drift: first_half.and_then(drift),
            fault_p50_ns: fault_ns(0.5),
            fault_p99_ns: fault_ns(0.99),
            access_p50_ns: access_ns(0.5),
            access_p99_ns: access_ns(0.99),
            pages_in_per_s: read as f64 / seconds,
            cpus: cpu.total().0 as f64 / 1e9 / seconds,
            other_cpus: kernel.busy.map(|all| all.since(cpu.total()).0 as f64 / 1e9 / seconds),
            swap_in_gb_per_s: gb_per_s(Bytes::of_pages(pages_in).0, seconds),
            swap_out_gb_per_s: gb_per_s(Bytes::of_pages(gained.count(Counter::PswpOut)).0, seconds),
            direct_reclaims_per_s: ours(gained.count(Counter::AllocStall) as f64 / seconds),
            stalled: ours(gained.count(Counter::PsiSomeMicros) as f64 / 1e6 / seconds),
            fill_gb_per_s: outcome.fill.map(|fill| gb_per_s(set, fill.as_secs_f64())),
            sweep_gb_per_s: (!outcome.sweep.is_zero())
                .then(|| gb_per_s(set, outcome.sweep.as_secs_f64())),
            checked_reads: *loads,
            swept_words: outcome.swept * WORDS as u64,
            injected_faults: after.get(Counter::InjectedFaults),
            cpu_ns: cpu.total().0,
            tasks: outcome.passes.as_deref().map(TaskRates::of),
            small: outcome.small.as_ref().map(|waits| SmallWaits::of(waits, *nanos_per_tick)),
            slabs: outcome.slabs.as_ref().map(|all| all.iter().map(SlabFigures::of).collect()),
            highalloc: outcome
                .highalloc
                .as_ref()
                .map(|passes| HighallocFigures::of(passes, &outcome.measured)),
            tiers: TierFigures::of(&gained, seconds),
            locks: locks.as_ref().map(lock_rows),
        }
    }
}

/// How long a task waited for pages that it needed now and then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SmallWaits {
    /// How many pages it needed.
    pub pages: u64,
    /// Median time to get a page.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// The longest wait.
    pub max_ns: u64,
}

impl SmallWaits {
    fn of(waits: &Histogram<u64>, nanos_per_tick: f64) -> SmallWaits {
        let nanos = |ticks: u64| (ticks as f64 * nanos_per_tick) as u64;
        SmallWaits {
            pages: waits.len(),
            p50_ns: nanos(waits.value_at_quantile(0.5)),
            p99_ns: nanos(waits.value_at_quantile(0.99)),
            max_ns: nanos(waits.max()),
        }
    }

    /// As rows of a table.
    pub fn rows(&self) -> [(&'static str, Unit, f64); 3] {
        [
            ("small task's pages, p50", Unit::Time, self.p50_ns as f64),
            ("small task's pages, p99", Unit::Time, self.p99_ns as f64),
            ("small task's pages, longest", Unit::Time, self.max_ns as f64),
        ]
    }
}

/// What devices of two levels held at the end of the run, and did meanwhile, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierFigures {
    /// Pages in fast levels.
    pub fast_pages: u64,
    /// Pages in slow levels.
    pub slow_pages: u64,
    /// Pages moved to a slow level, per second.
    pub written_back_per_s: f64,
    /// Pages carried by each write that did so; none without.
    pub pages_per_writeback: Option<f64>,
    /// Pages that such a write failed for.
    pub writeback_failures: u64,
    /// Pages read from a slow level, per second.
    pub slow_reads_per_s: f64,
    /// Pages written to a slow level at once, per second.
    pub slow_writes_per_s: f64,
}

impl TierFigures {
    fn of(gained: &Gained<'_>, seconds: f64) -> Option<TierFigures> {
        let held = [Counter::TierFast, Counter::TierSlow].map(|level| gained.after.get(level));
        let [fast_pages, slow_pages] = held;
        let per_s = |counter| gained.count(counter) as f64 / seconds;
        let (pages, ios) =
            (gained.count(Counter::TierWriteback), gained.count(Counter::TierWritebackIos));
        (fast_pages + slow_pages > 0).then(|| TierFigures {
            fast_pages,
            slow_pages,
            written_back_per_s: per_s(Counter::TierWriteback),
            pages_per_writeback: (ios > 0).then(|| pages as f64 / ios as f64),
            writeback_failures: gained.count(Counter::TierWritebackFailures),
            slow_reads_per_s: per_s(Counter::TierSlowReads),
            slow_writes_per_s: per_s(Counter::TierSlowWrites),
        })
    }
}

/// A cache of objects at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlabFigures {
    /// Its name.
    pub name: String,
    /// Bytes of an object.
    pub object_bytes: u32,
    /// Pages of a slab.
    pub slab_pages: u64,
    /// Objects of a slab.
    pub slab_objects: u16,
    /// Pages of all slabs.
    pub pages: u64,
    /// Objects handed out.
    pub used: u64,
    /// Slabs on nodes' lists.
    pub partial: u64,
    /// How often each way was taken since the cache was made, by its name.
    pub events: BTreeMap<String, u64>,
}

impl SlabFigures {
    fn of((report, from_other): &(CacheReport, u64)) -> SlabFigures {
        let event = |event: &Event| (event.name().to_owned(), report.count(*event));
        let other = ("alloc_from_other".to_owned(), *from_other);
        SlabFigures {
            name: report.name.clone(),
            object_bytes: report.size,
            slab_pages: report.slab_pages,
            slab_objects: report.slab_objects,
            pages: report.pages,
            used: report.used,
            partial: report.partial,
            events: Event::ALL.iter().map(event).chain([other]).collect(),
        }
    }

    /// The caches as a table, each with how often its ways were taken.
    pub fn table(all: &[SlabFigures]) -> String {
        let mut text = format!(
            "{:22}{:>7}{:>7}{:>9}{:>9}{:>11}{:>9}\n",
            "cache", "bytes", "pages", "objects", "MiB", "used", "partial"
        );
        for cache in all {
            let SlabFigures { name, object_bytes, slab_pages, slab_objects, used, partial, .. } =
                cache;
            let mib = Bytes::of_pages(cache.pages).0 >> 20;
            let _ = writeln!(
                text,
                "{name:22}{object_bytes:>7}{slab_pages:>7}{slab_objects:>9}{mib:>9}{used:>11}\
                 {partial:>9}"
            );
            for (event, count) in cache.events.iter().filter(|(_, count)| **count > 0) {
                let _ = writeln!(text, "  {event:20}{count:>14}");
            }
        }
        text
    }
}

/// How fast the tasks of a run were, in what usemem calls KB/s: 1024 bytes per second, 8 bytes for
/// each access.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskRates {
    /// All tasks together: each over the time that it took itself.
    pub sum_kib_per_s: f64,
    /// Half of the tasks reached this.
    pub median_kib_per_s: f64,
    /// By how much they differ: standard deviation.
    pub stddev_kib_per_s: f64,
}

impl TaskRates {
    /// As rows of a table.
    pub fn rows(&self) -> [(&'static str, Unit, f64); 3] {
        [
            ("tasks' KB/s, sum", Unit::Rate, self.sum_kib_per_s),
            ("tasks' KB/s, median", Unit::Rate, self.median_kib_per_s),
            ("tasks' KB/s, deviation", Unit::Rate, self.stddev_kib_per_s),
        ]
    }

    /// Of at least one pass.
    fn of(passes: &[Pass]) -> TaskRates {
        let mut rates: Vec<f64> = passes.iter().map(Pass::kib_per_s).collect();
        rates.sort_by(f64::total_cmp);
        let (count, middle) = (rates.len() as f64, rates.len() / 2);
        let sum: f64 = rates.iter().sum();
        let mean = sum / count;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / count;
        let median = match rates.len() % 2 {
            0 => f64::midpoint(rates[middle - 1], rates[middle]),
            _ => rates[middle],
        };
        TaskRates {
            sum_kib_per_s: sum,
            median_kib_per_s: median,
            stddev_kib_per_s: variance.sqrt(),
        }
    }
}

/// What was counted between two snapshots.
struct Gained<'a> {
    before: &'a Snapshot,
    after: &'a Snapshot,
}

impl Gained<'_> {
    fn count(&self, counter: Counter) -> u64 {
        self.after.get(counter).saturating_sub(self.before.get(counter))
    }

    fn faults(&self) -> HistogramSnapshot {
        self.after.faults().since(&self.before.faults())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::world::{CpuUse, KernelCounts, RoleTime};
    use hdrhistogram::Histogram;
    use highwater_mm::stats::Stats;
    use highwater_mm::{lock_class, phase};
    use highwater_platform::LockStatistics;
    use highwater_units::{CpuId, Nanos};
    use std::time::Duration;

    #[test]
    fn rates_follow_from_counts_and_times() {
        let stats = Stats::new(1);
        stats.add(CpuId(0), Counter::PgMajFault, 5);
        let before = stats.snapshot();
        stats.add(CpuId(0), Counter::PgFault, 3000);
        stats.add(CpuId(0), Counter::PgMajFault, 1000);
        stats.add(CpuId(0), Counter::PswpIn, 1000);
        (0..3000).for_each(|_| stats.minor_fault(CpuId(0), Nanos(1000)));
        let mut latency = Histogram::new_with_bounds(1, 1 << 36, 2).expect("bounds");
        (1..=100).for_each(|ticks| latency.record(ticks * 10).expect("in bounds"));
        let mut locks = LockStatistics::default();
        locks.table_mut()[usize::from(lock_class::ZONE.id())][usize::from(phase::ALLOC.id())]
            .acquisitions = 77;
        let busy = Nanos(500_000_000);
        let process = RoleTime { name: "process".into(), threads: 1, busy };
        let measured = Measured {
            run: Duration::from_secs(2),
            cpu: CpuUse { roles: vec![process], phases: Vec::new() },
            kernel: KernelCounts {
                tlb_interrupts: Some(20),
                context_switches: None,
                busy: Some(Nanos(1_500_000_000)),
            },
            calls: Some(1500),
            nanos_per_tick: 0.5,
            before,
            after: stats.snapshot(),
            locks: Some(locks),
        };
        let tally = Tally { loads: 6000, stores: 2000, latency, first_half: Some(3200) };
        let figures = Figures::of(&Outcome {
            pages: 1000,
            threads: 4,
            fill: Some(Duration::from_secs(1)),
            sweep: Duration::from_secs(1),
            swept: 1000,
            ..Outcome::new(tally, measured)
        });
        assert_eq!(figures.accesses_per_s, 4000.0);
        assert_eq!((figures.major_faults, figures.soft_faults), (1000, 2000));
        assert_eq!(figures.ns_per_major_fault_and_thread, Some(8e6));
        assert_eq!(figures.cpu_ns_per_major_fault, Some(5e5));
        assert_eq!(figures.tlb_interrupts_per_major_fault, Some(0.02));
        assert_eq!(figures.context_switches_per_major_fault, None);
        assert_eq!(figures.calls_per_major_fault, Some(1.5));
        assert_eq!(figures.drift, Some(0.5));
        assert_eq!(figures.major_faults_per_access, Some(0.125));
        assert!((245..=260).contains(&figures.access_p50_ns), "{}", figures.access_p50_ns);
        assert!((1000..=1130).contains(&figures.fault_p50_ns.expect("timed")));
        assert_eq!(figures.swap_in_gb_per_s, 4096e3 / 1e9 / 2.0);
        assert_eq!(figures.fill_gb_per_s, Some(4096e3 / 1e9));
        assert_eq!(figures.tasks, None);
        assert_eq!(figures.cpu_ns, 500_000_000);
        assert_eq!((figures.cpus, figures.other_cpus), (0.25, Some(0.5)));
        let locks = figures.locks.expect("they were asked");
        assert_eq!(locks.iter().map(|row| row.acquisitions).collect::<Vec<_>>(), [77]);
    }

    #[test]
    fn tasks_add_up_and_have_a_middle() {
        let pass = |bytes, millis| Pass { bytes, time: Duration::from_millis(millis) };
        let three = [pass(1024, 1000), pass(4096, 1000), pass(2048, 2000)];
        let rates = TaskRates::of(&three);
        assert_eq!((rates.sum_kib_per_s, rates.median_kib_per_s), (6.0, 1.0));
        assert_eq!(rates.stddev_kib_per_s, 2.0_f64.sqrt());
        let rates = TaskRates::of(&three[..2]);
        assert_eq!((rates.median_kib_per_s, rates.stddev_kib_per_s), (2.5, 1.5));
    }
}
