//! A run over a zone: the two scanners towards each other, until there is a block.
//!
//! ```text
//! suitable -- too little memory, a block is there ---> Skipped, Partial
//! evacuate -- `fast` only: the block itself ---------> Captured
//! finished -- scanners met, a block is there --------> Complete, Partial
//!    \- isolate pages -> isolate free frames -> move -> finished
//! ```

use super::control::{Control, Isolated, Outcome, Round, Who};
use super::defer::Verdict;
use super::evacuate::{Evacuated, evacuate};
use super::free_scanner;
use super::method::{Method, Start};
use super::migrate_scanner;
use crate::lru::Mode;
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use crate::zone::{Fragmentation, Level, Mobility, Scanner, Zone};
use highwater_platform::Platform;
use highwater_units::{BATCH_PAGES_MAX, Order};

/// Above it a failure is for want of a block; below, for want of memory (sysctl_extfrag_threshold).
const EXTFRAG: i32 = 500;

/// Whether a run can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suitable {
    /// It can.
    Yes,
    /// Memory is what is missing.
    TooLittle,
    /// There is a block.
    HasBlock,
}

/// Decides (compaction_suitable): free frames and low mark of the zone, whether its marks allow a
/// block with as much again beside it, and how free memory lies.
fn suitable(order: Order, free: u32, low: u32, lies: Fragmentation) -> Suitable {
    let room = free >= low + 2 * order.frames();
    match lies {
        _ if !room => Suitable::TooLittle,
        Fragmentation::Index(index) if (0..=EXTFRAG).contains(&index) => Suitable::TooLittle,
        Fragmentation::Fits => Suitable::HasBlock,
        Fragmentation::Index(_) => Suitable::Yes,
    }
}

/// Compacts a zone for a block of an order.
pub(super) fn compact<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    wanted: (Order, Mobility),
    mode: Mode,
    method: Method,
    verdict: Verdict,
) -> Outcome {
    let (zone, order) = (&node.zone, wanted.0);
    // The way of `fast` does so itself.
    if mode == Mode::Sync && !method.today {
        // What is on its way to a list cannot be isolated, and CPUs' free frames do not merge.
        node.lru.drain(&m.frames, |orphans| m.free(orphans));
        zone.drain();
    }
    let lies = zone.blocks().fragmentation(order);
    match suitable(order, zone.free_frames(), zone.marks().low, lies) {
        Suitable::Yes => {}
        Suitable::TooLittle => return Outcome::Skipped,
        Suitable::HasBlock => return Outcome::Partial,
    }
    if verdict == Verdict::Restart {
        zone.reset_skips(m.platform.now());
    }
    let mut cc = Control::new(node, wanted, mode, method);
    if method.today {
        match evacuate(m, &mut cc, Who::Direct) {
            Evacuated::Block(first) => {
                zone.convert(first, order, wanted.1);
                m.count(Counter::CompactCapture, 1);
                return Outcome::Captured(first);
            }
            Evacuated::Contended => return Outcome::Contended,
            // To look at all of memory is for who waits; for a large block there is nothing to be
            // found that the zone's counts do not say.
            Evacuated::Nothing if mode == Mode::Async || order >= Order::LARGE => {
                zone.reset_skips(m.platform.now());
                return Outcome::Partial;
            }
            Evacuated::Nothing => cc = Control::new(node, wanted, mode, method),
        }
    }
    let outcome = run(m, &mut cc);
    cc.release(m);
    outcome
}

fn run<P: Platform>(m: &Machine<P>, cc: &mut Control<'_, P>) -> Outcome {
    let mut fruitless = 0;
    loop {
        if let Some(outcome) = finished(m, cc) {
            return outcome;
        }
        let Some(isolated) = migrate_scanner::isolate(m, cc) else { return Outcome::Contended };
        if cc.contended && isolated.frames == 0 {
            // The loop that vanilla goes round in.
            m.platform.relax(fruitless);
            fruitless += 1;
            continue;
        }
        fruitless = 0;
        if isolated.frames > 0 && migrate(m, cc, isolated) == Placed::Short {
            return if cc.contended { Outcome::Contended } else { Outcome::Partial };
        }
    }
}

/// Whether the run is over, and how.
fn finished<P: Platform>(m: &Machine<P>, cc: &mut Control<'_, P>) -> Option<Outcome> {
    let (zone, rounds) = (&cc.node.zone, cc.method.start == Start::FreeCached);
    if cc.free <= cc.migrate {
        if rounds && cc.round == Round::First {
            cc.free = zone.scanners().start(Scanner::Free);
            zone.scanners().cache(Scanner::Free, cc.free);
            cc.round = Round::Second;
            return None;
        }
        zone.reset_skips(m.platform.now());
        return Some(Outcome::Complete);
    }
    if cc.round == Round::Second && cc.free <= cc.start_free {
        return Some(Outcome::Complete);
    }
    has_block(zone, cc.order, cc.mobility).then_some(Outcome::Partial)
}

/// Whether an allocation would have its block.
fn has_block<P: Platform>(zone: &Zone<P>, order: Order, mobility: Mobility) -> bool {
    zone.allows(Level::Low, 2 * order.frames()) && zone.has_block(order, mobility)
}

/// Whether there were places for pages of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    /// For all.
    All,
    /// There were too few.
    Short,
}

fn migrate<P: Platform>(m: &Machine<P>, cc: &mut Control<'_, P>, isolated: Isolated) -> Placed {
    if cc.targets.frames() < isolated.frames {
        free_scanner::isolate(m, cc, isolated.frames, Who::Direct);
    }
    let moved = cc.move_to_targets(m, isolated, Who::Direct);
    moved.vacated.chunks(BATCH_PAGES_MAX).for_each(|frames| m.free_to_zone(frames));
    match moved.short {
        Some(Order(0)) => Placed::Short,
        // A page of many frames stays where it is, others can go on.
        Some(_) | None => Placed::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_helps_where_memory_is_there_but_in_pieces() {
        use Fragmentation::{Fits, Index};
        // Order, free, low, how it lies.
        let table = [
            (9, 2000, 900, Index(900), Suitable::Yes),
            (9, 1900, 900, Index(900), Suitable::TooLittle),
            (9, 2000, 900, Index(500), Suitable::TooLittle),
            (9, 2000, 900, Fits, Suitable::HasBlock),
            (9, 1900, 900, Fits, Suitable::TooLittle),
            (3, 20, 4, Index(-1), Suitable::Yes),
        ];
        for (order, free, low, lies, expected) in table {
            assert_eq!(
                suitable(Order(order), free, low, lies),
                expected,
                "{order} {free} {lies:?}"
            );
        }
    }
}
