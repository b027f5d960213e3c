//! The figures of a run, from which the summary is made, and the JSON of `--report`.
//!
//! Names of fields do not change. Names contain units; counters under `vmstat` are the manager's,
//! summed over processes.

use crate::child::Ended;
use crate::malloc_figures::MallocFigures;
use crate::options::Memory;
use crate::processes::ByProcess;
use crate::swap::has_files;
use crate::totals::Totals;
use crate::verdict::Verdict;
use highwater_devices::Seal;
use highwater_mm::stats::{Counter, HistogramSnapshot, Snapshot};
use highwater_session::Settings;
use highwater_units::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// All figures of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Exit status of the program; none if a signal ended it.
    pub(crate) exit_status: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    pub(crate) elapsed_seconds: f64,
    /// Of all processes together, or of each.
    pub(crate) budget_bytes: u64,
    /// Whether all processes share it.
    pub(crate) budget_is_shared: bool,
    pub(crate) swap: Vec<String>,
    /// As given on the command line.
    pub(crate) kswapd_threads: String,
    /// Processes that were served.
    pub(crate) processes: usize,
    /// Those of them whose faults handler threads served.
    pub(crate) processes_by_handlers: usize,
    /// Processes that found no room for their statistics, which are missing here.
    pub(crate) processes_unpublished: usize,
    pub(crate) by_process: ByProcess,
    /// Processes that were ended because memory and swap were full.
    pub(crate) out_of_memory: u64,
    pub(crate) peak_resident: PeakResident,
    pub(crate) program: Program,
    pub(crate) paged_peak_bytes: u64,
    pub(crate) faults_minor: u64,
    pub(crate) faults_major: u64,
    pub(crate) swap_in: Transfer,
    pub(crate) swap_out: Transfer,
    /// None if no swap device has a file, or files are not encrypted.
    pub(crate) seal: Option<Sealing>,
    /// None if no page was compressed.
    pub(crate) compression: Option<Compressed>,
    /// None if no process used the library's malloc.
    pub(crate) malloc: Option<MallocFigures>,
    /// None if no swap device had two levels.
    pub(crate) tiers: Option<Tiers>,
    pub(crate) swap_io_errors: u64,
    /// What swap devices refused for lack of room although they had free slots.
    pub(crate) swap_refused_bytes: u64,
    pub(crate) direct_reclaims: u64,
    /// How long direct reclaims delayed threads.
    pub(crate) direct_reclaim_stall: Latency,
    pub(crate) pressure: Pressure,
    pub(crate) kswapd_cpu_seconds: f64,
    pub(crate) handler_cpu_seconds: f64,
    /// CPU time of the helper processes, and so of all the manager's threads.
    pub(crate) manager_cpu_seconds: f64,
    pub(crate) fault_latency: Latency,
    pub(crate) fault_latency_major: Latency,
    pub(crate) verdict: Verdict,
    /// All counters by name.
    pub(crate) vmstat: BTreeMap<&'static str, u64>,
}

/// How long threads were stalled by lack of memory, as in /proc/pressure/memory.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Pressure {
    /// At least one thread was stalled.
    pub(crate) some: Stalls,
    /// A thread was stalled, and no other ran.
    pub(crate) full: Stalls,
}

/// Stall time in total, and in percent of a process's last 10, 60 and 300 seconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Stalls {
    pub(crate) total_seconds: f64,
    pub(crate) avg10: f64,
    pub(crate) avg60: f64,
    pub(crate) avg300: f64,
}

/// The process with the largest resident set, and its parts.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PeakResident {
    /// None if no process published statistics.
    pub(crate) pid: Option<u32>,
    /// VmHWM.
    pub(crate) bytes: u64,
    /// Frames of paged memory.
    pub(crate) arena_bytes: u64,
    /// The manager's tables.
    pub(crate) manager_bytes: u64,
    /// RAM swap devices.
    pub(crate) ram_swap_bytes: u64,
    /// Memory that is not paged.
    pub(crate) elsewhere_bytes: u64,
    /// Its kinds, at its maximum.
    pub(crate) elsewhere: Elsewhere,
}

/// Memory that is not paged, by kind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Elsewhere {
    /// The C library's malloc, and raw brk calls.
    pub(crate) brk_bytes: u64,
    pub(crate) stacks_bytes: u64,
    /// Variables of programs and libraries that are initialised with zeros.
    pub(crate) static_bytes: u64,
    /// Programs, libraries and mapped files.
    pub(crate) files_bytes: u64,
    /// MAP_SHARED, memfd, tmpfs, System V.
    pub(crate) shared_bytes: u64,
    /// hugetlbfs.
    pub(crate) huge_bytes: u64,
    /// Anonymous and executable.
    pub(crate) executable_bytes: u64,
    pub(crate) other_bytes: u64,
}

