//! Injected faults: the rates at which operations fail or are slow, drawn from the run's own random
//! sequence.

use crate::engine::Engine;
use highwater_units::Prng;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Fault rates per thousand calls. They may change during the run.
#[derive(Debug, Default)]
pub struct InjectedFaults {
    /// Reads that fail.
    pub reads: AtomicU32,
    /// Writes that fail.
    pub writes: AtomicU32,
    /// Failed reads that nevertheless fill their first frames.
    pub short: AtomicU32,
    /// Transfers that take a hundred times as long.
    pub delays: AtomicU32,
    /// Transfers during which the device stalls for 20 ms.
    pub stalls: AtomicU32,
    /// Writes for which the storage behind the device has no room.
    pub full: AtomicU32,
    /// Frames that the host has no memory to populate.
    pub populate: AtomicU32,
    /// Pages that the host has pinned when the manager unmaps them.
    pub busy: AtomicU32,
}

impl InjectedFaults {
    /// Random rates; each is zero in two of three draws.
    pub fn draw(random: &mut Prng) -> InjectedFaults {
        let mut rate = |most: u64| match random.below(3) {
            0 => AtomicU32::new(1 + random.below(most) as u32),
            _ => AtomicU32::new(0),
        };
        InjectedFaults {
            reads: rate(60),
            writes: rate(300),
            short: rate(500),
            delays: rate(200),
            stalls: rate(5),
            full: rate(200),
            populate: rate(30),
            busy: rate(200),
        }
    }

    /// Random rates of the faults that cost time but fail no access.
    pub fn draw_harmless(random: &mut Prng) -> InjectedFaults {
        let InjectedFaults { short, delays, stalls, busy, .. } = InjectedFaults::draw(random);
        InjectedFaults { short, delays, stalls, busy, ..InjectedFaults::default() }
    }

    /// Whether an access may fail.
    pub fn any_fatal(&self) -> bool {
        let fatal = [&self.reads, &self.writes, &self.full, &self.populate];
        fatal.iter().any(|rate| rate.load(Relaxed) > 0)
    }

    /// Sets all rates to zero.
    pub fn end(&self) {
        let InjectedFaults { reads, writes, short, delays, stalls, full, populate, busy } = self;
        for rate in [reads, writes, short, delays, stalls, full, populate, busy] {
            rate.store(0, Relaxed);
        }
    }

    /// Draws whether to inject the fault whose rate `which` selects.
    pub(crate) fn inject(
        &self,
        engine: &Engine,
        which: impl Fn(&InjectedFaults) -> &AtomicU32,
    ) -> bool {
        let rate = u64::from(which(self).load(Relaxed));
        rate > 0 && engine.draw(1000) < rate
    }
}
