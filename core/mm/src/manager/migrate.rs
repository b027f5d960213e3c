//! Migrates pages to other frames at a caller's request, for tests of migration.
//! Locking: entries, as in `crate::compact`.

use super::Manager;
use crate::alloc;
use crate::compact::{Migrated, migrate_batch, migrate_folio, order_of};
use crate::lru::{List, Mode};
use crate::zone::Mobility;
use highwater_platform::Platform;
use highwater_units::{FrameBatch, Order, Pfn, RUN_PAGES_MAX};

impl<P: Platform> Manager<P> {
    /// Migrates the page of several frames that begins with `head` to another block of frames, if
    /// one is free; does not reclaim. Returns whether the page was migrated.
    pub fn migrate_folio(&self, head: Pfn, mode: Mode) -> bool {
        let m = &self.machine;
        let Some(order) = order_of(m, head).filter(|order| *order > Order(0)) else { return false };
        let Some(to) = alloc::run_noreclaim(m, order) else { return false };
        let list = m.node_of(head).lru.isolate_frame(&m.frames, head, mode);
        let outcome = list.map(|list| migrate_folio(m, head, list, to, order, mode));
        match outcome {
            Some(Migrated::Moved) => m.free_run(head, order, Mobility::Movable),
            Some(Migrated::Vanished) => {
                m.free(&[head]);
                m.free_run(to, order, Mobility::Movable);
            }
            Some(Migrated::Busy) | None => m.free_run(to, order, Mobility::Movable),
        }
        outcome == Some(Migrated::Moved)
    }

    /// Migrates the pages in `frames` frames (at most 16) from `first` on, all of one node, to free
    /// frames; does not reclaim. Returns the number of migrated pages. Pages in use stay.
    pub fn migrate(&self, first: Pfn, frames: usize, mode: Mode) -> usize {
        let m = &self.machine;
        let Some(to) = alloc::frames_noreclaim(m, frames.min(RUN_PAGES_MAX)) else { return 0 };
        let mut batches = [FrameBatch::default(); List::ALL.len()];
        for pfn in (0..to.len() as u32).map(|index| first.offset(index)) {
            if let Some(list) = m.node_of(pfn).lru.isolate_frame(&m.frames, pfn, mode) {
                batches[list as usize].push(pfn);
            }
        }
        let mut filled = 0;
        for (list, batch) in List::ALL.into_iter().zip(batches) {
            let moves = migrate_batch(m, batch, list, &to[filled..], mode);
            filled += moves.filled;
            m.free(&moves.vacated);
        }
        m.free(&to[filled..]);
        filled
    }
}