/// What the kernel reports about the program and the children it waited for.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Program {
    pub(crate) max_rss_bytes: u64,
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
}

/// Traffic with the swap devices in one direction.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Transfer {
    pub(crate) bytes: u64,
    pub(crate) ios: u64,
    /// None without I/O.
    pub(crate) pages_per_io: Option<f64>,
    /// During the time that transfers took. None without I/O.
    pub(crate) bytes_per_second: Option<f64>,
}

/// What compressed devices held when each process had most pages there.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compressed {
    /// Uncompressed size.
    pub(crate) bytes: u64,
    /// Memory used.
    pub(crate) used_bytes: u64,
    /// Part of `bytes`: pages with one repeated word, which take no memory.
    pub(crate) same_filled_bytes: u64,
    /// Part of `bytes`: pages that do not compress.
    pub(crate) incompressible_bytes: u64,
}

/// How swap files are encrypted.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sealing {
    pub(crate) algorithm: &'static str,
    /// Most memory for keys, tags and pages that are being written, of one process.
    pub(crate) table_bytes: u64,
}

/// What devices of two levels held when each process had most pages there, and what they moved.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Tiers {
    pub(crate) fast_bytes: u64,
    pub(crate) slow_bytes: u64,
    /// Cold pages moved to the slow level.
    pub(crate) written_back_bytes: u64,
    pub(crate) writeback_ios: u64,
    /// Pages that stayed because the write failed.
    pub(crate) writeback_failures: u64,
    pub(crate) slow_read_bytes: u64,
    /// Pages written to the slow level directly because the fast one was full.
    pub(crate) slow_write_bytes: u64,
}

/// Distribution of a latency.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) mean_ns: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
}

/// The input of a report.
pub(crate) struct Observed<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) memory: &'a Memory,
    pub(crate) elapsed: Duration,
    /// Process number of the program.
    pub(crate) pid: u32,
    pub(crate) ended: Ended,
    /// The sums of what its processes published.
    pub(crate) totals: &'a Totals,
}

impl Report {
    /// Makes the report of a run.
    pub(crate) fn new(observed: &Observed<'_>) -> Report {
        let Totals { all, malloc, served, processes, by_handlers, unpublished, .. } =
            observed.totals;
        let get = |counter| all.get(counter);
        let seconds = |counter| get(counter) as f64 / 1e9;
        Report {
            exit_status: observed.ended.status.code(),
            signal: observed.ended.status.signal(),
            elapsed_seconds: observed.elapsed.as_secs_f64(),
            budget_bytes: observed.memory.budget().0,
            budget_is_shared: observed.memory.shared.is_some(),
            swap: observed.settings.swap.iter().map(ToString::to_string).collect(),
            kswapd_threads: observed.settings.kswapd.to_string(),
            processes: served.len(),
            processes_by_handlers: by_handlers.len(),
            processes_unpublished: *unpublished,
            by_process: processes.by_process(all, served.len()),
            out_of_memory: get(Counter::OutOfMemory),
            peak_resident: PeakResident::of(observed),
            program: Program::of(&observed.ended),
            paged_peak_bytes: Bytes::of_pages(get(Counter::PagedPeak)).0,
            faults_minor: get(Counter::PgFault).saturating_sub(get(Counter::PgMajFault)),
            faults_major: get(Counter::PgMajFault),
            swap_in: Transfer::of(all, IN),
            swap_out: Transfer::of(all, OUT),
            seal: Sealing::of(observed),
            compression: Compressed::of(all),
            malloc: malloc.as_ref().map(MallocFigures::of),
            tiers: Tiers::of(all),
            swap_io_errors: get(Counter::SwapIoErrors),
            swap_refused_bytes: Bytes::of_pages(get(Counter::SwapRefused)).0,
            direct_reclaims: get(Counter::AllocStall),
            direct_reclaim_stall: Latency::of(&all.reclaims),
            pressure: Pressure { some: Stalls::of(all, SOME), full: Stalls::of(all, FULL) },
            kswapd_cpu_seconds: seconds(Counter::KswapdNanos),
            handler_cpu_seconds: seconds(Counter::HandlerNanos),
            manager_cpu_seconds: seconds(Counter::HelperNanos),
            fault_latency: Latency::of(&all.faults()),
            fault_latency_major: Latency::of(&all.major),
            verdict: Verdict::of(
                observed.totals,
                observed.memory,
                &observed.settings.swap,
                observed.elapsed,
            ),
            vmstat: Counter::ALL.iter().map(|counter| (counter.name(), get(*counter))).collect(),
        }
    }
}

