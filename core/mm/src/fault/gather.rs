//! Which pages of a readahead request are read next: held, with their slots.

use super::access::window_max;
use super::read::{extend_swapped, slots_of, within_end};
use crate::machine::Machine;
use crate::space::{Backing, Held, Page, Pinned};
use crate::swap::{Ahead, ReadaheadRequest};
use highwater_platform::{Latency, Platform};
use highwater_units::{Direction, RUN_PAGES_MAX, Slot};

/// Holds the first pages of a request, up to 16; `None` if the first page is locked, in memory, or
/// on a device that is memory itself.
pub(super) fn hold<'a, P: Platform>(
    m: &'a Machine<P>,
    request: &ReadaheadRequest,
) -> Option<(Held<'a, P>, [Slot; RUN_PAGES_MAX])> {
    let space = m.space(request.space);
    let mut held = Held::lock(space, request.first, Pinned::Refuse)?;
    let slot = place(m, &held)?;
    if m.swap.latency(slot) == Latency::Synchronous {
        return None;
    }
    let wanted = match request.landing.marker() {
        Some(marker) if marker > request.first => marker.min(request.end),
        Some(_) | None => request.end,
    };
    let wanted = ((wanted.0 - request.first.0) as usize).min(RUN_PAGES_MAX);
    if let Backing::File { .. } = space.backing() {
        let mut slots = [slot; RUN_PAGES_MAX];
        while held.len() < wanted && held.extend(Pinned::Refuse, |e| e.page() == Page::Absent) {
            let at = held.len() - 1;
            slots[at].index += at as u32;
        }
        within_end(&mut held).ok()?;
        return Some((held, slots));
    }
    let most = match m.swap.ahead(slot) {
        Ahead::Virtual => wanted.min(window_max(m)),
        Ahead::Off | Ahead::Slot => 1,
    };
    while held.len() < most && extend_swapped(m, &mut held, Direction::Up, slot.device) {}
    let slots = slots_of(&held);
    Some((held, slots))
}

/// The slot or place of a held page that is on a device only.
fn place<P: Platform>(m: &Machine<P>, held: &Held<'_, P>) -> Option<Slot> {
    let entry = held.entries()[0];
    match (entry.page(), held.space().backing()) {
        (Page::Swapped(slot), _) if !entry.is_large() && !m.swap.is_cached(slot) => Some(slot),
        (Page::Absent, Backing::File { device }) => {
            Some(Slot { device, index: held.first().0 as u32 })
        }
        (Page::Absent | Page::Resident(_) | Page::Swapped(_) | Page::Poisoned, _) => None,
    }
}
