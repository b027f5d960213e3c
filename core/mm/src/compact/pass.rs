//! A compaction pass over one zone.
//!
//! ```text
//! unsuitable -- too little memory, or a block is free --------> Skipped, Partial
//! evacuate ---- empties the frames of one block --------------> Captured
//! scan_zone --- small orders, synchronous only:
//!    finished - scanners met, or a block is free -------------> Complete, Partial
//!    \- isolate pages -> isolate free frames -> relocate -> finished
//! ```

use super::control::{Caller, Control, Outcome};
use super::defer::Verdict;
use super::evacuate::{Evacuated, evacuate};
use super::free_scanner;
use super::isolated::Isolated;
use super::migrate_scanner;
use super::relocate::relocate;
use crate::lru::Mode;
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use crate::zone::{Fragmentation, Level, Mobility, Zone};
use highwater_platform::Platform;
use highwater_units::{BATCH_PAGES_MAX, Order};

/// An allocation fails for fragmentation above this index, for lack of memory below
/// (sysctl_extfrag_threshold).
const EXTFRAG: i32 = 500;

/// Why a pass would not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unsuitable {
    TooLittleMemory,
    HasBlock,
}

/// Decides (compaction_suitable). `free` and `low` are the zone's free frames and low watermark;
/// the pass needs twice the block above it. `None`: it may help.
fn decide(order: Order, free: u32, low: u32, fragmentation: Fragmentation) -> Option<Unsuitable> {
    if free < low + 2 * order.frames() {
        return Some(Unsuitable::TooLittleMemory);
    }
    match fragmentation {
        Fragmentation::Index(0..=EXTFRAG) => Some(Unsuitable::TooLittleMemory),
        Fragmentation::Index(_) => None,
        Fragmentation::Fits => Some(Unsuitable::HasBlock),
    }
}

/// The outcome of a pass that would not help.
pub(super) fn unsuitable<P: Platform>(zone: &Zone<P>, order: Order) -> Option<Outcome> {
    let fragmentation = zone.blocks().fragmentation(order);
    let reason = decide(order, zone.free_frames(), zone.marks().low, fragmentation)?;
    Some(match reason {
        Unsuitable::TooLittleMemory => Outcome::Skipped,
        Unsuitable::HasBlock => Outcome::Partial,
    })
}

/// Compacts a zone for a block of an order and migrate type.
pub(super) fn compact<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    wanted: (Order, Mobility),
    mode: Mode,
    verdict: Verdict,
) -> Outcome {
    let (zone, (order, mobility)) = (&node.zone, wanted);
    if let Some(outcome) = unsuitable(zone, order) {
        return outcome;
    }
    if verdict == Verdict::Restart {
        zone.reset_skips(m.platform.now());
    }
    let mut cc = Control::new(node, wanted, mode);
    match evacuate(m, &mut cc, Caller::Direct) {
        Evacuated::Block(first) => {
            zone.convert(first, order, mobility);
            m.count(Counter::CompactCapture, 1);
            Outcome::Captured(first)
        }
        Evacuated::Contended => Outcome::Contended,
        // Scanning the whole zone takes long, and for a large block it finds nothing that the
        // zone's counts by pageblock do not show.
        Evacuated::Nothing if mode == Mode::Async || order >= Order::LARGE => {
            zone.reset_skips(m.platform.now());
            Outcome::Partial
        }
        Evacuated::Nothing => scan_zone(m, Control::new(node, wanted, mode)),
    }
}

/// Moves pages from the start of the zone to free frames at its end, until a block is free or the
/// scanners meet. It is synchronous: it waits for every lock.
fn scan_zone<P: Platform>(m: &Machine<P>, mut cc: Control<'_, P>) -> Outcome {
    let outcome = loop {
        if let Some(outcome) = finished(m, &cc) {
            break outcome;
        }
        let isolated = migrate_scanner::isolate(m, &mut cc);
        if isolated.frames == 0 {
            continue;
        }
        if cc.targets.frames() < isolated.frames {
            free_scanner::isolate(m, &mut cc, isolated.frames);
        }
        if empty(m, &mut cc, isolated) == Emptied::OutOfTargets {
            break Outcome::Partial;
        }
    };
    cc.release(m);
    outcome
}

/// The outcome of a pass that is over.
fn finished<P: Platform>(m: &Machine<P>, cc: &Control<'_, P>) -> Option<Outcome> {
    let zone = &cc.node.zone;
    if cc.free <= cc.migrate {
        zone.reset_skips(m.platform.now());
        return Some(Outcome::Complete);
    }
    has_block(zone, cc.order, cc.mobility).then_some(Outcome::Partial)
}

/// Whether an allocation would find its block.
pub(super) fn has_block<P: Platform>(zone: &Zone<P>, order: Order, mobility: Mobility) -> bool {
    zone.allows(Level::Low, 2 * order.frames()) && zone.has_block(order, mobility)
}

/// Whether a pass can go on after it moved pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emptied {
    /// It can.
    GoOn,
    /// Pages of one frame found no target.
    OutOfTargets,
}

/// Moves isolated pages to targets, and frees their frames.
pub(super) fn empty<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    isolated: Isolated,
) -> Emptied {
    let moved = relocate(m, cc, isolated, Caller::Direct);
    moved.vacated.chunks(BATCH_PAGES_MAX).for_each(|frames| m.free_to_zone(frames));
    match moved.short {
        Some(Order(0)) => Emptied::OutOfTargets,
        // A folio without a target stays; other pages can still move.
        Some(_) | None => Emptied::GoOn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_helps_if_free_memory_is_fragmented() {
        use Fragmentation::{Fits, Index};
        // Order, free frames, low watermark, fragmentation.
        let table = [
            (9, 2000, 900, Index(900), None),
            (9, 1900, 900, Index(900), Some(Unsuitable::TooLittleMemory)),
            (9, 2000, 900, Index(500), Some(Unsuitable::TooLittleMemory)),
            (9, 2000, 900, Fits, Some(Unsuitable::HasBlock)),
            (9, 1900, 900, Fits, Some(Unsuitable::TooLittleMemory)),
            (3, 20, 4, Index(-1), None),
        ];
        for (order, free, low, fragmentation, expected) in table {
            let decided = decide(Order(order), free, low, fragmentation);
            assert_eq!(decided, expected, "{order} {free} {fragmentation:?}");
        }
    }
}
