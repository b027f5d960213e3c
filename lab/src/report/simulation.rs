//! A simulated run: what was measured, as JSON and as text.
//!
//! ```text
//! heading, throughput and latency, CPU use by role and by phase, locks, counters,
//! latency histogram, what it took to simulate
//! ```

use super::latency::{self, LatencyBucket};
use super::locks::table_of;
use crate::simulate::experiment::Experiment;
use crate::simulate::prepare::Conditions;
use crate::workload::figures::{Figures, SlabFigures, SmallWaits, TaskRates};
use crate::workload::highalloc::HighallocFigures;
use crate::workload::outcome::{Measured, Outcome};
use highwater_command::Unit;
use highwater_mm::stats::Counter;
use highwater_sim::Report;
use highwater_units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Rows of a lock table: the locks with the most wait and hold time.
const LOCK_ROWS: usize = 12;

/// Roles that used fewer CPUs are not shown: their threads only wait.
const CPUS_MIN: f64 = 0.005;

/// The figures of a simulated run. Times are virtual unless named real.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimulationFigures {
    /// The machine's name.
    pub machine: String,
    /// The workload's name.
    pub workload: String,
    /// Tasks that ran.
    pub tasks: usize,
    /// What fixed everything.
    pub seed: u64,
    /// Settings by name, as one would set them.
    pub settings: BTreeMap<String, String>,
    /// What it took place in.
    pub conditions: Conditions,
    /// Throughput, faults, latency, locks, while the tasks ran.
    pub figures: Figures,
    /// CPU time by the names of threads, while the tasks ran.
    pub roles: Vec<RoleUse>,
    /// CPU time by phase, while the tasks ran.
    pub phases: Vec<PhaseUse>,
    /// Counters by name: what was gained while the tasks ran, and gauges as they were at its end.
    pub counters: BTreeMap<String, u64>,
    /// How long accesses took; one in some was timed.
    pub latency: Vec<LatencyBucket>,
    /// What it took to simulate.
    pub cost: Cost,
}

/// How a heading describes the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tasks {
    /// The number of tasks.
    One,
    /// That there are more runs.
    Several,
}

/// CPU time of threads of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoleUse {
    /// Their name.
    pub name: String,
    /// How many there were.
    pub threads: usize,
    /// What they used together.
    pub busy_ns: u64,
    /// CPU time as a number of fully busy CPUs.
    pub cpus: f64,
}

/// CPU time by what threads did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseUse {
    /// What they did.
    pub name: String,
    /// How long.
    pub busy_ns: u64,
}

/// Filling and checking the set included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Virtual time of everything.
    pub virtual_seconds: f64,
    /// Time of this machine.
    pub real_seconds: f64,
    /// Locks taken, transfers begun, lines moved, threads woken.
    pub events: u64,
    /// Events per second of this machine.
    pub events_per_real_s: f64,
    /// Of all events and their times, as 16 hexadecimal digits: equal runs have equal hashes.
    pub hash: String,
}

impl SimulationFigures {
    /// The figures of a run that took `real` time of this machine.
    pub fn of(
        experiment: &Experiment,
        conditions: Conditions,
        outcome: &Outcome,
        report: &Report,
        real: Duration,
    ) -> SimulationFigures {
        let settings = experiment.settings.shown().into_iter();
        let seconds = outcome.measured.run.as_secs_f64();
        let roles = outcome.measured.cpu.roles.iter().map(|role| RoleUse {
            name: role.name.clone(),
            threads: role.threads,
            busy_ns: role.busy.0,
            cpus: role.busy.0 as f64 / 1e9 / seconds,
        });
        let phases = outcome.measured.cpu.phases.iter();
        let phase = |name: &str, busy: Nanos| PhaseUse { name: name.into(), busy_ns: busy.0 };
        SimulationFigures {
            machine: experiment.machine.name.clone(),
            workload: experiment.workload.name().into(),
            tasks: experiment.tasks,
            seed: experiment.seed,
            settings: settings.map(|(name, value)| (name.to_owned(), value)).collect(),
            conditions,
            figures: Figures::of(outcome),
            roles: roles.collect(),
            phases: phases.map(|(what, busy)| phase(what.name(), *busy)).collect(),
            counters: counters(&outcome.measured),
            latency: latency::buckets(&outcome.tally.latency, outcome.measured.nanos_per_tick),
            cost: Cost::of(report, real),
        }
    }

