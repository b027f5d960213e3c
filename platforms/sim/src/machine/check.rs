//! Validates a machine description: one line per defect, with the key and the remedy.
//!
//! A machine that passes can be simulated: sizes fit the types of the contract, and no cost stops a
//! clock or keeps a device from completing a transfer.

use super::description::{
    Answer, CPUS_MAX, Costs, DEVICES_MAX, DeviceSpec, Machine, NODES_MAX, Section,
};
use highwater_units::PAGE_SIZE;
use std::collections::HashSet;

/// Limit of memory and device sizes: frame and slot numbers have 32 bits.
const MIB_MAX: u64 = 1 << 24;

/// The largest cost, ns: a second must be a wrong unit.
const COST_MAX: u64 = 1_000_000_000;

/// The most cache lines that move with a lock: more than a page holds must be a mistake.
const LINES_MAX: u64 = 64;

/// Returns one line per defect; none if the machine can be simulated.
pub(super) fn defects(machine: &Machine) -> Vec<String> {
    let mut found = Defects(Vec::new());
    names(machine, &mut found);
    processors(machine, &mut found);
    memory(machine, &mut found);
    costs(&machine.costs, &mut found);
    sections(&machine.costs, &mut found);
    devices(machine, &mut found);
    found.0
}

struct Defects(Vec<String>);

impl Defects {
    /// Adds `line` unless `holds`.
    fn unless(&mut self, holds: bool, line: impl FnOnce() -> String) {
        if !holds {
            self.0.push(line());
        }
    }
}

fn names(machine: &Machine, found: &mut Defects) {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let name = &machine.name;
    found.unless(!name.is_empty() && name.chars().all(plain), || {
        format!("name = {name:?}: use lower case letters, digits and dashes")
    });
    found.unless(!machine.about.trim().is_empty(), || {
        "about is empty: say in a line what the machine is and who measured on it".to_owned()
    });
}

fn processors(machine: &Machine, found: &mut Defects) {
    let Machine { sockets, cores_per_socket, threads_per_core, smt_slowdown, .. } = *machine;
    found.unless(sockets > 0, || "sockets = 0: a machine has at least 1".to_owned());
    found.unless(cores_per_socket > 0, || {
        "cores_per_socket = 0: a socket has at least 1".to_owned()
    });
    found.unless(matches!(threads_per_core, 1 | 2), || {
        format!("threads_per_core = {threads_per_core}: a core has 1 or 2")
    });
    let cpus = machine.cpus();
    found.unless(cpus <= CPUS_MAX, || {
        format!("sockets x cores_per_socket x threads_per_core = {cpus}: at most {CPUS_MAX}")
    });
    found.unless((1.0..=2.0).contains(&smt_slowdown), || {
        format!(
            "smt_slowdown = {smt_slowdown}: from 1.0 (threads as good as cores) to 2.0 (useless)"
        )
    });
}

fn memory(machine: &Machine, found: &mut Defects) {
    let (nodes, cores) = (machine.node_mib.len(), machine.cores());
    found.unless(nodes > 0, || "node_mib is empty: give the MiB of at least one node".to_owned());
    found.unless(nodes <= cores.min(NODES_MAX), || {
        format!("node_mib has {nodes} nodes: at most one per core ({cores}), and {NODES_MAX}")
    });
    for (node, mib) in machine.node_mib.iter().enumerate() {
        found.unless(*mib > 0, || format!("node_mib[{node}] = 0: leave the node out, or give it"));
    }
    let all = machine.node_mib.iter().fold(0, |sum: u64, mib| sum.saturating_add(*mib));
    found.unless(all < MIB_MAX, || {
        format!("node_mib: {all} MiB together, must be below {MIB_MAX} (16 TiB)")
    });
}

fn costs(costs: &Costs, found: &mut Defects) {
    let Costs { atomic, lock, line_near, line_far, handover_near, handover_far, .. } = *costs;
    let order = [
        ("atomic", atomic, "line_near", line_near),
        ("line_near", line_near, "line_far", line_far),
        ("atomic", atomic, "lock", lock),
        ("handover_near", handover_near, "handover_far", handover_far),
        ("shootdown_target", costs.shootdown_target, "shootdown", costs.shootdown),
        ("context_switch", costs.context_switch, "slice", costs.slice),
    ];
    for (less, low, more, high) in order {
        found.unless(low <= high, || {
            format!("costs.{less} = {low}, costs.{more} = {high}: the first must not be larger")
        });
    }
    let positive = [("atomic", atomic), ("handover_near", handover_near), ("slice", costs.slice)];
    for (key, cost) in positive {
        found.unless(cost > 0, || format!("costs.{key} = 0: time would stand still, give its ns"));
    }
    for (key, cost) in durations(costs) {
        found.unless(cost <= COST_MAX, || {
            format!("costs.{key} = {cost}: more than a second; costs are in ns")
        });
    }
    found.unless((1.0..=10.0).contains(&costs.remote_factor), || {
        format!("costs.remote_factor = {}: from 1.0 (as near) to 10.0", costs.remote_factor)
    });
    found.unless(costs.section_lines <= LINES_MAX, || {
        format!("costs.section_lines = {}: a number of lines, at most 64", costs.section_lines)
    });
}

