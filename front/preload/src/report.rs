//! Publishes the statistics of a process for the run.
//!
//! ```text
//! "report" thread --- every 100 ms: publish; release the slots of ended children
//!      |          \-- on finish: publish for the last time
//!      \- StatsFile: read by `highwater run`
//! ```

use crate::children::Children;
use crate::end::say;
use crate::unpaged::Unpaged;
use crate::watch::{Look, Watch};
use highwater_devices::{Compression, LostReplica, Tiering};
use highwater_mm::Manager;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_os::helper::Program;
use highwater_os::sys::{futex_wait, futex_wake_all};
use highwater_session::{MallocReport, Name, Parts, Settings, StatsFile, leave_run_dir};
use highwater_uffd::{Delivery, Uffd};
use highwater_units::Nanos;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval between publications.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);
/// The first one: a process that shares its memory with others says soon how much it has.
const FIRST: Duration = Duration::from_millis(10);

const RUNNING: u32 = 0;
const ENDING: u32 = 1;
const ENDED: u32 = 2;

/// Maximum time for the last publication.
const FINISH_MAX: Duration = Duration::from_millis(500);

/// Gathers what malloc holds, and the CPU time that took; `None` while there is no heap.
type Gather = fn() -> Option<(MallocReport, Duration)>;

/// Publishes a process's statistics; runs in its helper.
pub(crate) struct Reporter {
    manager: Arc<Manager<Uffd>>,
    file: Option<StatsFile>,
    /// [`RUNNING`], [`ENDING`] or [`ENDED`].
    stage: AtomicU32,
    /// 1: the published figures are final.
    is_last: AtomicU64,
    /// Memory that is not paged.
    pub(crate) unpaged: Unpaged,
    paged_peak: AtomicU64,
    pub(crate) out_of_memory: AtomicU64,
    /// A maximum, because compressed devices release memory.
    ram_device_peak: AtomicU64,
    /// Of the time when most pages were compressed.
    compressed_peak: Mutex<Compression>,
    /// Pages in fast and slow levels, of the time when tiers held most.
    tiered_peak: Mutex<(u64, u64)>,
    malloc: Mutex<Watch>,
    /// How page faults are delivered.
    delivery: Delivery,
    gather: Gather,
    children: Children,
}

impl Reporter {
    /// The file of a process. Without a run directory nothing is published: the program matters
    /// more.
    pub(crate) fn file(settings: &Settings, program: Program) -> Option<StatsFile> {
        let dir = settings.run_dir.as_ref()?;
        let name = Name::in_proc(&program.in_proc.to_string());
        StatsFile::create(dir, program.pid.cast_unsigned(), name).ok()
    }

    /// Publishes to `file`, if there is one.
    pub(crate) fn new(
        file: Option<StatsFile>,
        manager: Arc<Manager<Uffd>>,
        unpaged: Unpaged,
        delivery: Delivery,
        gather: Gather,
    ) -> Reporter {
        Reporter {
            unpaged,
            manager,
            file,
            stage: AtomicU32::new(RUNNING),
            is_last: AtomicU64::new(0),
            paged_peak: AtomicU64::new(0),
            out_of_memory: AtomicU64::new(0),
            ram_device_peak: AtomicU64::new(0),
            compressed_peak: Mutex::default(),
            tiered_peak: Mutex::default(),
            malloc: Mutex::default(),
            delivery,
            gather,
            children: Children::default(),
        }
    }

    /// The forked children that still read this process's slots.
    pub(crate) fn children(&self) -> &Children {
        &self.children
    }

    /// Publishes until [`Reporter::finish`] is called.
    ///
    /// `shares`: whether pages may be shared with a parent or a child.
    pub(crate) fn run(&self, shares: &AtomicBool) {
        let mut told = Vec::new();
        for period in std::iter::once(FIRST).chain(std::iter::repeat(PERIOD)) {
            self.children.release_ended(&self.manager);
            self.publish(Look::IfDue);
            self.tell_lost(&mut told);
            futex_wait(&self.stage, RUNNING, Some(Nanos(period.as_nanos() as u64)));
            if self.stage.load(Acquire) == ENDING {
                break;
            }
            self.unpaged.tick(period, shares.load(Relaxed));
            self.unpaged.publish();
        }
        self.tell_lost(&mut told);
        // The most important figures first: a look takes long where there are many mappings.
        self.publish(Look::IfDue);
        self.unpaged.look();
        self.is_last.store(1, Relaxed);
        self.publish(Look::Now);
        self.stage.store(ENDED, Release);
        futex_wake_all(&self.stage);
    }

    /// Leaves the directory of the run, after everything else.
    pub(crate) fn leave(&self, settings: &Settings) {
        if let Some(dir) = &settings.run_dir {
            leave_run_dir(dir, self.file.as_ref());
        }
    }

