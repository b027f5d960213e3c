//! The migrate scanner: goes up through a zone, and isolates pages that can move.
//!
//! ```text
//! pageblock -- marked to be skipped --------------> the next one
//!           \- frame -- decide: free, large -------> on, past it
//!                    \- listed: isolated, under the lock of its LRU shard
//! ```
//! The scanner takes a shard's lock at the first frame that it wants, and holds it for 32 frames at
//! most. It checks a frame without the lock, and again with it.

use super::control::{Caller, Control};
use super::folio::order_of;
use super::isolated::Isolated;
use crate::frame::Place;
use crate::lru::{Mode, ShardHold};
use crate::machine::Machine;
use crate::zone::{Scanner, Zone};
use highwater_platform::Platform;
use highwater_units::{BATCH_PAGES_MAX, Order, Pfn};

/// Frames after which a lock is released, and frames that are isolated at a time
/// (SWAP_CLUSTER_MAX, COMPACT_CLUSTER_MAX).
pub(super) const STRETCH: u32 = BATCH_PAGES_MAX as u32;

/// The kind of block or page that starts at a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// A free block.
    Free(Order),
    /// A large page, which cannot move.
    Large(Order),
    /// A folio on a list.
    Folio(Order),
    /// An allocated run.
    Run(Order),
    /// A page of one frame, on a list.
    Listed,
    /// Anything else.
    Other,
}

/// The scanner's action on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Skips this many frames.
    Past(u32),
    /// Isolates the page.
    Isolate,
}

/// Decides, for a wanted block of an order. A folio of that order is not moved: that would free no
/// larger block. A free block is passed frame by frame, as in Linux 3.6, because its order may
/// change while the zone's lock is not held.
pub(super) fn decide(seen: Seen, wanted: Order) -> Step {
    match seen {
        Seen::Folio(order) if order < wanted => Step::Isolate,
        Seen::Large(order) | Seen::Folio(order) => Step::Past(order.frames()),
        Seen::Free(_) | Seen::Run(_) | Seen::Other => Step::Past(1),
        Seen::Listed => Step::Isolate,
    }
}

/// Classifies the block or page that starts at a frame. Racy: no lock is held.
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

/// Scans on within one pageblock until 32 pages are isolated; there may be fewer, or none.
pub(super) fn isolate<P: Platform>(m: &Machine<P>, cc: &mut Control<'_, P>) -> Isolated {
    let zone = &cc.node.zone;
    let pageblock = zone.pageblock_of(cc.migrate);
    let frames = zone.frames_of(pageblock);
    if frames.end > cc.free.0 || zone.skips(pageblock) {
        cc.migrate = Pfn(frames.end);
        return Isolated::none();
    }
    let isolated = scan(m, cc, frames.end);
    if isolated.frames > 0 {
        cc.found[Scanner::Migrate as usize] = true;
    } else if cc.migrate.0 == frames.end {
        cc.skip_pageblock(Scanner::Migrate, Pfn(frames.start));
    }
    isolated
}

fn scan<P: Platform>(m: &Machine<P>, cc: &mut Control<'_, P>, end: u32) -> Isolated {
    let (zone, lru) = (&cc.node.zone, &cc.node.lru);
    let (mut isolated, mut shard) = (Isolated::none(), None);
    let (mut scanned, mut charged) = (0, 0);
    // The time for the scan is charged when a lock is taken or released.
    let mut charge = |scanned: u32| {
        m.platform.scans((scanned - charged) as usize);
        charged = scanned;
    };
    let mut at = cc.migrate.0;
    while at < end && isolated.frames < STRETCH as usize {
        let pfn = Pfn(at);
        if at.is_multiple_of(STRETCH)
            || shard.as_ref().is_some_and(|shard: &ShardHold<'_, P>| !shard.covers(pfn))
        {
            charge(scanned);
            shard = None;
        }
        let step = decide(look(m, zone, pfn), cc.order);
        if shard.is_none() && step == Step::Isolate {
            charge(scanned);
            shard = lru.hold_shard(pfn, Mode::Sync);
        }
        scanned += 1;
        at += match (step, &mut shard) {
            (Step::Past(frames), _) => frames,
            (Step::Isolate, Some(shard)) => {
                let list = shard.isolate(&m.frames, pfn);
                list.map_or(1, |list| isolated.push(m, pfn, list))
            }
            (Step::Isolate, None) => 1,
        };
    }
    charge(scanned);
    drop(shard);
    cc.migrate = Pfn(at.min(end));
    Caller::Direct.count(m, Scanner::Migrate, scanned, isolated.frames as u32);
    isolated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_pages_smaller_than_the_wanted_block_are_isolated() {
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
}
