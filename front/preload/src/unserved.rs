//! Statistics of a process that was never served, but needed more than the budget.
//!
//! None of its memory was paged, so the summary of the run shows which kinds of memory it had.
//! Smaller processes publish nothing.

use crate::smaps::{self, Paged};
use crate::{environment, later, process, start, unpaged};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_session::{Name, StatsFile};
use std::mem::MaybeUninit;

/// Runs when the process exits normally.
#[cfg_attr(not(test), used, unsafe(link_section = ".fini_array"))]
static ENDED: extern "C" fn() = ended;

extern "C" fn ended() {
    if process::already_running().is_some() || later::waits() || start::has_declined() {
        return;
    }
    let Ok(Some(settings)) = environment::settings() else { return };
    let Some(dir) = &settings.run_dir else { return };
    if peak_of_all_images() <= settings.memory.0 {
        return;
    }
    let peak = unpaged::high_water().0;
    if peak <= settings.memory.0 {
        return;
    }
    let Ok(seen) = smaps::read(&Paged::default()) else { return };
    let mut snapshot = Snapshot::empty();
    // The kernel's peak may lag behind by some pages of each thread.
    let counted = peak.saturating_sub(seen.elsewhere_again).max(seen.elsewhere.total());
    let last = [
        (Counter::HighWaterBytes, peak),
        (Counter::CountedPeak, counted),
        (Counter::ProcessEnded, 1),
    ];
    let gauges = seen.elsewhere.gauges().into_iter().chain(last);
    gauges.for_each(|(gauge, value)| snapshot.counters[gauge as usize] = value);
    // A failure is ignored: only the summary lacks it.
    let file = StatsFile::create(dir, std::process::id(), Name::in_proc("self"));
    let _ = file.map(|file| file.publish(&snapshot, None, None));
}

/// The largest resident set before and after exec, in bytes: an upper bound that costs one system
/// call. Before exec, a child of vfork has its parent's memory.
fn peak_of_all_images() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the structure, for which zeros are valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_maxrss as u64) << 10
}
