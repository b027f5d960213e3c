//! A batch of readahead: runs of pages that one device reads. `fault/batch.rs` finishes it.
//!
//! ```text
//! ReadBatch -- [ReadRun]   adjacent pages: their locked entries, frames for them
//!                |- [Io]         the transfers, one for each stretch on the device
//!                \- InFlight     once submitted
//! ```
//! Locking: none; one thread at a time has a batch. Its entries stay locked while it is in flight.

use crate::space::Left;
#[cfg(feature = "history")]
use crate::space::Space;
use crate::stats::Stats;
use crate::swap::{InFlight, Landing, Swap};
use highwater_platform::{DeviceInfo, Io, Platform};
#[cfg(feature = "history")]
use highwater_units::SpaceId;
#[cfg(feature = "history")]
use highwater_units::Vpn;
use highwater_units::{FrameList, RUN_PAGES_MAX, Slot};

/// Most transfers of a batch.
const TRANSFERS_MAX: usize = 32;

/// Most pages of files in a batch: a quarter of a window, so that its first pages can be used, and
/// the next window requested, while the device reads the others.
const FILE_PAGES_MAX: usize = 64;

/// Adjacent pages, their entries locked, their frames being filled.
pub struct ReadRun {
    /// The entries.
    pub left: Left,
    /// Where the pages are on the device.
    pub slots: [Slot; RUN_PAGES_MAX],
    /// The frames to fill.
    pub frames: FrameList,
    /// Why they are read.
    pub landing: Landing,
}

/// Runs of pages that one device reads.
pub struct ReadBatch<P: Platform> {
    runs: Vec<ReadRun>,
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
    /// The number of runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The device; `None` if the batch is empty.
    pub fn device(&self) -> Option<u8> {
        self.runs.first().map(|run| run.slots[0].device)
    }

    /// The number of pages at which the batch is full, with a budget of `frames`.
    pub fn pages_max(&self, swap: &Swap<P>, frames: usize) -> usize {
        let device = self.device().and_then(|device| swap.info(device));
        if device.is_some_and(DeviceInfo::is_for_files) {
            (frames / 16).clamp(1, FILE_PAGES_MAX)
        } else {
            (frames / 64).clamp(1, TRANSFERS_MAX)
        }
    }

    /// Whether one more run fits, even if no two of its slots are adjacent.
    pub fn has_room(&self) -> bool {
        self.ios.len() + RUN_PAGES_MAX <= TRANSFERS_MAX
    }

    /// Adds a run. There must be room for it.
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

    /// Submits the transfers. The batch must not be empty.
    pub fn submit(&mut self, swap: &Swap<P>, platform: &P) {
        let device = self.device().expect("a submitted batch has a run");
        self.reading = Some(swap.start_read(platform, device, &mut self.ios));
    }

    /// Whether [`ReadBatch::complete`] would not wait.
    pub fn is_done(&self, platform: &P) -> bool {
        self.reading.as_ref().is_some_and(|reading| reading.is_over(platform))
    }

    /// Waits for the device; calls `finish` with each run and the number of pages, from its first
    /// on, that were read. The batch is then empty.
    pub fn complete(
        &mut self,
        swap: &Swap<P>,
        platform: &P,
        stats: &Stats,
        mut finish: impl FnMut(ReadRun, usize),
    ) {
        let reading = self.reading.take().expect("only a submitted batch completes");
        swap.finish_read(platform, stats, reading, &mut self.ios);
        let mut at = 0;
        for run in self.runs.drain(..) {
            let results = self.ios.iter().flat_map(|io| io.frames.iter().map(|_| io.result));
            let of_run = results.skip(at).take(run.frames.len());
            let good = of_run.take_while(Result::is_ok).count();
            at += run.frames.len();
            finish(run, good);
        }
        self.ios.clear();
    }
}

/// Methods for [`super::InflightReadahead`], whose batches no thread owns.
#[cfg(feature = "history")]
impl<P: Platform> ReadBatch<P> {
    /// The number of pages.
    pub fn pages(&self) -> u32 {
        self.runs.iter().map(|run| run.frames.len() as u32).sum()
    }

    /// Whether the batch has a page.
    pub fn has(&self, space: SpaceId, vpn: Vpn) -> bool {
        self.runs.iter().any(|run| run.left.has(space, vpn))
    }

    /// Wakes the threads that wait for an entry of the batch, so that they look for the batch. All
    /// its pages are of `space`.
    pub fn wake_waiters(&self, space: &Space<P>) {
        self.runs.iter().for_each(|run| run.left.wake_waiters(space));
    }
}
