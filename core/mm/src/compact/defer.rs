//! How long compaction is left alone after it failed (compaction_deferred, mm/compaction.c).
//!
//! ```text
//! failed: shift + 1, at most 6 -- the next 2^shift attempts of that order or more are not made
//! a block was had: shift 0, and orders up to that one are not deferred at all
//! ```

use highwater_platform::{Atomic, Platform};
use highwater_units::Order;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// At most 2^6 attempts are not made (COMPACT_MAX_DEFER_SHIFT).
const SHIFT_MAX: u8 = 6;

/// What is remembered; one word of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Deferral {
    /// Attempts since the last failure, counted up to the limit.
    considered: u8,
    shift: u8,
    /// The least order that fails.
    failed: u8,
}

/// What an attempt finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is not made.
    Deferred,
    /// It is made.
    Go,
    /// It is made after the longest wait: what is known of the zone is old.
    Restart,
}

impl Deferral {
    fn unpack(word: u32) -> Deferral {
        let [considered, shift, failed, _] = word.to_le_bytes();
        Deferral { considered, shift, failed }
    }

    fn pack(self) -> u32 {
        u32::from_le_bytes([self.considered, self.shift, self.failed, 0])
    }

    fn consider(&mut self, order: Order) -> Verdict {
        if order.0 < self.failed {
            return Verdict::Go;
        }
        let limit = 1 << self.shift;
        self.considered = (self.considered + 1).min(limit);
        match (self.considered < limit, self.shift) {
            (true, _) => Verdict::Deferred,
            (false, SHIFT_MAX) => Verdict::Restart,
            (false, _) => Verdict::Go,
        }
    }

    fn fail(&mut self, order: Order) {
        self.considered = 0;
        self.shift = (self.shift + 1).min(SHIFT_MAX);
        self.failed = self.failed.min(order.0);
    }

    fn succeed(&mut self, order: Order) {
        self.considered = 0;
        self.shift = 0;
        self.failed = self.failed.max(order.0 + 1);
    }
}

/// Whether to try, now.
pub(super) fn consider<P: Platform>(word: &P::Atomic<u32>, order: Order) -> Verdict {
    let mut deferral = Deferral::unpack(word.load(Relaxed));
    let verdict = deferral.consider(order);
    // Attempts that come at the same time may count as one.
    word.store(deferral.pack(), Relaxed);
    verdict
}

/// It did not help.
pub(super) fn fail<P: Platform>(word: &P::Atomic<u32>, order: Order) {
    change::<P>(word, |deferral| deferral.fail(order));
}

/// A block was had.
pub(super) fn succeed<P: Platform>(word: &P::Atomic<u32>, order: Order) {
    change::<P>(word, |deferral| deferral.succeed(order));
}

fn change<P: Platform>(word: &P::Atomic<u32>, act: impl Fn(&mut Deferral)) {
    let changed = word.fetch_update(AcqRel, Acquire, |bits| {
        let mut deferral = Deferral::unpack(bits);
        act(&mut deferral);
        Some(deferral.pack())
    });
    debug_assert!(changed.is_ok(), "it always changes to something");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attempts of an order that are not made before one is.
    fn waits(deferral: &mut Deferral, order: u8) -> (u32, Verdict) {
        let mut deferred = 0;
        loop {
            match deferral.consider(Order(order)) {
                Verdict::Deferred => deferred += 1,
                verdict => return (deferred, verdict),
            }
        }
    }

    #[test]
    fn waits_double_with_each_failure() {
        let mut deferral = Deferral::default();
        assert_eq!(waits(&mut deferral, 9), (0, Verdict::Go));
        for expected in [1, 3, 7, 15, 31] {
            deferral.fail(Order(9));
            assert_eq!(waits(&mut deferral, 9), (expected, Verdict::Go));
        }
        for _ in 0..2 {
            deferral.fail(Order(9));
            assert_eq!(waits(&mut deferral, 9), (63, Verdict::Restart));
        }
        assert_eq!(Deferral::unpack(deferral.pack()), deferral);
    }

    #[test]
    fn orders_below_the_one_that_failed_are_tried() {
        let mut deferral = Deferral::default();
        deferral.succeed(Order(5));
        deferral.fail(Order(9));
        assert_eq!(deferral.consider(Order(5)), Verdict::Go);
        assert_eq!(deferral.consider(Order(6)), Verdict::Deferred);
        deferral.succeed(Order(9));
        assert_eq!(deferral.consider(Order(9)), Verdict::Go);
    }
}
