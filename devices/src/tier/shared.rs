//! The state that the callers of a tier share with its worker.

use crate::device::Device;
use crate::flights::Flights;
use crate::tier::level::Level;
use crate::tier::parts::Parts;
use crate::tier::table::{Stamp, Table};
use crate::tiering::Tiering;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The age clock makes this many steps while the fast level takes in as many pages as fit without
/// compression. Ages wrap after eight times as many pages.
const STEPS: u64 = 32;

/// The state that callers and the worker share.
pub(super) struct Shared {
    pub(super) table: Arc<Table>,
    pub(super) fast: Level,
    pub(super) slow: Level,
    pub(super) flights: Flights<Parts>,
    /// Pages that the fast level has taken in: the clock of ages.
    pub(super) arrivals: AtomicU64,
    /// Pages per step of that clock.
    step: u64,
    pub(super) counts: Counts,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) written_back: AtomicU64,
    pub(super) writeback_ios: AtomicU64,
    pub(super) writeback_failures: AtomicU64,
    pub(super) slow_reads: AtomicU64,
    pub(super) slow_writes: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        pages: u32,
        fast: Box<dyn Device>,
        slow: Box<dyn Device>,
    ) -> Result<Shared, i32> {
        let fast = Level::new(fast)?;
        let step = (fast.capacity().pages() / STEPS).max(1);
        Ok(Shared {
            table: Arc::new(Table::new(pages)?),
            fast,
            step,
            slow: Level::new(slow)?,
            flights: Flights::new(),
            arrivals: AtomicU64::new(0),
            counts: Counts::default(),
        })
    }

    /// Both levels, the fast one first.
    pub(super) fn levels(&self) -> impl Iterator<Item = &Level> {
        [&self.fast, &self.slow].into_iter()
    }

    /// The current time of the age clock.
    pub(super) fn now(&self) -> Stamp {
        self.stamp(self.arrivals.load(Relaxed))
    }

    /// Advances the clock by pages that went to the fast level; returns the time after them.
    pub(super) fn arrive(&self, pages: usize) -> Stamp {
        let before = self.arrivals.fetch_add(pages as u64, Relaxed);
        self.stamp(before + pages as u64)
    }

    pub(super) fn stamp(&self, arrivals: u64) -> Stamp {
        Stamp((arrivals / self.step) as u8)
    }

    pub(super) fn tiering(&self) -> Tiering {
        let get = |count: &AtomicU64| count.load(Relaxed);
        Tiering {
            fast_pages: self.fast.used().into(),
            slow_pages: self.slow.used().into(),
            written_back: get(&self.counts.written_back),
            writeback_ios: get(&self.counts.writeback_ios),
            writeback_failures: get(&self.counts.writeback_failures),
            slow_reads: get(&self.counts.slow_reads),
            slow_writes: get(&self.counts.slow_writes),
        }
    }

    /// The read-only state for a forked child.
    pub(super) fn inherit(&self) -> Shared {
        Shared {
            table: self.table.clone(),
            fast: self.fast.inherit(),
            step: self.step,
            slow: self.slow.inherit(),
            flights: Flights::new(),
            arrivals: AtomicU64::new(0),
            counts: Counts::default(),
        }
    }
}
