//! A page that faults while it is being swapped out: its frame is in the swap cache.

use super::access::Served;
use super::map::map;
use super::read::keep_or_free_slots;
use crate::frame::Writeback;
use crate::machine::Machine;
use crate::space::{Access, Held};
use crate::stats::Counter;
use highwater_platform::{Platform, Protection};
use highwater_units::{FrameList, Pfn, Slot};

/// Maps the frame that the fault claimed from the swap cache, after its write has ended. Reclaim
/// adds it to the LRU.
pub(super) fn serve<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    slot: Slot,
    pfn: Pfn,
    access: Access,
) -> Served {
    let written = m.wait_written(pfn);
    m.frames.set_writeback(pfn, Writeback::Idle);
    m.count(Counter::PgRefault, 1);
    let protection = match written {
        Writeback::Failed => Protection::ReadWrite,
        Writeback::Idle | Writeback::Running => keep_or_free_slots(m, &[slot], &[pfn], access),
    };
    if written == Writeback::Failed {
        m.release_slot(slot);
    }
    map(m, held, &FrameList::one(pfn), protection, Served::Minor)
}
