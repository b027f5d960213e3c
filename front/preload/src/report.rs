//! Statistics for the run, the last words of a process, and its end.
//!
//! ```text
//! "report" thread --- every 100 ms: publish, look which children have ended
//!      |          \-- when it is asked to finish: publish for the last time
//!      \- StatsFile: read by `highwater run`
//! ```

use crate::fork::Children;
use crate::heap::{self, Look, Watch};
use crate::smaps::{self, Elsewhere};
use crate::{helper, memory, process};
use highwater_devices::{Compression, Tiering};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_mm::{FaultError, Manager};
use highwater_os::helper::Program;
use highwater_os::sys::{futex_wait, futex_wake_all};
use highwater_session::{Settings, StatsFile};
use highwater_uffd::Uffd;
use highwater_units::{Bytes, Nanos, PAGE_SIZE};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between publications.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

const RUNNING: u32 = 0;
const ENDING: u32 = 1;
const ENDED: u32 = 2;

/// How long the last publication may take.
const FINISH_MAX: Duration = Duration::from_millis(500);

/// Publishes a process's statistics, from its helper.
pub(crate) struct Reporter {
    manager: Arc<Manager<Uffd>>,
    file: Option<StatsFile>,
    /// The range and the arena: what is paged. (first address, after the last)
    paged: [(u64, u64); 2],
    /// [`RUNNING`], [`ENDING`] or [`ENDED`].
    stage: AtomicU32,
    /// When it was most.
    elsewhere: Mutex<Elsewhere>,
    paged_peak: AtomicU64,
    out_of_memory: AtomicU64,
    /// Compressed devices give memory back.
    ram_device_peak: AtomicU64,
    /// What was held compressed when that was most.
    compressed_peak: Mutex<Compression>,
    /// Pages of tiers by level, fast and slow, when they were most.
    tiered_peak: Mutex<(u64, u64)>,
    malloc: Mutex<Watch>,
    children: Children,
}

impl Reporter {
    /// Without a run directory there is nothing to publish to: the program matters more.
    pub(crate) fn new(
        settings: &Settings,
        pid: i32,
        manager: Arc<Manager<Uffd>>,
        base: u64,
        pages: u64,
    ) -> Reporter {
        let file = settings.run_dir.as_ref();
        let file = file.and_then(|dir| StatsFile::create(dir, pid.cast_unsigned()).ok());
        let (arena, arena_len) = manager.platform().arena_range();
        let range = (base, base + pages * PAGE_SIZE as u64);
        Reporter {
            manager,
            file,
            paged: [range, (arena, arena + arena_len as u64)],
            stage: AtomicU32::new(RUNNING),
            elsewhere: Mutex::default(),
            paged_peak: AtomicU64::new(0),
            out_of_memory: AtomicU64::new(0),
            ram_device_peak: AtomicU64::new(0),
            compressed_peak: Mutex::default(),
            tiered_peak: Mutex::default(),
            malloc: Mutex::default(),
            children: Children::default(),
        }
    }

    /// The forked children that still read this process's slots.
    pub(crate) fn children(&self) -> &Children {
        &self.children
    }

    /// Publishes until it is asked to finish.
    pub(crate) fn run(&self) {
        // Looking at all mappings costs milliseconds: after 16, 32, 64 ... periods, and at the end.
        let mut next_look = 16u64;
        for tick in 0u64.. {
            if tick == next_look {
                self.look_elsewhere();
                next_look *= 2;
            }
            self.children.release_ended(&self.manager);
            self.publish(Look::IfDue);
            futex_wait(&self.stage, RUNNING, Some(Nanos(PERIOD.as_nanos() as u64)));
            if self.stage.load(Acquire) == ENDING {
                break;
            }
        }
        self.look_elsewhere();
        self.publish(Look::Now);
        self.stage.store(ENDED, Release);
        futex_wake_all(&self.stage);
    }

    /// Has the figures published for the last time: the program has ended, and its memory is still
    /// here. Waits no longer than [`FINISH_MAX`]: the program may have left a lock taken.
    pub(crate) fn finish(&self) {
        self.stage.store(ENDING, Release);
        futex_wake_all(&self.stage);
        let until = Instant::now() + FINISH_MAX;
        while self.stage.load(Acquire) == ENDING && Instant::now() < until {
            futex_wait(&self.stage, ENDING, Some(Nanos(PERIOD.as_nanos() as u64)));
        }
    }

    fn publish(&self, look: Look) {
        let Some(file) = &self.file else { return };
        let statistics = self.statistics();
        // Not served yet, or not any more: a forked child inherits the heap when it is.
        let gather = || process::running().and_then(heap::gather);
        let mut malloc = self.malloc.lock().unwrap_or_else(PoisonError::into_inner);
        file.publish(&statistics, malloc.look(look, PERIOD, gather));
    }

