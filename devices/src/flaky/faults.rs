//! The faults of a device in use: which transfers they strike, and how many they have struck.
//!
//! Locks: none. Any thread may change when a kind strikes; the change applies to the next transfer.

use super::plan::{FaultKind, FaultPlan, KINDS, When};
use highwater_platform::Direction;
use highwater_units::Prng;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A rate that strikes every transfer.
const ALWAYS: u32 = 1000;
/// A rate that becomes 0 at the first transfer it strikes.
const ONCE: u32 = u32::MAX;

/// The faults of a device.
#[derive(Debug, Default)]
pub struct Faults {
    /// For each kind, how many of 1000 transfers it strikes.
    rates: [AtomicU32; KINDS],
    struck: [AtomicU64; KINDS],
    /// Transfers so far.
    transfers: AtomicU64,
    after: u64,
    seed: u64,
}

impl Faults {
    pub(crate) fn new(plan: &FaultPlan) -> Faults {
        let faults = Faults { after: plan.after, seed: plan.seed, ..Faults::default() };
        FaultKind::ALL.into_iter().for_each(|kind| faults.set(kind, plan.when[kind as usize]));
        faults
    }

    /// The faults of a new device with this plan: none has struck yet.
    pub(super) fn anew(&self) -> Faults {
        let rates = self.rates.each_ref().map(|rate| AtomicU32::new(rate.load(Relaxed)));
        Faults { rates, after: self.after, seed: self.seed, ..Faults::default() }
    }

    /// Changes when a kind strikes.
    pub fn set(&self, kind: FaultKind, when: When) {
        let rate = match when {
            When::Never => 0,
            When::Once => ONCE,
            When::Always => ALWAYS,
            When::Rate(rate) => rate.into(),
        };
        self.rates[kind as usize].store(rate, Relaxed);
    }

    /// No transfer is struck from now on.
    pub fn end(&self) {
        FaultKind::ALL.into_iter().for_each(|kind| self.set(kind, When::Never));
    }

    /// The transfers that a kind has struck.
    pub fn struck(&self, kind: FaultKind) -> u64 {
        self.struck[kind as usize].load(Relaxed)
    }

    /// The transfers that any kind has struck.
    pub fn total(&self) -> u64 {
        FaultKind::ALL.into_iter().map(|kind| self.struck(kind)).sum()
    }

    /// The fault that strikes the next transfer.
    pub(super) fn draw(&self, direction: Direction) -> Option<FaultKind> {
        let number = self.transfers.fetch_add(1, Relaxed);
        if number < self.after {
            return None;
        }
        let mut random = Prng::new(self.seed.wrapping_add(number));
        let mut kinds = kinds_of(direction).iter().copied();
        let kind = kinds.find(|kind| self.strikes(*kind, &mut random))?;
        self.struck[kind as usize].fetch_add(1, Relaxed);
        Some(kind)
    }

    fn strikes(&self, kind: FaultKind, random: &mut Prng) -> bool {
        let rate = &self.rates[kind as usize];
        match rate.load(Relaxed) {
            0 => false,
            // Of several threads that race here, one is struck.
            ONCE => rate.compare_exchange(ONCE, 0, Relaxed, Relaxed).is_ok(),
            rate => random.below(ALWAYS.into()) < rate.into(),
        }
    }

    /// Whether the faults of a started batch strike before the device sees it: always where writes
    /// can be lost, else if the number of transfers so far is even.
    pub(super) fn strike_first(&self, direction: Direction) -> bool {
        let rate = |kind: &FaultKind| self.rates[*kind as usize].load(Relaxed);
        let loses = direction == Direction::Write && rate(&FaultKind::Lost) > 0;
        let any = kinds_of(direction).iter().any(|kind| rate(kind) > 0);
        loses || any && self.transfers.load(Relaxed).is_multiple_of(2)
    }
}

/// The kinds that strike transfers of a direction.
fn kinds_of(direction: Direction) -> &'static [FaultKind] {
    use FaultKind::{Delay, Full, Lost, Read, Short, Write};
    match direction {
        Direction::Read => &[Read, Short, Delay],
        Direction::Write => &[Write, Short, Full, Lost, Delay],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(plan: &str, direction: Direction, transfers: usize) -> Vec<Option<FaultKind>> {
        let faults = Faults::new(&FaultPlan::parse(plan).unwrap());
        (0..transfers).map(|_| faults.draw(direction)).collect()
    }

    #[test]
    fn faults_strike_their_direction_after_the_sound_transfers() {
        use Direction::{Read, Write};
        let (read, full) = (Some(FaultKind::Read), Some(FaultKind::Full));
        for (plan, direction, expected) in [
            ("read=once", Read, [read, None, None]),
            ("read=once,after=1", Read, [None, read, None]),
            ("read=always", Read, [read; 3]),
            ("read=always", Write, [None; 3]),
            ("full=always,after=2", Write, [None, None, full]),
            ("full=always,delay=always", Write, [full; 3]),
            ("lost=always", Read, [None; 3]),
        ] {
            assert_eq!(drawn(plan, direction, 3), expected, "{plan} {direction:?}");
        }
    }

    #[test]
    fn a_rate_is_kept_and_its_seed_repeats_it() {
        let once = drawn("write=50,seed=3", Direction::Write, 10_000);
        let struck = once.iter().flatten().count();
        assert!((400..600).contains(&struck), "{struck} of 10000");
        assert_eq!(drawn("write=50,seed=3", Direction::Write, 10_000), once);
        assert_ne!(drawn("write=50,seed=4", Direction::Write, 10_000), once);
    }

    #[test]
    fn faults_are_counted_until_they_end() {
        let faults = Faults::default();
        faults.set(FaultKind::Short, When::Always);
        assert_eq!(faults.draw(Direction::Read), Some(FaultKind::Short));
        assert_eq!(faults.draw(Direction::Write), Some(FaultKind::Short));
        faults.end();
        assert_eq!(faults.draw(Direction::Read), None);
        assert_eq!((faults.struck(FaultKind::Short), faults.total()), (2, 2));
    }
}
