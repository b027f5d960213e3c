//! The page table of this platform is the manager's own: callers pin entries instead of faulting.
//!
//! So mapping and unmapping do nothing here. The manager marks an entry as mapped after `map`, and
//! reclaims a page only while it is not pinned. Only `coalesce` affects the hardware, because
//! guards access the arena directly.

use crate::os::Os;
use highwater_platform::{AttachError, Mmu, Progress, Protection, Recency};
use highwater_units::{Pfn, SpaceId, Vpn};

impl Mmu for Os {
    fn recency(&self) -> Recency {
        Recency::AccessedBit
    }

    fn attach(&self, _: SpaceId, _: u64) -> Result<(), AttachError> {
        Ok(())
    }

    fn map(&self, _: SpaceId, _: Vpn, frames: &[Pfn], _: Protection) -> Progress {
        Progress::all(frames.len())
    }

    fn unmap(&self, _: SpaceId, _: Vpn, frames: &[Pfn]) -> Progress {
        Progress::all(frames.len())
    }

    fn discard(&self, _: SpaceId, _: Vpn, _: Pfn) {}

    fn copy(&self, _: SpaceId, _: Vpn, from: Pfn, to: Pfn) {
        self.memory.copy(from, to);
    }

    fn coalesce(&self, _: SpaceId, _: Vpn, head: Pfn) {
        self.memory.coalesce(head);
    }

    fn allow_write(&self, _: SpaceId, _: Vpn, _: usize) {}

    fn holds(&self, _: SpaceId, _: Vpn) -> bool {
        true
    }
}
