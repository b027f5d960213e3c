//! Takes a page off a swap device whose slots are no longer to be used (unuse_pte).
//!
//! ```text
//! page: in a slot            read, with the next pages in slots of the device: in memory, dirty
//!       in the swap cache    waits for its write; in memory, dirty
//!       clean, with a slot   dirty, without
//! ```
//! Pages that were read stay unmapped, on the inactive list: reclaim writes them to other devices
//! unless the program uses them first.

use super::map::adopt;
use super::read::{extend_swapped, read_run, slots_of};
use super::{Fault, resolve};
use crate::alloc;
use crate::error::FaultError;
use crate::lru::List;
use crate::machine::Machine;
use crate::space::{Access, Entry, Held, Page, Pinned, Range, Space};
use crate::write_completion::settled;
use highwater_platform::Platform;
use highwater_units::{Direction, Order, Pfn, Vpn};

/// Takes a page off the devices that `leaves` accepts, and the pages after it that are read with
/// it. Waits while its entry is locked. Returns how many pages were moved.
///
/// # Errors
/// Memory and swap are full, or the page cannot be read. It keeps its slot.
pub fn unuse<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    vpn: Vpn,
    leaves: impl Fn(u8) -> bool,
) -> Result<u64, FaultError> {
    let held = space.hold_as(vpn, Pinned::Accept);
    let entry = held.entries()[0];
    let Some(slot) = m.slot_of(entry).filter(|slot| leaves(slot.device)) else { return Ok(0) };
    if space.order() > Order(0) {
        drop(held);
        let within = Range { first: vpn, end: vpn.offset(1) };
        return resolve(m, space, Fault { vpn, access: Access::Write, within }).map(|_| 1);
    }
    if let Page::Resident(pfn) = entry.page() {
        drop_copy(m, held, pfn);
        return Ok(1);
    }
    match settled(m, entry) {
        found if found == entry => read(m, held, slot.device),
        found => {
            held.release(|_, was| found.with_writes_of(was));
            Ok(1)
        }
    }
}

/// Frees the slot of a clean page, which becomes dirty.
fn drop_copy<P: Platform>(m: &Machine<P>, held: Held<'_, P>, pfn: Pfn) {
    m.forget_slot(pfn);
    if held.entries()[0].is_mapped() {
        m.platform.allow_write(held.space().id(), held.first(), 1);
    }
    held.release(|_, was| was.dirty());
}

/// Reads a page, and those after it that are on its device.
fn read<P: Platform>(m: &Machine<P>, mut held: Held<'_, P>, device: u8) -> Result<u64, FaultError> {
    while extend_swapped(m, &mut held, Direction::Up, device) {}
    let frames = alloc::frames(m, held.len())?;
    held.keep_nearest(frames.len());
    let slots = slots_of(&held);
    let frames = read_run(m, &mut held, &slots[..frames.len()], frames)?;
    slots_of(&held)[..frames.len()].iter().for_each(|slot| m.release_slot(*slot));
    adopt(m, &held, &frames);
    m.add_to_lru(&frames, List::InactiveAnon);
    held.release(|index, was| Entry::resident(frames[index]).dirty().with_writes_of(was));
    Ok(frames.len() as u64)
}
