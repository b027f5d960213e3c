//! Makes a block by emptying the region of memory that it consists of.
//!
//! ```text
//! the zone's counts by pageblock, or its largest free blocks --> candidate regions
//!   -> survey: the contents of each; estimate: pure
//!   -> the cheapest: take its free frames, move its pages away
//!   -> all its frames taken: the block goes to the allocation, past the free lists
//! ```
//! Two scanners that move toward each other have to scan all of memory to free any block. The zone
//! knows where most of a block is free already, so a survey covers little more than the pages that
//! are then moved. A region of whole pageblocks with a frame that cannot move is skipped for some
//! time, by a skip bit. Conservation: taken frames are on no list and count as in use; they form
//! the block, or are freed.

use super::control::{Caller, Control, contention};
use super::isolated::Isolated;
use super::migrate_scanner::{Seen, look};
use super::relocate::relocate;
use crate::lru::{Mode, ShardHold};
use crate::machine::{Machine, Node};
use crate::zone::{Destination, Level, Mobility, Scanner, Wanted};
use highwater_platform::Platform;
use highwater_units::{BATCH_PAGES_MAX, FrameBatch, Order, Pfn};
use std::ops::Range;

/// Most regions that are surveyed.
const SURVEYS_MAX: usize = 8;
/// Regions of small blocks that are compared; further ones are hardly cheaper.
const COMPARED: usize = 2;
/// Most regions that an attempt tries to empty.
const TRIES_MAX: usize = 3;
/// Most passes over a region: pages may be busy, or arrive, while others are moved.
const ROUNDS: usize = 3;
/// Words of a bitmap of the largest region's frames.
const WORDS: usize = Order::MAX.frames() as usize / 64;
/// Number of orders.
const ORDERS: usize = Order::MAX.0 as usize + 1;

/// The contents of a region, or of the part that was scanned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Survey {
    /// Bitmap of the frames at which a page on an LRU list starts.
    listed: [u64; WORDS],
    /// Number of these pages by order.
    pages: [u32; ORDERS],
    /// Number of free blocks by order.
    free: [u32; ORDERS],
    /// Frames in a transient state: in a batch, isolated, or free on a per-CPU list.
    transient: u32,
    /// Frames that cannot move: large pages and runs.
    unmovable: u32,
}

impl Survey {
    /// Adds the block or page that starts at the frame with this index; returns how many frames it
    /// has.
    fn add(&mut self, index: usize, seen: Seen) -> u32 {
        let order = match seen {
            Seen::Free(order) => {
                self.free[usize::from(order.0)] += 1;
                return order.frames();
            }
            Seen::Listed => Order(0),
            Seen::Folio(order) => order,
            Seen::Large(_) | Seen::Run(_) => {
                self.unmovable += 1;
                return 1;
            }
            Seen::Other => {
                self.transient += 1;
                return 1;
            }
        };
        self.listed[index / 64] |= 1 << (index % 64);
        self.pages[usize::from(order.0)] += 1;
        order.frames()
    }

    /// Number of frames of all pages.
    fn frames(&self) -> u32 {
        self.pages.iter().zip(0..).map(|(pages, order)| pages << order).sum()
    }

    /// Whether there is a free block outside the region for each folio in it. `free` counts the
    /// free blocks of the zone by order, including the region's. The largest folios are placed
    /// first.
    fn finds_blocks(&self, free: &[u32; ORDERS]) -> bool {
        let mut room = 0;
        (1..ORDERS).rev().all(|order| {
            room = room * 2 + free[order].saturating_sub(self.free[order]);
            let fits = self.pages[order] <= room;
            room = room.saturating_sub(self.pages[order]);
            fits
        })
    }
}

/// The cost of emptying a region. The region with the least cost is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Estimate {
    /// The number of frames whose pages have to move.
    Cost(u32),
    /// The region cannot be emptied now.
    NotNow,
    /// The region cannot be emptied for some time.
    Never,
}

/// The estimate from a survey, perhaps of only part of the region.
fn estimate(survey: &Survey) -> Estimate {
    match survey {
        Survey { unmovable: 1.., .. } => Estimate::Never,
        Survey { transient: 1.., .. } => Estimate::NotNow,
        survey => Estimate::Cost(survey.frames()),
    }
}

