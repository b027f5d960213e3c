//! What a process leaves that was never served, and yet needed more than the budget.
//!
//! All it had is memory that is not paged, so the run's summary is to say which. Others leave
//! nothing: most processes are short, and need little.

use crate::{environment, process, smaps};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_session::StatsFile;
use std::mem::MaybeUninit;

/// Runs when the process ends as programs should.
#[cfg_attr(not(test), used, unsafe(link_section = ".fini_array"))]
static ENDED: extern "C" fn() = ended;

extern "C" fn ended() {
    if process::running().is_some() {
        return;
    }
    let Ok(Some(settings)) = environment::settings() else { return };
    let (Some(dir), true) = (&settings.run_dir, peak() > settings.memory.0) else { return };
    let Ok(found) = smaps::read(&[]) else { return };
    let mut snapshot = Snapshot::empty();
    let gauges = found.gauges().into_iter().chain([(Counter::HighWaterBytes, peak())]);
    gauges.for_each(|(gauge, value)| snapshot.counters[gauge as usize] = value);
    // Who cannot leave it is not missed.
    let file = StatsFile::create(dir, std::process::id());
    let _ = file.map(|file| file.publish(&snapshot, None));
}

/// The largest resident set, in bytes.
fn peak() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills what zeros are valid for.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_maxrss as u64) << 10
}
