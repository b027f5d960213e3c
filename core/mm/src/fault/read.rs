//! Device reads for a fault or for readahead: which pages are read together, the transfers, and
//! what becomes of the slots.
//!
//! ```text
//! extend_swapped, within_end   which held pages to read
//! read_run -- read             one transfer for each stretch of adjacent slots, all in flight
//! slots_of, keep_or_free_slots afterwards
//! ```

use crate::error::FaultError;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Access, Entry, Held, Page, Pinned};
use highwater_platform::{Io, IoError, Platform, Protection};
use highwater_units::{Direction, FrameList, Pfn, RUN_PAGES_MAX, Slot};
use std::ops::Range;

/// Holds the next page too, if it is swapped to the device and not in the swap cache. Returns
/// whether it did.
pub(super) fn extend_swapped<P: Platform>(
    m: &Machine<P>,
    held: &mut Held<'_, P>,
    direction: Direction,
    device: u8,
) -> bool {
    let on_device = |entry: Entry| match entry.page() {
        Page::Swapped(slot) => slot.device == device,
        Page::Absent | Page::Resident(_) | Page::Poisoned => false,
    };
    let len = held.len();
    if !held.extend_to(direction, Pinned::Refuse, on_device) {
        return false;
    }
    let (new, others) = match direction {
        Direction::Up => (len, 0..len),
        Direction::Down => (0, 1..len + 1),
    };
    // Checked while the entry is held: before that, the page could be read and swapped out again,
    // to the same slot.
    let page = held.entries()[new].page();
    let cached = matches!(page, Page::Swapped(slot) if m.swap.is_cached(slot));
    if cached {
        held.keep(others);
    }
    !cached
}

/// The slots of held pages that are swapped.
pub(super) fn slots_of<P: Platform>(held: &Held<'_, P>) -> [Slot; RUN_PAGES_MAX] {
    let mut slots = [Slot { device: 0, index: 0 }; RUN_PAGES_MAX];
    for (slot, entry) in slots.iter_mut().zip(held.entries()) {
        if let Page::Swapped(of_page) = entry.page() {
            *slot = of_page;
        }
    }
    slots
}

/// Releases held pages that lie beyond the end of their file.
///
/// # Errors
/// The first page lies beyond the end; all pages are still held.
pub(super) fn within_end<P: Platform>(held: &mut Held<'_, P>) -> Result<(), FaultError> {
    match held.space().end().0.saturating_sub(held.first().0) {
        0 => Err(FaultError::BeyondEnd),
        left => {
            held.truncate(left.min(RUN_PAGES_MAX as u64) as usize);
            Ok(())
        }
    }
}

/// Reads the slots of held pages into frames: the wanted page, and the pages next to it that can be
/// read. Keeps and returns only these.
pub(super) fn read_run<P: Platform>(
    m: &Machine<P>,
    held: &mut Held<'_, P>,
    slots: &[Slot],
    frames: FrameList,
) -> Result<FrameList, FaultError> {
    let (results, wanted) = (read(m, slots, &frames), held.origin());
    let read_pages = match results[wanted] {
        Ok(()) => stretch_around(wanted, frames.len(), |index| results[index].is_ok()),
        Err(error) if frames.len() == 1 => {
            m.free(&frames);
            return Err(FaultError::Read(error));
        }
        Err(_) => wanted..wanted + 1,
    };
    m.free(&frames[..read_pages.start]);
    m.free(&frames[read_pages.end..]);
    held.keep(read_pages.clone());
    let frames: FrameList = frames[read_pages].iter().copied().collect();
    match results[wanted] {
        Ok(()) => Ok(frames),
        // The unreadable page may be a neighbour: retry with this page alone.
        Err(_) => read_run(m, held, &slots[wanted..=wanted], frames),
    }
}

/// The indices around `wanted` for which `good` is true without a gap.
fn stretch_around(wanted: usize, len: usize, good: impl Fn(usize) -> bool) -> Range<usize> {
    let before = (0..wanted).rev().take_while(|index| good(*index)).count();
    let after = (wanted + 1..len).take_while(|index| good(*index)).count();
    wanted - before..wanted + after + 1
}

/// The result for each page.
pub(super) type Results = [Result<(), IoError>; RUN_PAGES_MAX];

/// Reads up to 16 slots of a device into as many frames.
pub(super) fn read<P: Platform>(m: &Machine<P>, slots: &[Slot], frames: &[Pfn]) -> Results {
    let _phase = m.enter(phase::SWAP_IN);
    let mut batch = [Io::new(0, FrameList::default()); RUN_PAGES_MAX];
    let mut ios = 0;
    let mut at = 0;
    for stretch in slots.chunk_by(|a, b| a.index + 1 == b.index) {
        let list = frames[at..at + stretch.len()].iter().copied().collect();
        batch[ios] = Io::new(stretch[0].index, list);
        (ios, at) = (ios + 1, at + stretch.len());
    }
    m.swap.read(&m.platform, &m.stats, slots[0].device, &mut batch[..ios]);
    let mut results = [Ok(()); RUN_PAGES_MAX];
    let each = batch[..ios].iter().flat_map(|io| io.frames.iter().map(|_| io.result));
    results.iter_mut().zip(each).for_each(|(result, of_io)| *result = of_io);
    results
}

/// Keeps the slots of pages that were loaded from, so that they can be evicted without a write;
/// frees those of pages that were stored to. Returns the protection that this requires.
pub(super) fn keep_or_free_slots<P: Platform>(
    m: &Machine<P>,
    slots: &[Slot],
    frames: &[Pfn],
    access: Access,
) -> Protection {
    let _phase = m.enter(phase::SWAP_IN);
    let keep = access == Access::Read && m.swap.retains(&m.platform, slots[0]);
    for (slot, pfn) in slots.iter().zip(frames) {
        if keep {
            m.frames.set_slot(*pfn, Some(*slot));
        } else {
            m.release_slot(*slot);
        }
    }
    if keep { Protection::ReadOnly } else { Protection::ReadWrite }
}
