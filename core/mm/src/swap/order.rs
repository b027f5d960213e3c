//! Which device slots are taken from: by priority, by nearness, in turn.
//!
//! ```text
//! Order -- node x n -- Tier x m    devices that take turns; the next tier when all are full
//!       |- CpuTurn x CPUs          where in its tier a CPU begins, and for how many slots more
//!       \- Whose                   what the next turn is counted by: the CPU alone, or all
//! ```
//! A tier is what has equal priority and is equally near: devices of the CPU's own node come before
//! others (node-aware priorities, Linux 4.14). The kernel moves the device it takes from to the end
//! of its equals, under a lock that all CPUs share (swap_avail_lock): each time without slot
//! caches, else each 64 slots. So do we with the settings of those kernels, by a shared word. By
//! default each CPU has turns of its own, of a cluster each, and CPUs begin at different devices.

use super::cluster::CLUSTER_SLOTS;
use super::settings::{DeviceLock, SwapConfig, Switch};
use super::slot_cache::BATCH;
use highwater_platform::{Atomic, DeviceInfo, Platform};
use highwater_units::{CpuId, NodeId};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Devices that take turns, by index.
type Tier = Vec<usize>;

/// What a turn is counted by.
enum Whose<P: Platform> {
    Cpus,
    All(P::Atomic<u32>),
}

/// Where a CPU is, on a cache line of its own. Its words are hints: threads that share a CPU may
/// lose a turn.
#[repr(align(64))]
struct CpuTurn {
    node: usize,
    turn: AtomicU32,
    /// Slots until the next turn.
    left: AtomicU32,
}

/// In which order devices are asked for slots.
pub(super) struct Order<P: Platform> {
    /// By node, the best first.
    nodes: Vec<Vec<Tier>>,
    cpus: Vec<CpuTurn>,
    whose: Whose<P>,
    /// Slots of a turn.
    slots: u32,
}

impl<P: Platform> Order<P> {
    /// The order of `devices` for each of the platform's CPUs.
    pub(super) fn new(platform: &P, devices: &[DeviceInfo], config: &SwapConfig) -> Order<P> {
        let node = |cpu| usize::from(platform.node_of(CpuId(cpu as u16)).0);
        let count = 1 + (0..platform.cpus()).map(node).max().unwrap_or(0);
        let near_to = |node| match config.node_aware {
            Switch::On => Some(NodeId(node as u8)),
            Switch::Off => None,
        };
        let nodes: Vec<_> = (0..count).map(|node| tiers(devices, near_to(node))).collect();
        let all = || Whose::All(Atomic::new(1));
        let (whose, slots) = match (config.device_lock, config.slot_cache) {
            (_, Switch::On) => (all(), BATCH as u32),
            (DeviceLock::Whole | DeviceLock::Slots, Switch::Off) => (all(), 1),
            (DeviceLock::Cluster, Switch::Off) => (Whose::Cpus, CLUSTER_SLOTS),
        };
        let first = |cpu| match whose {
            Whose::Cpus => cpu as u32,
            Whose::All(_) => 0,
        };
        // Where nothing takes turns none ends.
        let alone = nodes.iter().flatten().all(|tier| tier.len() < 2);
        let slots = if alone { u32::MAX } else { slots };
        let cpu = |cpu| CpuTurn {
            node: node(cpu),
            turn: AtomicU32::new(first(cpu)),
            left: AtomicU32::new(slots),
        };
        let cpus = (0..platform.cpus()).map(cpu).collect();
        Order { nodes, cpus, whose, slots }
    }

    /// The devices in the order in which a CPU asks them now.
    pub(super) fn of(&self, cpu: CpuId) -> impl Iterator<Item = usize> + '_ {
        let cpu = &self.cpus[usize::from(cpu.0)];
        let turn = cpu.turn.load(Relaxed) as usize;
        self.nodes[cpu.node].iter().flat_map(move |tier| {
            (0..tier.len()).map(move |index| tier[(turn + index) % tier.len()])
        })
    }

    /// A CPU has taken slots.
    pub(super) fn took(&self, cpu: CpuId, slots: usize) {
        let cpu = &self.cpus[usize::from(cpu.0)];
        let left = cpu.left.load(Relaxed);
        if left == u32::MAX {
            return;
        }
        if let Some(left) = left.checked_sub(slots as u32).filter(|left| *left > 0) {
            return cpu.left.store(left, Relaxed);
        }
        let next = match &self.whose {
            Whose::Cpus => cpu.turn.load(Relaxed).wrapping_add(1),
            Whose::All(turns) => turns.fetch_add(1, Relaxed),
        };
        cpu.turn.store(next, Relaxed);
        cpu.left.store(self.slots, Relaxed);
    }
}

