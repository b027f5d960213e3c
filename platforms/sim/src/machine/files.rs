//! Tests of the machine files in lab/machines: their shapes, and the sums of their costs.
//!
//! The sums estimate the cost of one page without lock contention. The tests compare them with the
//! baselines of the documents minus their lock time, so a change of one figure needs a compensating
//! change of another.

use super::description::{Answer, Costs, DeviceSpec, Machine, Section};
use std::path::Path;

/// A valid small machine with one device of each kind.
pub(super) const SMALL: &str = r#"
name = "small"
about = "For tests"
sockets = 2
cores_per_socket = 2
threads_per_core = 2
smt_slowdown = 1.6
node_mib = [64, 32]
[costs]
atomic = 5
line_near = 50
line_far = 120
lock = 15
handover_near = 120
handover_far = 300
section_lines = 4
fault = 600
memory = 85
remote_factor = 1.5
zero_page = 250
copy_page = 450
map_page = 400
unmap_page = 300
scan = 8
shootdown = 1000
shootdown_target = 200
shootdown_interrupt = 500
context_switch = 1200
wake = 800
wake_latency = 3000
slice = 3000000
io_submit = 2000
io_complete = 1200
io_synchronous = 300
[costs.sections]
default = { base = 20, item = 10 }
swap_cluster = { base = 100, item = 10 }
swap_device = { base = 60, item = 20 }
swap_cpu = { base = 20, item = 5 }
zone = { base = 50, item = 45 }
lru_batch = { base = 15, item = 5 }
prefetch = { base = 15, item = 5 }
lru = { base = 40, item = 30 }
slab_sheaf = { base = 10, item = 2 }
slab_cpu = { base = 15, item = 5 }
list_lock = { base = 30, item = 20 }
slab_records = { base = 20, item = 5 }
test = { base = 100, item = 10 }
[[device]]
name = "a"
role = "swap"
node = 0
mib = 96
answer = "synchronous"
read_latency = 0
write_latency = 0
read_mb_per_s = 50000
write_mb_per_s = 50000
channels = 8
seek = 0
[[device]]
name = "b"
role = "file"
node = 1
mib = 48
answer = "asynchronous"
read_latency = 6200
write_latency = 6100
read_mb_per_s = 2400
write_mb_per_s = 2048
channels = 7
"#;

fn load(name: &str) -> Machine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/machines");
    let text = std::fs::read_to_string(folder.join(name).with_extension("toml")).expect(name);
    let machine = Machine::load(&text).unwrap_or_else(|defects| panic!("{name}: {defects}"));
    assert_eq!(machine.name, name, "a machine is called as its file is");
    machine
}

/// Every machine: name, CPUs, sockets, GiB, nodes, devices.
const MACHINES: [(&str, usize, u16, u64, usize, usize); 8] = [
    ("desktop-2012-kvm", 4, 1, 8, 1, 2),
    ("server-128c-8nvme", 128, 2, 128, 2, 8),
    ("spr-112c-224t", 224, 2, 256, 2, 2),
    ("x7-2l-52c-8nvme", 104, 2, 756, 2, 8),
    ("xeon-48c-2-optane", 48, 2, 32, 2, 2),
    ("xeon-48c-2-p3600", 48, 2, 32, 2, 2),
    ("xeon-48c-2-ramdisks", 48, 2, 32, 2, 2),
    ("xeon-e5v3-72t-ramdisk", 72, 2, 32, 2, 1),
];

/// Every machine in the directory.
pub(super) fn all() -> Vec<Machine> {
    MACHINES.iter().map(|(name, ..)| load(name)).collect()
}

#[test]
fn every_file_is_in_the_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/machines");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let stem = |path: std::path::PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<String> = entries.map(stem).collect();
    names.sort();
    assert_eq!(names, MACHINES.map(|(name, ..)| name));
}

#[test]
fn the_files_describe_the_documents_machines() {
    for (name, cpus, sockets, gib, nodes, devices) in MACHINES {
        let machine = load(name);
        let shape = (machine.cpus(), machine.sockets, machine.node_mib.len());
        assert_eq!(shape, (cpus, sockets, nodes), "{name}");
        assert_eq!(machine.memory().0 >> 30, gib, "{name}");
        assert_eq!(machine.devices.len(), devices, "{name}");
    }
}

