//! The contents of a machine file.

use highwater_units::{Bytes, CpuId, NodeId};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The most CPUs of a machine.
pub const CPUS_MAX: usize = 1024;

/// The most nodes of a machine.
pub const NODES_MAX: usize = 64;

/// The most devices of a machine: the manager numbers them with one byte.
pub const DEVICES_MAX: usize = 255;

/// A machine description.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The name of its file.
    pub name: String,
    /// One line: which machine it is, and which document measured on it.
    pub about: String,
    /// Processor packages.
    pub sockets: u16,
    /// Cores of each socket.
    pub cores_per_socket: u16,
    /// Hardware threads of each core: 1 or 2.
    pub threads_per_core: u16,
    /// How much longer work takes while the core's other thread is busy too. With 1.6, both threads
    /// together do 1.25 times the work of one.
    pub smt_slowdown: f64,
    /// Memory of each node that the manager may use, in MiB. At least one node; none is empty.
    pub node_mib: Vec<u64>,
    /// Costs.
    pub costs: Costs,
    /// Storage devices.
    #[serde(default, rename = "device")]
    pub devices: Vec<DeviceSpec>,
    /// Costs whose values are fixed by published base values, and how closely.
    #[serde(default)]
    pub calibrated: Vec<Calibrated>,
}

/// Costs in nanoseconds of CPU time, unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// An atomic access to a line that this CPU owns.
    pub atomic: u64,
    /// Moving a line that another CPU of the same socket has modified.
    pub line_near: u64,
    /// Moving a line from another socket.
    pub line_far: u64,
    /// Taking and releasing an uncontended lock.
    pub lock: u64,
    /// Hand-over to a waiter on the same socket, without the section's lines.
    pub handover_near: u64,
    /// Hand-over to a waiter on another socket.
    pub handover_far: u64,
    /// Protected cache lines that move with a lock whose last holder was another CPU.
    pub section_lines: u64,
    /// The critical sections, by lock class.
    pub sections: Sections,
    /// Trap, entry and exit of a page fault.
    pub fault: u64,
    /// A random access to memory of the CPU's node.
    pub memory: u64,
    /// How much longer copying or zeroing a page of another node takes.
    pub remote_factor: f64,
    /// Zeroing a page.
    pub zero_page: u64,
    /// Copying a page.
    pub copy_page: u64,
    /// Mapping a page: page table entry, rmap, accounting.
    pub map_page: u64,
    /// Unmapping a page: rmap walk, page table entry, accessed bit.
    pub unmap_page: u64,
    /// Reading a frame's record in a sequential scan.
    pub scan: u64,
    /// A TLB shootdown on one other CPU, including the wait.
    pub shootdown: u64,
    /// The additional cost of each further CPU.
    pub shootdown_target: u64,
    /// The shootdown interrupt, on the CPU that receives it.
    pub shootdown_interrupt: u64,
    /// A context switch.
    pub context_switch: u64,
    /// Waking a thread, paid by the waker.
    pub wake: u64,
    /// Latency until a woken thread runs on an idle CPU; not CPU time.
    pub wake_latency: u64,
    /// The time slice of a thread while others wait for its CPU.
    pub slice: u64,
    /// Submitting a transfer of any size to an asynchronous device.
    pub io_submit: u64,
    /// Handling its completion, including the interrupt.
    pub io_complete: u64,
    /// A transfer to a synchronous device, in addition to the copies.
    pub io_synchronous: u64,
}

/// The critical sections by the name of the lock class.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Sections {
    /// The section of classes that are not listed.
    pub default: Section,
    /// The listed classes.
    #[serde(flatten)]
    pub classes: BTreeMap<String, Section>,
}

/// The cost of a critical section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Per acquisition.
    pub base: u64,
    /// Per item that the holder visits.
    pub item: u64,
    /// Cache lines that move from the last holder; `None`: [`Costs::section_lines`].
    #[serde(default)]
    pub lines: Option<u64>,
}

