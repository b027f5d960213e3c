//! Goes upwards through a zone, and takes pages off their lists that could move.
//!
//! ```text
//! pageblock -- suits: skipped, of another type -----------> the next one
//!           \- frame -- decide: free, large, in use ------> on, past it
//!                    \- listed: isolated, with its lane held
//! ```
//! A lane is held for 32 frames at most, and from the first one that is wanted, or from the first
//! ([`Hold`]); what a frame is, is looked at without it, and again with it.

use super::control::{Control, Isolated, Who};
use super::folio::order_of;
use super::method::Contended;
use crate::frame::Place;
use crate::lru::{Mode, ShardHold};
use crate::machine::Machine;
use crate::zone::{Hold, Mobility, Scanner, Zone};
use highwater_platform::Platform;
use highwater_units::{BATCH_PAGES_MAX, Order, Pfn};

/// Frames after which a lock is given up, and pages that are isolated at a time
/// (SWAP_CLUSTER_MAX, COMPACT_CLUSTER_MAX).
const STRETCH: u32 = BATCH_PAGES_MAX as u32;

/// What a frame is found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The first of a free block.
    Free(Order),
    /// The first of a large page, which stays.
    Large(Order),
    /// The first of a page of an order, on a list.
    Folio(Order),
    /// The first of a run that was given out.
    Run(Order),
    /// A page of its own, on a list.
    Listed,
    /// Anything else.
    Other,
}

/// What the scanner does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Goes on, past so many frames.
    Past(u32),
    /// Isolates it.
    Isolate,
}

/// Decides, for who wants a block of an order. As in 3.6, a free block is gone over frame by frame:
/// its order means nothing without the zone's lock. To move a page that is as large as the block
/// would win nothing.
fn decide(seen: Seen, wanted: Order) -> Step {
    match seen {
        Seen::Folio(order) if order < wanted => Step::Isolate,
        Seen::Large(order) | Seen::Folio(order) => Step::Past(order.frames()),
        Seen::Free(_) | Seen::Run(_) | Seen::Other => Step::Past(1),
        Seen::Listed => Step::Isolate,
    }
}

/// Whether a pageblock is looked into: an asynchronous run keeps to those where all might move.
fn suits(mode: Mode, mobility: Mobility, skip: bool) -> bool {
    !skip && (mode == Mode::Sync || mobility == Mobility::Movable)
}

/// What a frame is, as of a moment ago.
pub(super) fn look<P: Platform>(m: &Machine<P>, zone: &Zone<P>, pfn: Pfn) -> Seen {
    if let Some(order) = zone.free_at(pfn) {
        return Seen::Free(order);
    }
    let place = |pfn: Pfn| m.frames.place(pfn).get();
    let is_head = || {
        let next = pfn.offset(1);
        next.index() < m.frames.len() && place(next) == Place::Tail
    };
    match place(pfn) {
        Place::InactiveAnon | Place::ActiveAnon if is_head() => {
            let folio = order_of(m, pfn).filter(|order| *order > Order(0));
            folio.map_or(Seen::Large(Order::LARGE), Seen::Folio)
        }
        Place::InactiveAnon | Place::ActiveAnon => Seen::Listed,
        Place::InactiveFile | Place::ActiveFile => Seen::Listed,
        Place::Run => m.frames.run(pfn).map_or(Seen::Other, |(order, _)| Seen::Run(order)),
        Place::Off | Place::Batch | Place::Isolated | Place::Orphan | Place::Tail => Seen::Other,
    }
}

/// Scans on, within one pageblock, until 32 pages are isolated: perhaps none. `None`: a lock was
/// contended, and the run is to end.
pub(super) fn isolate<P: Platform>(m: &Machine<P>, cc: &mut Control<'_, P>) -> Option<Isolated> {
    let zone = &cc.node.zone;
    let pageblock = zone.pageblock_of(cc.migrate);
    let frames = zone.frames_of(pageblock);
    let skip = cc.method.skips && zone.skips(pageblock);
    if frames.end > cc.free.0 || !suits(cc.mode, zone.mobility(pageblock), skip) {
        cc.migrate = Pfn(frames.end);
        return Some(Isolated::none());
    }
    let isolated = scan(m, cc, frames.end);
    if cc.contended && cc.method.contended == Contended::Aborts {
        isolated.put_back(m, cc.node);
        return None;
    }
    if isolated.frames > 0 {
        cc.found[Scanner::Migrate as usize] = true;
    } else if cc.migrate.0 == frames.end {
        cc.found_nothing(Scanner::Migrate, Pfn(frames.start));
    }
    Some(isolated)
}

fn scan<P: Platform>(m: &Machine<P>, cc: &mut Control<'_, P>, end: u32) -> Isolated {
    let (zone, lru) = (&cc.node.zone, &cc.node.lru);
    let (mut isolated, mut lane) = (Isolated::none(), None);
    let (mut scanned, mut charged) = (0, 0);
    cc.contended = false;
    let mut charge = |scanned: u32| {
        m.platform.scans((scanned - charged) as usize);
        charged = scanned;
    };
    let mut at = cc.migrate.0;
    while at < end && isolated.frames < STRETCH as usize {
        let pfn = Pfn(at);
        if at.is_multiple_of(STRETCH)
            || lane.as_ref().is_some_and(|lane: &ShardHold<'_, P>| !lane.covers(pfn))
        {
            charge(scanned);
            lane = None;
        }
        let step = decide(look(m, zone, pfn), cc.order);
        if lane.is_none() && (cc.method.hold == Hold::Early || step == Step::Isolate) {
            charge(scanned);
            lane = lru.hold_shard(pfn, cc.mode);
            cc.contended = lane.is_none();
        }
        if cc.contended {
            break;
        }
        scanned += 1;
        match (step, &mut lane) {
            (Step::Isolate, Some(lane)) => {
                let list = lane.isolate(&m.frames, pfn);
                at += list.map_or(1, |list| isolated.push(m, pfn, list));
            }
            (Step::Isolate, None) => at += 1,
            (Step::Past(frames), _) => at += frames,
        }
    }
    charge(scanned);
    drop(lane);
    cc.migrate = Pfn(at.min(end));
    Who::Direct.count(m, Scanner::Migrate, scanned, isolated.frames as u32);
    isolated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_is_isolated_unless_it_is_as_large_as_what_is_wanted() {
        let table = [
            (Seen::Listed, Step::Isolate),
            (Seen::Free(Order(4)), Step::Past(1)),
            (Seen::Run(Order(4)), Step::Past(1)),
            (Seen::Other, Step::Past(1)),
            (Seen::Large(Order::LARGE), Step::Past(512)),
            (Seen::Folio(Order(2)), Step::Isolate),
            (Seen::Folio(Order(5)), Step::Past(32)),
            (Seen::Folio(Order(6)), Step::Past(64)),
        ];
        for (seen, step) in table {
            assert_eq!(decide(seen, Order(5)), step, "{seen:?}");
        }
    }

    #[test]
    fn who_may_not_wait_keeps_to_movable_pageblocks() {
        let table = [
            (Mode::Async, Mobility::Movable, false, true),
            (Mode::Async, Mobility::Unmovable, false, false),
            (Mode::Sync, Mobility::Unmovable, false, true),
            (Mode::Sync, Mobility::Movable, true, false),
        ];
        for (mode, mobility, skip, expected) in table {
            assert_eq!(suits(mode, mobility, skip), expected, "{mode:?} {mobility:?} {skip}");
        }
    }
}
