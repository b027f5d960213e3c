//! Which attempts at compaction are skipped after failures (compaction_deferred, mm/compaction.c).
//!
//! ```text
//! a failure: shift grows by 1, to 6 at most; one of the next 2^shift attempts of that order or
//!            above is made
//! a success: shift is 0; orders up to that one are not deferred
//! ```

use highwater_platform::{Atomic, Platform};
use highwater_units::Order;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

/// The largest shift: one of 2^6 attempts is made (COMPACT_MAX_DEFER_SHIFT).
const SHIFT_MAX: u8 = 6;

/// Recent results, packed into one word of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Deferral {
    /// Attempts since the last failure, up to 2^shift.
    considered: u8,
    shift: u8,
    /// The smallest order that fails.
    failed: u8,
}

/// Whether an attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The attempt is skipped.
    Deferred,
    /// The attempt is made.
    Go,
    /// The attempt is made after the longest deferral: skip bits and scanner positions are reset.
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
        match self.shift {
            _ if self.considered < limit => Verdict::Deferred,
            SHIFT_MAX => Verdict::Restart,
            _ => Verdict::Go,
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

/// Whether to make an attempt now.
pub(super) fn consider<P: Platform>(word: &P::Atomic<u32>, order: Order) -> Verdict {
    let mut deferral = Deferral::unpack(word.load(Relaxed));
    let verdict = deferral.consider(order);
    // Concurrent attempts may count as one.
    word.store(deferral.pack(), Relaxed);
    verdict
}

/// Records an attempt after which no block was free.
pub(super) fn fail<P: Platform>(word: &P::Atomic<u32>, order: Order) {
    change::<P>(word, |deferral| deferral.fail(order));
}

/// Records an attempt that made a block.
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

    /// The attempts of an order that are skipped before one is made.
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
    fn skipped_attempts_double_with_each_failure() {
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
    fn orders_below_the_failed_one_are_not_deferred() {
        let mut deferral = Deferral::default();
        deferral.succeed(Order(5));
        deferral.fail(Order(9));
        assert_eq!(deferral.consider(Order(5)), Verdict::Go);
        assert_eq!(deferral.consider(Order(6)), Verdict::Deferred);
        deferral.succeed(Order(9));
        assert_eq!(deferral.consider(Order(9)), Verdict::Go);
    }
}