#[test]
fn one_machine_with_three_kinds_of_disks_differs_in_nothing_else() {
    let ram = load("xeon-48c-2-ramdisks");
    for other in ["xeon-48c-2-optane", "xeon-48c-2-p3600"].map(load) {
        assert_eq!((&other.costs, &other.node_mib), (&ram.costs, &ram.node_mib));
    }
}

/// The latency of one page, and the throughput with all channels busy in thousands per second.
#[track_caller]
fn assert_reads(device: &DeviceSpec, alone_us: f64, thousands: f64) {
    let bus = 4096.0 * 1000.0 / device.read_mb_per_s as f64;
    let own_bus = bus * f64::from(device.buses);
    let alone = (device.read_latency as f64 + own_bus) / 1000.0;
    let channels = f64::from(device.channels) * 1e6 / device.read_latency as f64;
    let most = channels.min(1e6 / bus);
    assert!((alone / alone_us - 1.0).abs() < 0.02, "{}: {alone} us", device.name);
    assert!((most / thousands - 1.0).abs() < 0.02, "{}: {most}k/s", device.name);
}

#[test]
fn devices_answer_as_fast_as_measured() {
    // Latency: as measured, minus 1 us of software when polling, or 1.4 us with interrupts.
    assert_reads(&load("xeon-48c-2-optane").devices[0], 8.9 - 1.0, 585.0);
    assert_reads(&load("xeon-48c-2-p3600").devices[1], 78.0 - 1.4, 450.0);
    let nvme = load("x7-2l-52c-8nvme").devices;
    // Sequential: the bandwidth of the buses.
    assert_reads(&nvme[7], 35.0 + 9.8, 820.0);
    let direct_io: u64 = nvme.iter().map(|device| device.read_mb_per_s * 1_000_000).sum();
    let measured = 26_253_781.0 * 1024.0;
    assert!((direct_io as f64 / measured - 1.0).abs() < 0.01, "{direct_io}");
}

/// An uncontended lock and its critical section.
fn hold(costs: &Costs, section: Section, items: u64) -> u64 {
    costs.lock + section.base + section.item * items
}

/// Locks of the free lists and the LRU for one new page, with batching.
fn enlisted(costs: &Costs) -> u64 {
    let s = &costs.sections;
    let allocated = hold(costs, s.of("per_cpu_frames"), 1) + hold(costs, s.of("zone"), 63) / 63;
    allocated + hold(costs, s.of("lru_batch"), 1) + hold(costs, s.of("lru"), 15) / 15
}

/// Aging, isolating and freeing an evicted page, 32 at a time.
fn delisted(costs: &Costs) -> u64 {
    (2 * hold(costs, costs.sections.of("lru"), 32) + hold(costs, costs.sections.of("zone"), 32))
        / 32
}

/// The share of one page in the flush of a batch of 32: the thread's time, and the time of the
/// interrupted CPUs.
fn flush(costs: &Costs, cpus: u64) -> u64 {
    let asking = costs.shootdown + costs.shootdown_target * (cpus - 1);
    (asking + costs.shootdown_interrupt * cpus) / 32
}

/// A copy to or from a RAM disk, half of the time on the other node.
fn copied(costs: &Costs) -> f64 {
    costs.copy_page as f64 * (1.0 + costs.remote_factor) / 2.0 + costs.io_synchronous as f64
}

/// The mean cost of a line from this socket and from the other.
fn line(costs: &Costs) -> u64 {
    (costs.line_near + costs.line_far) / 2
}

#[track_caller]
fn assert_within(what: &str, ns: f64, least: f64, most: f64) {
    assert!((least..most).contains(&ns), "{what}: {ns} ns is not in {least}..{most}");
}

