//! One run of compaction over a zone: where it is, what it has in hand, what it has done.

use super::folio::{leave_folio, migrate_folio, order_of};
use super::free_scanner;
use super::method::{Method, Start};
use super::migrate::{Migrated, migrate_batch};
use super::targets::Targets;
use crate::folio::Folio;
use crate::lru::{List, Mode};
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use crate::zone::{Contention, Mobility, Scanner};
use highwater_platform::Platform;
use highwater_units::{FrameBatch, Order, Pfn};
use std::cmp::Reverse;
use std::ops::Range;

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

/// Pages off their lists: those of a frame by list, and larger ones.
pub(super) struct Isolated {
    batches: [FrameBatch; List::ALL.len()],
    folios: Vec<(Order, Pfn, List)>,
    /// Frames of all of them.
    pub(super) frames: usize,
}

impl Isolated {
    pub(super) fn none() -> Isolated {
        let batches = [FrameBatch::default(); List::ALL.len()];
        Isolated { batches, folios: Vec::new(), frames: 0 }
    }

    /// Takes the page in that begins with a frame, which was isolated from `list`; says of how many
    /// frames it is. That cannot change any more.
    pub(super) fn push<P: Platform>(&mut self, m: &Machine<P>, pfn: Pfn, list: List) -> u32 {
        let order = order_of(m, pfn).unwrap_or(Order(0));
        match order {
            Order(0) => self.batches[list as usize].push(pfn),
            _ => self.folios.push((order, pfn, list)),
        }
        self.frames += order.frames() as usize;
        order.frames()
    }

    /// Pages of a frame.
    fn singles(&self) -> usize {
        self.batches.iter().map(|batch| batch.len()).sum()
    }

    /// Puts all back where they were.
    pub(super) fn put_back<P: Platform>(&self, m: &Machine<P>, node: &Node<P>) {
        let heads = self.folios.iter().map(|(_, head, list)| (FrameBatch::one(*head), *list));
        let singles = self.batches.iter().copied().zip(List::ALL);
        for (batch, list) in singles.chain(heads) {
            m.free_to_zone(&node.lru.putback(&m.frames, &batch, list));
        }
    }
}

/// What came of moving isolated pages. What was not moved is back on its list.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// Frames that are nobody's now, and the caller's.
    pub(super) vacated: Vec<Pfn>,
    /// The least order for a page of which there was no place, or no memory behind it.
    pub(super) short: Option<Order>,
}

impl Moved {
    fn found_no_place(&mut self, order: Order) {
        self.short = Some(self.short.map_or(order, |short| short.min(order)));
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
    /// Free blocks in hand, for pages to go to.
    pub(super) targets: Targets,
    /// No block for a page is looked for there: what this run is emptying.
    pub(super) region: Range<u32>,
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
            targets: Targets::default(),
            region: 0..0,
            found: [false; 2],
            contended: false,
        }
    }

    /// A pageblock was scanned to its end, and nothing in it was isolated.
    pub(super) fn found_nothing(&self, scanner: Scanner, first: Pfn) {
        let (zone, scanners) = (&self.node.zone, self.node.zone.scanners());
        if !self.method.skips {
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

    /// Moves pages to frames in hand; larger ones, the largest first, to blocks that are looked for
    /// if there is none in hand.
    pub(super) fn move_to_targets(
        &mut self,
        m: &Machine<P>,
        mut isolated: Isolated,
        who: Who,
    ) -> Moved {
        let mut moved = Moved::default();
        isolated.folios.sort_unstable_by_key(|(order, ..)| Reverse(*order));
        for (order, head, list) in isolated.folios.drain(..) {
            self.move_folio(m, (order, head, list), who, &mut moved);
        }
        self.move_singles(m, isolated, &mut moved);
        moved
    }

    fn move_singles(&mut self, m: &Machine<P>, isolated: Isolated, moved: &mut Moved) {
        let to = self.targets.take_frames(isolated.singles());
        let Some(to) = to.filter(|to| self.has_memory(m, to)) else {
            isolated.put_back(m, self.node);
            return moved.found_no_place(Order(0));
        };
        let mut filled = 0;
        for (list, batch) in List::ALL.into_iter().zip(isolated.batches) {
            let moves = migrate_batch(m, batch, list, &to[filled..], self.mode);
            filled += moves.filled;
            moved.vacated.extend(moves.vacated.iter());
        }
        to[filled..].iter().for_each(|pfn| self.targets.push(*pfn, Order(0)));
    }

    fn move_folio(
        &mut self,
        m: &Machine<P>,
        (order, head, list): (Order, Pfn, List),
        who: Who,
        moved: &mut Moved,
    ) {
        if !self.targets.has(order) {
            free_scanner::isolate_block(m, self, order, who);
        }
        let to = self.targets.take(order).map(|first| Folio::new(first, order));
        let outcome = match to.filter(|to| self.has_memory(m, to)) {
            Some(to) => {
                let outcome = migrate_folio(m, head, list, to.head(), order, self.mode);
                if outcome != Migrated::Moved {
                    self.targets.push(to.head(), order);
                }
                outcome
            }
            None => {
                moved.found_no_place(order);
                leave_folio(m, head, list, order)
            }
        };
        match outcome {
            Migrated::Moved => moved.vacated.extend(Folio::new(head, order).iter()),
            Migrated::Vanished => moved.vacated.push(head),
            Migrated::Busy => {}
        }
    }

    /// Whether there is memory behind frames in hand; they are targets again if not.
    fn has_memory(&mut self, m: &Machine<P>, frames: &[Pfn]) -> bool {
        let populated = m.platform.populate(frames).is_ok();
        if !populated {
            frames.iter().for_each(|pfn| self.targets.push(*pfn, Order(0)));
        }
        populated
    }

    /// Gives back the free frames that no page went to.
    pub(super) fn release(&mut self, m: &Machine<P>) {
        self.targets.take_all().chunks(BATCH).for_each(|frames| m.free_to_zone(frames));
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
