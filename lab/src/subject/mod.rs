//! Highwater as a service for workloads: a manager with one space, and access to its pages.
//!
//! ```text
//! Guards     Manager<Os>: a pin for each access; Copies: a file's space, for readers that copy
//! Faults     Manager<Uffd>: plain memory, page faults served by handlers or in the thread
//! Simulated  Manager<Sim>: pins, or virtual page tables, on a virtual machine
//! ```

mod faults;
mod guards;
mod simulated;

pub use faults::Faults;
pub use guards::{Copies, Guards};
pub use simulated::{Held, Room, Simulated, Virtual};

use highwater_devices::{Area, Device, Seal};
use highwater_mm::Config;
use highwater_mm::stats::{Counter, Snapshot};
use highwater_os::{Devices, HugePages};
use highwater_units::Bytes;

/// How the manager is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Budget.
    pub memory: Bytes,
    /// Bytes of the space.
    pub set: Bytes,
    /// Swap devices; of those without a priority, the first is used first.
    pub swap: Vec<Area>,
    /// Whether swap files are encrypted.
    pub seal: Seal,
    /// Settings of the manager.
    pub config: Config,
    /// Whether the arena may have huge pages, where pages are reached by guards.
    pub huge_pages: HugePages,
}

/// Which threads serve page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// Handler threads.
    Handlers,
    /// The thread that faults.
    InThread,
}

/// Adds what devices of two levels have and did, and the faults that were injected.
fn with_devices(mut snapshot: Snapshot, devices: &Devices) -> Snapshot {
    let tiers = devices.tiering().unwrap_or_default();
    for (counter, value) in [
        (Counter::TierFast, tiers.fast_pages),
        (Counter::TierSlow, tiers.slow_pages),
        (Counter::TierWriteback, tiers.written_back),
        (Counter::TierWritebackIos, tiers.writeback_ios),
        (Counter::TierWritebackFailures, tiers.writeback_failures),
        (Counter::TierSlowReads, tiers.slow_reads),
        (Counter::TierSlowWrites, tiers.slow_writes),
        (Counter::InjectedFaults, devices.injected()),
    ] {
        snapshot.counters[counter as usize] = value;
    }
    snapshot
}

impl Setup {
    /// Opens the devices; the error is one line.
    fn open_devices(&self) -> Result<Vec<Box<dyn Device>>, String> {
        let open = |area: &Area| area.open(self.seal).map_err(|reason| reason.to_string());
        self.swap.iter().map(open).collect()
    }
}
