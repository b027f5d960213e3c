//! How much to scan, and which list.
//!
//! Priority falls from 12 to 0; each round scans 1/2^priority of the lists, as the kernel does, and
//! stops as soon as enough frames are free. The inactive list is refilled when it is low.

use super::evict::evict;
use super::scan::age;
use crate::lru::{List, Lru};
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use highwater_platform::{Phase, Platform, Recency};
use highwater_units::BATCH_PAGES_MAX;

/// Rounds of a reclaim: from 1/4096 of the lists to all of them (DEF_PRIORITY).
const PRIORITY_MAX: u32 = 12;

/// Who reclaims, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimer {
    /// A kswapd thread.
    Kswapd,
    /// A thread that needs a frame itself.
    Direct,
}

impl Reclaimer {
    fn counters(self) -> (Counter, Counter) {
        match self {
            Reclaimer::Kswapd => (Counter::PgScanKswapd, Counter::PgStealKswapd),
            Reclaimer::Direct => (Counter::PgScanDirect, Counter::PgStealDirect),
        }
    }
}

/// Frees at least `target` frames of a node if it can; returns how many.
pub fn shrink<P: Platform>(m: &Machine<P>, node: &Node<P>, who: Reclaimer, target: u32) -> u32 {
    let _phase = m.enter(Phase::Reclaim);
    let (scan_counter, steal_counter) = who.counters();
    let mut freed = 0;
    for priority in (0..=PRIORITY_MAX).rev() {
        let pages = node.lru.len(List::Active) + node.lru.len(List::Inactive);
        let mut budget = (pages >> priority).max(BATCH_PAGES_MAX as u32);
        while budget > 0 && freed < target {
            refill_inactive(m, node);
            let batch = node.lru.isolate(&m.frames, List::Inactive, BATCH_PAGES_MAX);
            if batch.is_empty() {
                break;
            }
            budget = budget.saturating_sub(batch.len() as u32);
            m.count(scan_counter, batch.len() as u64);
            let gained = evict(m, node, batch);
            m.count(steal_counter, u64::from(gained));
            freed += gained;
        }
        if freed >= target {
            break;
        }
    }
    freed
}

/// Ages two batches for every one that goes, while the inactive list is low: one would only replace
/// what is evicted next, and no page would ever stay long enough to be used again.
fn refill_inactive<P: Platform>(m: &Machine<P>, node: &Node<P>) {
    for _ in 0..2 {
        if inactive_is_low(&node.lru, m.platform.recency()) {
            age(m, node);
        }
    }
}

/// Whether pages should be moved from the active to the inactive list.
///
/// With an accessed bit, the kernel's ratio: 1 up to 1 GiB, then sqrt(10 * GiB). Where asking costs
/// an unmapping, and a fault if the page is used, the inactive list is an eighth.
fn inactive_is_low<P: Platform>(lru: &Lru<P>, recency: Recency) -> bool {
    let (active, inactive) = (lru.len(List::Active), lru.len(List::Inactive));
    let ratio = match recency {
        Recency::AccessedBit => inactive_ratio(active + inactive),
        Recency::Unmapping => 7,
    };
    u64::from(inactive) * u64::from(ratio) < u64::from(active)
}

fn inactive_ratio(pages: u32) -> u32 {
    match pages >> 18 {
        0 => 1,
        gib => (10 * gib).isqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_follows_the_kernel() {
        for (gib, ratio) in [(0, 1), (1, 3), (10, 10), (100, 31), (1000, 100)] {
            assert_eq!(inactive_ratio(gib << 18), ratio, "{gib} GiB");
        }
    }
}
