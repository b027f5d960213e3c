//! Highwater as a service for workloads: a manager with one space, and the way to its pages.
//!
//! ```text
//! Guards     Manager<Os>: a pin for each access
//! Faults     Manager<Uffd>: plain memory, page faults served by handlers or in the thread
//! Simulated  Manager<Sim>: pins, or virtual page tables, on a virtual machine
//! ```

mod faults;
mod guards;
mod simulated;

pub use faults::Faults;
pub use guards::Guards;
pub use simulated::{Held, Simulated, Virtual};

use highwater_devices::{Area, Device};
use highwater_mm::Config;
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
    /// Settings of the manager.
    pub config: Config,
}

/// Who serves real faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// Handler threads.
    Handlers,
    /// The thread that faults.
    InThread,
}

impl Setup {
    /// Opens the devices; the error is one line.
    fn open_devices(&self) -> Result<Vec<Box<dyn Device>>, String> {
        let open = |area: &Area| area.open().map_err(|reason| reason.to_string());
        self.swap.iter().map(open).collect()
    }
}
