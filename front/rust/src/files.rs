//! Mapped files: where they lie, and the faults on them.
//!
//! ```text
//! outer space, made for the first file: its own pages stay absent
//!   Regions: range -> space of the file that is open there
//!     fault -> keep: gate of the space, for reading -> the file's page
//!     close:         gate of the space, for writing -> write, drop, vacate
//! ```
//! When a file is closed, a handler may still have a fault whose page was mapped for another
//! thread. Once it has passed the gate it finds the file closed, and the faulting thread retries.
//! Locking: a gate, then regions.

use crate::advice::Advice;
use crate::regions::{Region, Regions};
use highwater_mm::Range;
use highwater_serve::Part;
use highwater_units::{SpaceId, Vpn};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

/// The second space that a manager adds: files lie in its addresses.
pub(crate) const OUTER: SpaceId = SpaceId(1);

/// Files that may be open at a time.
pub(crate) const PLACES: usize = 120;

/// Pages of addresses for all files: 4 TiB.
pub(crate) const PAGES: u64 = 1 << 30;

/// Pages of memory that mappings leave to each file, so that its faults find frames to reclaim.
pub(crate) const KEPT: u64 = 64;

/// The most spaces of a manager.
const SPACES: usize = 256;

/// The mapped files of an engine.
pub(crate) struct Files {
    regions: RwLock<Regions>,
    /// Indexed by space.
    gates: Vec<RwLock<()>>,
}

impl Files {
    pub(crate) fn new() -> Files {
        let gates = (0..SPACES).map(|_| RwLock::new(())).collect();
        Files { regions: RwLock::new(Regions::new(PAGES)), gates }
    }

    /// The mapping of an address.
    fn find(&self, vpn: Vpn) -> Option<Region> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner).find(vpn)
    }

    /// Calls `act` with the page of a file, which stays open meanwhile; returns whether there is a
    /// mapping. A thread whose file has just been closed must retry its access.
    pub(crate) fn keep(&self, vpn: Vpn, act: &mut dyn FnMut(Part)) -> bool {
        let Some(Region { file: Some(space), .. }) = self.find(vpn) else {
            return self.find(vpn).is_some();
        };
        let _open = self.gate(space).read().unwrap_or_else(PoisonError::into_inner);
        let now = self.find(vpn);
        if let Some(region) = now.filter(|now| now.file == Some(space)) {
            act(part(space, vpn, region));
        }
        now.is_some()
    }

    /// Held for reading while a file is used, and for writing while it is closed.
    pub(crate) fn gate(&self, space: SpaceId) -> &RwLock<()> {
        &self.gates[usize::from(space.0)]
    }

    pub(crate) fn regions(&self) -> RwLockWriteGuard<'_, Regions> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The page of a file at a page of the outer space.
fn part(space: SpaceId, vpn: Vpn, region: Region) -> Part {
    let Region { range, advice, .. } = region;
    let vpn = Vpn(vpn.0 - range.first.0);
    let within = match advice {
        Advice::Detect => Range { first: Vpn(0), end: Vpn(range.end.0 - range.first.0) },
        Advice::Random => Range { first: vpn, end: vpn.offset(1) },
    };
    Part { space, vpn, within }
}
