//! Makes one block by emptying the frames it consists of: the way of `fast`.
//!
//! ```text
//! frames of pageblocks that are free and that stay, largest free pieces -> candidates
//!   -> survey: what is in each      worth: pure
//!   -> the cheapest: its free frames in hand, its pages moved to where there can be no block
//!   -> all in hand: the block goes to who asked for it, past the free lists
//! ```
//! Scanners that go towards each other find out about all of memory to free any block. Here the
//! zone says where most of a block is free already: what is looked at is what will be moved, or a
//! small multiple. A region that has a frame which cannot be moved is left out for a while, by its
//! pageblock's skip bit.
//! Conservation: frames in hand are off all lists and in use; they are the caller's, or given back.

use super::control::{Control, Isolated, Who, contention};
use super::migrate_scanner::{Seen, look};
use crate::lru::{Mode, ShardHold};
use crate::machine::{Machine, Node};
use crate::zone::{Hold, Level, Mobility, Refuge, Scanner, Wanted};
use highwater_platform::Platform;
use highwater_units::{BATCH_PAGES_MAX, FrameBatch, Order, Pfn};
use std::ops::Range;

/// Regions that are looked into, at most.
const SURVEYS_MAX: usize = 8;
/// Of small ones so many are worth comparing.
const COMPARED: usize = 2;
/// Regions that are tried, one after the other.
const TRIES_MAX: usize = 3;
/// Times over a region: pages can come to it, and be in use, while others are moved.
const ROUNDS: usize = 3;
/// Frames of the largest region, as words of bits.
const WORDS: usize = Order::MAX.frames() as usize / 64;
/// Orders of blocks.
const ORDERS: usize = Order::MAX.0 as usize + 1;

/// What a region holds, as far as it was looked into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Survey {
    /// Which frames hold pages on lists, or the first of one, by place in the region.
    listed: [u64; WORDS],
    /// How many pages these are, by order.
    pages: [u32; ORDERS],
    /// Free blocks, by order.
    free: [u32; ORDERS],
    /// Frames on their way to a list or from one, or free on a CPU's list.
    passing: u32,
    /// Frames that stay: of large pages, or of runs.
    staying: u32,
}

impl Survey {
    /// Notes what was seen at a place; returns how many frames that takes up.
    fn note(&mut self, place: usize, seen: Seen) -> u32 {
        let order = match seen {
            Seen::Free(order) => {
                self.free[usize::from(order.0)] += 1;
                return order.frames();
            }
            Seen::Listed => Order(0),
            Seen::Folio(order) => order,
            Seen::Large(_) | Seen::Run(_) => {
                self.staying += 1;
                return 1;
            }
            Seen::Other => {
                self.passing += 1;
                return 1;
            }
        };
        self.listed[place / 64] |= 1 << (place % 64);
        self.pages[usize::from(order.0)] += 1;
        order.frames()
    }

    /// Frames of its pages.
    fn frames(&self) -> u32 {
        self.pages.iter().zip(0..).map(|(pages, order)| pages << order).sum()
    }

    /// Whether each page of many frames would find a free block outside: `free` is the zone's, by
    /// order, the region's with them. The largest go first, and take the best.
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

/// What to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// So many frames' pages are to be moved.
    Cost(u32),
    /// It cannot be emptied now.
    NotNow,
    /// Nor soon.
    Never,
}

/// Decides.
fn worth(survey: &Survey) -> Worth {
    match survey {
        Survey { staying: 1.., .. } => Worth::Never,
        Survey { passing: 1.., .. } => Worth::NotNow,
        survey => Worth::Cost(survey.frames()),
    }
}