const SOME: [Counter; 4] =
    [Counter::PsiSomeMicros, Counter::PsiSome10, Counter::PsiSome60, Counter::PsiSome300];
const FULL: [Counter; 4] =
    [Counter::PsiFullMicros, Counter::PsiFull10, Counter::PsiFull60, Counter::PsiFull300];

impl Stalls {
    fn of(all: &Snapshot, counters: [Counter; 4]) -> Stalls {
        let [micros, avg10, avg60, avg300] = counters.map(|counter| all.get(counter) as f64);
        let [avg10, avg60, avg300] = [avg10, avg60, avg300].map(|average| average / 100.0);
        Stalls { total_seconds: micros / 1e6, avg10, avg60, avg300 }
    }
}

impl PeakResident {
    fn of(observed: &Observed<'_>) -> PeakResident {
        let peak = |process: &Snapshot| process.get(Counter::HighWaterBytes);
        let largest = observed.totals.largest.as_ref();
        let part = |counter| largest.map_or(0, |(_, process)| process.get(counter));
        PeakResident {
            pid: largest.map(|(pid, _)| *pid),
            // The kernel's figure is later than the program's own.
            bytes: match largest {
                Some((pid, process)) if *pid != observed.pid => peak(process),
                Some((_, process)) => peak(process).max(observed.ended.max_rss),
                None => observed.ended.max_rss,
            },
            arena_bytes: part(Counter::ArenaBytes),
            manager_bytes: part(Counter::MetaBytes),
            ram_swap_bytes: part(Counter::RamDeviceBytes),
            elsewhere_bytes: part(Counter::ElsewhereBytes),
            elsewhere: Elsewhere {
                brk_bytes: part(Counter::ElsewhereBrk),
                stacks_bytes: part(Counter::ElsewhereStacks),
                static_bytes: part(Counter::ElsewhereStatic),
                files_bytes: part(Counter::ElsewhereFiles),
                shared_bytes: part(Counter::ElsewhereShared),
                huge_bytes: part(Counter::ElsewhereHuge),
                executable_bytes: part(Counter::ElsewhereExecutable),
                other_bytes: part(Counter::ElsewhereOther),
            },
        }
    }
}

impl Program {
    fn of(ended: &Ended) -> Program {
        Program {
            max_rss_bytes: ended.max_rss,
            user_seconds: ended.user.as_secs_f64(),
            system_seconds: ended.system.as_secs_f64(),
        }
    }
}

/// The counters of one direction.
struct Direction {
    pages: Counter,
    ios: Counter,
    nanos: Counter,
}

const IN: Direction =
    Direction { pages: Counter::PswpIn, ios: Counter::SwapInIos, nanos: Counter::SwapInNanos };
const OUT: Direction =
    Direction { pages: Counter::PswpOut, ios: Counter::SwapOutIos, nanos: Counter::SwapOutNanos };

impl Transfer {
    fn of(all: &Snapshot, direction: Direction) -> Transfer {
        let (pages, ios) = (all.get(direction.pages), all.get(direction.ios));
        let (bytes, nanos) = (Bytes::of_pages(pages).0, all.get(direction.nanos));
        Transfer {
            bytes,
            ios,
            pages_per_io: (ios > 0).then(|| pages as f64 / ios as f64),
            bytes_per_second: (nanos > 0).then(|| bytes as f64 * 1e9 / nanos as f64),
        }
    }
}

impl Sealing {
    fn of(observed: &Observed<'_>) -> Option<Sealing> {
        let settings = observed.settings;
        let table_bytes = observed.totals.all.get(Counter::SealBytes);
        (settings.seal == Seal::On && has_files(&settings.swap))
            .then(|| Sealing { algorithm: settings.seal.algorithm(), table_bytes })
    }
}

impl Compressed {
    fn of(all: &Snapshot) -> Option<Compressed> {
        let bytes = |counter| Bytes::of_pages(all.get(counter)).0;
        (all.get(Counter::ZramPages) > 0).then(|| Compressed {
            bytes: bytes(Counter::ZramPages),
            used_bytes: all.get(Counter::ZramBytes),
            same_filled_bytes: bytes(Counter::ZramSameFilled),
            incompressible_bytes: bytes(Counter::ZramIncompressible),
        })
    }
}

