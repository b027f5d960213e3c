//! Makes one block by emptying the frames it consists of: the way of `fast`.
//!
//! ```text
//! free frames of pageblocks, largest free pieces -> candidates
//!   -> survey: what is in each      worth: pure
//!   -> the cheapest: its free frames in hand, its pages moved to where the free scanner is
//!   -> all in hand: the block goes to who asked for it, past the free lists
//! ```
//! Scanners that go towards each other find out about all of memory to free any block. Here the
//! zone says where most of a block is free already: what is looked at is what will be moved, or a
//! small multiple. A region that has a frame which cannot be moved is left out for a while, by its
//! pageblock's skip bit.
//! Conservation: frames in hand are off all lists and in use; they are the caller's, or given back.

use super::control::{Control, Isolated, Who, contention};
use super::free_scanner;
use super::migrate_scanner::{Seen, look};
use crate::lru::{LaneHold, Mode};
use crate::machine::{Machine, Node};
use crate::zone::{Hold, Level, Scanner, Wanted};
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

/// What a region holds, as far as it was looked into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Survey {
    /// Which frames hold pages on lists, by place in the region.
    listed: [u64; WORDS],
    /// How many these are.
    pages: u32,
    /// Frames on their way to a list or from one, or free on a CPU's list.
    passing: u32,
    /// Frames that stay: of large pages, or of runs.
    staying: u32,
}

/// What to do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// So many pages are to be moved.
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
        Survey { pages, .. } => Worth::Cost(*pages),
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
    node.zone.each_region(&m.platform, order, |first| {
        let survey = survey(m, node, first.0..first.0 + order.frames(), (best, who));
        match worth(&survey) {
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
        let place = (at - region.start) as usize;
        at += 1;
        match look(m, &node.zone, Pfn(region.start + place as u32)) {
            Seen::Free(order) => at += order.frames() - 1,
            Seen::Listed => {
                survey.listed[place / 64] |= 1 << (place % 64);
                survey.pages += 1;
            }
            Seen::Large(_) | Seen::Run(_) => survey.staying += 1,
            Seen::Other => survey.passing += 1,
        }
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
            self.take_targets(m, cc, survey.pages as usize);
            if !self.move_pages(m, cc, &survey) {
                return Evacuated::Contended;
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
        for place in 0..self.region.len() {
            if look(m, &cc.node.zone, Pfn(self.region.start + place as u32)) == Seen::Listed {
                survey.listed[place / 64] |= 1 << (place % 64);
                survey.pages += 1;
            }
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

    /// Moves the region's pages away, and takes their frames; `false` at a lock that others have.
    fn move_pages<P: Platform>(
        &mut self,
        m: &Machine<P>,
        cc: &mut Control<'_, P>,
        survey: &Survey,
    ) -> bool {
        let is_listed = |place: &usize| survey.listed[place / 64] >> (place % 64) & 1 == 1;
        let mut pages = (0..self.region.len()).filter(is_listed).peekable();
        while pages.peek().is_some() && !self.is_full() {
            let batch = pages.by_ref().take(BATCH_PAGES_MAX);
            let first = self.region.start;
            let batch: FrameBatch = batch.map(|place| Pfn(first + place as u32)).collect();
            let Some(isolated) = self.isolate(m, cc, &batch) else { return false };
            if isolated.len > 0 && !self.migrate(m, cc, isolated) {
                return true;
            }
        }
        true
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
            let fits = |lane: &LaneHold<'_, P>| lane.covers(*pfn);
            if !lane.as_ref().is_some_and(fits) {
                drop(lane.take());
                lane = cc.node.lru.hold_lane(*pfn, cc.mode);
            }
            let Some(held) = &mut lane else {
                isolated.put_back(m, cc.node);
                return None;
            };
            if let Some(list) = held.isolate(&m.frames, *pfn) {
                isolated.push(*pfn, list);
            }
        }
        drop(lane);
        m.platform.scans(batch.len());
        self.who.count(m, Scanner::Migrate, batch.len() as u32, isolated.len as u32);
        Some(isolated)
    }

    /// Takes frames for pages to go to near the end of the zone, or else single ones anywhere.
    fn take_targets<P: Platform>(
        &mut self,
        m: &Machine<P>,
        cc: &mut Control<'_, P>,
        wanted: usize,
    ) {
        if cc.targets.len() < wanted {
            free_scanner::isolate(m, cc, wanted, self.who);
        }
        let missing = wanted.saturating_sub(cc.targets.len());
        if missing > 0 {
            let targets = &mut cc.targets;
            let before = targets.len();
            cc.node.zone.take_singles(m.cpu(), missing, Level::Min, |pfn| targets.push(pfn));
            let gained = targets.len() - before;
            m.taken(gained);
            self.who.count(m, Scanner::Free, gained as u32, gained as u32);
        }
        // Freed in the region since: that is where they belong.
        let region = &self.region;
        self.frames.extend(cc.targets.extract_if(.., |pfn| region.contains(&pfn.0)));
    }

    /// Moves pages away; `false` where there are too few frames for them.
    fn migrate<P: Platform>(
        &mut self,
        m: &Machine<P>,
        cc: &mut Control<'_, P>,
        isolated: Isolated,
    ) -> bool {
        let Some(moved) = cc.move_to_targets(m, isolated) else { return false };
        self.frames.extend(moved);
        true
    }

    fn give_back<P: Platform>(&mut self, m: &Machine<P>) {
        self.frames.chunks(BATCH_PAGES_MAX).for_each(|frames| m.free_for_all(frames));
        self.frames.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_region_with_fewest_pages_is_the_cheapest() {
        let of = |(pages, passing, staying)| {
            worth(&Survey { pages, passing, staying, ..Survey::default() })
        };
        let mut worths = [(100, 0, 0), (0, 1, 0), (3, 0, 0), (0, 1, 1), (512, 0, 0)].map(of);
        worths.sort();
        let costs = [3, 100, 512].map(Worth::Cost);
        assert_eq!(worths[..3], costs);
        assert_eq!(worths[3..], [Worth::NotNow, Worth::Never]);
    }
}
