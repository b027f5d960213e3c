//! Workloads on simulated machines.
//!
//! ```text
//! Experiment: machine, tasks, seed, time, Settings ── run ──> Simulation: figures, trace
//!   machine scaled ── simulate ──> Simulated: Manager<Sim> ── pmbench::run ──> Outcome
//! ```
//! Nothing is shared between runs: equal experiments give equal figures, but for the time of the
//! host.

mod prepare;
mod settings;

pub use prepare::Conditions;
pub use settings::{BadSetting, KEYS, Key, Processes, Scale, Settings};

use crate::report::simulation::SimulationFigures;
use crate::subject::Simulated;
use crate::workload::pmbench::{self, Config as Pmbench, Failure, Outcome, Sharing};
use highwater_sim::{Finished, Limits, Machine, Setup, Sim, SimConfig, Trace, Traced, Troubles};
use highwater_sim::{Stuck, Vm, simulate};
use highwater_units::Nanos;
use prepare::{Prepared, prepare};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Tasks that read and write random words of a set larger than memory.
    Pmbench,
}

impl Workload {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Pmbench => "pmbench",
        }
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
    /// How long the tasks run, in virtual time.
    pub time: Nanos,
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
    let setup = Setup { machine, seed, policy, limits: Limits::default(), traced };
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
    let Settings { read_percent, pattern, processes, recency, .. } = experiment.settings;
    let Prepared { frames, config, devices, spaces, pages_each, .. } = prepared;
    let troubles = Arc::new(Troubles::default());
    let sim = Sim::new(vm, SimConfig { frames, devices, recency, troubles });
    let subject = Simulated::start(vm, sim, config, spaces, pages_each);
    let subject = subject.expect("settings and spaces were checked, and virtual threads abound");
    let sharing = match processes {
        Processes::One => Sharing::Shared,
        Processes::PerTask => Sharing::Private,
    };
    let outcome = match experiment.workload {
        Workload::Pmbench => {
            let Experiment { tasks: threads, seed, time, .. } = *experiment;
            let time = Duration::from_nanos(time.0);
            let config = Pmbench { threads, read_percent, pattern, sharing, time, seed };
            pmbench::run(&subject, &config)
        }
    };
    // Wrong contents are the better message of the two.
    outcome.inspect(|_| subject.verify())
}

#[cfg(test)]
mod tests;
