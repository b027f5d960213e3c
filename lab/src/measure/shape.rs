//! CPUs, packages and nodes of this computer, and which CPUs a measurement runs on.

use super::runs::pin;
use highwater_os::Topology;
use highwater_units::{Bytes, CpuId, NodeId};
use procfs::{Current, Meminfo};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::Path;

/// The directory of all CPUs, and that of all nodes.
const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

/// A CPU and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    cpu: CpuId,
    package: i32,
    core: i32,
    node: NodeId,
}

/// The CPUs that this process may use, and the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    cpus: Vec<Place>,
    node_mib: Vec<u64>,
    /// The processor's name.
    pub(super) model: String,
}

impl Shape {
    /// Reads /sys and /proc.
    ///
    /// # Errors
    /// Threads cannot be bound to CPUs, or the memory is not known.
    pub fn of_host() -> Result<Shape, String> {
        let nodes = Topology::of_host();
        let allowed = sched_getaffinity(None).map_err(|error| format!("CPUs unknown: {error}"))?;
        let ids = (0..CpuSet::MAX_CPU.min(nodes.count())).filter(|cpu| allowed.is_set(*cpu));
        let place = |cpu: usize| {
            let topology = Path::new(CPUS).join(format!("cpu{cpu}/topology"));
            let number = |name: &str| read_to_string(topology.join(name)).ok()?.trim().parse().ok();
            let id = CpuId(cpu as u16);
            // Without topology, each CPU is a core of one package.
            Place {
                cpu: id,
                package: number("physical_package_id").unwrap_or(0),
                core: number("core_id").unwrap_or(cpu as i32),
                node: nodes.node_of(id),
            }
        };
        let cpus: Vec<Place> = ids.map(place).collect();
        let first = cpus.first().ok_or("no CPU may be used")?.cpu;
        let bound = std::thread::spawn(move || pin(first)).join();
        let bound = bound.map_err(|_| "no thread can be started".to_owned())?;
        bound.map_err(|error| format!("threads cannot be bound to CPUs: {error}"))?;
        let shape = Shape { cpus, node_mib: node_mib(Path::new(NODES))?, model: model() };
        Ok(shape.with_nodes_per_core())
    }

    /// A simulated machine has at most one node for each core: the last ones become one.
    fn with_nodes_per_core(mut self) -> Shape {
        let rest = self.node_mib.split_off(self.node_mib.len().min(self.cores()));
        if let Some(last) = self.node_mib.last_mut() {
            *last += rest.iter().sum::<u64>();
        }
        self
    }

    pub(super) fn ids(&self) -> Vec<CpuId> {
        self.cpus.iter().map(|place| place.cpu).collect()
    }

    pub(super) fn first(&self) -> CpuId {
        self.cpus[0].cpu
    }

    /// Processor packages.
    pub(super) fn sockets(&self) -> usize {
        self.cpus.iter().map(|place| place.package).collect::<BTreeSet<_>>().len()
    }

    fn cores(&self) -> usize {
        self.cpus.iter().map(|place| (place.package, place.core)).collect::<BTreeSet<_>>().len()
    }

    /// The mean, rounded up where sockets differ.
    pub(super) fn cores_per_socket(&self) -> usize {
        self.cores().div_ceil(self.sockets())
    }

    /// 2 if most cores have more than one.
    pub(super) fn threads_per_core(&self) -> usize {
        if 2 * self.cpus.len() >= 3 * self.cores() { 2 } else { 1 }
    }

    /// Memory of each node that has some, in MiB.
    pub(super) fn node_mib(&self) -> &[u64] {
        &self.node_mib
    }

    /// Two cores of one package.
    pub(super) fn near(&self) -> Option<[CpuId; 2]> {
        self.pair(|a, b| a.package == b.package && a.core != b.core)
    }

    /// Cores of two packages.
    pub(super) fn far(&self) -> Option<[CpuId; 2]> {
        self.pair(|a, b| a.package != b.package)
    }

    /// Both threads of a core.
    pub(super) fn siblings(&self) -> Option<[CpuId; 2]> {
        self.pair(|a, b| a.package == b.package && a.core == b.core)
    }

    /// CPUs of two nodes.
    pub(super) fn remote(&self) -> Option<[CpuId; 2]> {
        self.pair(|a, b| a.node != b.node)
    }

