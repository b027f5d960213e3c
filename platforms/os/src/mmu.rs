//! No hardware is involved: the entry itself is what callers obey, through pins.
//!
//! So there is nothing to do here. The manager sets an entry mapped after `map`, and takes a page
//! in only while nobody has it pinned. Only to coalesce a block concerns the processor: guards read
//! the arena.

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

    fn allow_write(&self, _: SpaceId, _: Vpn) {}

    fn holds(&self, _: SpaceId, _: Vpn) -> bool {
        true
    }
}
