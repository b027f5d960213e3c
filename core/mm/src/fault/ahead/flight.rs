//! A batch of runs of pages that one device reads, and what becomes of them.

use super::super::swap_in::keep_or_free_slots;
use super::super::{adopt, file, note_refaults};
use super::FILE_BATCH;
use crate::lru::{Kind, List};
use crate::machine::Machine;
use crate::space::{Access, Backing, Entry, Held};
use crate::stats::Counter;
use crate::swap::{InFlight, Source};
use highwater_platform::{DeviceInfo, Io, Phase, Platform, Protection, Recency};
use highwater_units::{FrameList, Pfn, RUN_PAGES_MAX, Slot, Vpn};

/// Transfers of a batch.
pub(super) const BATCH: usize = 32;

/// Runs of pages that one device reads. While it is gathered it is the one after the newest.
pub(super) struct Flight<'a, P: Platform> {
    runs: [Option<Run<'a, P>>; BATCH],
    run_count: usize,
    ios: [Io; BATCH],
    io_count: usize,
    reading: Option<InFlight<P>>,
}

/// Pages one after the other, their entries held, their frames being filled.
pub(super) struct Run<'a, P: Platform> {
    pub(super) held: Held<'a, P>,
    pub(super) slots: [Slot; RUN_PAGES_MAX],
    pub(super) frames: FrameList,
    pub(super) marker: Option<Vpn>,
}

impl<'a, P: Platform> Flight<'a, P> {
    /// An empty one.
    pub(super) fn new() -> Self {
        let none = Io::new(0, FrameList::default());
        Flight {
            runs: [const { None }; BATCH],
            run_count: 0,
            ios: [none; BATCH],
            io_count: 0,
            reading: None,
        }
    }

    /// How many runs it has.
    pub(super) fn runs(&self) -> usize {
        self.run_count
    }

    /// The device, if it has any run.
    pub(super) fn device(&self) -> Option<u8> {
        self.runs[..self.run_count].first().and_then(|run| Some(run.as_ref()?.slots[0].device))
    }

    /// Pages from which on it is full.
    pub(super) fn pages_max(&self, m: &Machine<P>) -> usize {
        let device = self.device().and_then(|device| m.swap.info(device));
        match device.is_some_and(DeviceInfo::is_for_files) {
            true => (m.frames.len() / 16).clamp(1, FILE_BATCH),
            false => (m.frames.len() / 64).clamp(1, BATCH),
        }
    }

    /// Begins to read what it has.
    pub(super) fn send(&mut self, m: &Machine<P>) {
        let _phase = m.enter(Phase::SwapIn);
        let device = self.device().expect("not sent empty");
        let batch = &mut self.ios[..self.io_count];
        self.reading = Some(m.swap.start_read(&m.platform, device, batch));
    }

    /// Whether landing would not wait.
    pub(super) fn is_over(&self, m: &Machine<P>) -> bool {
        self.reading.as_ref().is_some_and(|reading| reading.is_over(&m.platform))
    }

    /// Whether a run fits, wherever its slots are.
    pub(super) fn has_room(&self) -> bool {
        self.io_count + RUN_PAGES_MAX <= BATCH
    }

    /// Takes a run in. There is room for it.
    pub(super) fn add(&mut self, run: Run<'a, P>) {
        let slots = &run.slots[..run.frames.len()];
        let mut at = 0;
        for stretch in slots.chunk_by(|a, b| a.index + 1 == b.index) {
            let frames = run.frames[at..at + stretch.len()].iter().copied().collect();
            self.ios[self.io_count] = Io::new(stretch[0].index, frames);
            (self.io_count, at) = (self.io_count + 1, at + stretch.len());
        }
        self.runs[self.run_count] = Some(run);
        self.run_count += 1;
    }

    /// Waits for the batch and makes its pages present.
    pub(super) fn land(&mut self, m: &Machine<P>) {
        let _phase = m.enter(Phase::SwapIn);
        let reading = self.reading.take().expect("only what was sent lands");
        let batch = &mut self.ios[..self.io_count];
        m.swap.finish_read(&m.platform, &m.stats, reading, batch);
        let mut results = batch.iter().flat_map(|io| io.frames.iter().map(|_| io.result));
        for run in self.runs[..self.run_count].iter_mut().filter_map(Option::take) {
            let of_run = results.by_ref().take(run.frames.len());
            let good = of_run.fold((0, true), |(good, all), result| match all && result.is_ok() {
                true => (good + 1, true),
                false => (good, false),
            });
            present(m, run, good.0);
        }
        (self.run_count, self.io_count) = (0, 0);
    }
}

/// The first `good` pages of a run are in their frames; the others stay on the device.
fn present<P: Platform>(m: &Machine<P>, run: Run<'_, P>, good: usize) {
    let Run { mut held, slots, mut frames, marker } = run;
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