    /// Publishes for the last time, after the program's end, while its memory still exists. Waits
    /// no longer than [`FINISH_MAX`]: the program may have left a lock taken.
    pub(crate) fn finish(&self) {
        self.stage.store(ENDING, Release);
        futex_wake_all(&self.stage);
        let until = Instant::now() + FINISH_MAX;
        while self.stage.load(Acquire) == ENDING && Instant::now() < until {
            futex_wait(&self.stage, ENDING, Some(Nanos(PERIOD.as_nanos() as u64)));
        }
    }

    /// Says which replicas of swap are no longer used, except those in `told`.
    fn tell_lost(&self, told: &mut Vec<LostReplica>) {
        for lost in self.manager.platform().devices().lost_replicas() {
            if !told.contains(&lost) {
                let LostReplica { name, left } = &lost;
                say(&format!("swap {name} does not answer, and is given up; {left} goes on"));
                told.push(lost);
            }
        }
    }

    fn publish(&self, look: Look) {
        let Some(file) = &self.file else { return };
        let statistics = self.statistics();
        let mut malloc = self.malloc.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = Parts::of(&self.manager);
        file.publish(&statistics, Some(&parts), malloc.look(look, PERIOD, self.gather));
    }

    /// Notes how many pages have contents; returns the most so far. Called before the program drops
    /// pages, so that this is the peak of a short program, too.
    pub(crate) fn note_demand(&self) -> u64 {
        let count = |counter| self.manager.counted(counter);
        let begun = count(Counter::PgZero) + count(Counter::PgInherited);
        let used = begun.saturating_sub(count(Counter::PgDiscard));
        self.paged_peak.fetch_max(used, Relaxed).max(used)
    }

    fn statistics(&self) -> Snapshot {
        let platform = self.manager.platform();
        let mut now = self.manager.statistics();
        let peak = self.note_demand();
        let compressed = self.compressed_peak();
        let ram_device = platform.devices().resident().0;
        let ram_device = self.ram_device_peak.fetch_max(ram_device, Relaxed).max(ram_device);
        let tiers = platform.devices().tiering().unwrap_or_default();
        let (fast, slow) = self.tiered_peak(&tiers);
        let replicas = platform.devices().replication();
        let sample = platform.devices().sample();
        let gauges = [
            (Counter::TierFast, fast),
            (Counter::TierSlow, slow),
            (Counter::TierWriteback, tiers.written_back),
            (Counter::TierWritebackIos, tiers.writeback_ios),
            (Counter::TierWritebackFailures, tiers.writeback_failures),
            (Counter::TierSlowReads, tiers.slow_reads),
            (Counter::TierSlowWrites, tiers.slow_writes),
            (Counter::ReplicasLost, replicas.lost),
            (Counter::ReplicaSingleWrites, replicas.single_writes),
            (Counter::ReplicaSecondReads, replicas.second_reads),
            (Counter::ReplicaHedgedReads, replicas.hedged_reads),
            (Counter::ZramPages, compressed.pages),
            (Counter::ZramSameFilled, compressed.same_filled),
            (Counter::ZramIncompressible, compressed.incompressible),
            (Counter::ZramBytes, compressed.used.0),
            (Counter::SampledPages, sample.pages),
            (Counter::SampledBytes, sample.bytes),
            (Counter::SampledNanos, sample.nanos),
            (Counter::PagedPeak, peak),
            (Counter::ArenaBytes, platform.frames_peak().0),
            (Counter::RamDeviceBytes, ram_device),
            (Counter::SealBytes, platform.devices().tables().0),
            (Counter::InjectedFaults, platform.devices().injected()),
            (Counter::ByHandlers, u64::from(self.delivery == Delivery::Handler)),
            (Counter::OutOfMemory, self.out_of_memory.load(Relaxed)),
            (Counter::HelperNanos, cpu_time()),
            (Counter::ProcessEnded, self.is_last.load(Relaxed)),
        ];
        gauges
            .into_iter()
            .chain(self.unpaged.gauges())
            .for_each(|(gauge, value)| now.counters[gauge as usize] = value);
        now
    }

    /// The figures of the time when most pages were compressed.
    fn compressed_peak(&self) -> Compression {
        let now = self.manager.platform().devices().compression().unwrap_or_default();
        let mut peak = self.compressed_peak.lock().unwrap_or_else(PoisonError::into_inner);
        if now.pages > peak.pages {
            *peak = now;
        }
        *peak
    }

    /// The figures of the time when tiers held most.
    fn tiered_peak(&self, now: &Tiering) -> (u64, u64) {
        let mut peak = self.tiered_peak.lock().unwrap_or_else(PoisonError::into_inner);
        if now.fast_pages + now.slow_pages > peak.0 + peak.1 {
            *peak = (now.fast_pages, now.slow_pages);
        }
        *peak
    }
}

/// CPU time of the helper.
fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
