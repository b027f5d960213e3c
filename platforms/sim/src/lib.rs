//! The manager on a virtual machine: virtual CPUs, virtual time, virtual devices, from one seed.
//!
//! ```text
//! simulate(setup, |vm| ...) -- Engine   CPUs, tasks, time                    engine/
//!                           \- Vm       what a simulation is driven with     vm.rs
//! Sim (a Platform) -- SimLock, SimEvent, SimAtomic      lock.rs atomic.rs
//!                  |- contents of frames                memory.rs
//!                  |- page tables, flushes              mmu.rs
//!                  |- devices                           block.rs device.rs files.rs
//!                  \- Watch, Order: observers           watch.rs order.rs
//! ```
//! The manager's real code runs between the calls of the contract; only nanoseconds are modelled.
//! docs/simulator.md says how, and what cannot be learnt from it. Everything here lives on one
//! thread of the host, inside [`simulate`]: used elsewhere it panics.

mod atomic;
mod block;
mod clock;
mod cpu;
mod device;
mod engine;
mod files;
mod lock;
pub mod machine;
mod memory;
mod mmu;
mod order;
mod thread;
mod troubles;
mod vm;
mod watch;

pub use atomic::SimAtomic;
pub use block::Transfer;
pub use engine::{Limits, Policy, Report, RoleTime, Stuck, Trace};
pub use files::SimFile;
pub use lock::{SimEvent, SimGuard, SimLock};
pub use machine::Machine;
pub use memory::Words;
pub use mmu::Seen;
pub use thread::SimThread;
pub use troubles::Troubles;
pub use vm::{Finished, Setup, Traced, Vm, simulate};

use device::Device;
use engine::{Confined, Engine, Home, TaskId};
use highwater_platform::{FrameRange, Recency};
use highwater_units::{NodeId, Pfn};
use memory::Contents;
use mmu::{Flush, Spaces};
use std::collections::BTreeMap;
use std::sync::Arc;
use watch::Watch;

/// What a platform on a virtual machine has.
pub struct SimConfig {
    /// Frames of each node; a node without frames has none to give.
    pub frames: Vec<u32>,
    /// Devices: what they are, and how many pages they have.
    pub devices: Vec<(machine::DeviceSpec, u32)>,
    /// How accesses are noticed: as a kernel does, or as userfaultfd has to.
    pub recency: Recency,
    /// What goes wrong.
    pub troubles: Arc<Troubles>,
}

/// The simulated platform.
pub struct Sim {
    home: Home,
    ranges: Vec<FrameRange>,
    recency: Recency,
    troubles: Arc<Troubles>,
    contents: Confined<Contents>,
    watch: Confined<Watch>,
    spaces: Confined<Spaces>,
    flushes: Confined<BTreeMap<TaskId, Flush>>,
    devices: Vec<Confined<Device>>,
}

impl Sim {
    /// A platform on the machine that `vm` drives.
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
            recency: config.recency,
            troubles: config.troubles,
            ranges,
            home,
        }
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

    pub(crate) fn troubles(&self) -> &Troubles {
        &self.troubles
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
