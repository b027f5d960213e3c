//! The simulated platform: its devices, frames, page tables and observers.

use crate::contents::Contents;
use crate::device::Device;
use crate::engine::{Confined, Engine, Home, TaskId};
use crate::injected_faults::InjectedFaults;
use crate::machine::DeviceSpec;
use crate::page_tables::{Flush, Spaces};
use crate::vm::Vm;
use crate::watch::Watch;
use highwater_platform::{FrameRange, Lender, Recency};
use highwater_units::{NodeId, Pfn};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The configuration of a simulated platform.
pub struct SimConfig {
    /// Frames of each node; may be 0.
    pub frames: Vec<u32>,
    /// The devices and their sizes in pages.
    pub devices: Vec<(DeviceSpec, u32)>,
    /// How accesses are detected: by accessed bits, as in a kernel, or by unmapping, as with
    /// userfaultfd.
    pub recency: Recency,
    /// The faults to inject.
    pub injected_faults: Arc<InjectedFaults>,
}

/// The simulated platform.
pub struct Sim {
    home: Home,
    ranges: Vec<FrameRange>,
    recency: Recency,
    injected_faults: Arc<InjectedFaults>,
    contents: Confined<Contents>,
    watch: Confined<Watch>,
    spaces: Confined<Spaces>,
    flushes: Confined<BTreeMap<TaskId, Flush>>,
    devices: Vec<Confined<Device>>,
    owed: Confined<u32>,
    lender: OnceLock<Arc<dyn Lender>>,
}

impl Sim {
    /// A platform on the machine of `vm`.
    pub fn new(vm: &Vm, config: SimConfig) -> Sim {
        let home = Home::new(vm.engine());
        let mut first = Pfn(0);
        let mut ranges = Vec::new();
        for (node, frames) in config.frames.iter().enumerate().filter(|(_, frames)| **frames > 0) {
            ranges.push(FrameRange { node: NodeId(node as u8), first, frames: *frames });
            first = first.offset(*frames);
        }
        let frames = first.index();
        let device = |(spec, pages): &_| Confined::new(&home, Device::new(spec, *pages));
        Sim {
            contents: Confined::new(&home, Contents::new(frames)),
            watch: Confined::new(&home, Watch::new(frames)),
            spaces: Confined::new(&home, Spaces::default()),
            flushes: Confined::new(&home, BTreeMap::new()),
            devices: config.devices.iter().map(device).collect(),
            owed: Confined::new(&home, 0),
            lender: OnceLock::new(),
            recency: config.recency,
            injected_faults: config.injected_faults,
            ranges,
            home,
        }
    }

    /// From now on the manager owes `frames` frames ([`highwater_platform::Memory::owed`]).
    pub fn owe(&self, frames: u32) {
        self.owed.with(|owed| *owed = frames);
    }

    /// Borrows frames from now on, in addition to the manager's own frames. The lender's
    /// [`Lender::owed`] is not called.
    ///
    /// # Panics
    /// If it borrows from another lender already.
    pub fn borrow_from(&self, lender: Arc<dyn Lender>) {
        let is_first = self.lender.set(lender).is_ok();
        assert!(is_first, "frames are borrowed from one lender");
    }

    pub(crate) fn lender(&self) -> Option<&dyn Lender> {
        self.lender.get().map(|lender| &**lender)
    }

    pub(crate) fn owed_frames(&self) -> &Confined<u32> {
        &self.owed
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.home.engine()
    }

    pub(crate) fn contents(&self) -> &Confined<Contents> {
        &self.contents
    }

    pub(crate) fn watch(&self) -> &Confined<Watch> {
        &self.watch
    }

    pub(crate) fn spaces(&self) -> &Confined<Spaces> {
        &self.spaces
    }

    pub(crate) fn flushes(&self) -> &Confined<BTreeMap<TaskId, Flush>> {
        &self.flushes
    }

    pub(crate) fn devices(&self) -> &[Confined<Device>] {
        &self.devices
    }

    pub(crate) fn injected_faults(&self) -> &InjectedFaults {
        &self.injected_faults
    }

    pub(crate) fn recency_kind(&self) -> Recency {
        self.recency
    }

    pub(crate) fn frame_ranges(&self) -> &[FrameRange] {
        &self.ranges
    }

    pub(crate) fn node_of_frame(&self, pfn: Pfn) -> NodeId {
        let range = self.ranges.iter().rev().find(|range| range.first <= pfn);
        range.expect("ranges cover all frames").node
    }
}
