//! The figures of a run, from which the summary is made, and the JSON of `--report`.
//!
//! The names of fields do not change, and contain their units. Counters under `vmstat` are those of
//! the manager, summed over processes.

use crate::child::Ended;
use crate::lock_figures::LockFigures;
use crate::malloc_figures::MallocFigures;
use crate::need::Need;
use crate::options::Memory;
use crate::processes::ByProcess;
use crate::series::Sample;
use crate::session::Description;
use crate::swap::leave_memory;
use crate::totals::Totals;
use crate::verdict::{LimitedBy, Run, Verdict};
use highwater_devices::Seal;
use highwater_mm::stats::{Counter, HistogramSnapshot, Snapshot};
use highwater_session::Settings;
use highwater_units::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// All figures of a run. Sums are over all its processes.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    /// The program and its arguments, long ones cut.
    pub(crate) command: Vec<String>,
    /// Start of the run, in milliseconds since 1970.
    pub(crate) started_ms: u64,
    /// Exit status of the program; none if a signal ended it.
    pub(crate) exit_status: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// Time from the start of the program to its end.
    pub(crate) elapsed_seconds: f64,
    /// Memory budget of all processes together, or of each.
    pub(crate) budget_bytes: u64,
    /// The budget at the end, in bytes: `highwater ctl` may have changed it.
    pub(crate) budget_end_bytes: u64,
    /// Whether all processes share it.
    pub(crate) budget_is_shared: bool,
    /// The swap devices, as specifications.
    pub(crate) swap: Vec<String>,
    /// Background reclaim threads, as given: a number, or `auto`.
    pub(crate) kswapd_threads: String,
    /// Processes that were served.
    pub(crate) processes: usize,
    /// Those of them whose faults handler threads served.
    pub(crate) processes_by_handlers: usize,
    /// Processes that found no room for their statistics, which are missing here.
    pub(crate) processes_unpublished: usize,
    /// The processes, told apart.
    pub(crate) by_process: ByProcess,
    /// Processes that were ended because memory and swap were full.
    pub(crate) out_of_memory: u64,
    /// Requests for memory that were refused because memory and swap could not hold them.
    pub(crate) requests_refused: u64,
    /// Processes of the run's memory cgroup that the kernel's OOM killer ended meanwhile.
    pub(crate) oom_kills: u64,
    /// The process with the most memory.
    pub(crate) peak_resident: PeakResident,
    /// What the kernel reports about the program.
    pub(crate) program: Program,
    /// Most memory with contents that one process had, in memory and swap.
    pub(crate) paged_peak_bytes: u64,
    /// Faults served from memory.
    pub(crate) faults_minor: u64,
    /// Faults that waited for a device read.
    pub(crate) faults_major: u64,
    /// Reads from swap.
    pub(crate) swap_in: Transfer,
    /// Writes to swap.
    pub(crate) swap_out: Transfer,
    /// How swap files are encrypted; none if no swap device has a file, or files are not encrypted.
    pub(crate) seal: Option<Sealing>,
    /// What compressed devices held; none if no page was compressed.
    pub(crate) compression: Option<Compressed>,
    /// What malloc held; none if no process used Highwater's.
    pub(crate) malloc: Option<MallocFigures>,
    /// Costs of the manager's locks by class; one acquisition in 31 is measured, and stands for 31.
    pub(crate) locks: Vec<LockFigures>,
    /// What devices of two levels held; none if there was none.
    pub(crate) tiers: Option<Tiers>,
    /// Transfers with swap devices that failed.
    pub(crate) swap_io_errors: u64,
    /// What swap devices refused for lack of room although they had free slots.
    pub(crate) swap_refused_bytes: u64,
    /// Most replicas of swap that one process gave up or started without.
    pub(crate) replicas_lost: u64,
    /// Times a thread of the program freed memory itself.
    pub(crate) direct_reclaims: u64,
    /// How long direct reclaims delayed threads.
    pub(crate) direct_reclaim_stall: Latency,
    /// Time stalled by lack of memory.
    pub(crate) pressure: Pressure,
    /// CPU time of the threads that free memory in the background.
    pub(crate) kswapd_cpu_seconds: f64,
    /// CPU time of the threads that serve faults; 0 where the program's own do.
    pub(crate) handler_cpu_seconds: f64,
    /// CPU time of the helper processes, and so of all the manager's threads.
    pub(crate) manager_cpu_seconds: f64,
    /// Latency of all faults.
    pub(crate) fault_latency: Latency,
    /// Latency of faults that waited for a device read.
    pub(crate) fault_latency_major: Latency,
    /// What limited the run, and what would help.
    pub(crate) verdict: Verdict,
    /// The run over time, in up to 600 samples.
    pub(crate) series: Vec<Sample>,
    /// All counters by name, summed over processes.
    #[cfg_attr(test, schemars(schema_with = "schema::counters"))]
    pub(crate) vmstat: BTreeMap<&'static str, u64>,
}

