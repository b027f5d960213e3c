//! Machines and platforms for tests.

use highwater_platform::Recency;
use highwater_sim::machine::{Answer, DeviceSpec, Machine, Role};
use highwater_sim::{InjectedFaults, Limits, Policy, Setup, Sim, SimConfig, Traced, Vm};
use std::sync::Arc;

/// A machine of `sockets` sockets with `cores` single-threaded cores each, and one node per socket.
/// Its costs are round figures, so that closed forms are easy.
pub(crate) fn machine(sockets: u16, cores: u16) -> Machine {
    let memory = vec!["64"; usize::from(sockets)].join(", ");
    let text = format!(
        "name = \"test\"\nabout = \"round figures\"\nsockets = {sockets}\n\
         cores_per_socket = {cores}\nthreads_per_core = 1\nsmt_slowdown = 1.6\n\
         node_mib = [{memory}]\n{COSTS}"
    );
    Machine::load(&text).expect("a machine")
}

const COSTS: &str = "
[costs]
atomic = 5
line_near = 50
line_far = 130
lock = 10
handover_near = 100
handover_far = 300
section_lines = 0
fault = 400
memory = 90
remote_factor = 1.6
zero_page = 200
copy_page = 300
map_page = 50
unmap_page = 150
scan = 8
shootdown = 1000
shootdown_target = 200
shootdown_interrupt = 500
context_switch = 1500
wake = 1000
wake_latency = 2000
slice = 3000000
io_submit = 2000
io_complete = 1000
io_synchronous = 300

[costs.sections]
default = { base = 20, item = 10 }
slab_sheaf = { base = 10, item = 2 }
slab_cpu = { base = 15, item = 5 }
list_lock = { base = 30, item = 20 }
slab_records = { base = 20, item = 5 }
test = { base = 200, item = 100 }
";

/// A device with one channel and a bus of negligible cost.
pub(crate) fn device(answer: Answer) -> DeviceSpec {
    DeviceSpec {
        name: "device".into(),
        role: Role::Swap,
        node: 0,
        mib: 64,
        answer,
        read_latency: 80_000,
        write_latency: 20_000,
        read_mb_per_s: 100_000_000,
        write_mb_per_s: 100_000_000,
        channels: 1,
        buses: 1,
        stripe_kib: 0,
        seek: 0,
        priority: 0,
    }
}

/// A setup that runs `machine` in time order.
pub(crate) fn setup(machine: Machine, seed: u64) -> Setup {
    let (policy, limits) = (Policy::SmallestClock, Limits::default());
    Setup { machine, seed, policy, limits, holdups: 0, traced: Traced::Off }
}

/// A platform of `frames` frames on every node and `devices` of `pages` pages, without faults.
pub(crate) fn platform(
    vm: &Vm,
    frames: Vec<u32>,
    devices: &[DeviceSpec],
    pages: u32,
    recency: Recency,
) -> Sim {
    let devices = devices.iter().map(|spec| (spec.clone(), pages)).collect();
    let injected_faults = Arc::new(InjectedFaults::default());
    Sim::new(vm, SimConfig { frames, devices, recency, injected_faults })
}
