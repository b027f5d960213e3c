//! Which threads evict a node's pages: kswapd, or those that allocate.
//!
//! ```text
//! an allocation below low -> evictor: every 100 ms, idle time of the node's CPUs -> decide
//!   Kswapd       wakes kswapd, takes frames above min
//!   Allocators   frees a batch itself; kswapd sleeps
//! ```
//! kswapd evicts on a CPU that would otherwise idle. Where no CPU idles, kswapd takes CPU time from
//! the threads that allocate, and evicts pages that are not in the caches of its CPU. Where
//! evicting a page waits for a device, kswapd waits instead of the thread that allocates.
//!
//! Locking: none. One thread wins a period by the compare-and-swap of `due`.

use super::sizing::{IDLE_LEFT, IDLE_NONE};
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use highwater_platform::{Atomic, Platform};
use highwater_units::Nanos;
use std::sync::atomic::Ordering::Relaxed;

/// Time between two decisions: real systems count idle time in ticks of 10 ms.
const PERIOD: Nanos = Nanos(100_000_000);
/// A sample over more periods than this covers earlier work, not the present.
const PERIODS_MAX: u64 = 3;

/// The threads that evict a node's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evictor {
    /// kswapd, until the node is short of frames.
    Kswapd = 0,
    /// Each thread that allocates, a batch at a time.
    Allocators = 1,
}

fn current<P: Platform>(node: &Node<P>) -> Evictor {
    match node.evictor.now.load(Relaxed) {
        0 => Evictor::Kswapd,
        _ => Evictor::Allocators,
    }
}

/// Decides for the next period, from the length of the last one and the idle time in it, summed
/// over CPUs.
fn decide(now: Evictor, length: Nanos, idle: Nanos) -> Evictor {
    let thousandths = idle.0.saturating_mul(1000) / length.0.max(1);
    if length.0 > PERIODS_MAX * PERIOD.0 || thousandths > IDLE_LEFT {
        Evictor::Kswapd
    } else if thousandths < IDLE_NONE {
        Evictor::Allocators
    } else {
        now
    }
}

/// The threads that evict a node's pages now. Costs a read of the clock, and every 100 ms a read of
/// the idle time.
pub fn evictor<P: Platform>(m: &Machine<P>, node: &Node<P>) -> Evictor {
    if !m.config.kswapd_yields() || !m.swap.is_in_memory() {
        return Evictor::Kswapd;
    }
    let (state, now) = (&node.evictor, m.platform.now());
    let due = state.due.load(Relaxed);
    let next = now.0 + PERIOD.0;
    if now.0 < due || state.due.compare_exchange(due, next, Relaxed, Relaxed).is_err() {
        return current(node);
    }
    review(m, node, now)
}

/// Ends a period.
fn review<P: Platform>(m: &Machine<P>, node: &Node<P>, now: Nanos) -> Evictor {
    let (state, was) = (&node.evictor, current(node));
    let next = match m.platform.idle_time(node.zone.range().node) {
        Some(idle) => {
            let length = now.since(Nanos(state.at.swap(now.0, Relaxed)));
            decide(was, length, idle.time.since(Nanos(state.idle.swap(idle.time.0, Relaxed))))
        }
        None => Evictor::Kswapd,
    };
    if next != was {
        state.now.store(next as u8, Relaxed);
    }
    if (was, next) == (Evictor::Kswapd, Evictor::Allocators) {
        m.count(Counter::KswapdYields, 1);
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocating_threads_evict_while_no_cpu_idles() {
        use Evictor::{Allocators, Kswapd};
        let part = |thousandths: u64| Nanos(PERIOD.0 * thousandths / 1000);
        let table = [
            (Kswapd, PERIOD, part(99), Allocators),
            (Kswapd, PERIOD, part(100), Kswapd),
            (Kswapd, PERIOD, part(250), Kswapd),
            (Allocators, PERIOD, part(0), Allocators),
            (Allocators, PERIOD, part(250), Allocators),
            (Allocators, PERIOD, part(251), Kswapd),
            (Allocators, part(3000), part(0), Allocators),
            // Most of such a long period lies before memory became short.
            (Kswapd, part(3001), part(0), Kswapd),
            (Allocators, part(3001), part(0), Kswapd),
        ];
        for (now, length, idle, expected) in table {
            assert_eq!(decide(now, length, idle), expected, "{now:?}, {idle:?} of {length:?}");
        }
    }
}
