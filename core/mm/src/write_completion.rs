//! What becomes of a page after a device write, whether it succeeded or failed.
//!
//! ```text
//!                     decide: pure
//!   written? -------+
//!                   +--> Freed    the frame is free; the device has the contents
//!   Meanwhile:      |--> Claimed  a fault owns the frame
//!     Idle          |--> Clean    resident, same bytes on the device
//!     Awaited       \--> Dirty    resident, same as before the write
//!     Claimed
//!     Dropped
//! ```
//! - Anonymous pages in reclaim (`reclaim/evict.rs`, `reclaim/large.rs`, `reclaim/write_queue.rs`)
//!   are in the swap cache, their entries unlocked: [`complete_cached`], then [`restore_cached`].
//! - Folios in reclaim (`reclaim/folio.rs`) are in the swap cache, their entries held:
//!   [`complete_folio`].
//! - Files' pages, written by reclaim (`reclaim/in_place.rs`), by the flusher and by `write_back`,
//!   have their entries held: [`complete_held`].
//!
//! A failed write never loses a page: it stays dirty and goes back to the active list, its slot is
//! released, and a later eviction takes another slot. Two other files decide by the result of the
//! write, too. `swap/standing.rs` decides whether the device gets further pages
//! (`Standing::answered`): a device that is full or fails is skipped, so the next attempt goes to
//! another device. `alloc/retry.rs` decides when an allocation stops waiting for writes that fail
//! (`decide`).
//!
//! Locking: [`restore_cached`] waits for entries. A thread that holds one may wait for another
//! write, so the caller must have no write in flight.

use crate::folio::{self, Folio};
use crate::frame::Writeback;
use crate::machine::Machine;
use crate::space::{Entry, Held, Page, Pinned};
use crate::swap::Cached;
use highwater_platform::{Io, IoError, Platform};
use highwater_units::{Pfn, Slot};

/// What other threads did with a page during its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    /// Nothing, and the writer wanted to evict it.
    Idle,
    /// It is still needed: a thread waits for its entry, or the write was not for eviction.
    Awaited,
    /// A fault took its frame out of the swap cache.
    Claimed,
    /// The program dropped it.
    Dropped,
}

/// What becomes of a page after its write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its frame is the caller's to free.
    Freed,
    /// A fault gave its frame to a page again: to the active list.
    Claimed,
    /// It is resident and clean.
    Clean,
    /// It is resident and dirty: to the active list, until its next turn.
    Dirty,
}

/// Decides what becomes of a page. For the page, a full device and a failed one make no difference;
/// they do for the choice of the next device.
fn decide(written: Result<(), IoError>, meanwhile: Meanwhile) -> Outcome {
    match (written, meanwhile) {
        (_, Meanwhile::Claimed) => Outcome::Claimed,
        (_, Meanwhile::Dropped) => Outcome::Freed,
        (Ok(()), Meanwhile::Idle) => Outcome::Freed,
        (Ok(()), Meanwhile::Awaited) => Outcome::Clean,
        (Err(_), Meanwhile::Idle | Meanwhile::Awaited) => Outcome::Dirty,
    }
}

/// Completes transfers of pages in the swap cache and wakes threads that wait for their frames.
/// Calls `done` for each page that was written. Pages that were not written wait for
/// [`restore_cached`].
pub(crate) fn complete_cached<P: Platform>(
    m: &Machine<P>,
    device: u8,
    batch: &[Io],
    mut done: impl FnMut(Pfn, Outcome),
) {
    for io in batch {
        if io.result.is_err() {
            m.set_written(io.frames.iter(), Writeback::Failed);
            continue;
        }
        // Done before the threads that claimed a frame are woken: these may free the slot and the
        // frame, both may be reused as a pair, and `uncache` would then remove the frame of the new
        // pair.
        for (at, frames) in io.frames.lists() {
            let first = Slot { device, index: io.slot + at as u32 };
            m.swap.uncache(&m.platform, first, &frames, |index, cached| {
                let meanwhile = match cached {
                    Cached::Removed => Meanwhile::Idle,
                    Cached::Claimed => Meanwhile::Claimed,
                };
                done(frames[index], decide(io.result, meanwhile));
            });
        }
        m.set_written(io.frames.iter(), Writeback::Idle);
    }
}

/// Completes the pages of `batch` that were not written; calls `done` for each. The caller has no
/// write in flight.
pub(crate) fn restore_cached<P: Platform>(
    m: &Machine<P>,
    device: u8,
    batch: &[Io],
    mut done: impl FnMut(Pfn, Outcome),
) {
    for io in batch.iter().filter(|io| io.result.is_err()) {
        for (index, pfn) in io.frames.iter().enumerate() {
            let slot = Slot { device, index: io.slot + index as u32 };
            done(pfn, restore(m, slot, pfn, io.result));
        }
    }
}

fn restore<P: Platform>(
    m: &Machine<P>,
    slot: Slot,
    pfn: Pfn,
    written: Result<(), IoError>,
) -> Outcome {
    let Some(held) = hold_owner(m, pfn) else { return decide(written, Meanwhile::Claimed) };
    // A fault notes its claim before it unlocks the entry. The swap cache does not show the claim:
    // the slot may have been freed and be in use again for this frame.
    if m.frames.writeback(pfn) != Writeback::Failed {
        return decide(written, Meanwhile::Claimed);
    }
    m.frames.set_writeback(pfn, Writeback::Idle);
    m.swap.uncache(&m.platform, slot, &[pfn], |_, cached| {
        debug_assert_eq!(cached, Cached::Removed, "{pfn:?} was claimed by nobody");
    });
    let swapped = held.page() == Page::Swapped(slot);
    let outcome = decide(written, if swapped { Meanwhile::Idle } else { Meanwhile::Dropped });
    if outcome == Outcome::Dirty {
        m.release_slot(slot);
        held.release(|_, _| Entry::resident(pfn).dirty());
    }
    outcome
}