    /// All CPU time while the tasks ran, in CPUs.
    pub fn cpus_busy(&self) -> f64 {
        self.roles.iter().map(|role| role.cpus).sum()
    }

    /// Time waited for locks, over all CPU time; none without any.
    pub fn lock_share(&self) -> Option<f64> {
        let waits = self.figures.locks.iter().flatten().map(|row| row.wait_ns);
        let cpu = self.figures.cpu_ns as f64;
        (cpu > 0.0).then(|| waits.sum::<u64>() as f64 / cpu)
    }

    /// As text: all of it.
    pub fn text(&self) -> String {
        let Figures { checked_reads, swept_words, cpu_ns, .. } = self.figures;
        let locks = self.figures.locks.as_deref().unwrap_or_default();
        let parts = [
            self.heading(Tasks::One) + "\n",
            self.throughput() + &self.highalloc(),
            self.roles_table(),
            self.phases_table(),
            table_of(locks, Nanos(cpu_ns), LOCK_ROWS) + "\n",
            self.counters_table(),
            self.figures.slabs.as_deref().map_or(String::new(), SlabFigures::table),
            format!("access latency\n{}", latency::bars(&self.latency)),
            self.cost.text(self.figures.seconds)
                + &format!(
                    "contents checked: {checked_reads} reads, {swept_words} words at the end"
                ),
        ];
        parts.join("\n")
    }

    /// What was run, on two lines.
    pub fn heading(&self, tasks: Tasks) -> String {
        let SimulationFigures { machine, workload, seed, conditions, .. } = self;
        let Conditions { cpus, scale, devices, .. } = conditions;
        let tasks = match (tasks, self.tasks) {
            (Tasks::Several, _) => "several numbers of tasks".into(),
            (Tasks::One, 1) => "1 task".into(),
            (Tasks::One, tasks) => format!("{tasks} tasks"),
        };
        let devices = if devices.is_empty() { "no device".into() } else { devices.join(", ") };
        let [memory, swap, set] =
            [conditions.memory_bytes, conditions.swap_bytes, conditions.set_bytes].map(Bytes);
        format!(
            "{workload} on {machine}: {tasks} on {cpus} CPUs, seed {seed}\n\
             set {set}, memory {memory}, swap {swap} ({devices}), scale {scale}"
        )
    }

    fn throughput(&self) -> String {
        let f = &self.figures;
        let nanos = |ns: Option<u64>| ns.map(|ns| ns as f64);
        let rows = [
            ("accesses/s", Unit::Rate, Some(f.accesses_per_s)),
            ("faults/s, major", Unit::Rate, Some(f.major_faults_per_s)),
            ("faults/s, soft", Unit::Rate, Some(f.soft_faults_per_s)),
            ("tasks x time / major faults", Unit::Time, f.ns_per_major_fault_and_thread),
            ("CPU time / major faults", Unit::Time, f.cpu_ns_per_major_fault),
            ("swap in", Unit::Speed, Some(f.swap_in_gb_per_s)),
            ("swap out", Unit::Speed, Some(f.swap_out_gb_per_s)),
            ("fault latency p50", Unit::Time, nanos(f.fault_p50_ns)),
            ("fault latency p99", Unit::Time, nanos(f.fault_p99_ns)),
            ("access latency p50", Unit::Time, Some(f.access_p50_ns as f64)),
            ("access latency p99", Unit::Time, Some(f.access_p99_ns as f64)),
        ];
        let small = f.small.iter().flat_map(SmallWaits::rows);
        let tasks = f.tasks.iter().flat_map(TaskRates::rows).chain(small);
        let line = |(name, unit, figure): (&str, Unit, Option<f64>)| {
            format!("{name:32}{:>14}\n", unit.show(figure))
        };
        rows.into_iter().chain(tasks.map(|(n, unit, f)| (n, unit, Some(f)))).map(line).collect()
    }

