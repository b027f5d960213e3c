//! The state of a compaction pass over a zone (compact_control), and its outcome.

use super::targets::Targets;
use crate::lru::Mode;
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use crate::zone::{Contention, Mobility, Scanner};
use highwater_platform::Platform;
use highwater_units::{Order, Pfn};
use std::ops::Range;

/// Frames that are freed under one lock.
const BATCH: usize = 32;

/// How an attempt to make a block ended (compact_result).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The scanners met: the whole zone was scanned.
    Complete,
    /// The pass ended earlier: a block is free, or no frame was free to move a page to.
    Partial,
    /// The block that starts at this frame belongs to the caller. It never was on the free lists,
    /// and counts as in use.
    Captured(Pfn),
    /// A lock was contended, and this pass does not wait.
    Contended,
    /// Compaction cannot help: too little memory is free, or a block is free already.
    Skipped,
    /// An attempt failed a short while ago.
    Deferred,
}

/// The state of a pass.
pub(super) struct Control<'a, P: Platform> {
    pub(super) node: &'a Node<P>,
    /// The order of the wanted block.
    pub(super) order: Order,
    /// The migrate type of the wanted block.
    pub(super) mobility: Mobility,
    /// Whether the pass waits for locks, and for pages in use.
    pub(super) mode: Mode,
    /// The next frame for the migrate scanner. Targets are above its pageblock.
    pub(super) migrate: Pfn,
    /// The first frame of the next pageblock for the free scanner.
    pub(super) free: Pfn,
    /// Free blocks that the pass holds, for pages to move to.
    pub(super) targets: Targets,
    /// The frames that the pass empties: it takes no target from them.
    pub(super) region: Range<u32>,
    /// By scanner: whether it has isolated something, and so leaves its cached position alone.
    pub(super) found: [bool; 2],
}

impl<'a, P: Platform> Control<'a, P> {
    /// A pass whose scanners start at the cached positions.
    pub(super) fn new(node: &'a Node<P>, wanted: (Order, Mobility), mode: Mode) -> Self {
        let scanners = node.zone.scanners();
        let free = scanners.cached(Scanner::Free);
        Control::at(node, wanted, mode, (scanners.cached(Scanner::Migrate), free))
    }

    /// A pass whose migrate and free scanners start at these frames.
    pub(super) fn at(
        node: &'a Node<P>,
        (order, mobility): (Order, Mobility),
        mode: Mode,
        (migrate, free): (Pfn, Pfn),
    ) -> Self {
        let (targets, region, found) = (Targets::default(), 0..0, [false; 2]);
        Control { node, order, mobility, mode, migrate, free, targets, region, found }
    }

    /// Marks a pageblock in which a scanner isolated nothing, to be skipped. The next pass starts
    /// behind it, unless this scanner isolated something before it reached the pageblock.
    pub(super) fn skip_pageblock(&self, scanner: Scanner, first: Pfn) {
        let (zone, scanners) = (&self.node.zone, self.node.zone.scanners());
        zone.set_skip(zone.pageblock_of(first));
        let cached = scanners.cached(scanner);
        let is_further = match scanner {
            Scanner::Migrate => first > cached,
            Scanner::Free => first < cached,
        };
        if is_further && !self.found[scanner as usize] {
            scanners.cache(scanner, first);
        }
    }

    /// Frees the targets that no page moved to.
    pub(super) fn release(&mut self, m: &Machine<P>) {
        self.targets.take_all().chunks(BATCH).for_each(|frames| m.free_to_zone(frames));
    }
}

/// For whom a pass runs: selects the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// An allocation.
    Direct,
    /// kcompactd, which has counters of its own in addition.
    Kcompactd,
}

impl Caller {
    /// Counts the work of a scanner, in frames.
    pub(super) fn count<P: Platform>(
        self,
        m: &Machine<P>,
        scanner: Scanner,
        scanned: u32,
        isolated: u32,
    ) {
        let (by_scanned, by_isolated, of_daemon) = match scanner {
            Scanner::Migrate => (
                Counter::CompactMigrateScanned,
                Counter::CompactMigrateIsolated,
                Counter::CompactDaemonMigrateScanned,
            ),
            Scanner::Free => (
                Counter::CompactFreeScanned,
                Counter::CompactFreeIsolated,
                Counter::CompactDaemonFreeScanned,
            ),
        };
        m.count(by_scanned, scanned.into());
        m.count(by_isolated, isolated.into());
        m.count(Counter::CompactIsolated, isolated.into());
        if self == Caller::Kcompactd {
            m.count(of_daemon, scanned.into());
        }
    }
}

/// How a pass reacts to a contended zone lock.
pub(super) fn contention(mode: Mode) -> Contention {
    match mode {
        Mode::Async => Contention::Aborts,
        Mode::Sync => Contention::Waits,
    }
}