fn durations(costs: &Costs) -> [(&'static str, u64); 23] {
    [
        ("atomic", costs.atomic),
        ("line_near", costs.line_near),
        ("line_far", costs.line_far),
        ("lock", costs.lock),
        ("handover_near", costs.handover_near),
        ("handover_far", costs.handover_far),
        ("fault", costs.fault),
        ("memory", costs.memory),
        ("zero_page", costs.zero_page),
        ("copy_page", costs.copy_page),
        ("map_page", costs.map_page),
        ("unmap_page", costs.unmap_page),
        ("scan", costs.scan),
        ("shootdown", costs.shootdown),
        ("shootdown_target", costs.shootdown_target),
        ("shootdown_interrupt", costs.shootdown_interrupt),
        ("context_switch", costs.context_switch),
        ("wake", costs.wake),
        ("wake_latency", costs.wake_latency),
        ("slice", costs.slice),
        ("io_submit", costs.io_submit),
        ("io_complete", costs.io_complete),
        ("io_synchronous", costs.io_synchronous),
    ]
}

fn sections(costs: &Costs, found: &mut Defects) {
    let default = [("default", &costs.sections.default)];
    let classes = costs.sections.classes.iter().map(|(name, section)| (name.as_str(), section));
    for (name, section) in default.into_iter().chain(classes) {
        let Section { base, item, lines } = *section;
        found.unless(base.max(item) <= COST_MAX, || {
            format!("costs.sections.{name}: more than a second; base and item are in ns")
        });
        found.unless(lines.is_none_or(|lines| lines <= LINES_MAX), || {
            format!("costs.sections.{name}: lines are a number of lines, at most {LINES_MAX}")
        });
    }
}

fn devices(machine: &Machine, found: &mut Defects) {
    let count = machine.devices.len();
    found.unless(count <= DEVICES_MAX, || {
        format!("device: {count} of them, at most {DEVICES_MAX} can be told apart")
    });
    let mut names = HashSet::new();
    for device in &machine.devices {
        let name = &device.name;
        found.unless(!name.is_empty(), || "a device's name is empty: give it one".to_owned());
        found.unless(names.insert(name), || {
            format!("device {name}: two have this name, rename one of them")
        });
        let (node, nodes) = (device.node, machine.node_mib.len());
        found.unless(usize::from(node) < nodes, || {
            format!("device {name}: node = {node}, but node_mib has {nodes}, counted from 0")
        });
        size_and_speed(device, found);
        latency(device, found);
    }
}

fn size_and_speed(device: &DeviceSpec, found: &mut Defects) {
    let DeviceSpec { name, mib, channels, .. } = device;
    found.unless((1..MIB_MAX).contains(mib), || {
        format!("device {name}: mib = {mib}, must be from 1 to below {MIB_MAX} (16 TiB)")
    });
    found.unless(*channels > 0, || {
        format!("device {name}: channels = 0, nothing would ever be transferred: at least 1")
    });
    let DeviceSpec { buses, stripe_kib, .. } = device;
    found.unless(*buses > 0, || {
        format!("device {name}: buses = 0, nothing would ever be carried: at least 1")
    });
    let whole_pages = stripe_kib.is_multiple_of(PAGE_SIZE as u64 / 1024);
    let fits = (1..MIB_MAX * 1024).contains(stripe_kib);
    found.unless(*buses <= 1 || (whole_pages && fits), || {
        format!(
            "device {name}: stripe_kib = {stripe_kib}, with several buses: pages of 4 KiB, and at \
             most the device"
        )
    });
    let speeds =
        [("read_mb_per_s", device.read_mb_per_s), ("write_mb_per_s", device.write_mb_per_s)];
    for (key, speed) in speeds {
        found.unless(speed > 0, || {
            format!("device {name}: {key} = 0, a transfer would never end: at least 1")
        });
    }
}

fn latency(device: &DeviceSpec, found: &mut Defects) {
    let name = &device.name;
    let latencies =
        [("read_latency", device.read_latency), ("write_latency", device.write_latency)];
    for (key, latency) in latencies {
        match device.answer {
            Answer::Synchronous => found.unless(latency == 0, || {
                format!(
                    "device {name}: {key} = {latency}, but the CPU copies: 0, see io_synchronous"
                )
            }),
            Answer::Asynchronous => found.unless((1..=COST_MAX).contains(&latency), || {
                format!("device {name}: {key} = {latency}, must be from 1 ns to a second")
            }),
        }
    }
    found.unless(device.seek == 0 || device.answer == Answer::Asynchronous, || {
        format!("device {name}: seek = {}, but the CPU copies: 0", device.seek)
    });
    found.unless(device.seek <= COST_MAX, || {
        format!("device {name}: seek = {}, more than a second; it is in ns", device.seek)
    });
}

#[cfg(test)]
mod tests {
    use super::super::Machine;
    use super::super::files::SMALL;

    /// Checks that the small machine with `from` replaced by `to` has exactly this one defect.
    #[track_caller]
    fn assert_defect(from: &str, to: &str, expected: &str) {
        assert_eq!(SMALL.matches(from).count(), 1, "{from:?} must be there once");
        let error = Machine::load(&SMALL.replace(from, to)).expect_err("it is broken");
        assert_eq!(error.lines().count(), 1, "one line for one defect: {error}");
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    }

    #[test]
    fn the_small_machine_is_sound() {
        Machine::load(SMALL).expect("the table below starts from a sound machine");
    }

    #[test]
    fn broken_processors_and_memory_are_told() {
        assert_defect("name = \"small\"", "name = \"Small one\"", "name = \"Small one\"");
        assert_defect("about = \"For tests\"", "about = \" \"", "about is empty");
        assert_defect("threads_per_core = 2", "threads_per_core = 4", "a core has 1 or 2");
        assert_defect("cores_per_socket = 2", "cores_per_socket = 400", "= 1600: at most 1024");
        assert_defect("smt_slowdown = 1.6", "smt_slowdown = 0.5", "smt_slowdown = 0.5");
        assert_defect("smt_slowdown = 1.6", "smt_slowdown = nan", "smt_slowdown = NaN");
        assert_defect("node_mib = [64, 32]", "node_mib = [64, 0]", "node_mib[1] = 0");
        assert_defect("[64, 32]", "[64, 32, 8, 8, 8]", "5 nodes: at most one per core (4)");
        assert_defect("[64, 32]", "[16777216, 32]", "16777248 MiB together");
    }

    #[test]
    fn nothing_at_all_is_told_too() {
        let error = Machine::load(&SMALL.replace("sockets = 2", "sockets = 0"));
        let lines = error.expect_err("no sockets, so no cores for the nodes");
        assert!(lines.contains("sockets = 0") && lines.contains("at most one per core (0)"));
        let error = Machine::load(&SMALL.replace("[64, 32]", "[]")).expect_err("no memory");
        assert!(error.contains("node_mib is empty") && error.contains("device a: node = 0"));
    }

    #[test]
    fn broken_costs_are_told() {
        assert_defect("line_near = 50", "line_near = 500", "costs.line_far = 120");
        assert_defect("line_near = 50", "line_near = 4", "costs.atomic = 5, costs.line_near = 4");
        assert_defect("handover_far = 300", "handover_far = 99", "costs.handover_near = 120");
        assert_defect("handover_near = 120", "handover_near = 0", "handover_near = 0: time would");
        assert_defect("lock = 15", "lock = 1", "costs.lock = 1: the first");
        assert_defect("shootdown_target = 200", "shootdown_target = 1001", "= 1001, costs.shootd");
        assert_defect("slice = 3000000", "slice = 3", "costs.context_switch = 1200");
        assert_defect("slice = 3000000", "slice = 3000000000", "more than a second");
        assert_defect("remote_factor = 1.5", "remote_factor = 0.9", "remote_factor = 0.9");
        assert_defect("section_lines = 4", "section_lines = 65", "at most 64");
        assert_defect("lru = { base = 40", "lru = { base = 4000000000", "costs.sections.lru");
        assert_defect("lru = { base", "lru = { lines = 65, base", "costs.sections.lru: lines");
    }

    #[test]
    fn broken_devices_are_told() {
        assert_defect("name = \"b\"", "name = \"a\"", "device a: two have this name");
        assert_defect("name = \"b\"", "name = \"\"", "name is empty");
        assert_defect("node = 1", "node = 2", "device b: node = 2, but node_mib has 2");
        assert_defect("mib = 96", "mib = 0", "device a: mib = 0");
        assert_defect("channels = 7", "channels = 7\nbuses = 0", "device b: buses = 0");
        assert_defect("channels = 7", "channels = 7\nbuses = 2", "device b: stripe_kib = 0");
        assert_defect("channels = 7", "channels = 0", "device b: channels = 0");
        assert_defect("read_mb_per_s = 2400", "read_mb_per_s = 0", "b: read_mb_per_s = 0");
        assert_defect("write_mb_per_s = 2048", "write_mb_per_s = 0", "b: write_mb_per_s = 0");
        assert_defect("read_latency = 6200", "read_latency = 0", "device b: read_latency = 0");
        assert_defect("write_latency = 0", "write_latency = 9", "device a: write_latency = 9");
        assert_defect("seek = 0", "seek = 5", "device a: seek = 5, but the CPU copies");
    }

    #[test]
    fn keys_that_mean_nothing_are_refused() {
        let misspelt = Machine::load(&SMALL.replace("io_submit", "io_submits"));
        assert!(misspelt.expect_err("no such key").contains("io_submits"));
        let unknown = Machine::load(&SMALL.replace("\"synchronous\"", "\"sometimes\""));
        assert!(unknown.expect_err("no such answer").contains("sometimes"));
    }
}
