//! The machine file of this computer: each value with its unit and its source.
//!
//! ```text
//! Machine ── times, disk ──> File: key, value, unit, source ──> text, and counts by source
//! ```

use super::costs::{Number, Source, costs};
use super::{Shape, Times, times};
use crate::peer::disk::{self, DiskError, Speeds};
use highwater_sim::machine::{Costs, Machine as Simulated, Section};
use highwater_units::{Bytes, PAGE_SIZE};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// The column of comments, and that of comments to long values.
const COMMENT: usize = 30;
const LATER_COMMENT: usize = 44;

/// The part of a directory that is measured.
const MEASURED: Bytes = Bytes(128 << 20);

/// Files with the shortest time slice, in ns, of new kernels first.
const SLICES: [&str; 3] = [
    "/sys/kernel/debug/sched/base_slice_ns",
    "/sys/kernel/debug/sched/min_granularity_ns",
    "/proc/sys/kernel/sched_min_granularity_ns",
];

/// A directory that the simulated machine swaps to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The directory.
    pub dir: PathBuf,
    /// Its size; `None`: the free room, at most twice the memory.
    pub size: Option<Bytes>,
}

/// A machine file that is wanted.
#[derive(Debug)]
pub struct Machine<'a> {
    /// Its name: lower case letters, digits and dashes.
    pub name: &'a str,
    /// This computer.
    pub shape: &'a Shape,
    /// The machine whose values are copied where none can be measured.
    pub other: &'a Simulated,
    /// A directory to measure; `None`: swap is a RAM disk.
    pub swap: Option<&'a Swap>,
    /// The longest time for costs, and for the directory.
    pub time: Duration,
}

/// The text of a machine file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The text.
    pub text: String,
    /// The number of values that were measured.
    pub measured: usize,
    /// The number of values of the other machine.
    pub taken: usize,
}

