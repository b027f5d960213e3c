//! The host's CPUs and nodes, the idle times of CPUs, and short waits.

use crate::sys;
use highwater_platform::IdleTime;
use highwater_units::{CpuId, Nanos, NodeId};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::fs::{File, read_to_string};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The directory that lists nodes and their CPUs.
const NODES: &str = "/sys/devices/system/node";

/// The CPUs and their nodes.
#[derive(Clone, Debug)]
pub struct Topology {
    /// The node of each CPU.
    nodes: Arc<[NodeId]>,
}

impl Topology {
    /// The host's configured CPUs: all numbers stay valid when a CPU comes online. The arena is not
    /// bound to nodes; they only tell which devices are near.
    pub fn of_host() -> Topology {
        // SAFETY: sysconf reads a constant of the system.
        let configured = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        Topology::at(Path::new(NODES), configured.max(1) as usize)
    }

    /// The topology in a directory; CPUs that are not listed are on node 0.
    fn at(dir: &Path, cpus: usize) -> Topology {
        let list = |name: &str| read_to_string(dir.join(name)).unwrap_or_default();
        let mut nodes = vec![NodeId(0); cpus];
        for node in numbers(&list("has_cpu")).filter_map(|node| u8::try_from(node).ok()) {
            for cpu in numbers(&list(&format!("node{node}/cpulist"))).filter(|cpu| *cpu < cpus) {
                nodes[cpu] = NodeId(node);
            }
        }
        Topology { nodes: nodes.into() }
    }

    /// The CPU this thread runs on.
    pub fn current(&self) -> CpuId {
        // Not rustix's version, which never reads the number from rseq.
        // SAFETY: sched_getcpu only reads the thread's own CPU number.
        let cpu = unsafe { libc::sched_getcpu() };
        CpuId((cpu.max(0) as usize % self.nodes.len()) as u16)
    }

    /// How many CPUs there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The node of a CPU.
    pub fn node_of(&self, cpu: CpuId) -> NodeId {
        self.nodes[usize::from(cpu.0)]
    }
}

/// The system's idle times of CPUs, from /proc/stat.
pub struct IdleTimes {
    nanos_per_tick: u64,
}

impl IdleTimes {
    /// Prepares reading, and opens the file to read from.
    ///
    /// # Errors
    /// /proc is not mounted.
    pub fn open() -> io::Result<(IdleTimes, File)> {
        let stat = File::open("/proc/stat")?;
        // SAFETY: sysconf reads a constant of the system.
        let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
        Ok((IdleTimes { nanos_per_tick: 1_000_000_000 / ticks_per_s.max(1) as u64 }, stat))
    }

    /// The idle time of the CPUs that this thread may run on; `None` if it cannot be read. `read`
    /// reads the file from its beginning, and returns the number of bytes.
    pub fn of_this_thread(
        &self,
        cpus: usize,
        read: impl FnOnce(&mut [u8]) -> usize,
    ) -> Option<IdleTime> {
        let allowed = sched_getaffinity(None).ok()?;
        // A line of ten numbers for all CPUs, then one for each.
        let mut text = vec![0; (cpus + 1) * 220];
        let len = read(&mut text);
        if len == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&text[..len]);
        let may = |cpu: usize| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu);
        let (cpus, ticks) = idle_ticks(&text, may);
        Some(IdleTime { cpus, time: Nanos(ticks * self.nanos_per_tick) })
    }
}

/// How many CPUs satisfy `counts`, and their idle ticks, including those of waits for devices.
fn idle_ticks(stat: &str, counts: impl Fn(usize) -> bool) -> (usize, u64) {
    let lines = stat.lines().filter_map(|line| line.strip_prefix("cpu")?.split_once(' '));
    let own = lines.filter(|(cpu, _)| cpu.parse().is_ok_and(&counts));
    own.fold((0, 0), |(cpus, sum), (_, ticks)| {
        // user nice system idle iowait ...
        let idle = ticks.split_ascii_whitespace().skip(3).take(2);
        (cpus + 1, sum + idle.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>())
    })
}

/// The numbers of a list such as "0-3,8"; anything else is skipped.
fn numbers(list: &str) -> impl Iterator<Item = usize> + '_ {
    list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), Ok(last)) => first..last + 1,
            _ => 0..0,
        }
    })
}

/// Waits longer with each attempt: spins, then yields, then sleeps up to a millisecond. A thread of
/// a program is not cancelled here.
pub fn relax(attempt: u32) {
    match attempt {
        0..4 => (0..1 << attempt).for_each(|_| std::hint::spin_loop()),
        4..8 => std::thread::yield_now(),
        _ => sys::sleep(Duration::from_micros(50 << (attempt - 8).min(4))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir, write};

    #[test]
    fn idle_ticks_are_those_of_the_cpus_that_count() {
        let stat = "cpu  90 0 0 1110 22 0 0 0 0 0\ncpu0 40 1 2 1000 20 5 6 7 8 9\n\
                    cpu1 50 1 2 100 1 5\ncpu12 0 0 0 10 1 0\nintr 500 1000 7 8 9\n";
        let ticks = |cpus: &[usize]| idle_ticks(stat, |cpu| cpus.contains(&cpu));
        let found = [ticks(&[0]), ticks(&[0, 12]), ticks(&[1, 2])];
        assert_eq!(found, [(1, 1020), (2, 1031), (1, 101)]);
    }

    #[test]
    fn cpus_are_on_the_nodes_that_list_them() {
        let dir = tempfile::tempdir().unwrap();
        let nodes = |cpus| Topology::at(dir.path(), cpus).nodes.iter().map(|n| n.0).collect();
        let found: Vec<u8> = nodes(3);
        assert_eq!(found, [0, 0, 0], "nothing is listed");
        write(dir.path().join("has_cpu"), "0,2-3\n").unwrap();
        for (node, cpus) in [("node0", "0,4-5\n"), ("node2", "1-2\n"), ("node3", "3,6-9\n")] {
            create_dir(dir.path().join(node)).unwrap();
            write(dir.path().join(node).join("cpulist"), cpus).unwrap();
        }
        let found: Vec<u8> = nodes(7);
        assert_eq!(found, [0, 2, 2, 3, 0, 0, 3]);
    }
}
