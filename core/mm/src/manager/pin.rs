//! Pins: a pinned page stays in its frame. Platforms without page faults access pages by pins.
//!
//! ```text
//! pin -- mapped for this access: one compare-and-swap ------> Pin
//!     \- otherwise: a fault, then again
//! ```
//! Locking: none. The entry of a page counts its pins; reclaim leaves a pinned page where it is.

use super::Manager;
use crate::error::FaultError;
use crate::fault::Fault;
use crate::space::{Access, Backing, FirstUse, Range, Space};
use crate::stats::Counter;
use highwater_platform::Platform;
use highwater_units::{Pfn, SpaceId, Vpn};

impl<P: Platform> Manager<P> {
    /// Pins a page for the given access, until the [`Pin`] is dropped. If the page is not mapped
    /// for that access, it serves a fault first, which may wait. A mapped page costs one
    /// compare-and-swap.
    ///
    /// # Errors
    /// See [`FaultError`]; the page stays as it was.
    pub fn pin(&self, space: SpaceId, vpn: Vpn, access: Access) -> Result<Pin<'_, P>, FaultError> {
        self.expect_inside(space, vpn)?;
        let space_ref = self.space(space);
        loop {
            if let Some((pfn, first_use)) = space_ref.pin(vpn, access) {
                if first_use == FirstUse::OfAhead {
                    self.machine.count(hits(space_ref.backing()), 1);
                }
                return Ok(Pin { space: space_ref, vpn, pfn });
            }
            self.fault(space, Fault { vpn, access, within: Range::whole(space_ref) })?;
        }
    }
}

/// The counter of used pages among those read ahead.
fn hits(backing: Backing) -> Counter {
    match backing {
        Backing::Anonymous => Counter::SwapRaHit,
        Backing::File { .. } => Counter::FileRaHit,
    }
}

/// A pinned page. Dropping it unpins the page.
pub struct Pin<'a, P: Platform> {
    space: &'a Space<P>,
    vpn: Vpn,
    pfn: Pfn,
}

impl<P: Platform> Pin<'_, P> {
    /// Returns the first frame of the page. The page keeps its frames until this is dropped.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Returns the number of frames of the page; they are adjacent.
    pub fn frames(&self) -> u32 {
        self.space.order().frames()
    }
}

impl<P: Platform> Drop for Pin<'_, P> {
    fn drop(&mut self) {
        self.space.unpin(self.vpn);
    }
}
