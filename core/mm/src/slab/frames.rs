//! A source of slabs' pages: the frames of a manager.

use super::object::CacheId;
use super::source::SlabPages;
use crate::alloc;
use crate::machine::Machine;
use crate::zone::Mobility;
use highwater_platform::Platform;
use highwater_units::{NodeId, Order, Pfn};
use std::sync::Arc;

/// A source of frames; page numbers are pfns. Slabs cannot be migrated, but a shrinker frees them,
/// so their frames are reclaimable.
pub struct Frames<P: Platform> {
    machine: Arc<Machine<P>>,
}

impl<P: Platform> Frames<P> {
    /// The frames of a machine.
    pub(crate) fn new(machine: Arc<Machine<P>>) -> Frames<P> {
        Frames { machine }
    }
}

impl<P: Platform> SlabPages for Frames<P> {
    type Platform = P;

    fn platform(&self) -> &P {
        &self.machine.platform
    }

    fn pages(&self) -> u64 {
        self.machine.frames.len() as u64
    }

    fn take(&self, order: Order, _: CacheId) -> Option<u64> {
        let first = alloc::run(&self.machine, order, Mobility::Reclaimable)?;
        self.machine.frames.set_run(first, order, Mobility::Reclaimable);
        Some(first.0.into())
    }

    fn give(&self, first: u64, _: Order, _: CacheId) {
        let first = Pfn(first as u32);
        let (order, mobility) = self.machine.frames.end_run(first);
        self.machine.free_run(first, order, mobility);
    }

    fn node_of(&self, page: u64) -> NodeId {
        self.machine.node_of(Pfn(page as u32)).zone.range().node
    }
}
