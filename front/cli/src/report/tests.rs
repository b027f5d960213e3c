//! Reports of made-up runs, for all tests that need one; and tests of the figures.

use super::*;
use highwater_devices::RemoteOptions;
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

/// Like `report`, with the memory that malloc held.
pub(crate) fn report_of(processes: &[(u32, Snapshot)], malloc: Option<&MallocStats>) -> Report {
    let settings = Settings {
        memory: Bytes(128 << 20),
        memory_max: None,
        swap: vec![],
        remote: RemoteOptions::default(),
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
    let description = crate::session::tests::session(1, None).description;
    let observed = Observed {
        settings: &settings,
        memory: &memory,
        elapsed,
        pid: 7,
        ended,
        oom_kills: 0,
        limit_at_end: None,
        need: None,
        totals: &totals,
        description: &description,
        series: &[],
    };
    Report::new(&observed)
}

/// Two processes: the program and a larger child.
pub(crate) fn two_processes() -> Vec<(u32, Snapshot)> {
    let program =
        [(Counter::PgFault, 1000), (Counter::CountedPeak, 140 << 20), (Counter::ByHandlers, 1)];
    let child = [
        (Counter::PgFault, 3000),
        (Counter::PgMajFault, 2500),
        (Counter::PswpIn, 4096),
        (Counter::SwapInIos, 512),
        (Counter::SwapInNanos, 1_000_000_000),
        (Counter::CountedPeak, 160 << 20),
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
        (Counter::CountedPeak, 140 << 20),
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

/// A program of which the kernel says that 150 MiB were resident, mapped twice in part.
#[test]
fn a_peak_counts_each_page_once() {
    let counted = |ended| {
        let counts =
            [(Counter::HighWaterBytes, 148 << 20), (Counter::CountedPeak, 80 << 20), ended];
        report(&[(7, process(&counts))]).peak_resident.bytes
    };
    assert_eq!(counted((Counter::ProcessEnded, 1)), 80 << 20);
    assert_eq!(counted((Counter::ProcessEnded, 0)), 82 << 20, "it was killed");
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