impl Machine<'_> {
    /// Measures this computer.
    ///
    /// # Errors
    /// There is no memory or thread to measure with, or the directory cannot be used.
    pub fn measure(&self) -> Result<Written, DiskError> {
        let times = times(self.shape, self.time)?;
        let speeds = |swap: &Swap| disk::speeds(&swap.dir, MEASURED, self.time / 4);
        let speeds = self.swap.map(speeds).transpose()?;
        let mut file = File::new(&self.other.name);
        self.head(&mut file, &times);
        file.title("[costs]");
        let costs = costs(&times, slice(&self.other.costs), &self.other.costs);
        costs.iter().for_each(|(key, cost)| file.number(key, cost, "ns"));
        self.rest_of_costs(&mut file, &times);
        file.title("[costs.sections]");
        self.sections(&mut file);
        file.title("[[device]]");
        match self.swap.zip(speeds) {
            Some((swap, speeds)) => self.directory(&mut file, swap, &speeds, &costs),
            None => self.ram_disk(&mut file, &times),
        }
        Ok(file.written)
    }

    fn memory_mib(&self) -> u64 {
        self.shape.node_mib().iter().sum()
    }

    fn head(&self, file: &mut File, times: &Times) {
        let Machine { name, shape, other, .. } = self;
        let (cpus, gib) = (shape.ids().len(), self.memory_mib() as f64 / 1024.0);
        let about = format!("{}, {cpus} CPUs, {gib:.1} GiB", shape.model);
        file.text("name", name, Source::Given("by the command line"));
        file.text("about", &about, Source::System("/proc/cpuinfo, and what is below"));
        let counts = [
            ("sockets", shape.sockets(), "packages"),
            ("cores_per_socket", shape.cores_per_socket(), "cores"),
            ("threads_per_core", shape.threads_per_core(), "hardware threads"),
        ];
        for (key, count, unit) in counts {
            let number = Number::of(count as u64, Source::System("/sys/devices/system/cpu"));
            file.number(key, &number, unit);
        }
        let slowdown = times.smt_slowdown.map(|ratio| ratio.clamp(1.0, 2.0));
        let beside = "arithmetic on both threads of a core";
        file.ratio("smt_slowdown", slowdown, beside, other.smt_slowdown);
        let source = Source::System("/sys/devices/system/node");
        file.line("node_mib", &format!("{:?}", shape.node_mib()), "MiB", source);
    }

    /// Costs that are not times of this computer.
    fn rest_of_costs(&self, file: &mut File, times: &Times) {
        let other = &self.other.costs;
        match (self.shape.node_mib().len(), times.remote_factor) {
            (1, _) => file.line("remote_factor", "1.0", "a ratio", Source::System("one node")),
            (_, factor) => {
                let factor = factor.map(|factor| factor.clamp(1.0, 10.0));
                file.ratio("remote_factor", factor, "copies from two nodes", other.remote_factor);
            }
        }
        let taken = [
            ("section_lines", other.section_lines, "cache lines"),
            ("io_submit", other.io_submit, "ns"),
            ("io_complete", other.io_complete, "ns"),
            ("io_synchronous", other.io_synchronous, "ns"),
        ];
        taken.iter().for_each(|(key, value, unit)| {
            file.number(key, &Number::of(*value, Source::Taken), unit);
        });
    }

    fn sections(&self, file: &mut File) {
        let sections = &self.other.costs.sections;
        for name in std::iter::once("default").chain(sections.names()) {
            let Section { base, item, lines } = sections.of(name);
            let lines = lines.map_or(String::new(), |lines| format!(", lines = {lines}"));
            let value = format!("{{ base = {base}, item = {item}{lines} }}");
            file.line(name, &value, "ns a hold, ns an item", Source::Taken);
        }
    }

    /// A device of memory: every CPU copies.
    fn ram_disk(&self, file: &mut File, times: &Times) {
        let none = Source::Given("no --swap: a RAM disk");
        device(file, "ram0", "synchronous", none);
        let size = Source::System("as much as there is memory");
        file.number("mib", &Number::of(self.memory_mib(), size), "MiB");
        for key in ["read_latency", "write_latency"] {
            let copied = Source::Given("the CPU copies: see copy_page");
            file.number(key, &Number::of(0, copied), "ns");
        }
        let speed =
            Number::of((times.copies_mb_per_s as u64).max(1), Source::Measured("all CPUs copy"));
        file.number("read_mb_per_s", &speed, "10^6 bytes/s");
        file.number("write_mb_per_s", &speed, "10^6 bytes/s");
        let cpus = Number::of(self.shape.ids().len() as u64, Source::System("each CPU may copy"));
        file.number("channels", &cpus, "transfers");
    }

    fn directory(
        &self,
        file: &mut File,
        swap: &Swap,
        speeds: &Speeds,
        costs: &[(&'static str, Number)],
    ) {
        device(file, "dir", "asynchronous", Source::Given("by --swap dir:"));
        let mib = match swap.size {
            Some(size) => Number::of(size.0 >> 20, Source::Given("by --swap")),
            None => {
                let mib = (disk::free(&swap.dir).0 >> 20).min(2 * self.memory_mib()).max(1);
                Number::of(mib, Source::System("free there, at most twice the memory"))
            }
        };
        file.number("mib", &mib, "MiB");
        let cost = |key: &str| costs.iter().find(|(name, _)| *name == key).map_or(0, |c| c.1.value);
        let Costs { io_submit, io_complete, .. } = self.other.costs;
        // The simulator charges these to each transfer that a thread sleeps for.
        let software = io_submit + io_complete + cost("context_switch") + cost("wake_latency");
        let latency = |alone: f64, bytes: usize, mb_per_s: f64| {
            let bus = bytes as f64 * 1000.0 / mb_per_s;
            Some(alone - bus - software as f64)
        };
        let Speeds { read_alone, write_alone, write_bytes, .. } = *speeds;
        let read = latency(read_alone, PAGE_SIZE, speeds.read_mb_per_s);
        let write = latency(write_alone, write_bytes, speeds.write_mb_per_s);
        let [read, write] = [
            (read, "a read alone, less software and bus"),
            (write, "a write alone, less software and bus"),
        ]
        .map(|(ns, how)| Number::measured(ns, how, 0).at_least("1", 1));
        file.number("read_latency", &read, "ns");
        file.number("write_latency", &write, "ns");
        let speed =
            |mb_per_s: f64, how| Number::of((mb_per_s as u64).max(1), Source::Measured(how));
        let (in_sequence, written) = ("reads in sequence", "writes in sequence");
        file.number("read_mb_per_s", &speed(speeds.read_mb_per_s, in_sequence), "10^6 bytes/s");
        file.number("write_mb_per_s", &speed(speeds.write_mb_per_s, written), "10^6 bytes/s");
        let at_once = (speeds.reads_per_s * read.value as f64 / 1e9).round();
        let at_once = at_once.clamp(1.0, disk::DEPTH as f64) as u64;
        let channels = Number::of(at_once, Source::Measured("random reads/s x read_latency"));
        file.number("channels", &channels, "transfers");
    }
}

/// The first lines of both kinds of devices.
fn device(file: &mut File, name: &str, answer: &str, source: Source) {
    file.text("name", name, source.clone());
    file.text("role", "swap", source.clone());
    file.text("answer", answer, source.clone());
    file.number("node", &Number::of(0, source), "a node's number");
}

/// The shortest time slice, if the system shows it.
fn slice(other: &Costs) -> Number {
    let read = |path: &&'static str| {
        let ns = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
        Some(Number::of(ns, Source::System(path)))
    };
    SLICES.iter().find_map(read).unwrap_or(Number::of(other.slice, Source::Taken))
}

