//! What a thread did, and how long its accesses took.

use super::ticks::Stopwatch;
use super::world::World;
use hdrhistogram::Histogram;

/// One access in this many is timed where most take less time than reading a clock. It is odd, so
/// that it does not fall into step with runs of pages.
pub(super) const TIMED_EVERY: u32 = 7;
/// Timed accesses between two checks of the clock for the end.
pub(super) const TIMED_PER_BURST: u32 = 36;
/// Longest latency recorded, in ticks: half a minute.
const TICKS_MAX: u64 = 1 << 36;

/// What one thread did, or several.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Loads of words, each checked.
    pub loads: u64,
    /// Stores of words.
    pub stores: u64,
    /// Latency of the timed accesses, in ticks.
    pub latency: Histogram<u64>,
    /// Loads and stores in the first half of the time, where the time is fixed.
    pub first_half: Option<u64>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        let latency = Histogram::new_with_bounds(1, TICKS_MAX, 2).expect("bounds in order");
        Tally { loads: 0, stores: 0, latency, first_half: None }
    }

    /// What all threads did.
    pub(super) fn sum(tallies: impl IntoIterator<Item = Tally>) -> Tally {
        tallies.into_iter().fold(Tally::new(), |mut all, one| {
            all.loads += one.loads;
            all.stores += one.stores;
            all.latency.add(&one.latency).expect("equal bounds");
            let so_far = all.first_half.unwrap_or(0);
            all.first_half = one.first_half.map(|accesses| so_far + accesses);
            all
        })
    }
}

/// Takes the time of one access, or does not.
pub(super) trait Probe {
    fn time<W: World, R>(
        tally: &mut Tally,
        watch: &Stopwatch<'_, W>,
        access: impl FnOnce() -> R,
    ) -> R;
}

/// Records the access's latency.
pub(super) struct Timed;

impl Probe for Timed {
    fn time<W: World, R>(
        tally: &mut Tally,
        watch: &Stopwatch<'_, W>,
        access: impl FnOnce() -> R,
    ) -> R {
        let began = watch.ticks();
        let result = access();
        tally.latency.saturating_record(watch.ticks().saturating_sub(began));
        result
    }
}

/// Records nothing.
pub(super) struct Untimed;

impl Probe for Untimed {
    fn time<W: World, R>(_: &mut Tally, _: &Stopwatch<'_, W>, access: impl FnOnce() -> R) -> R {
        access()
    }
}
