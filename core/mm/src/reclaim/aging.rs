//! Moves pages from active to inactive lists, and probes whether they are used: clears the accessed
//! bit, or unmaps the page with its neighbours (`region.rs`).

use super::large::{self, split_batch};
use super::probing::{Probing, probing};
use super::region;
use crate::frame::History;
use crate::lru::{Kind, List, Lru};
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use crate::swap::{Now, Task};
use highwater_platform::Platform;
use highwater_units::{BATCH_PAGES_MAX, FrameBatch};

/// Whether pages should move from a kind's active to its inactive list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aging {
    /// The inactive list is too short, or its pages are the wrong ones.
    Due,
    /// The inactive list will do.
    NotDue,
}

/// Moves up to two batches to the inactive list before one is evicted from it, while the list is
/// low. One batch would only replace the next victims: no page would stay long enough to be used
/// again.
pub(super) fn refill_inactive<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind) {
    let probing = probing(m, node, kind);
    let probes_anon = kind == Kind::Anon && probing != Probing::AccessedBits;
    if probes_anon && m.swap.loops.keep_active() {
        follow_loop(m, node);
    }
    for _ in 0..2 {
        if aging(node, kind, probing) == Aging::Due {
            age(m, node, kind, probing);
        }
    }
}

/// Samples whether the active pages of a loop are in use (`swap/loops.rs`).
fn follow_loop<P: Platform>(m: &Machine<P>, node: &Node<P>) {
    let (evicted, inactive) = (m.swap.evicted(), node.lru.len(List::InactiveAnon));
    let now = Now { evicted, inactive, frames: m.present() as u64 };
    match m.swap.loops.task(now) {
        Task::Nothing => {}
        Task::Sample => m.swap.loops.sampled(region::sample(m, node), now),
        Task::Judge(sample) => {
            let (used, unused) = region::judge(m, &sample);
            m.swap.loops.judge(used, unused, now);
        }
    }
}

/// Decides whether a kind's active pages are to be aged. Files' pages are also aged after refaults
/// of pages that should have stayed: the active pages may no longer be the used ones.
pub(super) fn aging<P: Platform>(node: &Node<P>, kind: Kind, probing: Probing) -> Aging {
    let stale = kind == Kind::File && node.lru.workingset().has_refaults();
    if stale || inactive_is_low(&node.lru, kind, probing) { Aging::Due } else { Aging::NotDue }
}

/// With accessed bits, the kernel's ratio: 1 up to 1 GiB, then sqrt(10 * GiB). Where a used page
/// costs a fault, the inactive list is an eighth.
fn inactive_is_low<P: Platform>(lru: &Lru<P>, kind: Kind, probing: Probing) -> bool {
    let (active, inactive) = (lru.len(List::active(kind)), lru.len(List::inactive(kind)));
    let ratio = match probing {
        Probing::AccessedBits => inactive_ratio(active + inactive),
        Probing::Blocks | Probing::Sparing => 7,
    };
    u64::from(inactive) * u64::from(ratio) < u64::from(active)
}

fn inactive_ratio(pages: u32) -> u32 {
    match pages >> 18 {
        0 => 1,
        gib => (10 * gib).isqrt(),
    }
}

/// Moves a batch of the oldest active pages of a kind to its inactive list and probes them.
fn age<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind, probing: Probing) {
    match probing {
        Probing::AccessedBits => clear_oldest(m, node, kind),
        Probing::Blocks | Probing::Sparing => region::age(m, node, kind, probing),
    }
}

/// Ages the oldest active pages by their accessed bits.
fn clear_oldest<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind) {
    let batch = node.lru.isolate(&m.frames, m.cpu(), List::active(kind), BATCH_PAGES_MAX);
    if kind == Kind::File {
        batch.iter().for_each(|pfn| m.frames.set_history(*pfn, History::Active));
    }
    let (batch, heads) = split_batch(m, batch);
    let (mut probed, mut rotated) = (clear_accessed_bits(m, batch), FrameBatch::default());
    for head in heads.iter() {
        match large::probe(m, *head) {
            large::Probe::Done => probed.push(*head),
            large::Probe::Busy => rotated.push(*head),
        }
    }
    m.count(Counter::PgDeactivate, probed.len() as u64);
    m.count(Counter::PgRotated, rotated.len() as u64);
    m.free(&node.lru.putback(&m.frames, &probed, List::inactive(kind)));
    m.free(&node.lru.putback(&m.frames, &rotated, List::active(kind)));
}

fn clear_accessed_bits<P: Platform>(m: &Machine<P>, batch: FrameBatch) -> FrameBatch {
    for pfn in batch.iter() {
        if let Some(owner) = m.frames.owner(*pfn) {
            m.space(owner.space).clear_accessed(owner.vpn, *pfn);
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::lru::Mode;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::Pfn;

    /// Regression: a process ran out of memory with 1,030 evictable pages, all active. The
    /// published lengths of 16 shards, each a few pages behind, added up to 118 inactive pages; so
    /// no page was aged, and reclaim found none to isolate.
    #[test]
    fn pages_are_aged_if_the_inactive_list_is_empty() {
        const SHARDS: u32 = 16;
        let config = Config { lru_shards: Some(SHARDS), ..Config::default() };
        let m = Machine::new(TestPlatform::new(SHARDS * 2048, Vec::new()), config);
        let node = &m.nodes[0];
        let add = |pages: std::ops::Range<u32>, list| {
            let pages: Vec<Pfn> = pages.map(Pfn).collect();
            pages.chunks(16).for_each(|pages| {
                node.lru.add(&m.frames, m.cpu(), pages, list);
            });
            node.lru.drain(&m.frames, |_| ());
        };
        for first in (0..SHARDS).map(|shard| 64 * shard) {
            add(first..first + 40, List::InactiveAnon);
            for pfn in (first..first + 40).map(Pfn) {
                assert!(node.lru.isolate_frame(&m.frames, pfn, Mode::Sync).is_some());
            }
            add(first + 40..first + 45, List::ActiveAnon);
        }
        let probing = probing(&m, node, Kind::Anon);
        assert_eq!(aging(node, Kind::Anon, probing), Aging::Due);
    }

    #[test]
    fn the_ratio_is_the_kernels() {
        for (gib, ratio) in [(0, 1), (1, 3), (10, 10), (100, 31), (1000, 100)] {
            assert_eq!(inactive_ratio(gib << 18), ratio, "{gib} GiB");
        }
    }
}