/// The lines so far.
struct File<'a> {
    other: &'a str,
    written: Written,
}

impl File<'_> {
    fn new(other: &str) -> File<'_> {
        let text = format!(
            "# This computer, by highwater-lab machine new: try simulate --machine FILE.toml.\n\
             # A value was measured by a short loop, is from the system, was given, or was taken\n\
             # from the machine {other}. docs/simulator.md explains each.\n"
        );
        File { other, written: Written { text, measured: 0, taken: 0 } }
    }

    fn title(&mut self, title: &str) {
        let _ = writeln!(self.written.text, "\n{title}");
    }

    fn line(&mut self, key: &str, value: &str, unit: &str, source: Source) {
        self.noted(key, value, unit, source, "");
    }

    fn noted(&mut self, key: &str, value: &str, unit: &str, source: Source, note: &str) {
        let source = match source {
            Source::Measured(how) => {
                self.written.measured += 1;
                format!("measured: {how}")
            }
            Source::System(place) => format!("from the system: {place}"),
            Source::Given(how) => format!("given: {how}"),
            Source::Taken => {
                self.written.taken += 1;
                format!("taken from {}", self.other)
            }
        };
        let setting = format!("{key} = {value}");
        let column = if setting.len() <= COMMENT { COMMENT } else { LATER_COMMENT };
        let _ = writeln!(self.written.text, "{setting:column$} # {unit}, {source}{note}");
    }

    fn number(&mut self, key: &str, number: &Number, unit: &str) {
        let value = number.value.to_string();
        self.noted(key, &value, unit, number.source.clone(), &number.note());
    }

    fn text(&mut self, key: &str, value: &str, source: Source) {
        self.line(key, &format!("\"{value}\""), "text", source);
    }

    fn ratio(&mut self, key: &str, measured: Option<f64>, how: &'static str, other: f64) {
        match measured {
            Some(ratio) => {
                self.line(key, &format!("{ratio:.2}"), "a ratio", Source::Measured(how));
            }
            None => self.line(key, &format!("{other:?}"), "a ratio", Source::Taken),
        }
    }
}
