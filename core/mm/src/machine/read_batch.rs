//! A batch of runs of pages that one device reads. What becomes of them is decided in `fault`.
//!
//! ```text
//! ReadBatch -- [ReadRun] pages one after the other: their entries locked, frames for them
//!        |- [Io]      the transfers that fill these, one for each stretch on the device
//!        \- InFlight  once the device is at it
//! ```
//! Locking: none; who has it is alone. It keeps its entries locked while nobody has it in hand.

use super::Machine;
use crate::phase;
use crate::space::Left;
use crate::swap::InFlight;
use highwater_platform::{DeviceInfo, Io, Platform};
use highwater_units::{FrameList, RUN_PAGES_MAX, Slot, SpaceId, Vpn};

/// Transfers of a batch.
const BATCH: usize = 32;

/// Pages of files in a batch: a quarter of a window, so that its first pages are there, and the
/// next window is asked for, while the device is at the others.
const FILE_BATCH: usize = 64;

/// Pages one after the other, their entries locked, their frames being filled.
pub struct ReadRun {
    /// The entries.
    pub left: Left,
    /// Where the pages are.
    pub slots: [Slot; RUN_PAGES_MAX],
    /// Where they go.
    pub frames: FrameList,
    /// From this page on a run is left unmapped.
    pub marker: Option<Vpn>,
}

/// Runs of pages that one device reads.
pub struct ReadBatch<P: Platform> {
    runs: Vec<ReadRun>,
    ios: Vec<Io>,
    reading: Option<InFlight<P>>,
}

impl<P: Platform> Default for ReadBatch<P> {
    /// An empty one.
    fn default() -> Self {
        ReadBatch { runs: Vec::new(), ios: Vec::new(), reading: None }
    }
}

impl<P: Platform> ReadBatch<P> {
    /// How many runs it has.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// How many pages it has.
    pub fn pages(&self) -> u32 {
        self.runs.iter().map(|run| run.frames.len() as u32).sum()
    }

    /// The device, if it has any run.
    pub fn device(&self) -> Option<u8> {
        self.runs.first().map(|run| run.slots[0].device)
    }

    /// Whether a page is one of it.
    pub fn has(&self, space: SpaceId, vpn: Vpn) -> bool {
        self.runs.iter().any(|run| run.left.has(space, vpn))
    }

    /// Lets those who wait for one of its pages look again.
    pub fn wake_waiters(&self, m: &Machine<P>) {
        self.runs.iter().for_each(|run| run.left.wake_waiters(m.space(run.left.space())));
    }

    /// Pages from which on it is full.
    pub fn pages_max(&self, m: &Machine<P>) -> usize {
        let device = self.device().and_then(|device| m.swap.info(device));
        match device.is_some_and(DeviceInfo::is_for_files) {
            true => (m.frames.len() / 16).clamp(1, FILE_BATCH),
            false => (m.frames.len() / 64).clamp(1, BATCH),
        }
    }

    /// Whether a run fits, wherever its slots are.
    pub fn has_room(&self) -> bool {
        self.ios.len() + RUN_PAGES_MAX <= BATCH
    }

    /// Takes a run in. There is room for it.
    pub fn add(&mut self, run: ReadRun) {
        let slots = &run.slots[..run.frames.len()];
        let mut at = 0;
        for stretch in slots.chunk_by(|a, b| a.index + 1 == b.index) {
            let frames = run.frames[at..at + stretch.len()].iter().copied().collect();
            self.ios.push(Io::new(stretch[0].index, frames));
            at += stretch.len();
        }
        self.runs.push(run);
    }

    /// Begins to read what it has.
    pub fn send(&mut self, m: &Machine<P>) {
        let _phase = m.enter(phase::SWAP_IN);
        let device = self.device().expect("not sent empty");
        self.reading = Some(m.swap.start_read(&m.platform, device, &mut self.ios));
    }

    /// Whether landing would not wait.
    pub fn is_over(&self, m: &Machine<P>) -> bool {
        self.reading.as_ref().is_some_and(|reading| reading.is_over(&m.platform))
    }

    /// Waits for the device; calls `landed` with each run and how many of its first pages are in
    /// their frames. It is empty then.
    pub fn land(&mut self, m: &Machine<P>, mut landed: impl FnMut(ReadRun, usize)) {
        let _phase = m.enter(phase::SWAP_IN);
        let reading = self.reading.take().expect("only what was sent lands");
        m.swap.finish_read(&m.platform, &m.stats, reading, &mut self.ios);
        let mut at = 0;
        for run in self.runs.drain(..) {
            let results = self.ios.iter().flat_map(|io| io.frames.iter().map(|_| io.result));
            let of_run = results.skip(at).take(run.frames.len());
            let good = of_run.take_while(Result::is_ok).count();
            at += run.frames.len();
            landed(run, good);
        }
        self.ios.clear();
    }
}
