//! Injected faults: how often what goes wrong. Drawn from the run's own sequence.

use crate::engine::Engine;
use highwater_units::Prng;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Rates in thousandths of calls; may change while they are used.
#[derive(Debug, Default)]
pub struct Troubles {
    /// Reads that fail.
    pub reads: AtomicU32,
    /// Writes that fail.
    pub writes: AtomicU32,
    /// Failed reads that filled their first frames all the same.
    pub short: AtomicU32,
    /// Transfers that take a hundred times as long.
    pub delays: AtomicU32,
    /// Transfers during which the device stands still for 20 ms.
    pub stalls: AtomicU32,
    /// Writes that find no room behind the device.
    pub full: AtomicU32,
    /// Frames for which the system has no memory.
    pub populate: AtomicU32,
    /// Pages that are pinned by the system when they are to be unmapped.
    pub busy: AtomicU32,
}

impl Troubles {
    /// Some of them, at some rate: each is off in two of three draws.
    pub fn draw(random: &mut Prng) -> Troubles {
        let mut rate = |most: u64| match random.below(3) {
            0 => AtomicU32::new(1 + random.below(most) as u32),
            _ => AtomicU32::new(0),
        };
        Troubles {
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

    /// Those that only take time.
    pub fn draw_harmless(random: &mut Prng) -> Troubles {
        let Troubles { short, delays, stalls, busy, .. } = Troubles::draw(random);
        Troubles { short, delays, stalls, busy, ..Troubles::default() }
    }

    /// Whether an access may fail.
    pub fn any_fatal(&self) -> bool {
        let fatal = [&self.reads, &self.writes, &self.full, &self.populate];
        fatal.iter().any(|rate| rate.load(Relaxed) > 0)
    }

    /// None from now on.
    pub fn end(&self) {
        let Troubles { reads, writes, short, delays, stalls, full, populate, busy } = self;
        for rate in [reads, writes, short, delays, stalls, full, populate, busy] {
            rate.store(0, Relaxed);
        }
    }

    /// Whether one of them happens now.
    pub(crate) fn strikes(&self, engine: &Engine, which: impl Fn(&Troubles) -> &AtomicU32) -> bool {
        let rate = u64::from(which(self).load(Relaxed));
        rate > 0 && engine.draw(1000) < rate
    }
}
