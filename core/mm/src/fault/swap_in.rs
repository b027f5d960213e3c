//! A fault on a swapped page: reads it, and pages beside it.
//!
//! ```text
//! fetch -- Virtual  the pages next to it that are on its device, while a stream continues
//!       |- Slot     the slots around it (around.rs)
//!       \- Off      the page alone
//! ```
//! The entries of all pages are held during the read.

use super::access::{Fault, Served, Window};
use super::map::install;
use super::read::{extend_swapped, keep_or_free_slots, read_run, slots_of};
use super::refault::list_of_anon;
use super::{around, pointers, request};
use crate::alloc;
use crate::error::FaultError;
use crate::machine::Machine;
use crate::space::{Access, Held};
use crate::stats::Counter;
use crate::swap::Ahead;
use highwater_platform::{Platform, Recency};
use highwater_units::{Direction, RUN_PAGES_MAX, Slot};

/// Reads and maps a swapped page.
pub(super) fn fetch<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    slot: Slot,
    fault: Fault,
    window: Window,
) -> Result<Served, FaultError> {
    let access = fault.access;
    let window = match m.swap.ahead(slot) {
        Ahead::Slot => return around::fetch(m, held, slot, access),
        Ahead::Off => Window::ALONE,
        Ahead::Virtual => window,
    };
    while held.len() < window.pages && extend_swapped(m, &mut held, window.direction, slot.device) {
    }
    let frames = alloc::frames(m, held.len())?;
    held.keep_nearest(frames.len());
    let slots = slots_of(&held);
    let frames = read_run(m, &mut held, &slots[..frames.len()], frames)?;
    m.count(Counter::PgMajFault, 1);
    m.count(Counter::SwapRa, frames.len() as u64 - 1);
    if frames.len() == RUN_PAGES_MAX && window.direction == Direction::Up {
        let end = held.first().offset(RUN_PAGES_MAX as u64);
        request::continue_stream(m, held.space().id(), fault, end);
    }
    let (space, wanted) = (held.space(), held.origin());
    if access == Access::Read {
        pointers::from_stream(m, space, (fault.vpn, frames[wanted]), window);
    }
    let slots = slots_of(&held);
    // Read before the slot may be freed and reused for another page.
    let list = list_of_anon(m, slot);
    let access = access_to_expect(m, &mut held, access);
    let protection = keep_or_free_slots(m, &slots[..frames.len()], &frames, access);
    let served = install(m, held, &frames, list, protection, Served::Major);
    pointers::from_named(m, space, fault.vpn);
    Ok(served)
}

/// The access for which a page is mapped: for a load, a store if one is expected
/// ([`crate::space::Entry::use_expected_write`]). The slot is then freed at once, and the expected
/// store does not fault. If no store follows, the page is written in vain, so a window of several
/// pages is mapped for the load only.
fn access_to_expect<P: Platform>(m: &Machine<P>, held: &mut Held<'_, P>, access: Access) -> Access {
    if m.platform.recency() == Recency::AccessedBit {
        return access;
    }
    let alone = held.len() == 1;
    let wanted = held.origin();
    let entry = held.entries()[wanted];
    let (access, entry) = match (access, entry.use_expected_write()) {
        (Access::Write, _) => (Access::Write, entry.expect_writes()),
        (Access::Read, Some(less)) if alone => (Access::Write, less),
        (Access::Read, _) => (Access::Read, entry),
    };
    held.change(wanted, entry);
    access
}
