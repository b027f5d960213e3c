//! Saves pages in slots: a page that is dirty is written, and stays in memory, clean.

use super::contents::Snapshot;
use crate::alloc::{self, OutOfMemory};
use crate::error::FaultError;
use crate::frame::Owner;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Entry, Held, Page};
use crate::swap::first_error;
use crate::write_completion::settled;
use highwater_platform::{Io, Platform, Progress, Stop};
use highwater_units::{FrameList, Pfn, RUN_PAGES_MAX, Slot};

/// Failed writes of a stretch before the snapshot fails. Several devices may have free slots but no
/// room, and each may fail some writes.
const REFUSALS_MAX: u32 = 32;

/// Makes every page of a run clean and adds a reference to its slot.
pub(super) fn save<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    snapshot: &mut Snapshot,
) -> Result<(), FaultError> {
    let mut entries = [Entry::ABSENT; RUN_PAGES_MAX];
    for (index, entry) in held.entries().iter().enumerate() {
        entries[index] = settled(m, *entry);
    }
    let entries = &mut entries[..held.len()];
    let mut result = Ok(());
    let mut at = 0;
    while at < entries.len() && result.is_ok() {
        match save_next(m, &held, at, entries, snapshot) {
            Ok(pages) => at += pages,
            Err(error) => result = Err(error),
        }
    }
    held.release(|index, _| entries[index]);
    result
}

/// Saves one page or more from `at` on; returns how many.
fn save_next<P: Platform>(
    m: &Machine<P>,
    held: &Held<'_, P>,
    at: usize,
    entries: &mut [Entry],
    snapshot: &mut Snapshot,
) -> Result<usize, FaultError> {
    match home(m, entries[at]) {
        Home::Nowhere => Ok(1),
        Home::Lost => {
            snapshot.push_poisoned(held.owner(at).vpn);
            Ok(1)
        }
        Home::Slot(slot) => {
            m.swap.duplicate(m.cpu(), slot);
            snapshot.push(held.owner(at).vpn, slot);
            Ok(1)
        }
        Home::Frame(_) => save_stretch(m, held, at, entries, snapshot),
    }
}

/// Where a page's current contents are.
enum Home {
    Nowhere,
    /// The page is poisoned.
    Lost,
    Slot(Slot),
    Frame(Pfn),
}

fn home<P: Platform>(m: &Machine<P>, entry: Entry) -> Home {
    match (m.slot_of(entry), entry.page()) {
        (Some(slot), _) => Home::Slot(slot),
        (None, Page::Resident(pfn)) => Home::Frame(pfn),
        (None, Page::Poisoned) => Home::Lost,
        (None, Page::Absent | Page::Swapped(_)) => Home::Nowhere,
    }
}

/// Writes a stretch of resident pages, all mapped or all unmapped; returns how many were saved.
fn save_stretch<P: Platform>(
    m: &Machine<P>,
    held: &Held<'_, P>,
    at: usize,
    entries: &mut [Entry],
    snapshot: &mut Snapshot,
) -> Result<usize, FaultError> {
    let mapped = entries[at].is_mapped();
    let alike = entries[at..].iter().take_while(|entry| entry.is_mapped() == mapped);
    let frame = |entry: &Entry| match home(m, *entry) {
        Home::Frame(pfn) => Some(pfn),
        Home::Nowhere | Home::Lost | Home::Slot(_) => None,
    };
    let frames: FrameList = alike.map_while(frame).collect();
    let owner = held.owner(at);
    let progress = if mapped {
        m.platform.unmap(owner.space, owner.vpn, &frames)
    } else {
        Progress::all(frames.len())
    };
    for (index, pfn) in frames[..progress.done].iter().enumerate() {
        entries[at + index] = Entry::resident(*pfn).dirty();
    }
    write(m, &frames[..progress.done], |index, slot| {
        m.swap.duplicate(m.cpu(), slot);
        m.frames.set_slot(frames[index], Some(slot));
        entries[at + index] = Entry::resident(frames[index]);
        snapshot.push(held.owner(at + index).vpn, slot);
        Ok(())
    })?;
    let stopped = at + progress.done;
    match progress.stop {
        None => return Ok(frames.len()),
        Some(Stop::Vanished) => {
            m.abandon(frames[progress.done]);
            entries[stopped] = Entry::ABSENT;
        }
        Some(_) => save_copy(m, held.owner(stopped), frames[progress.done], snapshot)?,
    }
    Ok(progress.done + 1)
}

/// Writes a copy of a page that cannot be unmapped. The slot belongs to the snapshot alone.
fn save_copy<P: Platform>(
    m: &Machine<P>,
    owner: Owner,
    pfn: Pfn,
    snapshot: &mut Snapshot,
) -> Result<(), FaultError> {
    let copy = alloc::frames(m, 1)?;
    m.platform.copy(owner.space, owner.vpn, pfn, copy[0]);
    let written = write(m, &copy, |_, slot| {
        snapshot.push(owner.vpn, slot);
        Ok(())
    });
    m.free(&copy);
    written
}

/// Writes unmapped frames to new slots, in as few transfers as the slots allow; calls `saved` with
/// each slot, which has one reference.
fn write<P: Platform>(
    m: &Machine<P>,
    frames: &[Pfn],
    mut saved: impl FnMut(usize, Slot) -> Result<(), FaultError>,
) -> Result<(), FaultError> {
    let _phase = m.enter(phase::SWAP_OUT);
    let (mut at, mut refusals) = (0, 0);
    while at < frames.len() {
        m.swap.retry_failing();
        let (first, taken) = m.swap.alloc(m.cpu(), &frames[at..]).ok_or(OutOfMemory)?;
        let written = frames[at..at + taken].iter().copied().collect();
        let mut io = [Io::new(first.index, written)];
        m.swap.write(&m.platform, &m.stats, first.device, &mut io);
        let error = first_error(&io);
        m.swap.uncache(&m.platform, first, &frames[at..at + taken], |_, _| {});
        for index in 0..taken {
            let slot = Slot { index: first.index + index as u32, ..first };
            match error {
                None => saved(at + index, slot)?,
                Some(_) => m.release_slot(slot),
            }
        }
        match error {
            None => at += taken,
            // The device is now skipped, or gets fewer pages.
            Some(_) if refusals < REFUSALS_MAX => refusals += 1,
            Some(error) => return Err(FaultError::Write(error)),
        }
    }
    Ok(())
}
