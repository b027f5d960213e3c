//! Faults on pages of several frames.
//!
//! ```text
//! serve -- Absent    zero   a run of frames, zeroed, mapped
//!       |- Resident  remap  in memory: map it, or make it writable
//!       \- Swapped   fetch  a run of frames, one read of adjacent slots, mapped
//! ```
//! Such a page is present whole or not at all, and has no readahead. Its entry is held during swap
//! I/O in both directions, so the swap cache never has it.

use super::access::Served;
use crate::alloc;
use crate::error::FaultError;
use crate::folio::{self, Folio};
use crate::frame::Mobility;
use crate::lru::List;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Access, Entry, Held, Page};
use crate::stats::Counter;
use highwater_platform::{Io, Platform, Protection};
use highwater_units::{Pfn, Slot};

/// Makes a held page present.
pub(super) fn serve<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    access: Access,
) -> Result<Served, FaultError> {
    match held.page() {
        Page::Absent => zero(m, held),
        Page::Resident(head) => Ok(remap(m, held, head, access)),
        Page::Swapped(slot) => fetch(m, held, slot, access),
        Page::Poisoned => Err(FaultError::Poisoned),
    }
}

/// First touch: zeroed frames.
fn zero<P: Platform>(m: &Machine<P>, held: Held<'_, P>) -> Result<Served, FaultError> {
    let order = held.space().order();
    let folio = Folio::new(alloc::folio(m, order)?, order);
    m.platform.zero(&folio);
    m.count(Counter::PgZero, folio.len() as u64);
    Ok(install(m, held, &folio, Protection::ReadWrite, Served::Minor))
}

/// In memory: mapped read-only, or unmapped for an eviction that did not happen.
fn remap<P: Platform>(m: &Machine<P>, held: Held<'_, P>, head: Pfn, access: Access) -> Served {
    let (space, was) = (held.space(), held.entries()[0]);
    let folio = Folio::new(head, space.order());
    let writable = access == Access::Write || was.is_dirty();
    if writable {
        folio::forget_slots(m, &folio);
    }
    if was.is_mapped() {
        m.platform.allow_write(space.id(), space.mapping(held.first()), folio.len());
    } else {
        m.count(Counter::PgRefault, folio.len() as u64);
        folio::map(m, space, held.owner(0), &folio, protection(writable));
    }
    held.release(|_, was| {
        let mapped = was.mapped().accessed();
        if writable { mapped.dirty() } else { mapped }
    });
    Served::Minor
}

fn protection(writable: bool) -> Protection {
    if writable { Protection::ReadWrite } else { Protection::ReadOnly }
}

/// Reads the page from its slots. A load keeps them, so that it can be evicted without a write.
fn fetch<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    slot: Slot,
    access: Access,
) -> Result<Served, FaultError> {
    let order = held.space().order();
    let folio = Folio::new(alloc::folio(m, order)?, order);
    let mut io = [Io::block(slot.index, folio.head(), order)];
    {
        let _phase = m.enter(phase::SWAP_IN);
        m.swap.read(&m.platform, &m.stats, slot.device, &mut io);
    }
    if let Err(error) = io[0].result {
        m.free_run(folio.head(), order, Mobility::Movable);
        return Err(FaultError::Read(error));
    }
    m.count(Counter::PgMajFault, 1);
    let keep = access == Access::Read && m.swap.retains(&m.platform, slot);
    if keep {
        m.frames.set_slot(folio.head(), Some(slot));
    } else {
        folio::release_slots(m, slot, order);
    }
    Ok(install(m, held, &folio, protection(!keep), Served::Major))
}

/// Gives frames to the held page, adds the first to the LRU for all of them, and maps them.
fn install<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    folio: &Folio,
    protection: Protection,
    served: Served,
) -> Served {
    folio::adopt(m, folio, held.owner(0));
    m.add_to_lru(&[folio.head()], List::ActiveAnon);
    folio::map(m, held.space(), held.owner(0), folio, protection);
    held.release(|_, _| {
        let entry = Entry::resident(folio.head()).mapped().accessed();
        match protection {
            Protection::ReadWrite => entry.dirty(),
            Protection::ReadOnly => entry,
        }
    });
    served
}