/// Swapping in and out, 2020: 22.1 us of a process per pair; 16 processes keep 18 CPUs busy, with
/// 22.4 % of the time in locks.
#[test]
fn a_page_in_and_out_of_ram_disks_costs_what_the_base_leaves_beside_locks() {
    let costs = load("xeon-48c-2-ramdisks").costs;
    let other_work = 22_100.0 * 18.0 / 16.0 * (1.0 - 0.224);
    let paths = costs.fault + costs.map_page + costs.unmap_page;
    let clusters = 4 * hold(&costs, costs.sections.of("swap_cluster"), 1);
    // Insertion into the tree and removal; slots allocated and freed 64 at a time.
    let tree = 2 * hold(&costs, costs.sections.of("swap_cache"), 1);
    let batches = 2 * hold(&costs, costs.sections.of("swap_info"), 64) / 64;
    let slots = hold(&costs, costs.sections.of("swap_cpu"), 1) + tree + batches;
    // Frame records, page table entries and the data of the four cluster locks, often last used by
    // another CPU; and the tree's.
    let lines = (8 + (4 * 3 / 4 + 2) * (1 + costs.section_lines)) * line(&costs);
    let lists = enlisted(&costs) + delisted(&costs);
    let whole = paths + flush(&costs, 15) + clusters + slots + lines + lists;
    let ns = whole as f64 + 2.0 * copied(&costs) + 1.5 * costs.memory as f64;
    assert_within("a pair", ns, other_work * 0.95, other_work * 1.05);
}

/// Swapping out a stream, 2016: 27 us of a process per page; 8 processes keep 10 CPUs busy, with
/// more than 40.4 % of the time in locks: the sum must leave room for locks not listed.
#[test]
fn a_page_out_to_a_ram_disk_costs_less_than_the_base_leaves() {
    let costs = load("xeon-e5v3-72t-ramdisk").costs;
    let other_work = 27_100.0 * 10.0 / 8.0 * (1.0 - 0.404);
    let paths = costs.fault + costs.zero_page + costs.map_page + costs.unmap_page;
    let clusters = 2 * hold(&costs, costs.sections.of("swap_cluster"), 1);
    let lines = (8 + 2 * (1 + costs.section_lines)) * line(&costs);
    let lists = enlisted(&costs) + delisted(&costs);
    let whole = (paths + clusters + lines + lists) as f64 + copied(&costs);
    assert_within("a page", whole, other_work * 0.6, other_work);
}

/// Reading files, 2018: 28.78 % of a CPU for each of 6 dd at 5134316 KiB/s.
#[test]
fn a_page_read_costs_what_the_base_without_reclaim_measured() {
    let costs = load("x7-2l-52c-8nvme").costs;
    let measured = 0.2878 * 6.0 * 1e9 / (5_134_316.0 / 4.0);
    let transfer = costs.fault + costs.io_submit + costs.io_complete;
    let run = transfer + costs.context_switch + costs.wake;
    let whole = run / 16 + costs.copy_page + costs.map_page + enlisted(&costs) + line(&costs);
    assert_within("a page read", whole as f64, measured * 0.9, measured * 1.1);
}

/// One kswapd per node, 2018, with 10 and with 16 dd: pages in 300 s on two nodes. The cache lines
/// of the entry and of the frame's owner, place and history come from the CPU that read the page.
#[test]
fn a_clean_page_costs_kswapd_what_the_base_measured() {
    let costs = load("x7-2l-52c-8nvme").costs;
    let each = |busy: f64, pages: f64| busy * 300.0 * 1e9 / pages;
    let few = each(0.2856 + 0.2703, 459_316_976.0);
    let measured = f64::midpoint(few, each(0.6933 + 0.6966, 872_661_643.0));
    let whole = costs.unmap_page + delisted(&costs) + 3 * line(&costs);
    assert_within("a page freed", whole as f64, measured * 0.9, measured * 1.1);
}

#[test]
fn cpus_are_numbered_as_linux_does() {
    use highwater_units::{CpuId, NodeId};
    let x7 = load("x7-2l-52c-8nvme");
    for (cpu, socket, sibling) in [(0, 0, 52), (25, 0, 77), (26, 1, 78), (52, 0, 0), (103, 1, 51)] {
        assert_eq!(x7.socket_of(CpuId(cpu)), socket);
        assert_eq!(x7.node_of(CpuId(cpu)), NodeId(socket as u8));
        assert_eq!(x7.sibling_of(CpuId(cpu)), Some(CpuId(sibling)));
    }
    assert_eq!(load("desktop-2012-kvm").sibling_of(CpuId(3)), None);
}

#[test]
fn only_ram_disks_are_synchronous() {
    let synchronous = |m: &Machine| m.devices.iter().any(|d| d.answer == Answer::Synchronous);
    let names: Vec<String> = all().into_iter().filter(synchronous).map(|m| m.name).collect();
    assert_eq!(names, ["spr-112c-224t", "xeon-48c-2-ramdisks", "xeon-e5v3-72t-ramdisk"]);
}
