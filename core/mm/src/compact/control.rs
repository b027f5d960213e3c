//! One run of compaction over a zone: where it is, what it has in hand, what it has done.

use super::method::{Method, Start};
use super::migrate::migrate_batch;
use crate::lru::{List, Mode};
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use crate::zone::{Contention, Mobility, Scanner};
use highwater_platform::Platform;
use highwater_units::{FrameBatch, Order, Pfn};

/// What came of trying to make a block (compact_result).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The scanners met: all of the zone was looked at.
    Complete,
    /// It ended before: there is a block, or no free frame to move a page to.
    Partial,
    /// The block that begins so is the caller's, taken past the free lists and counted as in use.
    Captured(Pfn),
    /// A lock was wanted by others, and this run does not wait.
    Contended,
    /// It would not help: there is too little memory, or a block already.
    Skipped,
    /// It failed a short while ago.
    Deferred,
}

/// How often the free scanner has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// Once.
    First,
    /// Again, from the end of the zone.
    Second,
}

/// Pages off their lists, by list.
pub(super) struct Isolated {
    pub(super) batches: [FrameBatch; List::ALL.len()],
    pub(super) len: usize,
}

impl Isolated {
    pub(super) fn none() -> Isolated {
        Isolated { batches: [FrameBatch::default(); List::ALL.len()], len: 0 }
    }

    pub(super) fn push(&mut self, pfn: Pfn, list: List) {
        self.batches[list as usize].push(pfn);
        self.len += 1;
    }

    /// Puts all back where they were.
    pub(super) fn put_back<P: Platform>(&self, m: &Machine<P>, node: &Node<P>) {
        for (list, batch) in List::ALL.into_iter().zip(&self.batches) {
            m.free_for_all(&node.lru.putback(&m.frames, batch, list));
        }
    }
}

/// The state of a run (compact_control).
pub(super) struct Control<'a, P: Platform> {
    /// What it works on.
    pub(super) node: &'a Node<P>,
    /// Of the block that is wanted.
    pub(super) order: Order,
    /// What that is for.
    pub(super) mobility: Mobility,
    /// Whether it waits for locks, and for pages in use.
    pub(super) mode: Mode,
    /// How its scanners work.
    pub(super) method: Method,
    /// The next frame that the migrate scanner looks at.
    pub(super) migrate: Pfn,
    /// The first frame of the pageblock at which the free scanner goes on.
    pub(super) free: Pfn,
    /// Where that was at first.
    pub(super) start_free: Pfn,
    pub(super) round: Round,
    /// Free frames in hand, for pages to go to.
    pub(super) targets: Vec<Pfn>,
    /// By scanner: it has found something, and no longer says where the next run is to start.
    pub(super) found: [bool; 2],
    /// Whether a lock was given up for.
    pub(super) contended: bool,
}

impl<'a, P: Platform> Control<'a, P> {
    /// At the start of a run.
    pub(super) fn new(
        node: &'a Node<P>,
        (order, mobility): (Order, Mobility),
        mode: Mode,
        method: Method,
    ) -> Control<'a, P> {
        let scanners = node.zone.scanners();
        let start = |scanner| match (method.start, scanner) {
            (Start::Remembered, _) | (Start::FreeCached, Scanner::Free) => scanners.cached(scanner),
            _ => scanners.start(scanner),
        };
        let free = start(Scanner::Free);
        Control {
            node,
            order,
            mobility,
            mode,
            method,
            migrate: start(Scanner::Migrate),
            free,
            start_free: free,
            round: Round::First,
            targets: Vec::new(),
            found: [false; 2],
            contended: false,
        }
    }

    /// A pageblock was scanned to its end, and nothing in it was isolated.
    pub(super) fn found_nothing(&self, scanner: Scanner, first: Pfn) {
        use crate::config::Switch;
        let (zone, scanners) = (&self.node.zone, self.node.zone.scanners());
        if self.method.skips == Switch::Off {
            return;
        }
        zone.set_skip(zone.pageblock_of(first));
        let cached = scanners.cached(scanner);
        let further = match scanner {
            Scanner::Migrate => first > cached,
            Scanner::Free => first < cached,
        };
        if self.method.start == Start::Remembered && !self.found[scanner as usize] && further {
            scanners.cache(scanner, first);
        }
    }

    /// Moves pages to frames in hand; returns the frames that are nobody's then. `None`: there are
    /// too few, or no memory behind them, and the pages are back on their lists.
    pub(super) fn move_to_targets(
        &mut self,
        m: &Machine<P>,
        isolated: Isolated,
    ) -> Option<Vec<Pfn>> {
        let first = self.targets.len().checked_sub(isolated.len);
        let to = first.map_or(Vec::new(), |first| self.targets.split_off(first));
        if first.is_none() || m.platform.populate(&to).is_err() {
            self.targets.extend(to);
            isolated.put_back(m, self.node);
            return None;
        }
        let (mut filled, mut vacated) = (0, Vec::with_capacity(isolated.len));
        for (list, batch) in List::ALL.into_iter().zip(isolated.batches) {
            let moves = migrate_batch(m, batch, list, &to[filled..], self.mode);
            filled += moves.filled;
            vacated.extend(moves.vacated.iter());
        }
        self.targets.extend(&to[filled..]);
        Some(vacated)
    }

    /// Gives back the free frames that no page went to.
    pub(super) fn release(&mut self, m: &Machine<P>) {
        self.targets.chunks(BATCH).for_each(|frames| m.free_for_all(frames));
        self.targets.clear();
    }
}

/// Whose work is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// An allocation's.
    Direct,
    /// kcompactd's, which is counted as its own besides.
    Daemon,
}

impl Who {
    /// Counts what a scanner did.
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
        if self == Who::Daemon {
            m.count(of_daemon, scanned.into());
        }
    }
}

/// What a run does about a zone's lock that others have.
pub(super) fn contention(mode: Mode) -> Contention {
    match mode {
        Mode::Async => Contention::Aborts,
        Mode::Sync => Contention::Waits,
    }
}

/// Frames that are given back under one lock.
const BATCH: usize = 32;