    /// Three cores of one package.
    pub(super) fn three(&self) -> Option<[CpuId; 3]> {
        let [first, second] = self.near()?;
        let at = |cpu| self.cpus.iter().find(|place| place.cpu == cpu);
        let (a, b) = (at(first)?, at(second)?);
        let is_third = |c: &&Place| c.package == a.package && c.core != a.core && c.core != b.core;
        Some([first, second, self.cpus.iter().find(is_third)?.cpu])
    }

    fn pair(&self, fits: impl Fn(&Place, &Place) -> bool) -> Option<[CpuId; 2]> {
        let first = &self.cpus[0];
        let other = self.cpus[1..].iter().find(|other| fits(first, other))?;
        Some([first.cpu, other.cpu])
    }
}

/// Memory of each node that has some; of the whole computer, if nodes are not listed.
fn node_mib(nodes: &Path) -> Result<Vec<u64>, String> {
    let mib = |node: usize| {
        let text = read_to_string(nodes.join(format!("node{node}/meminfo"))).ok()?;
        mem_total_mib(&text)
    };
    // Numbers of nodes may have gaps.
    let listed: Vec<u64> = (0..1024).filter_map(mib).filter(|mib| *mib > 0).collect();
    if !listed.is_empty() {
        return Ok(listed);
    }
    let info = Meminfo::current().map_err(|error| format!("/proc/meminfo unreadable: {error}"))?;
    Ok(vec![Bytes(info.mem_total).0 >> 20])
}

/// The line `Node 0 MemTotal: 24684084 kB`.
fn mem_total_mib(text: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.split_once("MemTotal:"))?.1;
    Some(rest.split_whitespace().next()?.parse::<u64>().ok()? >> 10)
}

/// The processor's name, in letters that a string of TOML holds as they are.
fn model() -> String {
    let text = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let plain = |c: &char| (c.is_ascii_graphic() || *c == ' ') && !matches!(c, '"' | '\\');
    match named {
        Some((_, name)) => name.trim().chars().filter(plain).collect(),
        None => std::env::consts::ARCH.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPUs by package, core and node, numbered in this order.
    fn shape(places: &[(i32, i32, u8)], nodes: usize) -> Shape {
        let place = |(cpu, &(package, core, node)): (usize, &(i32, i32, u8))| Place {
            cpu: CpuId(cpu as u16),
            package,
            core,
            node: NodeId(node),
        };
        let cpus = places.iter().enumerate().map(place).collect();
        Shape { cpus, node_mib: vec![100; nodes], model: String::new() }.with_nodes_per_core()
    }

    fn numbers(shape: &Shape) -> [usize; 3] {
        [shape.sockets(), shape.cores_per_socket(), shape.threads_per_core()]
    }

    #[test]
    fn two_sockets_with_threads() {
        let half = [(0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1)];
        let shape = shape(&[half, half].concat(), 2);
        assert_eq!(numbers(&shape), [2, 2, 2]);
        assert_eq!(shape.near(), Some([CpuId(0), CpuId(1)]));
        assert_eq!(shape.far(), Some([CpuId(0), CpuId(2)]));
        assert_eq!(shape.siblings(), Some([CpuId(0), CpuId(4)]));
        assert_eq!(shape.remote(), Some([CpuId(0), CpuId(2)]));
        assert_eq!(shape.three(), None);
        assert_eq!(shape.node_mib(), [100, 100]);
    }

    #[test]
    fn one_cpu_has_no_pairs() {
        let shape = shape(&[(0, 0, 0)], 3);
        assert_eq!(numbers(&shape), [1, 1, 1]);
        assert_eq!([shape.near(), shape.far(), shape.siblings(), shape.remote()], [None; 4]);
        assert_eq!(shape.node_mib(), [300], "no more nodes than cores");
    }

    #[test]
    fn cores_of_which_some_have_two_threads() {
        let mixed = [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 0)];
        assert_eq!(numbers(&shape(&mixed, 1)), [1, 4, 1]);
        assert_eq!(shape(&mixed, 1).three(), Some([CpuId(0), CpuId(2), CpuId(3)]));
    }

    #[test]
    fn memory_of_a_node_is_read() {
        let text = "\nNode 1 MemTotal:       2097152 kB\nNode 1 MemFree: 1 kB\n";
        assert_eq!(mem_total_mib(text), Some(2048));
        assert_eq!(mem_total_mib(""), None);
        assert!(node_mib(Path::new("/nonexistent")).expect("/proc/meminfo")[0] > 0);
    }
}
