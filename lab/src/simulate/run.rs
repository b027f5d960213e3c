//! Runs an experiment.

use super::experiment::{Experiment, RunError, TIME, Workload};
use super::objects;
use super::prepare::{Files, Prepared, prepare};
use super::settings::{BadSetting, Processes, Settings};
use crate::report::simulation::SimulationFigures;
use crate::subject::Simulated;
use crate::workload::content::Content;
use crate::workload::highalloc::{self, Config as Highalloc};
use crate::workload::outcome::{Failure, Outcome};
use crate::workload::pmbench::{self, Config as Pmbench, Sharing};
use crate::workload::streams::{self, Config as Streams};
use crate::workload::usemem::{self, Config as Usemem, Kind};
use highwater_sim::{Finished, InjectedFaults, Limits, Setup, Sim, SimConfig, Trace, Vm, simulate};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// A run that ended normally: all contents were right, and all structures sound.
pub struct Simulation {
    /// What it was like.
    pub figures: SimulationFigures,
    /// What every CPU did, if that was asked for.
    pub trace: Option<Trace>,
}

/// Checks that an experiment can be run, without running it.
///
/// # Errors
/// What does not fit together.
pub fn check(experiment: &Experiment) -> Result<(), BadSetting> {
    prepare(experiment).map(drop)
}

/// Runs an experiment.
///
/// # Errors
/// See [`RunError`].
///
/// # Panics
/// If the manager contradicts itself.
pub fn run(experiment: &Experiment) -> Result<Simulation, RunError> {
    let prepared = prepare(experiment).map_err(RunError::Setup)?;
    let conditions = prepared.conditions();
    let Experiment { seed, traced, ref settings, .. } = *experiment;
    let (machine, policy) = (prepared.machine.clone(), settings.policy);
    let setup = Setup { machine, seed, policy, limits: Limits::default(), holdups: 0, traced };
    let (began, inner) = (Instant::now(), experiment.clone());
    let finished = simulate(setup, move |vm| carry_out(vm, &inner, prepared));
    let real = began.elapsed();
    let Finished { result, report, trace } = finished.map_err(RunError::Stuck)?;
    let outcome = result.map_err(RunError::Failed)?;
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
    let injected_faults = Arc::new(InjectedFaults::default());
    let sim = Sim::new(vm, SimConfig { frames, devices, recency, injected_faults });
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

/// Gives files their contents: all pages of a kind share one copy in this machine's memory.
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
            let Settings { read_path, span, .. } = experiment.settings;
            let (warm_up, time) = (Duration::from_secs_f64(warm_up), time.unwrap_or(TIME));
            let Files::Streams(layout) = files else { unreachable!("streams have files") };
            Program::Streams(Streams { threads, layout, read_path, span, warm_up, time, seed })
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