    /// The figures of highalloc after an empty line, if there are any.
    fn highalloc(&self) -> String {
        let text = |figures: &HighallocFigures| format!("\n{}", figures.text());
        self.figures.highalloc.as_ref().map_or_else(String::new, text)
    }

    fn roles_table(&self) -> String {
        let mut text = format!("{:22}{:>11}{:>11}{:>11}\n", "CPU use", "threads", "CPUs", "each");
        let seen = self.roles.iter().filter(|role| role.cpus >= CPUS_MIN);
        for RoleUse { name, threads, cpus, .. } in seen {
            let each = Unit::Share.show(Some(cpus / *threads as f64));
            let _ = writeln!(text, "{name:22}{threads:>11}{cpus:>11.2}{each:>11}");
        }
        let (busy, all) = (self.cpus_busy(), self.conditions.cpus);
        let share = Unit::Share.show(Some(busy / all as f64));
        let _ = writeln!(text, "{:22}{all:>11}{busy:>11.2}{share:>11}", "of all CPUs");
        text
    }

    fn phases_table(&self) -> String {
        let all: u64 = self.phases.iter().map(|phase| phase.busy_ns).sum();
        let mut text = format!("{:22}{:>11}\n", "CPU time by phase", "share");
        for PhaseUse { name, busy_ns } in &self.phases {
            let share = Unit::Share.show(Some(*busy_ns as f64 / all as f64));
            let _ = writeln!(text, "{name:22}{share:>11}");
        }
        text
    }

    fn counters_table(&self) -> String {
        let counted = self.counters.iter().filter(|(_, count)| **count > 0);
        let lines = counted.map(|(name, count)| format!("{name:22}{count:>14}\n"));
        lines.fold(format!("{:22}{:>14}\n", "counters", "count"), |text, line| text + &line)
    }
}

/// What was counted while the tasks ran.
fn counters(measured: &Measured) -> BTreeMap<String, u64> {
    let count = |counter: Counter| {
        let (before, after) = (measured.before.get(counter), measured.after.get(counter));
        let count = if is_gauge(counter) { after } else { after.saturating_sub(before) };
        (counter.name().to_owned(), count)
    };
    Counter::ALL.into_iter().map(count).collect()
}

/// Whether a counter is a gauge: a level, not a number of events.
fn is_gauge(counter: Counter) -> bool {
    use Counter::{Free, Processes, Resident, SlotsUsed};
    counter.is_peak() || matches!(counter, Free | Processes | Resident | SlotsUsed)
}

impl Cost {
    fn of(report: &Report, real: Duration) -> Cost {
        let real_seconds = real.as_secs_f64();
        Cost {
            virtual_seconds: report.time.0 as f64 / 1e9,
            real_seconds,
            events: report.events,
            events_per_real_s: report.events as f64 / real_seconds,
            hash: format!("{:016x}", report.hash),
        }
    }

    /// Three lines; `measured`: virtual seconds in which the tasks ran.
    fn text(&self, measured: f64) -> String {
        let Cost { virtual_seconds, real_seconds, events, events_per_real_s, hash } = self;
        format!(
            "measured {measured:.3} of {virtual_seconds:.3} virtual s, simulated in \
             {real_seconds:.1} s\n{} events, {} in a real second, hash {hash}\n",
            Unit::Count.show(Some(*events as f64)),
            Unit::Rate.show(Some(*events_per_real_s)),
        )
    }
}
