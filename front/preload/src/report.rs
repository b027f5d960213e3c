//! Statistics for the run, the last words of a process, and its end.
//!
//! ```text
//! Reporter -- thread, every 100 ms: publish, look which children have ended
//!          \- StatsFile: read by `highwater run`, also after this process was killed
//! ```

use crate::fork::Children;
use crate::heap::{self, Look, Watch};
use crate::signals::Blocked;
use crate::smaps::{self, Elsewhere};
use crate::{memory, process};
use highwater_devices::{Compression, Tiering};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_mm::{FaultError, Manager};
use highwater_session::{Settings, StatsFile};
use highwater_uffd::Uffd;
use highwater_units::{Bytes, PAGE_SIZE};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time between publications.
const PERIOD: Duration = Duration::from_millis(100);

/// Publishes a process's statistics.
pub(crate) struct Reporter {
    shared: Arc<Shared>,
}

struct Shared {
    manager: Arc<Manager<Uffd>>,
    file: Option<StatsFile>,
    /// The range and the arena: what is paged. (first address, after the last)
    paged: [(u64, u64); 2],
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
    /// Starts publishing. Without a run directory, or a thread, there is nothing to publish to, or
    /// only at the end: the program matters more.
    pub(crate) fn start(
        settings: &Settings,
        manager: Arc<Manager<Uffd>>,
        base: u64,
        pages: u64,
    ) -> Reporter {
        let file = settings.run_dir.as_ref();
        let file = file.and_then(|dir| StatsFile::create(dir, std::process::id()).ok());
        let (arena, arena_len) = manager.platform().arena_range();
        let range = (base, base + pages * PAGE_SIZE as u64);
        let shared = Arc::new(Shared {
            manager,
            file,
            paged: [range, (arena, arena + arena_len as u64)],
            elsewhere: Mutex::default(),
            paged_peak: AtomicU64::new(0),
            out_of_memory: AtomicU64::new(0),
            ram_device_peak: AtomicU64::new(0),
            compressed_peak: Mutex::default(),
            tiered_peak: Mutex::default(),
            malloc: Mutex::default(),
            children: Children::default(),
        });
        let body = shared.clone();
        let started = highwater_os::spawn("hw-report", Box::new(move || body.run()));
        drop(started);
        Reporter { shared }
    }

    /// The forked children that still read this process's slots.
    pub(crate) fn children(&self) -> &Children {
        &self.shared.children
    }

    /// Publishes once more, with what takes longer to find out.
    pub(crate) fn finish(&self) {
        self.shared.look_elsewhere();
        self.shared.publish(Look::Now);
    }
}

impl Shared {
    fn run(&self) {
        // Looking at all mappings costs milliseconds: after 1, 2, 4 ... periods.
        let mut next_look = 1u64;
        for tick in 0u64.. {
            if tick == next_look {
                self.look_elsewhere();
                next_look *= 2;
            }
            self.children.release_ended(&self.manager);
            self.publish(Look::IfDue);
            std::thread::sleep(PERIOD);
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

/// Publishes at the process's ordinary end.
pub(crate) fn at_exit() {
    // SAFETY: the handler is a plain function that may run at any time.
    unsafe { libc::atexit(finish) };
}

extern "C" fn finish() {
    // A signal's handler may end the process, too, and would wait for the locks of this thread.
    let _blocked = Blocked::now();
    memory::step_aside();
    if let Some(process) = process::running() {
        process.reporter.finish();
    }
}

/// _exit(2): without exit handlers, but the statistics are kept.
#[unsafe(no_mangle)]
extern "C" fn _exit(status: libc::c_int) -> ! {
    finish();
    leave(status)
}

/// _Exit(3), the same.
#[unsafe(no_mangle)]
extern "C" fn _Exit(status: libc::c_int) -> ! {
    finish();
    leave(status)
}

fn leave(status: libc::c_int) -> ! {
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Writes one line and ends the process, status 2: what cannot be served is not run.
pub(crate) fn end(message: &str) -> ! {
    say(message);
    leave(2)
}

/// Ends a process whose access cannot be served, as the kernel ends one that is out of memory.
pub(crate) fn end_for(error: FaultError, manager: &Manager<Uffd>) -> ! {
    let statistics = manager.statistics();
    let of_pages = |counter| Bytes::of_pages(statistics.get(counter));
    let (frames, slots) = (of_pages(Counter::Frames), of_pages(Counter::SlotsTotal));
    let used = of_pages(Counter::SlotsUsed);
    let shortage = manager.machine().stats.shortage();
    let seen = shortage.map_or(String::new(), |shortage| format!("; {shortage}"));
    say(&format!(
        "{error}: the program is ended (memory {frames}, swap {used} of {slots} used{seen}); \
         run it with more --memory or --swap"
    ));
    if let Some(process) = process::running() {
        let full = u64::from(error == FaultError::OutOfMemory);
        process.reporter.shared.out_of_memory.store(full, Relaxed);
        process.reporter.shared.publish(Look::IfDue);
    }
    loop {
        // SAFETY: a signal that ends this process and nothing else.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// Writes one line.
pub(crate) fn say(message: &str) {
    let line = format!("highwater: {message}\n");
    // SAFETY: the line lives for the call. What cannot be written cannot be said.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
