//! Paged memory: a budget, swap devices, and the threads that move pages in and out.

use crate::budget::within;
use crate::engine::Engine;
use crate::error::Error;
use crate::mapping::Mapping;
use crate::statistics::Statistics;
use highwater_session::{FaultThreads, host_memory};
use highwater_uffd::api::Faults;
use highwater_units::Bytes;
use std::fmt;
use std::sync::Arc;

/// Paged memory of this process: mappings that may together be larger than the budget in RAM.
///
/// It is a handle, and cheap to clone. When the last handle and the last mapping are dropped, the
/// memory's threads end, its addresses are unmapped and its swap devices are closed.
///
/// ```
/// # fn main() -> Result<(), highwater::Error> {
/// let memory = highwater::Memory::builder().memory("16M").swap("ram:64M").build()?;
/// let mut table = highwater::PagedVec::<u64>::zeroed(&memory, 6 << 20)?; // 48 MiB
/// for (index, word) in table.iter_mut().enumerate() {
///     *word = index as u64;
/// }
/// assert_eq!(table.iter().sum::<u64>(), (6 << 20) * ((6 << 20) - 1) / 2);
/// assert!(memory.statistics()?.get("pswpin") > Some(0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Memory {
    engine: Arc<Engine>,
}

impl Memory {
    pub(crate) fn of(engine: Engine) -> Memory {
        Memory { engine: Arc::new(engine) }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Adds a mapping of `len` bytes, which read as zeros. The mapping takes memory as it is
    /// written, in whole pages of 4 KiB.
    ///
    /// # Errors
    /// [`Error::Full`]: memory and swap could not hold the mapping together with all others;
    /// [`Error::Addresses`], [`Error::Forked`].
    pub fn map(&self, len: usize) -> Result<Mapping, Error> {
        Mapping::new(self.engine.clone(), len)
    }

    /// The budget for pages in memory.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn budget(&self) -> Result<u64, Error> {
        self.engine.budget().map(|budget| budget.0)
    }

    /// Changes the budget while mappings are in use, up to
    /// [`Builder::memory_max`](crate::Builder::memory_max). A smaller budget waits until the pages
    /// above it have been evicted.
    ///
    /// # Errors
    /// [`Error::Setting`]: not a size, too small or too large. [`Error::Full`]: memory and swap
    /// could no longer hold all mappings; the budget is unchanged. [`Error::Budget`]: no page could
    /// be evicted for 5 seconds; the budget stays at the size reached by then. [`Error::Forked`].
    pub fn set_budget(&self, size: impl ToString) -> Result<(), Error> {
        let exists = host_memory().map_err(Error::Setting)?;
        self.engine.set_budget(within("budget", &size.to_string(), exists)?)
    }

    /// The number of bytes that further mappings may have. It is lower if a swap device has failed
    /// or is full.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn left(&self) -> Result<u64, Error> {
        self.engine.left().map(|left| left.0)
    }

    /// The counters of the manager.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn statistics(&self) -> Result<Statistics, Error> {
        self.engine.statistics().map(Statistics)
    }

    /// Whether this process is a forked child of the process that made the memory. Such a child has
    /// none of the memory.
    pub fn is_inherited(&self) -> bool {
        self.engine.is_inherited()
    }

    /// Whether system calls accept plain pointers into mappings, as in a read(2) into a slice. If
    /// not, a system call fails with EFAULT at a page that is not in memory: use
    /// [`Mapping::reader`], [`Mapping::writer`] and [`Mapping::read_at`], which copy.
    pub fn serves_system_calls(&self) -> bool {
        self.engine.faults() == Faults::All
    }

    /// The threads that serve page faults.
    pub fn fault_threads(&self) -> FaultThreads {
        self.engine.fault_threads()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let budget = self.engine.budget().unwrap_or(Bytes(0));
        f.debug_struct("Memory").field("budget", &budget).finish_non_exhaustive()
    }
}
