//! Workloads on simulated machines.
//!
//! ```text
//! Experiment: machine, tasks, seed, time, Settings ── run ──> Simulation: figures, trace
//!   machine scaled ── simulate ──> Simulated: Manager<Sim> ── workload's run ──> Outcome
//! ```
//! Nothing is shared between runs: equal experiments give equal figures, but for the time of the
//! host.

mod objects;
mod prepare;
mod settings;

pub use prepare::Conditions;
pub use settings::{BadSetting, KEYS, Key, Processes, Scale, Settings};

use crate::report::simulation::SimulationFigures;
use crate::subject::Simulated;
use crate::workload::content::Content;
use crate::workload::highalloc::{self, Config as Highalloc};
use crate::workload::history::History;
use crate::workload::outcome::{Failure, Outcome};
use crate::workload::pmbench::{self, Config as Pmbench, Sharing};
use crate::workload::streams::{self, Config as Streams};
use crate::workload::usemem::{self, Config as Usemem, Kind};
use highwater_sim::{Finished, Limits, Machine, Setup, Sim, SimConfig, Trace, Traced, Troubles};
use highwater_sim::{Stuck, Vm, simulate};
use highwater_units::Nanos;
use prepare::{Files, Prepared, prepare};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// How long tasks run that would go on without end, or nearly so.
const TIME: Duration = Duration::from_secs(2);

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Tasks that read and write random words of a set larger than memory.
    Pmbench,
    /// Tasks that write all of the set once, in sequence.
    UsememSeq,
    /// Tasks that write random words of the set.
    UsememRand,
    /// Tasks that read what was swapped out, in the order of `pattern`.
    SwapIn,
    /// Tasks that read files from end to end.
    Streams,
    /// Tasks that map and unmap: objects from slabs.
    Mmap1,
    /// Groups of tasks that send each other messages: likewise.
    Hackbench,
    /// Large blocks, while so many kernels are built.
    Highalloc,
}

impl Workload {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Pmbench => "pmbench",
            Workload::UsememSeq => "usemem-seq",
            Workload::UsememRand => "usemem-rand",
            Workload::SwapIn => "swapin",
            Workload::Streams => "streams",
            Workload::Mmap1 => "mmap1",
            Workload::Hackbench => "hackbench",
            Workload::Highalloc => "highalloc",
        }
    }

    /// Bytes of this machine that it takes to know what the set must hold; of files also what they
    /// hold, and which pages are where.
    fn bookkeeping_bytes(self, tasks: usize, pages: u64) -> u64 {
        match self {
            Workload::Pmbench => History::bytes(tasks, pages),
            Workload::UsememSeq | Workload::UsememRand | Workload::SwapIn => {
                usemem::bookkeeping_bytes(pages)
            }
            Workload::Streams | Workload::Highalloc => pages * streams::BOOKS_BYTES,
            Workload::Mmap1 | Workload::Hackbench => 0,
        }
    }

    /// Whether it is of objects, not of pages: there is no manager then.
    fn is_of_objects(self) -> bool {
        matches!(self, Workload::Mmap1 | Workload::Hackbench)
    }
}

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The machine, whole.
    pub machine: Machine,
    /// What runs on it.
    pub workload: Workload,
    /// How many tasks.
    pub tasks: usize,
    /// Fixes contents, accesses, and all that the simulator draws.
    pub seed: u64,
    /// How long the tasks run at most, in virtual time; none for 2 s, but for as long as it takes
    /// where a pass is soon done: usemem-seq.
    pub time: Option<Nanos>,
    /// Everything else.
    pub settings: Settings,
    /// Whether to keep a trace.
    pub traced: Traced,
}

/// A run that came to its end. All contents were right, and all structures sound.
pub struct Simulation {
    /// What it was like.
    pub figures: SimulationFigures,
    /// What every CPU did, if that was asked for.
    pub trace: Option<Trace>,
}

/// Why there are no figures.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// The experiment cannot be made: what is wrong, and what to do.
    Setup(BadSetting),
    /// Contents were wrong, or a page could not be had.
    Failed(Failure),
    /// The simulation did not come to its end.
    Stuck(Stuck),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Setup(bad) => bad.fmt(f),
            Trouble::Failed(failure) => failure.fmt(f),
            Trouble::Stuck(stuck) => write!(f, "the simulation is stuck: {stuck}"),
        }
    }
}

/// Says whether an experiment can be run, without running it.
///
/// # Errors
/// What does not fit together.
pub fn check(experiment: &Experiment) -> Result<(), BadSetting> {
    prepare(experiment).map(drop)
}

