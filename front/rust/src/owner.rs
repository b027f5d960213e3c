//! Which mapping a fault belongs to, and the end of a process whose fault cannot be served.
//!
//! The faulting thread used a plain pointer: there is no call that could return an error. So the
//! process writes one line that says why, and ends by abort(3): a core dump or a traceback shows
//! the access.

use crate::advice::Advice;
use crate::files::{Files, OUTER};
use crate::regions::{Region, Regions, SPACE};
use highwater_mm::{FaultError, Manager, Range};
use highwater_serve::{Cause, Owner, Part};
use highwater_uffd::Uffd;
use highwater_units::{SpaceId, Vpn};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

/// The owner of a [`Memory`](crate::Memory)'s spaces.
pub(crate) struct Mappings {
    regions: Arc<RwLock<Regions>>,
    files: Arc<Files>,
    manager: Arc<Manager<Uffd>>,
    /// The address of the last access outside all mappings; 0: none.
    stray: AtomicU64,
}

impl Mappings {
    pub(crate) fn new(
        regions: Arc<RwLock<Regions>>,
        files: Arc<Files>,
        manager: Arc<Manager<Uffd>>,
    ) -> Mappings {
        Mappings { regions, files, manager, stray: AtomicU64::new(0) }
    }
}

impl Owner for Mappings {
    fn find(&self, space: SpaceId, vpn: Vpn) -> Option<Part> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let Region { range, advice, .. } = regions.find(vpn)?;
        let within = match advice {
            Advice::Detect => range,
            Advice::Random => Range { first: vpn, end: vpn.offset(1) },
        };
        Some(Part { space, vpn, within })
    }

    fn keep(&self, space: SpaceId, vpn: Vpn, act: &mut dyn FnMut(Part)) -> bool {
        match space {
            OUTER => self.files.keep(vpn, act),
            _ => self.find(space, vpn).map(act).is_some(),
        }
    }

    fn failed(&self, part: Part, error: FaultError) {
        if part.space != SPACE && error != FaultError::OutOfMemory {
            end(&format!("of a mapped file: {error}: the process is ended"));
        }
        let cause = Cause::of(error, &self.manager);
        let figures = cause.figures(&self.manager, "");
        let remedy = match cause {
            // The remedy names options of a command line.
            Cause::Short { .. } => String::new(),
            _ => format!("; {}", cause.remedy()),
        };
        end(&format!("{cause}: the process is ended{figures}{remedy}"));
    }

    fn stray(&self, space: SpaceId, vpn: Vpn) {
        let address = self.manager.platform().address(space, vpn);
        // The fault may be an old one: another handler has served it, and the mapping has been
        // freed since. Such an access is not repeated, so the first fault at an address is ignored.
        if self.stray.swap(address as u64, Relaxed) != address as u64 {
            return;
        }
        end(&format!(
            "an access to paged memory that no mapping has (freed, or beyond the end of one), at \
             {address:?}"
        ));
    }
}

/// Writes one line and ends the process.
fn end(message: &str) -> ! {
    let line = format!("highwater: {message}\n");
    // Not by the standard library's stream: the thread that faults may have it locked. There is
    // nowhere to report a failed write.
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    std::process::abort()
}
