//! Counts the reads of a process from both levels of its tier, window by window, for the division
//! of its memory between pages and the fast level ([`Split`]).
//!
//! Locking: none; the "balance" thread has it.

use highwater_devices::{Sample, Tiering};
use highwater_mm::Manager;
use highwater_mm::stats::{Counter, REUSE_SAMPLED, Snapshot};
use highwater_session::{Costs, Split, Window};
use highwater_uffd::Uffd;
use highwater_units::Nanos;

/// A window has at least this many sampled reads, which give a share of them within 9 percent.
const SAMPLES_MIN: u64 = 128;
/// Sampled pages, one in 256 of those written, that tell the share of small ones.
const WRITES_MIN: u64 = 16;
/// Frames of the fast level that tell how many pages a frame takes.
const FRAMES_MIN: u64 = 256;
/// Pages from the slow level that tell how long a read takes.
const SLOW_MIN: u64 = 1024;
/// Nanoseconds of a major fault without the codec: with it, 9 to 16 us are measured where all pages
/// are in the fast level.
const FAULT: f64 = 10_000.0;
/// The codec's time in a fault from the fast level, in decompressions: one for the page itself, and
/// two for compressing another page in return.
const CODEC: f64 = 3.0;

/// The counters at the end of the last window, and estimates for pages and devices.
pub(crate) struct TierWindows {
    split: Split,
    counted: Snapshot,
    sample: Sample,
    tiering: Tiering,
    /// Share of the written pages that are small.
    small: f64,
    /// Share of the written pages that one word fills.
    filled: f64,
    /// Pages that take memory, for each frame of the fast level.
    ratio: f64,
    /// Nanoseconds for a page from the slow level.
    slow: f64,
}

impl TierWindows {
    pub(crate) fn new() -> TierWindows {
        TierWindows {
            split: Split::default(),
            counted: Snapshot::empty(),
            sample: Sample::default(),
            tiering: Tiering::default(),
            // Until something is known: the fast level takes all pages, each in half a frame, and
            // the slow one is an SSD.
            small: 1.0,
            filled: 0.0,
            ratio: 2.0,
            slow: 100_000.0,
        }
    }

    /// The frames that tiers are to take at most, if half of the memory is `half`.
    pub(crate) fn most(&mut self, manager: &Manager<Uffd>, half: u64) -> u64 {
        let read = manager.counted(Counter::PswpIn) - self.counted.get(Counter::PswpIn);
        if read >= SAMPLES_MIN * u64::from(REUSE_SAMPLED)
            && let Some(window) = self.end_window(manager)
        {
            self.split.see(&window, half);
        }
        self.split.most(half)
    }

    /// Ends a window, if there is a tier, and enough samples. `None`, too, if fewer pages were
    /// evicted than half of those that were read: memory grew, and distances say nothing about it.
    fn end_window(&mut self, manager: &Manager<Uffd>) -> Option<Window> {
        let now = manager.statistics();
        let devices = manager.platform().devices();
        let Some(tiering) = devices.tiering() else {
            // Where a tier is added later, its first window begins with it.
            (self.counted, self.sample) = (now, devices.sample());
            self.tiering = Tiering::default();
            return None;
        };
        let distances = now.reuse.since(&self.counted.reuse);
        if distances.count() < SAMPLES_MIN {
            return None;
        }
        let sample = devices.sample();
        let fast = devices.resident_in_tiers().pages();
        let filled = devices.compression().map_or(0, |compressed| compressed.same_filled);
        let since = |counter| now.get(counter) - self.counted.get(counter);
        let [read, evicted, written] =
            [Counter::PswpIn, Counter::PgStealAnon, Counter::PswpOut].map(since);
        let nanos = Nanos(since(Counter::SwapInNanos));
        let decompress = sample.nanos as f64 / sample.small.max(1) as f64;
        if fast >= FRAMES_MIN {
            self.ratio = tiering.fast_pages.saturating_sub(filled) as f64 / fast as f64;
        }
        self.learn(sample, tiering, Reads { pages: read, nanos, decompress });
        (self.counted, self.sample, self.tiering) = (now, sample, tiering);
        let written = (written as f64 / evicted.max(1) as f64).min(1.0);
        (evicted >= read / 2).then(|| Window {
            distances: distances.buckets().collect(),
            read,
            evicted,
            small: self.small * written,
            filled: self.filled * written,
            ratio: self.ratio,
            fast,
            costs: Costs { fast: FAULT + CODEC * decompress, slow: FAULT + self.slow },
        })
    }

    /// Takes over what the window tells about pages and devices.
    fn learn(&mut self, sample: Sample, tiering: Tiering, reads: Reads) {
        // These are sums over devices, of which one may have been removed.
        let taken = sample.pages.saturating_sub(self.sample.pages);
        if taken >= WRITES_MIN {
            let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / taken as f64;
            self.small = share(sample.small, self.sample.small);
            self.filled = share(sample.filled, self.sample.filled);
        }
        let slow = tiering.slow_reads.saturating_sub(self.tiering.slow_reads);
        if slow >= SLOW_MIN {
            let by_fast = reads.pages.saturating_sub(slow) as f64 * reads.decompress;
            self.slow = ((reads.nanos.0 as f64 - by_fast) / slow as f64).max(reads.decompress);
        }
    }
}

/// The reads of a window.
struct Reads {
    pages: u64,
    /// The time that they took.
    nanos: Nanos,
    /// Nanoseconds to decompress a page.
    decompress: f64,
}