/// Where a device stands for the CPUs of a node; the lowest first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// By falling priority, then nearness.
    Priority(u16, Distance),
    /// Without a priority: in the order in which they were given.
    Given(usize),
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Near,
    Far,
}

fn rank(index: usize, device: &DeviceInfo, node: Option<NodeId>) -> Rank {
    let near = node.is_some() && device.node == node;
    let distance = if near { Distance::Near } else { Distance::Far };
    match device.priority {
        Some(priority) => Rank::Priority(u16::MAX - priority, distance),
        None => Rank::Given(index),
    }
}

/// The devices that can be allocated from, by rank; equal ones together. Those of `node` are near.
fn tiers(devices: &[DeviceInfo], node: Option<NodeId>) -> Vec<Tier> {
    let ranked = devices.iter().enumerate().filter(|(_, device)| device.gives_slots());
    let mut ranked: Vec<_> = ranked.map(|(index, d)| (rank(index, d, node), index)).collect();
    ranked.sort();
    let equal = ranked.chunk_by(|(a, _), (b, _)| a == b);
    equal.map(|tier| tier.iter().map(|(_, index)| *index).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_platform::testing::TestPlatform;
    use highwater_platform::{DeviceRole, Latency, Medium};
    use highwater_units::RUN_PAGES_MAX;

    fn device(priority: Option<u16>, node: Option<u8>) -> DeviceInfo {
        DeviceInfo {
            name: "test".to_owned(),
            pages: 512,
            latency: Latency::Synchronous,
            medium: Medium::SolidState,
            node: node.map(NodeId),
            priority,
            role: DeviceRole::Swap,
            read_only: false,
        }
    }

    #[test]
    fn tiers_are_by_priority_then_node_then_as_given() {
        let inherited = DeviceInfo { read_only: true, ..device(Some(9), Some(0)) };
        let devices = [
            device(None, Some(0)),
            device(Some(1), None),
            device(Some(5), Some(1)),
            device(Some(5), Some(0)),
            device(None, None),
            device(Some(1), Some(1)),
            device(Some(5), Some(0)),
            inherited,
        ];
        let near = tiers(&devices, Some(NodeId(0)));
        assert_eq!(near, [vec![3, 6], vec![2], vec![1, 5], vec![0], vec![4]]);
        let far = tiers(&devices, Some(NodeId(1)));
        assert_eq!(far, [vec![2], vec![3, 6], vec![5], vec![1], vec![0], vec![4]]);
        let unaware = tiers(&devices, None);
        assert_eq!(unaware, [vec![2, 3, 6], vec![1, 5], vec![0], vec![4]]);
    }

    /// How many slots each of three equal devices gives to CPU 0, `run` at a time.
    fn given(config: &SwapConfig, run: usize, times: usize) -> [usize; 3] {
        let platform = TestPlatform::new(1, Vec::new());
        let devices = [(); 3].map(|()| device(Some(0), None));
        let order: Order<TestPlatform> = Order::new(&platform, &devices, config);
        let mut given = [0; 3];
        for _ in 0..times {
            let first = order.of(CpuId(0)).next().expect("three devices");
            given[first] += run;
            order.took(CpuId(0), run);
        }
        given
    }

    #[test]
    fn equal_devices_take_turns_of_a_cluster_a_batch_or_a_slot() {
        let default = SwapConfig::default();
        let cached = SwapConfig { slot_cache: Switch::On, ..default };
        let whole = SwapConfig { device_lock: DeviceLock::Whole, ..default };
        for (config, turn) in [(default, 512), (cached, 64), (whole, 1)] {
            assert_eq!(given(&config, 1, turn).iter().filter(|slots| **slots > 0).count(), 1);
            assert_eq!(given(&config, 1, 3 * turn), [turn; 3], "{config:?}");
            let runs = given(&config, RUN_PAGES_MAX, 300);
            assert!(runs.iter().all(|slots| (1088..=2112).contains(slots)), "{runs:?}");
        }
    }
}