/// Holds the entry of a frame's page. `None` if the frame has no page: only a fault that claimed it
/// takes its owner away.
fn hold_owner<P: Platform>(m: &Machine<P>, pfn: Pfn) -> Option<Held<'_, P>> {
    let mut attempt = 0;
    loop {
        let owner = m.frames.owner(pfn)?;
        if let Some(held) = Held::lock(m.space(owner.space), owner.vpn, Pinned::Accept) {
            return Some(held);
        }
        // A fault that found the frame in the swap cache holds the entry for a short time.
        m.platform.relax(attempt);
        attempt += 1;
    }
}

/// Completes the write of a folio whose entry is held, and unlocks it.
pub(crate) fn complete_folio<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    io: &Io,
    first: Slot,
) -> Outcome {
    let folio = Folio::new(io.frames.at(0), held.space().order());
    let head = folio.head();
    for (at, frames) in io.frames.lists() {
        let slot = Slot { index: first.index + at as u32, ..first };
        m.swap.uncache(&m.platform, slot, &frames, |_, cached| {
            debug_assert_eq!(cached, Cached::Removed, "the entry that names {slot:?} is held");
        });
    }
    let awaited = held.is_awaited(0);
    let outcome = decide(io.result, if awaited { Meanwhile::Awaited } else { Meanwhile::Idle });
    match outcome {
        Outcome::Freed => {
            folio::free_isolated(m, &folio);
            held.release(|_, _| Entry::swapped(first));
        }
        Outcome::Clean => {
            m.frames.set_slot(head, Some(first));
            held.release(|_, _| Entry::resident(head));
        }
        Outcome::Dirty => {
            folio::release_slots(m, first, folio.order());
            held.release(|_, _| Entry::resident(head).dirty());
        }
        Outcome::Claimed => unreachable!("{head:?} is claimed under its entry only"),
    }
    outcome
}

/// The entry of a held page. A page in the swap cache is made resident first, after its write: then
/// no other thread has a reference to its owner.
pub(crate) fn settled<P: Platform>(m: &Machine<P>, entry: Entry) -> Entry {
    let Page::Swapped(slot) = entry.page() else { return entry };
    let Some(pfn) = m.swap.claim(m.cpu(), slot) else { return entry };
    m.wait_written(pfn);
    m.frames.set_writeback(pfn, Writeback::Idle);
    m.release_slot(slot);
    Entry::resident(pfn).dirty()
}

/// Why a file's page was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To evict it, unless a thread waits for it.
    Evict,
    /// To have it on the device; it stays in memory.
    WriteBack,
}

/// Completes the write of page `index` of `held`, which is resident, dirty and not mapped: sets its
/// new entry, which takes effect when `held` is unlocked. `evicted` makes the entry of an evicted
/// page from the old one.
pub(crate) fn complete_held<P: Platform>(
    held: &mut Held<'_, P>,
    index: usize,
    written: Result<(), IoError>,
    purpose: Purpose,
    evicted: impl FnOnce(Entry) -> Entry,
) -> Outcome {
    let meanwhile = match purpose {
        Purpose::Evict if held.is_awaited(index) => Meanwhile::Awaited,
        Purpose::Evict => Meanwhile::Idle,
        Purpose::WriteBack => Meanwhile::Awaited,
    };
    let (outcome, was) = (decide(written, meanwhile), held.entries()[index]);
    match (outcome, purpose) {
        (Outcome::Freed, _) => held.change(index, evicted(was)),
        // The waiter is about to use it: it is no longer an unused page of readahead.
        (Outcome::Clean, Purpose::Evict) => {
            held.change(index, Entry::resident(resident_frame(was)));
        }
        (Outcome::Clean, Purpose::WriteBack) => held.change(index, was.clean()),
        (Outcome::Dirty, _) => {}
        (Outcome::Claimed, _) => unreachable!("a page is claimed under its entry only"),
    }
    outcome
}

/// The frame of a dirty page.
pub(crate) fn resident_frame(entry: Entry) -> Pfn {
    match entry.page() {
        Page::Resident(pfn) => pfn,
        _ => unreachable!("only resident pages are dirty"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_lost_by_no_result() {
        use Meanwhile::{Awaited, Claimed, Dropped, Idle};
        let (full, failed) = (Err(IoError::Full), Err(IoError::Failed(5)));
        let table = [
            (Ok(()), Idle, Outcome::Freed),
            (Ok(()), Awaited, Outcome::Clean),
            (Ok(()), Claimed, Outcome::Claimed),
            (full, Idle, Outcome::Dirty),
            (full, Awaited, Outcome::Dirty),
            (full, Claimed, Outcome::Claimed),
            (full, Dropped, Outcome::Freed),
            (failed, Idle, Outcome::Dirty),
            (failed, Awaited, Outcome::Dirty),
            (failed, Claimed, Outcome::Claimed),
            (failed, Dropped, Outcome::Freed),
        ];
        for (written, meanwhile, expected) in table {
            assert_eq!(decide(written, meanwhile), expected, "{written:?} {meanwhile:?}");
        }
    }
}
