//! Keeps the process to its part of the memory that all processes of the run share.
//!
//! ```text
//! allocation below low -- Lender::borrow --> Share --- nothing left: wakes the balancers of all
//! balancer ("balance" thread): asks for its aim
//!          |- fewer pages: free ones go into the balloon and back to the others; kswapd frees more
//!          |- more: allocations may borrow them
//!          \- settings and swap devices (swap_set.rs), when the user changes them; compaction
//! ```
//! Without [`Share`] the process has a budget of its own: the run has none to share; or the process
//! may not open it, because it has dropped privileges; or the run's directory is not there, which a
//! line says.

use crate::end::say;
use crate::process::Process;
use crate::program::program;
use crate::tier_windows::TierWindows;
use crate::{bring, sharing, swap_set};
use highwater_mm::Manager;
use highwater_mm::config::Tunables;
use highwater_os::helper::Program;
use highwater_os::{process_cpu_time, spawn, sys};
use highwater_session::{
    Aim, Budget, Excess, FLOOR, Forked, Misses, Settings, Share, StatsFile, Times, Tuning,
    give_excess,
};
use highwater_uffd::Uffd;
use highwater_units::{Bytes, Nanos};
use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::time::{Duration, Instant};

/// Interval between looks at the targets while a process is short of memory.
const TICK: Duration = Duration::from_millis(40);
/// Interval while no process is short.
const CALM: Duration = Duration::from_secs(1);
/// How long kswapd may free pages before the balancer looks again.
const PAUSE: Duration = Duration::from_millis(2);
/// Ticks between searches for processes that have ended.
const REAP_TICKS: u32 = 8;

/// The memory of a process.
pub(crate) struct Memory {
    /// Its part of the memory that all processes share.
    pub(crate) share: Option<Arc<Share>>,
    /// The most memory that it can have.
    pub(crate) most: Bytes,
}

impl Memory {
    /// Joins the budget of the run, if there is one. `file` shows that the process lives.
    ///
    /// # Errors
    /// The library is of another build than the run, or too many processes share its memory.
    pub(crate) fn of(
        settings: &Settings,
        program: Program,
        file: Option<&StatsFile>,
        forked: Forked,
    ) -> Result<Memory, String> {
        let own = Memory { share: None, most: settings.memory };
        let (Some(most), Some(dir)) = (settings.memory_max, &settings.run_dir) else {
            return Ok(own);
        };
        let Some(file) = file else {
            let is_missing = || std::fs::metadata(dir).is_err_and(|error| error.kind() == NotFound);
            // A forked child has what its parent has.
            if forked == Forked::default() && is_missing() {
                let (pid, most, dir) = (program.pid, own.most, dir.display());
                say(&format!(
                    "process {pid} has a budget of its own, {most}: the directory of the run, \
                     {dir}, is not there"
                ));
            }
            return Ok(own);
        };
        // There are no more frames than this.
        let pages = forked.pages.min(most.pages().saturating_sub(FLOOR));
        let joined = match Budget::open(dir) {
            // It has dropped privileges, or the run has ended and left it behind.
            Err(error) if matches!(error.kind(), PermissionDenied | NotFound) => return Ok(own),
            opened => {
                opened.and_then(|budget| budget.join(file.image(), Forked { pages, ..forked }))
            }
        };
        let share = joined.map_err(|error| format!("the budget of the run: {error}"))?;
        Ok(Memory { share: Some(Arc::new(share)), most })
    }

    /// Begins with the least memory, if the rest is to be borrowed.
    pub(crate) fn begin(&self, manager: &Manager<Uffd>) {
        if let Some(share) = &self.share {
            manager.inflate(manager.frames().saturating_sub(share.granted()) as u32);
        }
    }
}

/// The body of the balancer.
pub(crate) fn run(process: &'static Process, share: &'static Arc<Share>) {
    let manager = &process.manager;
    let mut misses = Misses::new(manager);
    let mut times = Times::new(manager, ran());
    let mut granted = 0;
    let mut tiers = TierWindows::new();
    let mut tuning = Tuning { kswapd: Some(process.settings.kswapd), ..Tuning::default() };
    for tick in 0.. {
        let seen = share.changes();
        let grown = std::mem::replace(&mut granted, share.granted()) != granted;
        if tick % REAP_TICKS == 0 {
            share.reap();
        }
        manager.platform().fit_stage(manager.frames());
        let besides = process.reporter.unpaged.publish();
        let devices = manager.platform().devices();
        if let Some(half) = share.tiers_most(devices.resident_in_tiers().pages()) {
            devices.limit_resident(Bytes::of_pages(tiers.most(manager, half)));
        }
        sharing::guard_if_tight(process);
        tuning = tune(manager, tuning, share.tuning());
        swap_set::follow_changes(process, share);
        compact_if_asked(process, share);
        bring::answer_requests(process, share);
        share.set_activity(times.update(manager, ran()));
        match share.aim(manager.spare().into(), misses.update(manager)) {
            // A growing process also takes memory besides its pages, and shared pages get copied.
            Aim::Keep if grown || besides.common > 0 => share.wait(seen, TICK),
            Aim::Keep => share.wait(seen, CALM),
            Aim::Pages(pages) => shrink(manager, share, pages),
        }
    }
}

/// CPU time of the program.
fn ran() -> Nanos {
    program().map_or(Nanos(0), |program| process_cpu_time(program.pid))
}

/// Follows the user's choices; returns the settings that hold now.
fn tune(manager: &Manager<Uffd>, own: Tuning, wanted: Tuning) -> Tuning {
    let wanted = wanted.or(own);
    if let Some(threads) = wanted.kswapd.filter(|_| wanted.kswapd != own.kswapd) {
        // If a thread cannot be started for lack of memory, there are fewer, as before.
        let _ = manager.set_kswapd_threads(threads);
    }
    if wanted != own {
        let now = manager.tunables();
        // The words hold values in range.
        let _ = manager.tune(Tunables {
            swappiness: wanted.swappiness.unwrap_or(now.swappiness),
            window_max: wanted.readahead.unwrap_or(now.window_max),
            file_readahead: wanted.file_readahead.unwrap_or(now.file_readahead),
        });
    }
    wanted
}

/// Starts a thread that compacts memory, if the user asks for compaction and no thread does it yet.
/// If there is no memory for a thread, the next look tries again.
fn compact_if_asked(process: &'static Process, share: &'static Arc<Share>) {
    if share.compaction().is_none() || process.compacts.swap(true, AcqRel) {
        return;
    }
    let compact = move || {
        while let Some(request) = share.compaction() {
            share.has_compacted(request, process.manager.compact());
        }
        process.compacts.store(false, Release);
    };
    if spawn("compact", Box::new(compact)).is_err() {
        process.compacts.store(false, Release);
    }
}

/// Gives back the pages in excess of `pages`, as far as they become free within a tick.
fn shrink(manager: &Manager<Uffd>, share: &Share, pages: u64) {
    let until = Instant::now() + TICK;
    while Instant::now() <= until {
        match give_excess(manager, share, pages) {
            Excess::None => return sys::sleep(until.saturating_duration_since(Instant::now())),
            Excess::Left => sys::sleep(PAUSE),
        }
    }
}