/// Runs an experiment.
///
/// # Errors
/// See [`Trouble`].
///
/// # Panics
/// If the manager contradicts itself.
pub fn run(experiment: &Experiment) -> Result<Simulation, Trouble> {
    let prepared = prepare(experiment).map_err(Trouble::Setup)?;
    let conditions = prepared.conditions();
    let Experiment { seed, traced, ref settings, .. } = *experiment;
    let (machine, policy) = (prepared.machine.clone(), settings.policy);
    let setup = Setup { machine, seed, policy, limits: Limits::default(), holdups: 0, traced };
    let (began, inner) = (Instant::now(), experiment.clone());
    let finished = simulate(setup, move |vm| carry_out(vm, &inner, prepared));
    let real = began.elapsed();
    let Finished { result, report, trace } = finished.map_err(Trouble::Stuck)?;
    let outcome = result.map_err(Trouble::Failed)?;
    let figures = SimulationFigures::of(experiment, conditions, &outcome, &report, real);
    Ok(Simulation { figures, trace })
}

/// The experiment's main thread.
fn carry_out(vm: &Vm, experiment: &Experiment, prepared: Prepared) -> Result<Outcome, Failure> {
    if experiment.workload.is_of_objects() {
        return Ok(objects::carry_out(vm, experiment, &prepared));
    }
    let recency = experiment.settings.recency;
    let Prepared { frames, config, devices, rooms, files, .. } = prepared;
    let troubles = Arc::new(Troubles::default());
    let sim = Sim::new(vm, SimConfig { frames, devices, recency, troubles });
    write_files(&sim, &files, experiment.seed);
    let subject = Simulated::start(vm, sim, config, &rooms);
    let subject = subject.expect("settings and spaces were checked, and virtual threads abound");
    let outcome = match program(experiment, files) {
        Program::Pmbench(config) => pmbench::run(&subject, &config),
        Program::Usemem(config) => usemem::run(&subject, &config),
        Program::Streams(config) => streams::run(&subject, &config),
        Program::Highalloc(config) => highalloc::run(&subject, &config),
    };
    // Wrong contents are the better message of the two.
    outcome.inspect(|_| subject.verify())
}

/// What the tasks run, in the workload's own terms.
enum Program {
    Pmbench(Pmbench),
    Usemem(Usemem),
    Streams(Streams),
    Highalloc(Highalloc),
}

/// Gives files their contents: pages of a kind are one in this machine's memory.
fn write_files(sim: &Sim, files: &Files, seed: u64) {
    if files.devices() == 0 {
        return;
    }
    let content = Content::new(seed);
    let word = |kind, word| AtomicU64::new(streams::word_of(content, kind, word));
    let page = |kind| Arc::new(std::array::from_fn(|at| word(kind, at)));
    let kinds: Vec<_> = (0..streams::KINDS).map(page).collect();
    for device in 0..files.devices() {
        let first = device as u64 * files.device_pages();
        let kind = |slot: u32| streams::kind_of(first + u64::from(slot)) as usize;
        sim.preset(device as u8, |slot| kinds[kind(slot)].clone());
    }
}

fn program(experiment: &Experiment, files: Files) -> Program {
    let Experiment { tasks: threads, seed, .. } = *experiment;
    let Settings { read_percent, pattern, ahead, warm_up, processes, .. } = experiment.settings;
    let time = experiment.time.map(|time| Duration::from_nanos(time.0));
    let soon = Some(time.unwrap_or(TIME));
    let usemem = |kind, time| Program::Usemem(Usemem { kind, threads, time, seed });
    match experiment.workload {
        Workload::Streams => {
            let Settings { way, span, .. } = experiment.settings;
            let (warm_up, time) = (Duration::from_secs_f64(warm_up), time.unwrap_or(TIME));
            let Files::Streams(layout) = files else { unreachable!("streams have files") };
            Program::Streams(Streams { threads, layout, way, span, warm_up, time, seed })
        }
        Workload::Highalloc => {
            let Files::Highalloc(config) = files else { unreachable!("builds have files") };
            Program::Highalloc(config)
        }
        Workload::UsememSeq => usemem(Kind::WriteSequential, time),
        Workload::UsememRand => usemem(Kind::WriteRandom, soon),
        Workload::SwapIn => usemem(Kind::SwapIn(pattern), soon),
        Workload::Pmbench => {
            let sharing = match processes {
                Processes::One => Sharing::Shared,
                Processes::PerTask => Sharing::Private,
            };
            let (warm_up, time) = (Duration::from_secs_f64(warm_up), time.unwrap_or(TIME));
            let config =
                Pmbench { threads, read_percent, pattern, sharing, ahead, warm_up, time, seed };
            Program::Pmbench(config)
        }
        Workload::Mmap1 | Workload::Hackbench => unreachable!("objects have no pages"),
    }
}

#[cfg(test)]
mod tests;