/// Decides about a region that was looked into to its end, where free blocks are so many.
fn worth_of_all(survey: &Survey, free: &[u32; ORDERS]) -> Worth {
    match worth(survey) {
        Worth::Cost(_) if !survey.finds_blocks(free) => Worth::Never,
        worth => worth,
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evacuated {
    /// The block that begins so is the caller's: taken from the zone, for movable contents, and
    /// counted.
    Block(Pfn),
    /// Others had a lock that this run does not wait for.
    Contended,
    /// No region could be emptied.
    Nothing,
}

/// Empties the region of a block of the control's order that takes least.
pub(super) fn evacuate<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    who: Who,
) -> Evacuated {
    let (node, order) = (cc.node, cc.order);
    // Targets may be anywhere above the start.
    cc.migrate = node.zone.scanners().start(Scanner::Migrate);
    drain(m, node, cc.mode);
    let mut last = Evacuated::Nothing;
    for _ in 0..TRIES_MAX {
        let Some((survey, first)) = surveyed(m, node, order, who) else { break };
        let region = first.0..first.0 + order.frames();
        cc.region = region.clone();
        let mut hand = Hand { region, who, frames: Vec::new() };
        last = hand.gather(m, cc, survey);
        if let Evacuated::Block(_) = last {
            break;
        }
        hand.give_back(m);
        // Who does not wait would choose the same region again.
        if last == Evacuated::Contended || cc.mode == Mode::Async || order < Order::LARGE {
            break;
        }
        leave_out(node, first, order);
    }
    cc.release(m);
    last
}

/// Puts what lies in batches and on lists of CPUs where it can be found: of this one, or of all.
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

/// The candidate that takes least.
fn surveyed<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    order: Order,
    who: Who,
) -> Option<(Survey, Pfn)> {
    // Pageblocks come by how many of their frames are free: the first one does.
    let enough = if order >= Order::LARGE { 1 } else { COMPARED };
    let (mut seen, mut compared, mut chosen) = (0, 0, None);
    let mut best = order.frames();
    // Free blocks as large as the one that is wanted are not for pages.
    let mut free = node.zone.blocks().free[Mobility::Movable as usize];
    free[usize::from(order.0)..].fill(0);
    node.zone.each_region(&m.platform, order, |first| {
        let survey = survey(m, node, first.0..first.0 + order.frames(), (best, who));
        match worth_of_all(&survey, &free) {
            Worth::Never => leave_out(node, first, order),
            Worth::NotNow => {}
            Worth::Cost(cost) if cost <= best => {
                best = cost;
                chosen = Some((survey, first));
                compared += 1;
            }
            Worth::Cost(_) => compared += 1,
        }
        seen += 1;
        seen < SURVEYS_MAX && compared < enough
    });
    chosen
}

/// What is in a region, until it is known that it cannot be emptied, or costs more than `most`.
fn survey<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    region: Range<u32>,
    (most, who): (u32, Who),
) -> Survey {
    let (mut survey, mut scanned, mut at) = (Survey::default(), 0, region.start);
    while at < region.end && worth(&survey) <= Worth::Cost(most) {
        scanned += 1;
        at += survey.note((at - region.start) as usize, look(m, &node.zone, Pfn(at)));
    }
    m.platform.scans(scanned as usize);
    who.count(m, Scanner::Migrate, scanned, 0);
    survey
}

/// A region that failed is not tried again soon. Smaller ones than a pageblock have no bit of their
/// own.
fn leave_out<P: Platform>(node: &Node<P>, first: Pfn, order: Order) {
    if order >= Order::LARGE {
        node.zone.set_skip(node.zone.pageblock_of(first));
    }
}

/// What came of moving a region's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Went {
    /// Those that nobody uses went.
    All,
    /// Others had a lock that this run does not wait for.
    Contended,
    /// A page of many frames found none that are free and adjacent.
    NoBlock,
}

/// The frames of a region that this run has.
struct Hand {
    region: Range<u32>,
    who: Who,
    frames: Vec<Pfn>,
}

impl Hand {
    fn is_full(&self) -> bool {
        self.frames.len() == self.region.len()
    }

