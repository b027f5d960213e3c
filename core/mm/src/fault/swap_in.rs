//! Pages come from a device: the one that is wanted, and what is read along with it.
//!
//! ```text
//! fetch -- Virtual: the pages after it, wherever they are on its device, while a stream goes on
//!       |- Slot:    around.rs
//!       \- Off:     it alone
//! read  -- a transfer for each stretch of adjacent slots, all in flight at once
//! ```
//! The entries of all of them are held meanwhile.

use super::{Fault, Served, ahead, around, install};
use crate::alloc;
use crate::error::FaultError;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Access, Held, Page, Pinned};
use crate::stats::Counter;
use crate::swap::Ahead;
use highwater_platform::{Io, IoError, Platform, Protection};
use highwater_units::{FrameList, Pfn, RUN_PAGES_MAX, Slot};

/// Makes a swapped page present.
pub(super) fn fetch<P: Platform>(
    m: &Machine<P>,
    mut held: Held<'_, P>,
    slot: Slot,
    fault: Fault,
    window: usize,
) -> Result<Served, FaultError> {
    let access = fault.access;
    let window = match m.swap.ahead(slot) {
        Ahead::Slot => return around::fetch(m, held, slot, access),
        Ahead::Off => 1,
        Ahead::Virtual => window,
    };
    let mut slots = [slot; RUN_PAGES_MAX];
    while held.len() < window
        && let Some(next) = extend_swapped(m, &mut held, slot.device)
    {
        slots[held.len() - 1] = next;
    }
    let frames = alloc::frames(m, held.len())?;
    let frames = read_run(m, &mut held, &slots, frames)?;
    m.count(Counter::PgMajFault, 1);
    m.count(Counter::SwapRa, frames.len() as u64 - 1);
    if frames.len() == RUN_PAGES_MAX {
        ahead::go_on(m, held.space().id(), fault, held.first().offset(RUN_PAGES_MAX as u64));
    }
    let protection = keep_or_free_slots(m, &slots[..frames.len()], &frames, access);
    Ok(install(m, held, &frames, protection, Served::Major))
}

/// Holds the next page too, if it is on the device.
pub(super) fn extend_swapped<P: Platform>(
    m: &Machine<P>,
    held: &mut Held<'_, P>,
    device: u8,
) -> Option<Slot> {
    let on_device = |page| match page {
        Page::Swapped(slot) if slot.device == device => Some(slot),
        _ => None,
    };
    let len = held.len();
    if !held.extend(Pinned::Refuse, |entry| on_device(entry.page()).is_some()) {
        return None;
    }
    let slot = on_device(held.entries()[len].page()).expect("just seen");
    // Asked while the entry is held: before, the page could go round once more, to the same slot.
    if m.swap.is_cached(slot) {
        held.truncate(len);
        return None;
    }
    Some(slot)
}

/// Fills frames from the slots of the held pages: of the first, and of as many after it as there
/// are frames and can be read. Holds and returns these.
pub(super) fn read_run<P: Platform>(
    m: &Machine<P>,
    held: &mut Held<'_, P>,
    slots: &[Slot; RUN_PAGES_MAX],
    mut frames: FrameList,
) -> Result<FrameList, FaultError> {
    loop {
        held.truncate(frames.len());
        let results = read(m, &slots[..frames.len()], &frames);
        match results[0] {
            Err(error) if frames.len() == 1 => {
                m.free(&frames);
                return Err(FaultError::Read(error));
            }
            // A neighbour may be what cannot be read: ask for this page alone.
            Err(_) => {
                m.free(&frames[1..]);
                frames.truncate(1);
            }
            Ok(()) => {
                let good = results[..frames.len()].iter().take_while(|r| r.is_ok()).count();
                m.free(&frames[good..]);
                frames.truncate(good);
                held.truncate(good);
                return Ok(frames);
            }
        }
    }
}

/// What came of reading each page.
pub(super) type Results = [Result<(), IoError>; RUN_PAGES_MAX];

/// Reads up to 16 frames from as many slots of a device.
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

/// Frames now equal their slots. A reader's pages keep them, so as to be dropped without a write;
/// a writer's do not.
pub(super) fn keep_or_free_slots<P: Platform>(
    m: &Machine<P>,
    slots: &[Slot],
    frames: &[Pfn],
    access: Access,
) -> Protection {
    let _phase = m.enter(phase::SWAP_IN);
    let keep = access == Access::Read && m.swap.retains(slots[0]);
    for (slot, pfn) in slots.iter().zip(frames) {
        match keep {
            true => m.frames.set_slot(*pfn, Some(*slot)),
            false => m.release_slot(*slot),
        }
    }
    match keep {
        true => Protection::ReadOnly,
        false => Protection::ReadWrite,
    }
}