/// The estimate from a survey of the whole region. `free` counts the zone's free blocks by order.
fn final_estimate(survey: &Survey, free: &[u32; ORDERS]) -> Estimate {
    match estimate(survey) {
        Estimate::Cost(_) if !survey.finds_blocks(free) => Estimate::Never,
        estimate => estimate,
    }
}

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evacuated {
    /// The block that starts at this frame belongs to the caller. It counts as in use, and is
    /// accounted to movable pages.
    Block(Pfn),
    /// A lock was contended, and the pass does not wait.
    Contended,
    /// No region could be emptied.
    Nothing,
}

/// Empties the cheapest region for a block of the pass's order.
pub(super) fn evacuate<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    caller: Caller,
) -> Evacuated {
    let (node, order) = (cc.node, cc.order);
    // Targets may be anywhere in the zone but in its first pageblock.
    cc.migrate = node.zone.scanners().start(Scanner::Migrate);
    drain(m, node, cc.mode);
    let mut last = Evacuated::Nothing;
    for _ in 0..TRIES_MAX {
        let Some((survey, first)) = cheapest(m, node, order, caller) else { break };
        let region = first.0..first.0 + order.frames();
        cc.region = region.clone();
        let mut evacuation = Evacuation { region, caller, frames: Vec::new() };
        last = evacuation.run(m, cc, survey);
        if let Evacuated::Block(_) = last {
            break;
        }
        evacuation.abandon(m);
        // An asynchronous pass, or one for a small block, would choose the same region again.
        if last == Evacuated::Contended || cc.mode == Mode::Async || order < Order::LARGE {
            break;
        }
        skip_region(node, first, order);
    }
    cc.release(m);
    last
}

/// Moves pages from batches to the LRU lists, and free frames from per-CPU lists to the zone: those
/// of all CPUs, or of this one.
fn drain<P: Platform>(m: &Machine<P>, node: &Node<P>, mode: Mode) {
    match mode {
        Mode::Async => {
            node.lru.drain_of(&m.frames, m.cpu(), |orphans| m.free(orphans));
            node.zone.drain_of(m.cpu());
        }
        Mode::Sync => {
            node.lru.drain(&m.frames, |orphans| m.free(orphans));
            node.zone.drain();
        }
    }
}

/// The cheapest candidate region: its survey and first frame.
fn cheapest<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    order: Order,
    caller: Caller,
) -> Option<(Survey, Pfn)> {
    // Regions of whole pageblocks come sorted by their free frames: the first one will do.
    let enough = if order >= Order::LARGE { 1 } else { COMPARED };
    let (mut seen, mut compared, mut chosen) = (0, 0, None);
    let mut best = order.frames();
    // Free blocks as large as the wanted one are not used as targets.
    let mut free = node.zone.blocks().free[Mobility::Movable as usize];
    free[usize::from(order.0)..].fill(0);
    node.zone.each_region(&m.platform, order, |first| {
        let survey = survey(m, node, first.0..first.0 + order.frames(), (best, caller));
        match final_estimate(&survey, &free) {
            Estimate::Never => skip_region(node, first, order),
            Estimate::NotNow => {}
            Estimate::Cost(cost) if cost <= best => {
                best = cost;
                chosen = Some((survey, first));
                compared += 1;
            }
            Estimate::Cost(_) => compared += 1,
        }
        seen += 1;
        seen < SURVEYS_MAX && compared < enough
    });
    chosen
}

/// Surveys a region until it is known to cost more than `most`, or to be impossible to empty.
fn survey<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    region: Range<u32>,
    (most, caller): (u32, Caller),
) -> Survey {
    let (mut survey, mut scanned, mut at) = (Survey::default(), 0, region.start);
    while at < region.end && estimate(&survey) <= Estimate::Cost(most) {
        scanned += 1;
        at += survey.add((at - region.start) as usize, look(m, &node.zone, Pfn(at)));
    }
    m.platform.scans(scanned as usize);
    caller.count(m, Scanner::Migrate, scanned, 0);
    survey
}

/// Marks a region to be skipped for some time. Regions smaller than a pageblock have no skip bit.
fn skip_region<P: Platform>(node: &Node<P>, first: Pfn, order: Order) {
    if order >= Order::LARGE {
        node.zone.set_skip(node.zone.pageblock_of(first));
    }
}

