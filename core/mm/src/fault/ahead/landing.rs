//! What becomes of pages that were read ahead.

use super::super::swap_in::keep_or_free_slots;
use super::super::{adopt, file, note_refaults};
use crate::lru::{Kind, List};
use crate::machine::{Machine, ReadBatch, ReadRun};
use crate::space::{Access, Backing, Entry, Held};
use crate::stats::Counter;
use crate::swap::Source;
use highwater_platform::{Platform, Protection, Recency};
use highwater_units::{FrameList, Pfn, RUN_PAGES_MAX};

/// Waits for a batch and makes its pages present.
pub(super) fn land<P: Platform>(m: &Machine<P>, flight: &mut ReadBatch<P>) {
    flight.finish(&m.platform, &m.swap, &m.stats, |run, good| present(m, run, good));
}

/// The first `good` pages of a run are in their frames; the others stay on the device.
fn present<P: Platform>(m: &Machine<P>, run: ReadRun, good: usize) {
    let ReadRun { left, slots, mut frames, marker } = run;
    let mut held = Held::back(m.space(left.space()), left);
    m.free(&frames[good..]);
    if good == 0 {
        return;
    }
    frames.truncate(good);
    held.truncate(good);
    let protection = match held.space().backing() {
        Backing::Anonymous => {
            m.count(Counter::SwapRa, good as u64);
            let protection = keep_or_free_slots(m, &slots[..good], &frames, Access::Read);
            adopt(m, &held, &frames);
            m.add_to_lru(&frames, List::ActiveAnon);
            note_refaults(m, &frames);
            protection
        }
        Backing::File { .. } => {
            m.count(Counter::FileRa, good as u64);
            adopt(m, &held, &frames);
            file::list(m, &held, &frames);
            Protection::ReadOnly
        }
    };
    match marker {
        Some(marker) if marker == held.first() => leave_unmapped(m, held, &frames, protection),
        Some(_) | None => map(m, held, &frames, protection),
    }
}

/// The entry of a page that was read, not mapped.
fn entry_of(pfn: Pfn, protection: Protection) -> Entry {
    match protection {
        Protection::ReadOnly => Entry::resident(pfn),
        Protection::ReadWrite => Entry::resident(pfn).dirty(),
    }
}

/// A stream is expected at these pages, and is to be seen.
fn leave_unmapped<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    frames: &FrameList,
    protection: Protection,
) {
    m.swap.streams.expect(held.space().id(), held.first(), RUN_PAGES_MAX, Source::Memory);
    held.release(|index, _| entry_of(frames[index], protection).ahead());
}

/// Nobody is to notice that these pages came only now.
fn map<P: Platform>(m: &Machine<P>, held: Held<'_, P>, frames: &FrameList, protection: Protection) {
    let progress = m.platform.map(held.space().id(), held.first(), frames, protection);
    let (marks, kind) = (m.platform.recency(), held.space().backing().kind());
    held.release(|index, _| {
        let entry = entry_of(frames[index], protection);
        match (index < progress.done, marks, kind) {
            (true, Recency::AccessedBit, _) => entry.mapped().ahead(),
            (true, Recency::Unmapping, Kind::Anon) => entry.mapped().accessed(),
            (true, Recency::Unmapping, Kind::File) => entry.mapped(),
            (false, ..) => entry.ahead(),
        }
    });
}
