//! The free scanner: goes down through a zone by pageblocks, and isolates free frames for pages to
//! move to.

use super::control::{Caller, Control};
use crate::machine::Machine;
use crate::zone::{Contention, Level, Mobility, PAGEBLOCK, Scanner, Wanted, Zone};
use highwater_platform::Platform;
use highwater_units::{Order, Pfn};

/// Whether pages may move to a pageblock: it is movable, or `free`, the order of the free block at
/// its start, is all of it.
pub(super) fn suits(mobility: Mobility, free: Option<Order>, skip: bool) -> bool {
    !skip && (mobility == Mobility::Movable || free.is_some_and(|order| order >= Order::LARGE))
}

/// Where the free scanner stops: two pageblocks from the migrate scanner, whose next scan would
/// otherwise find the targets.
pub(super) fn limit<P: Platform>(cc: &Control<'_, P>) -> Pfn {
    Pfn((cc.migrate.0 + PAGEBLOCK).min(cc.free.0))
}

/// The first frame of the pageblock below the one that starts at `first`.
pub(super) fn below<P: Platform>(zone: &Zone<P>, first: Pfn) -> Option<Pfn> {
    let last = Pfn(first.0.checked_sub(1)?);
    (first != zone.range().first).then(|| Pfn(zone.frames_of(zone.pageblock_of(last)).start))
}

/// Isolates free frames until the pass has `wanted` of them, or the migrate scanner is near.
pub(super) fn isolate<P: Platform>(m: &Machine<P>, cc: &mut Control<'_, P>, wanted: usize) {
    let zone = &cc.node.zone;
    let low = limit(cc);
    let (mut highest, mut at) = (low, cc.free);
    while at > low && cc.targets.frames() < wanted {
        let pageblock = zone.pageblock_of(at);
        let first = Pfn(zone.frames_of(pageblock).start);
        if suits(zone.mobility(pageblock), zone.free_at(first), zone.skips(pageblock)) {
            if isolate_in(m, cc, pageblock, wanted) > 0 {
                highest = highest.max(first);
                cc.found[Scanner::Free as usize] = true;
            } else {
                cc.skip_pageblock(Scanner::Free, first);
            }
        }
        at = below(zone, first).unwrap_or(low);
    }
    // The rest of that pageblock, and targets that come back to it, serve the next call.
    cc.free = highest;
}

/// Isolates free frames of a pageblock; returns how many.
fn isolate_in<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    pageblock: u32,
    wanted: usize,
) -> u32 {
    let zone = &cc.node.zone;
    let (frames, mark) = (zone.frames_of(pageblock), zone.marks().at(Level::Low));
    let targets = &mut cc.targets;
    let isolate = |block, order| {
        targets.push(block, order);
        if targets.frames() < wanted { Wanted::More } else { Wanted::NoMore }
    };
    let scan = zone.isolate_free(&m.platform, frames, Contention::Waits, mark, isolate);
    m.taken(scan.isolated as usize);
    Caller::Direct.count(m, Scanner::Free, scan.scanned, scan.isolated);
    scan.isolated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_move_to_movable_or_entirely_free_pageblocks() {
        let table = [
            (Mobility::Movable, None, false, true),
            (Mobility::Movable, None, true, false),
            (Mobility::Unmovable, None, false, false),
            (Mobility::Unmovable, Some(Order(8)), false, false),
            (Mobility::Unmovable, Some(Order(9)), false, true),
        ];
        for (mobility, free, skip, expected) in table {
            assert_eq!(suits(mobility, free, skip), expected, "{mobility:?} {free:?} {skip}");
        }
    }
}
