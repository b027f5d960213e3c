//! Pages held in their frames: the way to them where accesses do not fault by themselves.
//!
//! ```text
//! pin -- mapped: one compare-and-swap ------> Pin
//!     \- not, or not for this access: a fault, and again
//! ```
//! Locking: none; while a page has pins its frame stays.

use super::Manager;
use crate::error::FaultError;
use crate::fault::Fault;
use crate::space::{Access, Backing, FirstUse, Range, Space};
use crate::stats::Counter;
use highwater_platform::Platform;
use highwater_units::{Pfn, SpaceId, Vpn};

impl<P: Platform> Manager<P> {
    /// Pins a page, faulting as need be, until the [`Pin`] is dropped: the way to a page on
    /// platforms where accesses do not fault by themselves.
    ///
    /// # Errors
    /// The page stays as it was; see [`FaultError`].
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

/// Counts uses of pages read ahead.
fn hits(backing: Backing) -> Counter {
    match backing {
        Backing::Anonymous => Counter::SwapRaHit,
        Backing::File { .. } => Counter::FileRaHit,
    }
}

/// A page held in its frame.
pub struct Pin<'a, P: Platform> {
    space: &'a Space<P>,
    vpn: Vpn,
    pfn: Pfn,
}

impl<P: Platform> Pin<'_, P> {
    /// The frame, the page's until this is dropped; of several, the first.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// How many frames the page has, adjacent to each other.
    pub fn frames(&self) -> u32 {
        self.space.order().frames()
    }
}

impl<P: Platform> Drop for Pin<'_, P> {
    fn drop(&mut self) {
        self.space.unpin(self.vpn);
    }
}