/// How long threads were stalled by lack of memory, as in /proc/pressure/memory.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Pressure {
    /// At least one thread was stalled.
    pub(crate) some: Stalls,
    /// A thread was stalled, and no other ran.
    pub(crate) full: Stalls,
}

/// Stall time in total, and in percent of a process's last 10, 60 and 300 seconds.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Stalls {
    /// In the whole run, summed over processes.
    pub(crate) total_seconds: f64,
    /// Percent of the last 10 seconds, of the process with most.
    pub(crate) avg10: f64,
    /// Percent of the last 60 seconds, of the process with most.
    pub(crate) avg60: f64,
    /// Percent of the last 300 seconds, of the process with most.
    pub(crate) avg300: f64,
}

/// The process with the most memory, and its parts. A page that is mapped several times counts
/// once, and one that several processes map counts by a share, as for a limit on all memory.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PeakResident {
    /// The process; none if no process published statistics.
    pub(crate) pid: Option<u32>,
    /// Its memory at the peak; where no process published statistics, its peak resident set.
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
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Elsewhere {
    /// The C library's malloc, and raw brk calls.
    pub(crate) brk_bytes: u64,
    /// Stacks of threads.
    pub(crate) stacks_bytes: u64,
    /// Variables of programs and libraries that are initialised with zeros.
    pub(crate) static_bytes: u64,
    /// Programs, libraries and mapped files.
    pub(crate) files_bytes: u64,
    /// MAP_SHARED, memfd, tmpfs, System V.
    pub(crate) shared_bytes: u64,
    /// Pages of hugetlbfs.
    pub(crate) huge_bytes: u64,
    /// Anonymous and executable, as generated code is.
    pub(crate) executable_bytes: u64,
    /// All other anonymous memory.
    pub(crate) other_bytes: u64,
}

/// What the kernel reports about the program and the children it waited for.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Program {
    /// Largest resident set of the program or a child that it waited for.
    pub(crate) max_rss_bytes: u64,
    /// CPU time in user mode.
    pub(crate) user_seconds: f64,
    /// CPU time in the kernel.
    pub(crate) system_seconds: f64,
}

/// Traffic with the swap devices in one direction.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Transfer {
    /// Bytes transferred.
    pub(crate) bytes: u64,
    /// Transfers; each has one page or more.
    pub(crate) ios: u64,
    /// Mean number of pages in a transfer; none without one.
    pub(crate) pages_per_io: Option<f64>,
    /// Speed while transfers were waited for; none without one.
    pub(crate) bytes_per_second: Option<f64>,
}

/// What compressed devices held when each process had most pages there.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Compressed {
    /// Size of the pages before compression.
    pub(crate) bytes: u64,
    /// Memory that they took.
    pub(crate) used_bytes: u64,
    /// Part of `bytes`: pages with one repeated word, which take no memory.
    pub(crate) same_filled_bytes: u64,
    /// Part of `bytes`: pages that do not compress.
    pub(crate) incompressible_bytes: u64,
}

/// How swap files are encrypted.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sealing {
    /// The cipher.
    pub(crate) algorithm: &'static str,
    /// Most memory for keys, tags and pages that are being written, of one process.
    pub(crate) table_bytes: u64,
}

/// What devices of two levels held when each process had most pages there, and what they moved.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Tiers {
    /// On fast levels.
    pub(crate) fast_bytes: u64,
    /// On slow levels.
    pub(crate) slow_bytes: u64,
    /// Cold pages moved to the slow level.
    pub(crate) written_back_bytes: u64,
    /// Writes for `written_back_bytes`.
    pub(crate) writeback_ios: u64,
    /// Pages that stayed because the write failed.
    pub(crate) writeback_failures: u64,
    /// Read from slow levels.
    pub(crate) slow_read_bytes: u64,
    /// Pages written to the slow level directly: the fast one was full, or they hardly compress.
    pub(crate) slow_write_bytes: u64,
}

/// Distribution of a latency.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Latency {
    /// Number of events.
    pub(crate) count: u64,
    /// Mean duration, in nanoseconds.
    pub(crate) mean_ns: u64,
    /// Half of the events took no longer.
    pub(crate) p50_ns: u64,
    /// 99 % of the events took no longer.
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
    /// Processes of its memory cgroup that the kernel's OOM killer ended meanwhile.
    pub(crate) oom_kills: u64,
    /// The budget that its processes shared at its end.
    pub(crate) limit_at_end: Option<Bytes>,
    /// The most that its processes were seen to need beyond the limit.
    pub(crate) need: Option<&'a Need>,
    /// The sums of what its processes published.
    pub(crate) totals: &'a Totals,
    /// The program, its arguments and when it started.
    pub(crate) description: &'a Description,
    pub(crate) series: &'a [Sample],
}