    fn gather<P: Platform>(
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
            match self.move_pages(m, cc, &survey) {
                Went::All => {}
                Went::Contended => return Evacuated::Contended,
                Went::NoBlock => return Evacuated::Nothing,
            }
            if self.is_full() {
                return Evacuated::Block(Pfn(self.region.start));
            }
        }
        Evacuated::Nothing
    }

    /// Pages that are there now; what is in hand counts as passing.
    fn survey_again<P: Platform>(&self, m: &Machine<P>, cc: &Control<'_, P>) -> Survey {
        let mut survey = Survey::default();
        let mut at = self.region.start;
        while at < self.region.end {
            at += survey.note((at - self.region.start) as usize, look(m, &cc.node.zone, Pfn(at)));
        }
        m.platform.scans(self.region.len());
        self.who.count(m, Scanner::Migrate, self.region.len() as u32, 0);
        survey
    }

    /// Takes what is free in the region; `false` at a lock that others have.
    fn take_free<P: Platform>(&mut self, m: &Machine<P>, cc: &Control<'_, P>) -> bool {
        let zone = &cc.node.zone;
        let mark = zone.marks().at(Level::Min);
        let mut at = self.region.start;
        while at < self.region.end {
            let end = zone.frames_of(zone.pageblock_of(Pfn(at))).end.min(self.region.end);
            let frames = &mut self.frames;
            let how = (Hold::Late, contention(cc.mode));
            let scan = zone.isolate_free(&m.platform, at..end, how, mark, |block, order| {
                frames.extend((0..order.frames()).map(|index| block.offset(index)));
                Wanted::More
            });
            m.taken(scan.isolated as usize);
            self.who.count(m, Scanner::Free, scan.scanned, scan.isolated);
            if scan.contended {
                return false;
            }
            at = end;
        }
        true
    }

    /// Moves the region's pages away, and takes their frames.
    fn move_pages<P: Platform>(
        &mut self,
        m: &Machine<P>,
        cc: &mut Control<'_, P>,
        survey: &Survey,
    ) -> Went {
        let is_listed = |place: &usize| survey.listed[place / 64] >> (place % 64) & 1 == 1;
        let mut pages = (0..self.region.len()).filter(is_listed).peekable();
        while pages.peek().is_some() && !self.is_full() {
            let batch = pages.by_ref().take(BATCH_PAGES_MAX);
            let first = self.region.start;
            let batch: FrameBatch = batch.map(|place| Pfn(first + place as u32)).collect();
            let Some(isolated) = self.isolate(m, cc, &batch) else { return Went::Contended };
            let moved = cc.move_to_targets(m, isolated, self.who);
            self.frames.extend(moved.vacated);
            match moved.short {
                None => {}
                // Single frames may be had in the next round.
                Some(Order(0)) => break,
                Some(_) => return Went::NoBlock,
            }
        }
        Went::All
    }

    /// Those pages that are listed still; `None` at a lock that others have.
    fn isolate<P: Platform>(
        &self,
        m: &Machine<P>,
        cc: &Control<'_, P>,
        batch: &[Pfn],
    ) -> Option<Isolated> {
        let (mut isolated, mut lane) = (Isolated::none(), None);
        for pfn in batch {
            let fits = |lane: &ShardHold<'_, P>| lane.covers(*pfn);
            if !lane.as_ref().is_some_and(fits) {
                drop(lane.take());
                lane = cc.node.lru.hold_shard(*pfn, cc.mode);
            }
            let Some(held) = &mut lane else {
                isolated.put_back(m, cc.node);
                return None;
            };
            if let Some(list) = held.isolate(&m.frames, *pfn) {
                isolated.push(m, *pfn, list);
            }
        }
        drop(lane);
        m.platform.scans(batch.len());
        self.who.count(m, Scanner::Migrate, batch.len() as u32, isolated.frames as u32);
        Some(isolated)
    }

    /// Takes frames for pages to go to: where there can be no block, or where more is in use than
    /// in the region, or else single ones anywhere.
    fn take_targets<P: Platform>(
        &mut self,
        m: &Machine<P>,
        cc: &mut Control<'_, P>,
        wanted: usize,
    ) {
        let zone = &cc.node.zone;
        let own = self.frames.len() as u32;
        let refuges = [Refuge::Spoiled, Refuge::Fuller { region: self.region.clone(), free: own }];
        for refuge in refuges {
            let missing = wanted.saturating_sub(cc.targets.frames());
            if missing == 0 {
                break;
            }
            let limits = (contention(cc.mode), zone.marks().at(Level::Min));
            let targets = &mut cc.targets;
            let scan = zone.take_pieces(m.cpu(), (missing, &refuge), limits, |first, order| {
                targets.push(first, order);
            });
            m.taken(scan.isolated as usize);
            self.who.count(m, Scanner::Free, scan.scanned, scan.isolated);
        }
        let missing = wanted.saturating_sub(cc.targets.frames());
        if missing > 0 {
            let (targets, mut gained) = (&mut cc.targets, 0);
            cc.node.zone.take_singles(m.cpu(), missing, Level::Min, |pfn| {
                targets.push(pfn, Order(0));
                gained += 1;
            });
            m.taken(gained);
            self.who.count(m, Scanner::Free, gained as u32, gained as u32);
        }
        // Freed in the region since: that is where they belong.
        self.frames.extend(cc.targets.take_within(&self.region));
    }

    fn give_back<P: Platform>(&mut self, m: &Machine<P>) {
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
        let of =
            |(pages, passing, staying)| worth(&Survey { passing, staying, ..survey(&[pages]) });
        let mut worths = [(100, 0, 0), (0, 1, 0), (3, 0, 0), (0, 1, 1), (512, 0, 0)].map(of);
        worths.sort();
        let costs = [3, 100, 512].map(Worth::Cost);
        assert_eq!(worths[..3], costs);
        assert_eq!(worths[3..], [Worth::NotNow, Worth::Never]);
    }
    #[test]
    fn larger_pages_cost_their_frames_and_need_blocks_outside() {
        assert_eq!(worth(&survey(&[3, 1, 0, 2])), Worth::Cost(3 + 2 + 16));
        // Pages of the region, its free blocks, the zone's, by order.
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
