//! Submission and completion of a readahead batch. On completion its pages become resident and
//! their entries are released.

use super::map::{adopt, list_of_ahead};
use super::read::keep_or_free_slots;
use super::refault::{list_file, note_anon};
use crate::lru::Kind;
use crate::machine::{Machine, ReadBatch, ReadRun};
use crate::phase;
use crate::space::{Access, Backing, Entry, Held};
use crate::stats::Counter;
use crate::swap::Landing;
use highwater_platform::{Platform, Protection, Recency};
use highwater_units::{Direction, FrameList, Pfn, RUN_PAGES_MAX};

/// Submits the reads of a batch.
pub(super) fn submit<P: Platform>(m: &Machine<P>, batch: &mut ReadBatch<P>) {
    let _phase = m.enter(phase::SWAP_IN);
    batch.submit(&m.swap, &m.platform);
}

/// Waits for a batch and makes its pages resident.
pub(super) fn complete<P: Platform>(m: &Machine<P>, batch: &mut ReadBatch<P>) {
    let _phase = m.enter(phase::SWAP_IN);
    batch.complete(&m.swap, &m.platform, &m.stats, |run, good| finish(m, run, good));
}

/// Finishes a run of which the first `good` pages were read; the others stay on the device.
fn finish<P: Platform>(m: &Machine<P>, run: ReadRun, good: usize) {
    let ReadRun { left, slots, mut frames, landing } = run;
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
            let (space, first) = (held.space().id(), held.first());
            let trust = match landing {
                Landing::Named | Landing::Watched => m.swap.pointers.trust(space, first),
                Landing::Asked | Landing::Stream(_) => m.swap.streams.trust(space, first),
            };
            m.add_to_lru(&frames, list_of_ahead(m, trust));
            note_anon(m, &frames);
            protection
        }
        Backing::File { .. } => {
            m.count(Counter::FileRa, good as u64);
            adopt(m, &held, &frames);
            list_file(m, &held, &frames);
            Protection::ReadOnly
        }
    };
    match landing {
        Landing::Stream(Some(marker)) if marker == held.first() => {
            let space = held.space().id();
            m.swap.streams.expect(space, marker, Direction::Up, RUN_PAGES_MAX, 0);
            leave_unmapped(held, &frames, protection);
        }
        Landing::Watched => {
            m.swap.pointers.expect(held.space().id(), held.first());
            leave_unmapped(held, &frames, protection);
        }
        Landing::Asked | Landing::Stream(_) | Landing::Named => map(m, held, &frames, protection),
    }
}

/// The entry of an unmapped page that was read.
fn entry_of(pfn: Pfn, protection: Protection) -> Entry {
    match protection {
        Protection::ReadOnly => Entry::resident(pfn),
        Protection::ReadWrite => Entry::resident(pfn).dirty(),
    }
}

/// Leaves pages unmapped, so that their use is seen.
fn leave_unmapped<P: Platform>(held: Held<'_, P>, frames: &FrameList, protection: Protection) {
    held.release(|index, _| entry_of(frames[index], protection).ahead());
}

/// Maps pages, so that their first use does not fault.
fn map<P: Platform>(m: &Machine<P>, held: Held<'_, P>, frames: &FrameList, protection: Protection) {
    let progress = m.platform.map(held.space().id(), held.first(), frames, protection);
    let (recency, kind) = (m.platform.recency(), held.space().backing().kind());
    held.release(|index, _| {
        let entry = entry_of(frames[index], protection);
        match (index < progress.done, recency, kind) {
            (true, Recency::AccessedBit, _) => entry.mapped().ahead(),
            (true, Recency::Unmapping, Kind::Anon) => entry.mapped().ahead(),
            (true, Recency::Unmapping, Kind::File) => entry.mapped(),
            (false, ..) => entry.ahead(),
        }
    });
}
