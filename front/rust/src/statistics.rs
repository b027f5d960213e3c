//! Counters by name.

use highwater_mm::stats::{Counter, Snapshot};
use std::fmt;

/// The counters of a memory at one time. Counters that the kernel also has are named as in
/// /proc/vmstat: `pgfault`, `pgmajfault`, `pswpin`, `pswpout`; pages are of 4 KiB.
#[derive(Clone)]
pub struct Statistics(pub(crate) Snapshot);

impl Statistics {
    /// The value of a counter; `None`: there is no counter of this name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find_map(|(counter, value)| (counter == name).then_some(value))
    }

    /// The names of all counters, in the order of [`Statistics::iter`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        Counter::ALL.into_iter().map(Counter::name)
    }

    /// All counters, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.into_iter().map(|counter| (counter.name(), self.0.get(counter)))
    }
}

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|(_, value)| *value > 0)).finish()
    }
}
