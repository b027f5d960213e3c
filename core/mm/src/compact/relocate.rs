//! Moves isolated pages to the targets of a pass.

use super::control::{Caller, Control, contention};
use super::folio::{leave_folio, migrate_folio};
use super::isolated::Isolated;
use super::migrate::{Migrated, migrate_batch};
use crate::folio::Folio;
use crate::lru::List;
use crate::machine::Machine;
use crate::zone::{Level, PAGEBLOCK, Scanner, Wanted};
use highwater_platform::Platform;
use highwater_units::{Order, Pfn};
use std::cmp::Reverse;

/// The result of moving isolated pages. Pages that were not moved are back on their lists.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// Frames that no page owns any more; the caller has them.
    pub(super) vacated: Vec<Pfn>,
    /// The smallest order for which there was no target, or no memory behind it.
    pub(super) short: Option<Order>,
}

impl Moved {
    fn found_no_target(&mut self, order: Order) {
        self.short = Some(self.short.map_or(order, |short| short.min(order)));
    }
}

/// Moves pages to targets. Folios go first, the largest first; a target for one is searched if the
/// pass has none.
pub(super) fn relocate<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    mut isolated: Isolated,
    caller: Caller,
) -> Moved {
    let mut moved = Moved::default();
    isolated.folios.sort_unstable_by_key(|(order, ..)| Reverse(*order));
    for (order, head, list) in isolated.folios.drain(..) {
        relocate_folio(m, cc, (order, head, list), caller, &mut moved);
    }
    relocate_singles(m, cc, isolated, &mut moved);
    moved
}

fn relocate_singles<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    isolated: Isolated,
    moved: &mut Moved,
) {
    let to = cc.targets.take_frames(isolated.singles());
    let Some(to) = to.filter(|to| has_memory(m, cc, to)) else {
        isolated.put_back(m, cc.node);
        return moved.found_no_target(Order(0));
    };
    let mut filled = 0;
    for (list, batch) in List::ALL.into_iter().zip(isolated.batches) {
        let moves = migrate_batch(m, batch, list, &to[filled..], cc.mode);
        filled += moves.filled;
        moved.vacated.extend(moves.vacated.iter());
    }
    to[filled..].iter().for_each(|pfn| cc.targets.push(*pfn, Order(0)));
}

fn relocate_folio<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    (order, head, list): (Order, Pfn, List),
    caller: Caller,
    moved: &mut Moved,
) {
    if !cc.targets.has(order) {
        isolate_block(m, cc, order, caller);
    }
    let to = cc.targets.take(order).map(|first| Folio::new(first, order));
    let migrated = match to.filter(|to| has_memory(m, cc, to)) {
        Some(to) => {
            let migrated = migrate_folio(m, head, list, to.head(), order, cc.mode);
            if migrated != Migrated::Moved {
                cc.targets.push(to.head(), order);
            }
            migrated
        }
        None => {
            moved.found_no_target(order);
            leave_folio(m, head, list, order)
        }
    };
    match migrated {
        Migrated::Moved => moved.vacated.extend(Folio::new(head, order).iter()),
        Migrated::Vanished => moved.vacated.push(head),
        Migrated::Busy => {}
    }
}

/// Whether the platform has memory for these frames; if not, they are targets again.
fn has_memory<P: Platform>(m: &Machine<P>, cc: &mut Control<'_, P>, frames: &[Pfn]) -> bool {
    let populated = m.platform.populate(frames).is_ok();
    if !populated {
        frames.iter().for_each(|pfn| cc.targets.push(*pfn, Order(0)));
    }
    populated
}

/// Adds a free block for a folio to the targets, found by the free lists. Without one the folio
/// stays where it is.
fn isolate_block<P: Platform>(
    m: &Machine<P>,
    cc: &mut Control<'_, P>,
    order: Order,
    caller: Caller,
) {
    let zone = &cc.node.zone;
    let low = cc.migrate.0 + PAGEBLOCK;
    let fits = |first: Pfn| first.0 >= low && !cc.region.contains(&first.0);
    // A block as large as the wanted one is not split.
    let (found, seen) = zone.find_block(m.cpu(), order.0..cc.order.0, fits);
    caller.count(m, Scanner::Free, seen as u32, 0);
    let Some(first) = found else { return };
    let (contention, mark) = (contention(cc.mode), zone.marks().at(Level::Min));
    let targets = &mut cc.targets;
    let frames = first.0..first.0 + 1;
    let scan = zone.isolate_free(&m.platform, frames, contention, mark, |block, order| {
        targets.push(block, order);
        Wanted::NoMore
    });
    m.taken(scan.isolated as usize);
    caller.count(m, Scanner::Free, scan.scanned, scan.isolated);
}
