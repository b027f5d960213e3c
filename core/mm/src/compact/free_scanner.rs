//! Goes downwards through a zone, a pageblock at a time, and takes free frames for pages to go to.

use super::control::{Control, Round, Who, contention};
use super::method::{Contended, Start};
use crate::machine::Machine;
use crate::zone::{Hold, Level, Mobility, PAGEBLOCK, Scanner, Wanted};
use highwater_platform::Platform;
use highwater_units::{Order, Pfn};

/// Whether pages may go to a pageblock: where pages are, or where all is free.
fn suits(mobility: Mobility, free: Option<Order>, skip: bool) -> bool {
    !skip && (mobility == Mobility::Movable || free.is_some_and(|order| order >= Order::LARGE))
}

/// Takes free frames until there are `wanted` in hand, or the other scanner is near.
pub(super) fn isolate<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    wanted: usize,
    who: Who,
) {
    let zone = &cc.node.zone;
    // Two pageblocks apart: the next scan of the other one is not to come among its own targets.
    let low = Pfn((cc.migrate.0 + PAGEBLOCK).min(cc.free.0));
    let (mut high, mut at) = (low, cc.free);
    let mark = zone.marks().at(Level::Low);
    let stops = cc.method.today;
    while at > low && cc.targets.frames() < wanted && !cc.contended {
        let pageblock = zone.pageblock_of(at);
        let frames = zone.frames_of(pageblock);
        let first = Pfn(frames.start);
        let skip = cc.method.skips && zone.skips(pageblock);
        if suits(zone.mobility(pageblock), zone.free_at(first), skip) {
            let targets = &mut cc.targets;
            let how = (cc.method.hold, contention(cc.mode));
            let scan = zone.isolate_free(&m.platform, frames, how, mark, |block, order| {
                targets.push(block, order);
                // In 2012 all that is free in a pageblock was taken.
                match stops && targets.frames() >= wanted {
                    true => Wanted::NoMore,
                    false => Wanted::More,
                }
            });
            m.taken(scan.isolated as usize);
            who.count(m, Scanner::Free, scan.scanned, scan.isolated);
            cc.contended = scan.contended;
            match scan.isolated {
                0 if !scan.contended => cc.found_nothing(Scanner::Free, first),
                0 => {}
                _ => {
                    high = high.max(first);
                    cc.found[Scanner::Free as usize] = true;
                }
            }
        }
        at = match first == zone.range().first {
            true => low,
            false => Pfn(zone.frames_of(zone.pageblock_of(Pfn(first.0 - 1))).start),
        };
    }
    // What was moved away meanwhile, and came back, is nearest to the end: from there on again.
    cc.free = high;
    if cc.method.start == Start::FreeCached {
        note(cc, high);
    }
    if cc.contended && cc.method.contended == Contended::GoesOn {
        cc.contended = false;
    }
}

/// Takes a free block for a page of an order, guided by the free lists, from where the free scanner
/// may go; says nothing if there is none: a page of many frames stays then.
pub(super) fn isolate_block<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    order: Order,
    who: Who,
) {
    let zone = &cc.node.zone;
    let low = cc.migrate.0 + PAGEBLOCK;
    let fits = |first: Pfn| first.0 >= low && !cc.region.contains(&first.0);
    // What is as large as the block that is wanted is not broken up for it.
    let (found, seen) = zone.find_block(m.cpu(), order.0..cc.order.0, fits);
    who.count(m, Scanner::Free, seen as u32, 0);
    let Some(first) = found else { return };
    let (how, mark) = ((Hold::Late, contention(cc.mode)), zone.marks().at(Level::Min));
    let targets = &mut cc.targets;
    let scan = zone.isolate_free(&m.platform, first.0..first.0 + 1, how, mark, |block, order| {
        targets.push(block, order);
        Wanted::NoMore
    });
    m.taken(scan.isolated as usize);
    who.count(m, Scanner::Free, scan.scanned, scan.isolated);
}

/// Where the free scanner of the next run starts, of the method that goes round.
fn note<P: Platform>(cc: &Control<'_, P>, high: Pfn) {
    let scanners = cc.node.zone.scanners();
    // Also where nothing was found: 3.6 tells that from the first run of all by nothing else.
    let never = scanners.cached(Scanner::Free) == scanners.start(Scanner::Free);
    let notes = match cc.round {
        Round::First => never,
        Round::Second => cc.targets.frames() > 0,
    };
    if notes {
        scanners.cache(Scanner::Free, high);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_go_where_pages_are() {
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