/// The result of moving the pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cleared {
    /// All pages moved, except busy ones.
    All,
    /// A lock was contended, and the pass does not wait.
    Contended,
    /// There was no target for a folio.
    NoTarget,
}

/// A region that is being emptied, and its frames that the pass has taken.
struct Evacuation {
    region: Range<u32>,
    caller: Caller,
    frames: Vec<Pfn>,
}

impl Evacuation {
    fn is_complete(&self) -> bool {
        self.frames.len() == self.region.len()
    }

    fn run<P: Platform>(
        &mut self,
        m: &Machine<P>,
        cc: &mut Control<'_, P>,
        mut survey: Survey,
    ) -> Evacuated {
        for round in 0..ROUNDS {
            if round > 0 {
                survey = self.survey_again(m, cc);
            }
            if !self.take_free(m, cc) {
                return Evacuated::Contended;
            }
            self.take_targets(m, cc, survey.pages[0] as usize);
            match self.clear(m, cc, &survey) {
                Cleared::All => {}
                Cleared::Contended => return Evacuated::Contended,
                Cleared::NoTarget => return Evacuated::Nothing,
            }
            if self.is_complete() {
                return Evacuated::Block(Pfn(self.region.start));
            }
        }
        Evacuated::Nothing
    }

    /// Surveys the whole region. Frames that were taken count as transient.
    fn survey_again<P: Platform>(&self, m: &Machine<P>, cc: &Control<'_, P>) -> Survey {
        let mut survey = Survey::default();
        let mut at = self.region.start;
        while at < self.region.end {
            at += survey.add((at - self.region.start) as usize, look(m, &cc.node.zone, Pfn(at)));
        }
        m.platform.scans(self.region.len());
        self.caller.count(m, Scanner::Migrate, self.region.len() as u32, 0);
        survey
    }

    /// Takes the free frames of the region; `false` if a lock was contended.
    fn take_free<P: Platform>(&mut self, m: &Machine<P>, cc: &Control<'_, P>) -> bool {
        let zone = &cc.node.zone;
        let mark = zone.marks().at(Level::Min);
        let mut at = self.region.start;
        while at < self.region.end {
            let end = zone.frames_of(zone.pageblock_of(Pfn(at))).end.min(self.region.end);
            let (frames, contention) = (&mut self.frames, contention(cc.mode));
            let scan = zone.isolate_free(&m.platform, at..end, contention, mark, |block, order| {
                frames.extend((0..order.frames()).map(|index| block.offset(index)));
                Wanted::More
            });
            m.taken(scan.isolated as usize);
            self.caller.count(m, Scanner::Free, scan.scanned, scan.isolated);
            if scan.contended {
                return false;
            }
            at = end;
        }
        true
    }

    /// Moves the pages of the region away, and takes their frames.
    fn clear<P: Platform>(
        &mut self,
        m: &Machine<P>,
        cc: &mut Control<'_, P>,
        survey: &Survey,
    ) -> Cleared {
        let is_listed = |index: &usize| survey.listed[index / 64] >> (index % 64) & 1 == 1;
        let mut pages = (0..self.region.len()).filter(is_listed).peekable();
        while pages.peek().is_some() && !self.is_complete() {
            let batch = pages.by_ref().take(BATCH_PAGES_MAX);
            let first = self.region.start;
            let batch: FrameBatch = batch.map(|index| Pfn(first + index as u32)).collect();
            let Some(isolated) = self.isolate(m, cc, &batch) else { return Cleared::Contended };
            let moved = relocate(m, cc, isolated, self.caller);
            self.frames.extend(moved.vacated);
            match moved.short {
                None => {}
                // The next round may find single frames.
                Some(Order(0)) => break,
                Some(_) => return Cleared::NoTarget,
            }
        }
        Cleared::All
    }