impl Sections {
    /// The section of a class.
    pub fn of(&self, class: &str) -> Section {
        *self.classes.get(class).unwrap_or(&self.default)
    }

    /// The names of the listed classes; `default` is not one.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.classes.keys().map(String::as_str)
    }
}

/// The use of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Swap.
    Swap,
    /// One file.
    File,
    /// A place for files that are opened and closed during a run.
    Place,
}

/// How a device transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The CPU copies: a memory device.
    Synchronous,
    /// The device transfers while the thread sleeps.
    Asynchronous,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Its name; unique in the machine.
    pub name: String,
    /// Its use.
    pub role: Role,
    /// Its node.
    pub node: u8,
    /// Its size, in MiB.
    pub mib: u64,
    /// How it transfers.
    pub answer: Answer,
    /// Latency of a read on an idle device, ns, without the time on the bus. 0 for synchronous
    /// devices, whose latency is CPU time: `io_synchronous` and `copy_page`.
    pub read_latency: u64,
    /// Latency of a write.
    pub write_latency: u64,
    /// Bandwidth of reads on the bus that all channels share, 10^6 bytes per second.
    pub read_mb_per_s: u64,
    /// Bandwidth of writes, in the same unit.
    pub write_mb_per_s: u64,
    /// Concurrent transfers; further ones queue.
    pub channels: u16,
    /// Buses that split `read_mb_per_s` and `write_mb_per_s`, like the channels of a flash disk: a
    /// transfer uses all of them only if its stripes are spread over all.
    #[serde(default = "one")]
    pub buses: u16,
    /// Stripe size in KiB: each stripe of the device is on one pseudo-randomly chosen bus.
    /// Required with several buses.
    #[serde(default)]
    pub stripe_kib: u64,
    /// Time of a random seek of a rotational device, ns; 0 for other devices.
    #[serde(default)]
    pub seek: u64,
    /// Swap priority: devices with a higher priority fill first; devices with equal priority are
    /// used in turn, those of the CPU's node first.
    #[serde(default)]
    pub priority: u16,
}

/// A cost whose value is fixed by published base values, as closely as they permit.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibrated {
    /// Its place in the file, or a setting of the experiment.
    pub cost: String,
    /// The range in which the cost is searched, from first principles: the least and the most.
    pub search: [u64; 2],
    /// The distance between possible values, counted from the least.
    #[serde(default = "single")]
    pub step: u64,
    /// The published base values that fix it, by the names that `highwater-lab calibrate` prints.
    pub by: Vec<String>,
    /// The range that these values allow: the least and the most that fit.
    pub allowed: [u64; 2],
}

fn single() -> u64 {
    1
}

fn one() -> u16 {
    1
}

impl Machine {
    /// All hardware threads.
    pub fn cpus(&self) -> usize {
        usize::from(self.sockets)
            * usize::from(self.cores_per_socket)
            * usize::from(self.threads_per_core)
    }

    pub(super) fn cores(&self) -> usize {
        usize::from(self.sockets) * usize::from(self.cores_per_socket)
    }

    /// The socket of a CPU.
    pub fn socket_of(&self, cpu: CpuId) -> usize {
        usize::from(cpu.0) % self.cores() / usize::from(self.cores_per_socket)
    }

    /// The node of a CPU.
    pub fn node_of(&self, cpu: CpuId) -> NodeId {
        let core = usize::from(cpu.0) % self.cores();
        NodeId((core * self.node_mib.len() / self.cores()) as u8)
    }

    /// The other hardware thread of a CPU's core.
    pub fn sibling_of(&self, cpu: CpuId) -> Option<CpuId> {
        let cores = self.cores() as u16;
        (self.threads_per_core == 2)
            .then(|| if cpu.0 < cores { CpuId(cpu.0 + cores) } else { CpuId(cpu.0 - cores) })
    }

    /// Memory of all nodes.
    pub fn memory(&self) -> Bytes {
        Bytes(self.node_mib.iter().sum::<u64>() << 20)
    }
}
