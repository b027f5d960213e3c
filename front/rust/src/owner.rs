//! Which mapping a fault belongs to, and the end of a process whose fault cannot be served.
//!
//! The thread that faulted was at a plain pointer: there is no call that could return an error. So
//! the process ends, with one line that says why, and by abort(3): a core or a traceback shows the
//! access.

use crate::advice::Advice;
use crate::regions::{Region, Regions};
use highwater_mm::stats::Counter;
use highwater_mm::{FaultError, Manager, Range};
use highwater_serve::{Owner, Part};
use highwater_uffd::Uffd;
use highwater_units::{Bytes, SpaceId, Vpn};
use std::sync::{Arc, PoisonError, RwLock};

/// The owner of a [`Memory`](crate::Memory)'s space.
pub(crate) struct Mappings {
    pub(crate) regions: Arc<RwLock<Regions>>,
    pub(crate) manager: Arc<Manager<Uffd>>,
}

impl Owner for Mappings {
    fn find(&self, space: SpaceId, vpn: Vpn) -> Option<Part> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let Region { range, advice } = regions.find(vpn)?;
        let within = match advice {
            Advice::Detect => range,
            Advice::Random => Range { first: vpn, end: vpn.offset(1) },
        };
        Some(Part { space, vpn, within })
    }

    fn failed(&self, _: Part, error: FaultError) {
        let now = self.manager.statistics();
        let of_pages = |counter| Bytes::of_pages(now.get(counter));
        let (frames, slots) = (of_pages(Counter::Frames), of_pages(Counter::SlotsTotal));
        let used = of_pages(Counter::SlotsUsed);
        let shortage = self.manager.shortage().map_or(String::new(), |seen| format!("; {seen}"));
        end(&format!(
            "{error}: the process is ended (memory {frames}, swap {used} of {slots} used\
             {shortage})"
        ));
    }

    fn stray(&self, space: SpaceId, vpn: Vpn) {
        let address = self.manager.platform().address(space, vpn);
        end(&format!("an access to paged memory that was freed, at {address:?}"));
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