    /// Isolates the pages that are still listed; `None` if a lock was contended.
    fn isolate<P: Platform>(
        &self,
        m: &Machine<P>,
        cc: &Control<'_, P>,
        batch: &[Pfn],
    ) -> Option<Isolated> {
        let (mut isolated, mut shard) = (Isolated::none(), None);
        for pfn in batch {
            let fits = |shard: &ShardHold<'_, P>| shard.covers(*pfn);
            if !shard.as_ref().is_some_and(fits) {
                drop(shard.take());
                shard = cc.node.lru.hold_shard(*pfn, cc.mode);
            }
            let Some(held) = &mut shard else {
                isolated.put_back(m, cc.node);
                return None;
            };
            if let Some(list) = held.isolate(&m.frames, *pfn) {
                isolated.push(m, *pfn, list);
            }
        }
        drop(shard);
        m.platform.scans(batch.len());
        self.caller.count(m, Scanner::Migrate, batch.len() as u32, isolated.frames as u32);
        Some(isolated)
    }

    /// Takes targets for single pages: in pageblocks that cannot become free, or that have no more
    /// free frames than the region, or else anywhere.
    fn take_targets<P: Platform>(
        &mut self,
        m: &Machine<P>,
        cc: &mut Control<'_, P>,
        wanted: usize,
    ) {
        let zone = &cc.node.zone;
        let free = self.frames.len() as u32;
        let fuller = Destination::Fuller { region: self.region.clone(), free };
        for destination in [Destination::Unmovable, fuller] {
            let missing = wanted.saturating_sub(cc.targets.frames());
            if missing == 0 {
                break;
            }
            let limits = (contention(cc.mode), zone.marks().at(Level::Min));
            let targets = &mut cc.targets;
            let wanted = (missing, &destination);
            let scan = zone.take_pieces(m.cpu(), wanted, limits, |first, order| {
                targets.push(first, order);
            });
            m.taken(scan.isolated as usize);
            self.caller.count(m, Scanner::Free, scan.scanned, scan.isolated);
        }
        let missing = wanted.saturating_sub(cc.targets.frames());
        if missing > 0 {
            let (targets, mut taken) = (&mut cc.targets, 0);
            cc.node.zone.take_singles(m.cpu(), missing, Level::Min, |pfn| {
                targets.push(pfn, Order(0));
                taken += 1;
            });
            m.taken(taken);
            self.caller.count(m, Scanner::Free, taken as u32, taken as u32);
        }
        // Frames of the region that were freed since are part of the block, not targets.
        self.frames.extend(cc.targets.take_within(&self.region));
    }

    /// Frees the frames that were taken.
    fn abandon<P: Platform>(&mut self, m: &Machine<P>) {
        self.frames.chunks(BATCH_PAGES_MAX).for_each(|frames| m.free_to_zone(frames));
        self.frames.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(pages: &[u32]) -> Survey {
        let mut survey = Survey::default();
        survey.pages[..pages.len()].copy_from_slice(pages);
        survey
    }

    #[test]
    fn the_region_with_fewest_pages_is_the_cheapest() {
        let of = |(pages, transient, unmovable)| {
            estimate(&Survey { transient, unmovable, ..survey(&[pages]) })
        };
        let mut estimates = [(100, 0, 0), (0, 1, 0), (3, 0, 0), (0, 1, 1), (512, 0, 0)].map(of);
        estimates.sort();
        assert_eq!(estimates[..3], [3, 100, 512].map(Estimate::Cost));
        assert_eq!(estimates[3..], [Estimate::NotNow, Estimate::Never]);
    }

    #[test]
    fn folios_cost_their_frames_and_need_free_blocks_outside() {
        assert_eq!(estimate(&survey(&[3, 1, 0, 2])), Estimate::Cost(3 + 2 + 16));
        // By order: pages of the region, its free blocks, the zone's free blocks.
        let table = [
            (&[9, 2][..], &[][..], &[0, 2][..], true),
            (&[9, 2], &[0, 1], &[0, 2], false),
            (&[0, 2, 1], &[], &[0, 0, 2], true),
            (&[0, 3, 1], &[], &[0, 0, 2], false),
            (&[0, 3, 1], &[], &[0, 1, 2], true),
            (&[0, 0, 1], &[], &[900, 900], false),
            (&[500], &[], &[], true),
        ];
        for (pages, own, zone, expected) in table {
            let mut region = survey(pages);
            region.free[..own.len()].copy_from_slice(own);
            let mut free = [0; ORDERS];
            free[..zone.len()].copy_from_slice(zone);
            assert_eq!(region.finds_blocks(&free), expected, "{pages:?} {own:?} {zone:?}");
        }
    }
}