impl Report {
    /// Makes the report of a run.
    pub(crate) fn new(observed: &Observed<'_>) -> Report {
        let Totals { all, malloc, locks, served, processes, by_handlers, unpublished, .. } =
            observed.totals;
        let get = |counter| all.get(counter);
        let seconds = |counter| get(counter) as f64 / 1e9;
        Report {
            command: observed.description.command.clone(),
            started_ms: observed.description.started_ms,
            exit_status: observed.ended.status.code(),
            signal: observed.ended.status.signal(),
            elapsed_seconds: observed.elapsed.as_secs_f64(),
            budget_bytes: observed.memory.budget().0,
            budget_end_bytes: observed.limit_at_end.unwrap_or(observed.memory.budget()).0,
            budget_is_shared: observed.memory.shared.is_some(),
            swap: observed.settings.swap.iter().map(ToString::to_string).collect(),
            kswapd_threads: observed.settings.kswapd.to_string(),
            processes: served.len(),
            processes_by_handlers: by_handlers.len(),
            processes_unpublished: *unpublished,
            by_process: processes.by_process(all, served.len()),
            out_of_memory: get(Counter::OutOfMemory),
            requests_refused: get(Counter::CommitRefused),
            oom_kills: observed.oom_kills,
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
            locks: locks.figures(),
            tiers: Tiers::of(all),
            swap_io_errors: get(Counter::SwapIoErrors),
            swap_refused_bytes: Bytes::of_pages(get(Counter::SwapRefused)).0,
            replicas_lost: get(Counter::ReplicasLost),
            direct_reclaims: get(Counter::AllocStall),
            direct_reclaim_stall: Latency::of(&all.reclaims),
            pressure: Pressure { some: Stalls::of(all, SOME), full: Stalls::of(all, FULL) },
            kswapd_cpu_seconds: seconds(Counter::KswapdNanos),
            handler_cpu_seconds: seconds(Counter::HandlerNanos),
            manager_cpu_seconds: seconds(Counter::HelperNanos),
            fault_latency: Latency::of(&all.faults()),
            fault_latency_major: Latency::of(&all.major),
            verdict: Verdict::of(observed.totals, &run_of(observed), ended_by(observed)),
            series: observed.series.to_vec(),
            vmstat: Counter::ALL.iter().map(|counter| (counter.name(), get(*counter))).collect(),
        }
    }
}

fn run_of<'a>(observed: &'a Observed<'_>) -> Run<'a> {
    Run {
        memory: observed.memory,
        swap: &observed.settings.swap,
        elapsed: observed.elapsed,
        limit_at_end: observed.limit_at_end,
        need: observed.need,
        max_rss: Bytes(observed.ended.max_rss),
    }
}

/// The lack of memory that has ended the program, or a process of it.
fn ended_by(observed: &Observed<'_>) -> Option<LimitedBy> {
    let get = |counter| observed.totals.all.get(counter);
    let has_failed = !observed.ended.status.success();
    match () {
        () if observed.oom_kills > 0 => Some(LimitedBy::Kernel),
        () if get(Counter::OutOfMemory) > 0 => Some(LimitedBy::Full),
        () if has_failed && get(Counter::CommitRefused) > 0 => Some(LimitedBy::Full),
        () => None,
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

/// The peak of the program. If it was killed, the kernel's figure is more recent than its own.
fn last_peak(program: &Snapshot, observed: &Observed<'_>) -> u64 {
    let [counted, seen, ended] =
        [Counter::CountedPeak, Counter::HighWaterBytes, Counter::ProcessEnded]
            .map(|counter| program.get(counter));
    let unseen = observed.ended.max_rss.saturating_sub(seen);
    if ended > 0 { counted } else { counted + unseen }
}

impl PeakResident {
    fn of(observed: &Observed<'_>) -> PeakResident {
        let largest = observed.totals.largest.as_ref();
        let part = |counter| largest.map_or(0, |(_, process)| process.get(counter));
        PeakResident {
            pid: largest.map(|(pid, _)| *pid),
            bytes: match largest {
                Some((pid, process)) if *pid == observed.pid => last_peak(process, observed),
                Some((_, process)) => process.get(Counter::CountedPeak),
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
        (settings.seal == Seal::On && leave_memory(&settings.swap))
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
mod schema;
#[cfg(test)]
pub(crate) mod tests;
