//! The order in which devices are asked for slots: by priority, by distance, in turns.
//!
//! ```text
//! Order -- node x n -- Tier x m    devices that take turns; the next tier when all are full
//!       \- CpuTurn x CPUs          the device of its tier that a CPU asks first
//! ```
//! The devices of a tier have the same priority and the same distance: those on the CPU's own node
//! come before others (Linux 4.14). Each CPU has its own turn, which lasts for as many slots as a
//! cluster has, so that a CPU writes long runs and CPUs share nothing. CPUs begin with different
//! devices.

use super::cluster::CLUSTER_SLOTS;
use highwater_platform::{DeviceInfo, Platform};
use highwater_units::{CpuId, NodeId};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Devices that take turns, by index.
type Tier = Vec<usize>;

/// A CPU's turn, on a cache line of its own. The words are hints: threads that share a CPU may
/// lose a turn.
#[repr(align(64))]
struct CpuTurn {
    node: usize,
    turn: AtomicU32,
    /// Slots until the next turn; [`ENDLESS`] where no devices take turns.
    left: AtomicU32,
}

const ENDLESS: u32 = u32::MAX;

/// The order in which devices are asked for slots.
pub(super) struct Order {
    /// By node: its tiers, in order.
    nodes: Vec<Vec<Tier>>,
    cpus: Vec<CpuTurn>,
    /// Slots of a turn.
    slots: u32,
}

impl Order {
    /// The order of `devices` for each of the platform's CPUs.
    pub(super) fn new<P: Platform>(platform: &P, devices: &[DeviceInfo]) -> Order {
        Order::with_turns(platform, devices, CLUSTER_SLOTS, |cpu| cpu as u32)
    }

    /// An order with turns of `slots` slots; a CPU starts with turn `first(cpu)`.
    pub(super) fn with_turns<P: Platform>(
        platform: &P,
        devices: &[DeviceInfo],
        slots: u32,
        first: impl Fn(usize) -> u32,
    ) -> Order {
        let node = |cpu| usize::from(platform.node_of(CpuId(cpu as u16)).0);
        let count = 1 + (0..platform.cpus()).map(node).max().unwrap_or(0);
        let nodes = (0..count).map(|node| tiers(devices, NodeId(node as u8)));
        let nodes: Vec<_> = nodes.collect();
        let alone = nodes.iter().flatten().all(|tier| tier.len() < 2);
        let slots = if alone { ENDLESS } else { slots };
        let cpu = |cpu| CpuTurn {
            node: node(cpu),
            turn: AtomicU32::new(first(cpu)),
            left: AtomicU32::new(slots),
        };
        let cpus = (0..platform.cpus()).map(cpu).collect();
        Order { nodes, cpus, slots }
    }

    /// The devices in the order in which a CPU asks them now.
    pub(super) fn of(&self, cpu: CpuId) -> impl Iterator<Item = usize> + '_ {
        let cpu = &self.cpus[usize::from(cpu.0)];
        let turn = cpu.turn.load(Relaxed) as usize;
        self.nodes[cpu.node].iter().flat_map(move |tier| {
            (0..tier.len()).map(move |index| tier[(turn + index) % tier.len()])
        })
    }

    /// Notes that a CPU took slots.
    pub(super) fn took(&self, cpu: CpuId, slots: usize) {
        if self.ends_turn(cpu, slots) {
            let turn = self.cpus[usize::from(cpu.0)].turn.load(Relaxed);
            self.begin_turn(cpu, turn.wrapping_add(1));
        }
    }

    /// Counts slots of a CPU's turn. Returns whether they end it.
    pub(super) fn ends_turn(&self, cpu: CpuId, slots: usize) -> bool {
        let cpu = &self.cpus[usize::from(cpu.0)];
        let left = cpu.left.load(Relaxed);
        if left == ENDLESS {
            return false;
        }
        let left = left.saturating_sub(slots as u32);
        if left > 0 {
            cpu.left.store(left, Relaxed);
        }
        left == 0
    }

    pub(super) fn begin_turn(&self, cpu: CpuId, turn: u32) {
        let cpu = &self.cpus[usize::from(cpu.0)];
        cpu.turn.store(turn, Relaxed);
        cpu.left.store(self.slots, Relaxed);
    }
}

/// The rank of a device for the CPUs of a node; the lowest comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// By falling priority, then by distance.
    Priority(u16, Distance),
    /// Without a priority: in the order of the command line.
    Given(usize),
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Near,
    Far,
}

fn rank(index: usize, device: &DeviceInfo, node: NodeId) -> Rank {
    let near = device.node == Some(node);
    let distance = if near { Distance::Near } else { Distance::Far };
    match device.priority {
        Some(priority) => Rank::Priority(u16::MAX - priority, distance),
        None => Rank::Given(index),
    }
}

/// The devices that can be allocated from, by rank for the CPUs of `node`; those of equal rank
/// together.
fn tiers(devices: &[DeviceInfo], node: NodeId) -> Vec<Tier> {
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
        let near = tiers(&devices, NodeId(0));
        assert_eq!(near, [vec![3, 6], vec![2], vec![1, 5], vec![0], vec![4]]);
        let far = tiers(&devices, NodeId(1));
        assert_eq!(far, [vec![2], vec![3, 6], vec![5], vec![1], vec![0], vec![4]]);
        let nowhere = devices.map(|device| DeviceInfo { node: None, ..device });
        let unaware = tiers(&nowhere, NodeId(0));
        assert_eq!(unaware, [vec![2, 3, 6], vec![1, 5], vec![0], vec![4]]);
    }

    /// Slots that each of three equal devices gives to CPU 0, `run` at a time, in turns of `turn`.
    fn given(turn: u32, run: usize, times: usize) -> [usize; 3] {
        let platform = TestPlatform::new(1, Vec::new());
        let devices = [(); 3].map(|()| device(Some(0), None));
        let order = Order::with_turns(&platform, &devices, turn, |cpu| cpu as u32);
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
        for turn in [512, 64, 1] {
            let slots = turn as usize;
            assert_eq!(given(turn, 1, slots).iter().filter(|slots| **slots > 0).count(), 1);
            assert_eq!(given(turn, 1, 3 * slots), [slots; 3]);
            let runs = given(turn, RUN_PAGES_MAX, 300);
            assert!(runs.iter().all(|slots| (1088..=2112).contains(slots)), "{runs:?}");
        }
    }
}