impl Tiers {
    fn of(all: &Snapshot) -> Option<Tiers> {
        let bytes = |counter| Bytes::of_pages(all.get(counter)).0;
        (all.get(Counter::TierFast) + all.get(Counter::TierSlow) > 0).then(|| Tiers {
            fast_bytes: bytes(Counter::TierFast),
            slow_bytes: bytes(Counter::TierSlow),
            written_back_bytes: bytes(Counter::TierWriteback),
            writeback_ios: all.get(Counter::TierWritebackIos),
            writeback_failures: all.get(Counter::TierWritebackFailures),
            slow_read_bytes: bytes(Counter::TierSlowReads),
            slow_write_bytes: bytes(Counter::TierSlowWrites),
        })
    }
}

impl Latency {
    fn of(faults: &HistogramSnapshot) -> Latency {
        Latency {
            count: faults.count(),
            mean_ns: faults.mean().0,
            p50_ns: faults.quantile(0.5).0,
            p99_ns: faults.quantile(0.99).0,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use highwater_mm::config::KswapdThreads;
    use highwater_mm::stats::Stats;
    use highwater_session::*;
    use highwater_units::{CpuId, Nanos};
    use std::process::ExitStatus;

    fn process(counts: &[(Counter, u64)]) -> Snapshot {
        let stats = Stats::new(1);
        stats.add(CpuId(0), Counter::Processes, 1);
        counts.iter().for_each(|(counter, count)| stats.add(CpuId(0), *counter, *count));
        stats.minor_fault(CpuId(0), Nanos(5_000));
        stats.major_fault(CpuId(0), Nanos(90_000));
        stats.snapshot()
    }

    /// The report of a run with main process 7 and these statistics.
    pub(crate) fn report(processes: &[(u32, Snapshot)]) -> Report {
        report_of(processes, None)
    }

    /// As `report`, with what malloc held.
    pub(crate) fn report_of(processes: &[(u32, Snapshot)], malloc: Option<&MallocStats>) -> Report {
        let settings = Settings {
            memory: Bytes(128 << 20),
            memory_max: None,
            swap: vec![],
            seal: Seal::On,
            kswapd: KswapdThreads::Fixed(1),
            mapping: Mapping::Auto,
            map_files: MapFiles::Off,
            malloc: Malloc::All,
            large_pages: LargePages::Off,
            system_calls: SystemCalls::Faults,
            faults: FaultThreads::Handlers,
            run_dir: None,
        };
        let ended = Ended {
            status: ExitStatus::from_raw(3 << 8),
            max_rss: 150 << 20,
            user: Duration::from_secs(2),
            system: Duration::from_millis(500),
        };
        let elapsed = Duration::from_millis(12_340);
        let mut totals = Totals::new();
        for (pid, snapshot) in processes {
            let (name, snapshot) = (format!("program{pid}"), snapshot.clone());
            totals.add(*pid, &Published { name, snapshot, parts: None, malloc: None });
        }
        totals.malloc = malloc.cloned();
        let memory = Memory { alone: settings.memory, shared: None };
        let (settings, memory, totals) = (&settings, &memory, &totals);
        Report::new(&Observed { settings, memory, elapsed, pid: 7, ended, totals })
    }

    /// Two processes: the program and a larger child.
    pub(crate) fn two_processes() -> Vec<(u32, Snapshot)> {
        let program = [
            (Counter::PgFault, 1000),
            (Counter::HighWaterBytes, 140 << 20),
            (Counter::ByHandlers, 1),
        ];
        let child = [
            (Counter::PgFault, 3000),
            (Counter::PgMajFault, 2500),
            (Counter::PswpIn, 4096),
            (Counter::SwapInIos, 512),
            (Counter::SwapInNanos, 1_000_000_000),
            (Counter::HighWaterBytes, 160 << 20),
            (Counter::ArenaBytes, 128 << 20),
            (Counter::PagedPeak, 1 << 18),
            (Counter::KswapdNanos, 310_000_000),
        ];
        vec![(7, process(&program)), (8, process(&child))]
    }

    /// A process that was not served, and needed more than the budget.
    pub(crate) fn unserved() -> Vec<(u32, Snapshot)> {
        let stats = Stats::new(1);
        for (counter, bytes) in [
            (Counter::HighWaterBytes, 140 << 20),
            (Counter::ElsewhereBytes, 139 << 20),
            (Counter::ElsewhereShared, 120 << 20),
            (Counter::ElsewhereBrk, 18 << 20),
            (Counter::ElsewhereStacks, 1 << 20),
            (Counter::ElsewhereOther, 4 << 10),
        ] {
            stats.add(CpuId(0), counter, bytes);
        }
        vec![(7, stats.snapshot())]
    }

    /// Two processes that held compressed pages.
    pub(crate) fn two_compressing() -> Vec<(u32, Snapshot)> {
        let of = |pages, same, raw, bytes| {
            process(&[
                (Counter::ZramPages, pages),
                (Counter::ZramSameFilled, same),
                (Counter::ZramIncompressible, raw),
                (Counter::ZramBytes, bytes),
            ])
        };
        vec![(7, of(4096, 1024, 0, 4 << 20)), (8, of(8192, 0, 2048, 12 << 20))]
    }

    #[test]
    fn a_report_sums_processes_and_names_the_largest() {
        let report = report(&two_processes());
        assert_eq!((report.processes, report.exit_status, report.signal), (2, Some(3), None));
        assert_eq!(report.processes_by_handlers, 1);
        assert_eq!((report.faults_minor, report.faults_major), (1500, 2500));
        assert_eq!((report.peak_resident.pid, report.peak_resident.bytes), (Some(8), 160 << 20));
        assert_eq!(report.peak_resident.arena_bytes, 128 << 20);
        assert_eq!(report.swap_in.pages_per_io, Some(8.0));
        assert_eq!(report.swap_in.bytes_per_second, Some((16 << 20) as f64));
        assert_eq!(report.swap_out.pages_per_io, None);
        assert_eq!((report.fault_latency.count, report.fault_latency_major.count), (4, 2));
        assert_eq!(report.vmstat["pgfault"], 4000);
        assert!(report.compression.is_none() && report.tiers.is_none());
    }

    #[test]
    fn a_process_that_was_not_served_is_not_counted() {
        let report = report(&unserved());
        assert_eq!((report.processes, report.peak_resident.pid), (0, Some(7)));
        assert_eq!(report.peak_resident.elsewhere.shared_bytes, 120 << 20);
    }

    #[test]
    fn compression_is_summed_over_processes() {
        let report = report(&two_compressing());
        let compressed = report.compression.expect("pages were compressed");
        assert_eq!((compressed.bytes, compressed.used_bytes), (48 << 20, 16 << 20));
        assert_eq!(compressed.same_filled_bytes, 4 << 20);
        assert_eq!(compressed.incompressible_bytes, 8 << 20);
    }

    /// Two processes that swapped to tiers.
    pub(crate) fn two_tiered(failures: u64) -> Vec<(u32, Snapshot)> {
        let counts = [
            (Counter::TierFast, 1024),
            (Counter::TierSlow, 512),
            (Counter::TierWriteback, 768),
            (Counter::TierWritebackIos, 48),
            (Counter::TierWritebackFailures, failures),
            (Counter::TierSlowReads, 256),
            (Counter::TierSlowWrites, 128),
        ];
        vec![(7, process(&counts)), (8, process(&counts))]
    }

    #[test]
    fn tiers_are_summed_over_processes() {
        let tiers = report(&two_tiered(3)).tiers.expect("pages in tiers");
        assert_eq!((tiers.fast_bytes, tiers.slow_bytes), (8 << 20, 4 << 20));
        assert_eq!((tiers.written_back_bytes, tiers.writeback_ios), (6 << 20, 96));
        assert_eq!((tiers.slow_read_bytes, tiers.slow_write_bytes), (2 << 20, 1 << 20));
        assert_eq!(tiers.writeback_failures, 6);
    }

    #[test]
    fn without_a_manager_the_kernel_still_knows_the_peak() {
        let report = report(&[]);
        assert_eq!((report.processes, report.peak_resident.pid), (0, None));
        assert_eq!(report.peak_resident.bytes, 150 << 20);
    }

    #[test]
    fn names_in_json_are_kept() {
        let heap = crate::malloc_figures::tests::process(1600, 3);
        let json = serde_json::to_value(report_of(&two_processes(), Some(&heap))).unwrap();
        for path in [
            "/exit_status",
            "/budget_bytes",
            "/peak_resident/elsewhere_bytes",
            "/peak_resident/elsewhere/brk_bytes",
            "/faults_major",
            "/swap_in/bytes_per_second",
            "/fault_latency/p99_ns",
            "/vmstat/allocstall",
            "/by_process/listed/1/pid",
            "/by_process/listed/0/peak_paged_bytes",
            "/by_process/listed/0/faults_major",
            "/by_process/not_listed",
            "/by_process/sum/swapped_out_bytes",
            "/by_process/sum/stalled_seconds",
            "/by_process/largest_peak_paged_bytes",
            "/malloc/at_most/slab_bytes",
            "/malloc/at_end/large_blocks",
            "/malloc/classes/0/at_end/active_objs",
            "/malloc/classes/0/events/alloc_slab",
        ] {
            assert!(json.pointer(path).is_some_and(|value| value.is_number()), "{path}");
        }
    }
}
