//! What a machine's file contains.

use highwater_units::{Bytes, CpuId, NodeId};
use serde::Deserialize;
use std::collections::BTreeMap;

/// CPUs a machine can have.
pub const CPUS_MAX: usize = 1024;

/// Nodes a machine can have.
pub const NODES_MAX: usize = 64;

/// Devices a machine can have: the manager's numbers for them are bytes.
pub const DEVICES_MAX: usize = 255;

/// A machine, as its file says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// As its file is called.
    pub name: String,
    /// One line on what it is, and which document measured on it.
    pub about: String,
    /// Processor packages.
    pub sockets: u16,
    /// Cores of each.
    pub cores_per_socket: u16,
    /// Hardware threads of each core: 1 or 2.
    pub threads_per_core: u16,
    /// Time that work takes while the core's other thread works too, over the time it takes alone.
    /// 1.6: both together do 1.25 times the work of one.
    pub smt_slowdown: f64,
    /// Memory of each node, in MiB: what the manager may use. At least one node; none is empty.
    pub node_mib: Vec<u64>,
    /// What things cost.
    pub costs: Costs,
    /// Storage.
    #[serde(default, rename = "device")]
    pub devices: Vec<DeviceSpec>,
}

/// Nanoseconds of CPU time, unless said otherwise.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// An atomic access to a line that this CPU has.
    pub atomic: u64,
    /// Moving a line that another CPU of the socket has modified.
    pub line_near: u64,
    /// Moving a line from another socket.
    pub line_far: u64,
    /// Taking and leaving a lock nobody else wants.
    pub lock: u64,
    /// From one holder to the next who waits, without what the section's lines cost: same socket.
    pub handover_near: u64,
    /// Hand-over to a CPU of another socket.
    pub handover_far: u64,
    /// How many lines of what a lock protects move when its last holder was another CPU.
    pub section_lines: u64,
    /// What holders do.
    pub sections: Sections,
    /// Trap, entry and exit of a fault.
    pub fault: u64,
    /// A random access to memory of the own node.
    pub memory: u64,
    /// Copying or zeroing a page of another node, over the same on the own node.
    pub remote_factor: f64,
    /// Filling a page with zeros.
    pub zero_page: u64,
    /// Copying a page.
    pub copy_page: u64,
    /// Mapping a page: entry, reverse map, accounting.
    pub map_page: u64,
    /// Unmapping a page: reverse map walk, entry, asking whether it was used.
    pub unmap_page: u64,
    /// Looking at a frame's record after the one before it: lines come in order.
    pub scan: u64,
    /// Asking the first other CPU to flush its TLB, and waiting for the answer.
    pub shootdown: u64,
    /// Each CPU more.
    pub shootdown_target: u64,
    /// Being interrupted to flush: what a CPU that is asked loses.
    pub shootdown_interrupt: u64,
    /// Switching a CPU between threads.
    pub context_switch: u64,
    /// Waking a thread, for the waker.
    pub wake: u64,
    /// Until a woken thread runs on an idle CPU: not CPU time.
    pub wake_latency: u64,
    /// How long a thread runs while others wait for its CPU.
    pub slice: u64,
    /// Handing a transfer to an asynchronous device, whatever its size.
    pub io_submit: u64,
    /// Taking its completion, interrupt included.
    pub io_complete: u64,
    /// A transfer to a synchronous device, beside the copies.
    pub io_synchronous: u64,
}

/// What the holders of locks do, by the name of the lock's class.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Sections {
    /// Of classes that are not listed.
    pub default: Section,
    /// The listed ones.
    #[serde(flatten)]
    pub classes: BTreeMap<String, Section>,
}

/// How long a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// At least.
    pub base: u64,
    /// For each item the holder says it visits.
    pub item: u64,
    /// Lines that come from the last holder; none for [`Costs::section_lines`].
    #[serde(default)]
    pub lines: Option<u64>,
}

impl Sections {
    /// The section of a class.
    pub fn of(&self, class: &str) -> Section {
        *self.classes.get(class).unwrap_or(&self.default)
    }
}

/// What a device is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Swap.
    Swap,
    /// Files.
    File,
    /// Files that come and go.
    Place,
}

/// How a transfer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The CPU makes the transfer itself: memory.
    Synchronous,
    /// The device does, and the thread sleeps.
    Asynchronous,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Its name; no two of a machine have the same.
    pub name: String,
    /// What it is there for.
    pub role: Role,
    /// Its node.
    pub node: u8,
    /// Its size, in MiB.
    pub mib: u64,
    /// How transfers are waited for.
    pub answer: Answer,
    /// From the start of a read to its end, nothing else to do: ns, beside the time on the bus.
    /// 0 for synchronous devices: their latency is the CPU's, `io_synchronous` and `copy_page`.
    pub read_latency: u64,
    /// Latency of a write.
    pub write_latency: u64,
    /// What the bus that all channels share carries of reads: 10^6 bytes per second.
    pub read_mb_per_s: u64,
    /// Bandwidth of writes.
    pub write_mb_per_s: u64,
    /// Transfers at work at once; more wait.
    pub channels: u16,
    /// Buses that share what `read_mb_per_s` and `write_mb_per_s` say: flash behind each of them is
    /// read by itself, so that a single transfer has them all only if its stripes lie so.
    #[serde(default = "one")]
    pub buses: u16,
    /// How much of a device lies behind one bus before the next one, drawn, has its turn: KiB.
    /// Asked for where there are several.
    #[serde(default)]
    pub stripe_kib: u64,
    /// Time of a random seek, ns, for a device that turns; 0 for others.
    #[serde(default)]
    pub seek: u64,
    /// Swap devices of a higher one are full before others are used; equal ones take turns, those
    /// of the CPU's node first.
    #[serde(default)]
    pub priority: u16,
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
