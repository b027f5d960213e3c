//! A batch of device reads: runs of pages whose entries stay locked until their frames are filled.
//! `fault` starts batches and maps what they read.
//!
//! ```text
//! ReadBatch -- [ReadRun] consecutive pages: their locked entries, and frames for them
//!           |- [Io]      the transfers that fill these, one for each stretch of the device
//!           \- InFlight  the read, once it has started
//! ```
//! Locking: none; one thread has a batch at a time. Its entries stay locked when no thread has it.

use crate::phase::{self, PhaseGuard};
use crate::space::Left;
use crate::stats::Stats;
use crate::swap::{InFlight, Swap};
use highwater_platform::{DeviceInfo, Io, Platform};
use highwater_units::{FrameList, RUN_PAGES_MAX, Slot, Vpn};

/// Transfers of a batch.
const BATCH: usize = 32;

/// Pages of files in a batch: a quarter of a readahead window. The reader then finds its first
/// pages, and requests the next window, while the device reads the rest.
const FILE_BATCH: usize = 64;

/// Consecutive pages whose entries are locked, and whose frames are being filled.
pub struct ReadRun {
    /// The locked entries.
    pub left: Left,
    /// Where the pages are on the device.
    pub slots: [Slot; RUN_PAGES_MAX],
    /// The frames they are read into.
    pub frames: FrameList,
    /// The pages of the run from this one on stay unmapped.
    pub marker: Option<Vpn>,
}

/// Runs of pages that one device reads together.
pub struct ReadBatch<P: Platform> {
    pub(super) runs: Vec<ReadRun>,
    ios: Vec<Io>,
    reading: Option<InFlight<P>>,
}

impl<P: Platform> Default for ReadBatch<P> {
    /// An empty batch.
    fn default() -> Self {
        ReadBatch { runs: Vec::new(), ios: Vec::new(), reading: None }
    }
}

impl<P: Platform> ReadBatch<P> {
    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The device, unless the batch is empty.
    pub fn device(&self) -> Option<u8> {
        self.runs.first().map(|run| run.slots[0].device)
    }

    /// The most pages of a batch, on a machine of `frames` frames.
    pub fn pages_max(&self, swap: &Swap<P>, frames: usize) -> usize {
        let device = self.device().and_then(|device| swap.info(device));
        if device.is_some_and(DeviceInfo::is_for_files) {
            (frames / 16).clamp(1, FILE_BATCH)
        } else {
            (frames / 64).clamp(1, BATCH)
        }
    }

    /// Whether a run fits, wherever its slots are.
    pub fn has_room(&self) -> bool {
        self.ios.len() + RUN_PAGES_MAX <= BATCH
    }

    /// Adds a run. There is room for it.
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

    /// Starts the read of a batch that is not empty.
    pub fn start(&mut self, platform: &P, swap: &Swap<P>) {
        let _phase = PhaseGuard::enter(platform, phase::SWAP_IN);
        let device = self.device().expect("an empty batch is not started");
        self.reading = Some(swap.start_read(platform, device, &mut self.ios));
    }

    /// Whether [`ReadBatch::finish`] would not wait.
    pub fn is_over(&self, platform: &P) -> bool {
        self.reading.as_ref().is_some_and(|reading| reading.is_over(platform))
    }

    /// Waits for the device; calls `done` with each run and the number of its first pages that were
    /// read. The batch is empty afterwards.
    pub fn finish(
        &mut self,
        platform: &P,
        swap: &Swap<P>,
        stats: &Stats,
        mut done: impl FnMut(ReadRun, usize),
    ) {
        let _phase = PhaseGuard::enter(platform, phase::SWAP_IN);
        let reading = self.reading.take().expect("the batch was started");
        swap.finish_read(platform, stats, reading, &mut self.ios);
        let mut at = 0;
        for run in self.runs.drain(..) {
            let results = self.ios.iter().flat_map(|io| io.frames.iter().map(|_| io.result));
            let of_run = results.skip(at).take(run.frames.len());
            let good = of_run.take_while(Result::is_ok).count();
            at += run.frames.len();
            done(run, good);
        }
        self.ios.clear();
    }
}