    fn statistics(&self) -> Snapshot {
        let platform = self.manager.platform();
        let mut now = self.manager.statistics();
        let begun = now.get(Counter::PgZero) + now.get(Counter::PgInherited);
        let used = begun.saturating_sub(now.get(Counter::PgDiscard));
        let peak = self.paged_peak.fetch_max(used, Relaxed).max(used);
        let compressed = self.compressed_peak();
        let ram_device = platform.devices().resident().0;
        let ram_device = self.ram_device_peak.fetch_max(ram_device, Relaxed).max(ram_device);
        let tiers = platform.devices().tiering().unwrap_or_default();
        let (fast, slow) = self.tiered_peak(&tiers);
        let gauges = [
            (Counter::TierFast, fast),
            (Counter::TierSlow, slow),
            (Counter::TierWriteback, tiers.written_back),
            (Counter::TierWritebackIos, tiers.writeback_ios),
            (Counter::TierWritebackFailures, tiers.writeback_failures),
            (Counter::TierSlowReads, tiers.slow_reads),
            (Counter::TierSlowWrites, tiers.slow_writes),
            (Counter::ZramPages, compressed.pages),
            (Counter::ZramSameFilled, compressed.same_filled),
            (Counter::ZramIncompressible, compressed.incompressible),
            (Counter::ZramBytes, compressed.used.0),
            (Counter::PagedPeak, peak),
            (Counter::MetaBytes, memory::mapped() as u64),
            (Counter::HighWaterBytes, high_water()),
            (Counter::ArenaBytes, platform.arena_used().0),
            (Counter::RamDeviceBytes, ram_device),
            (Counter::OutOfMemory, self.out_of_memory.load(Relaxed)),
            (Counter::HelperNanos, cpu_time()),
            (Counter::ProcessEnded, u64::from(self.stage.load(Relaxed) != RUNNING)),
        ];
        let elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).gauges();
        gauges
            .into_iter()
            .chain(elsewhere)
            .for_each(|(gauge, value)| now.counters[gauge as usize] = value);
        now
    }

    /// All numbers of one moment: that of all looked at when most pages were compressed.
    fn compressed_peak(&self) -> Compression {
        let now = self.manager.platform().devices().compression().unwrap_or_default();
        let mut peak = self.compressed_peak.lock().unwrap_or_else(PoisonError::into_inner);
        if now.pages > peak.pages {
            *peak = now;
        }
        *peak
    }

    /// Both numbers of one moment: that of all looked at when tiers held most.
    fn tiered_peak(&self, now: &Tiering) -> (u64, u64) {
        let mut peak = self.tiered_peak.lock().unwrap_or_else(PoisonError::into_inner);
        if now.fast_pages + now.slow_pages > peak.0 + peak.1 {
            *peak = (now.fast_pages, now.slow_pages);
        }
        *peak
    }

    /// Memory of the process outside range and arena, less the manager's own and RAM devices.
    fn look_elsewhere(&self) {
        let Ok(found) = smaps::read(&self.paged) else { return };
        let own = memory::mapped() as u64 + self.manager.platform().devices().resident().0;
        let found = found.less_own(own);
        let mut most = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        if found.total() > most.total() {
            *most = found;
        }
    }
}

/// VmHWM: the peak resident set.
fn high_water() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// CPU time of the helper.
fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Writes one line and ends the process, status 2: what cannot be served is not run. From the
/// helper it can only be killed.
pub(crate) fn end(message: &str) -> ! {
    say(message);
    if highwater_os::helper::is_inside() {
        kill_program();
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, 2) };
    }
}

/// Kills the program and this helper with it.
fn kill_program() -> ! {
    if let Some(program) = helper::program() {
        program.kill();
    }
    loop {
        // The helper's first thread sees the end of the program, and ends the helper.
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Ends a process whose access cannot be served, as the kernel ends one that is out of memory. In
/// the helper.
pub(crate) fn end_for(error: FaultError, manager: &Manager<Uffd>) -> ! {
    let statistics = manager.statistics();
    let of_pages = |counter| Bytes::of_pages(statistics.get(counter));
    let (frames, slots) = (of_pages(Counter::Frames), of_pages(Counter::SlotsTotal));
    let used = of_pages(Counter::SlotsUsed);
    let shortage = manager.shortage();
    let seen = shortage.map_or(String::new(), |shortage| format!("; {shortage}"));
    say(&format!(
        "{error}: the program is ended (memory {frames}, swap {used} of {slots} used{seen}); \
         run it with more --memory or --swap"
    ));
    if let Some(process) = process::running() {
        let full = u64::from(error == FaultError::OutOfMemory);
        process.reporter.out_of_memory.store(full, Relaxed);
    }
    kill_program()
}

/// Writes a line to the program's standard error.
pub(crate) fn say(message: &str) {
    let line = format!("highwater: {message}\n");
    let copy = match helper::program() {
        Some(program) if highwater_os::helper::is_inside() => stream_of(program),
        Some(_) | None => None,
    };
    let stream = copy.as_ref().map_or(libc::STDERR_FILENO, AsRawFd::as_raw_fd);
    // SAFETY: the line lives for the call. What cannot be written cannot be said.
    unsafe { libc::write(stream, line.as_ptr().cast(), line.len()) };
}

/// The standard error of the program, whose descriptors the helper does not have.
fn stream_of(program: Program) -> Option<OwnedFd> {
    let (call, stream) = (libc::SYS_pidfd_getfd, libc::STDERR_FILENO);
    // SAFETY: asks for a new descriptor.
    match unsafe { libc::syscall(call, program.pidfd, stream, 0) } {
        // SAFETY: just made, and nobody else's.
        fd @ 0.. => Some(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => {
            let path = format!("/proc/{}/fd/{stream}", program.pid);
            std::fs::OpenOptions::new().append(true).open(path).ok().map(OwnedFd::from)
        }
    }
}
