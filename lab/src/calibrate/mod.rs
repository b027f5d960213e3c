//! Derives the calibrated costs of a machine again, from published values of bases alone. A base is
//! the version before a published change.
//!
//! ```text
//! [[calibrated]] of the machine's file: costs, where they are searched, base values that fix them
//!    |  reproduce::base_values: what was published of bases; the only published values here
//!    v
//! Search (search, surrogate) at a coarse scale, then at a fine one ──> Found: best, ends
//!    v
//! Calibration (report): residuals, what the base allows, and changes that follow: an interval
//! ```
//! Tables of later versions are never parsed: `reproduce` does not hand them out.

mod report;
mod search;
mod surrogate;

pub use report::{Calibration, CostRange, Prediction, Residual};
pub use search::Axis;

use crate::report::simulation::SimulationFigures;
use crate::reproduce::{BaseValue, Ratio, Run, base_values, ratios};
use crate::simulate::{self, BadSetting, RunError};
use highwater_sim::Machine;
use highwater_sim::machine::Calibrated;
use search::{Found, Search, Tried};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

/// The coarse scale is the largest of these multiples of the fine one at which the sets fit.
const COARSER: [u64; 3] = [4, 2, 1];

/// The largest number of simulations at the same time: each takes memory of the host.
const RUNS_MAX: usize = 4;

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The fine scale; `None` for the coarsest at which the experiments are run.
    pub scale: Option<u64>,
    /// Rounds at the coarse scale, and at the fine one.
    pub rounds: [usize; 2],
    /// Divisor of the experiments' warm-up and measured time: with less memory, a run reaches its
    /// steady state sooner.
    pub shorter: f64,
}

/// A search in a machine's file.
struct Task<'a> {
    text: &'a str,
    machine: Machine,
    shorter: f64,
    targets: Vec<BaseValue>,
}

/// Derives the costs of a machine again. `text` is its file. `progress` gets a line after each
/// simulation.
///
/// # Errors
/// The file has no calibrated costs, or names base values that do not exist; a simulation fails.
pub fn calibrate(
    text: &str,
    options: Options,
    progress: &(impl Fn(&str) + Sync),
) -> Result<Calibration, RunError> {
    let task = Task::new(text, options.shorter).map_err(RunError::Setup)?;
    let axis =
        |one: &Calibrated| Axis { least: one.search[0], most: one.search[1], step: one.step };
    let axes: Vec<Axis> = task.machine.calibrated.iter().map(axis).collect();
    let published: Vec<f64> = task.targets.iter().map(|value| value.published).collect();
    let own = task.targets.iter().map(|value| value.run().scale()).max().expect("there are some");
    let fine = options.scale.unwrap_or(own);
    let search = |rounds, known: &[Tried], scale| {
        let search = Search { axes: &axes, published: &published, rounds };
        search.run(known, |points| task.measure(points, scale, progress))
    };
    let [first, last] = options.rounds;
    let scale = task.coarse(fine);
    let (coarse, tried) = if scale == fine {
        (Vec::new(), search(first + last, &[], fine)?)
    } else {
        let coarse = search(first, &[], scale)?;
        let tried = search(last, &coarse, fine)?;
        (coarse, tried)
    };
    let found = search::found(&tried);
    let predicted = task.predict(&found, fine, progress)?;
    let simulations = coarse.len() + tried.len();
    Ok(task.report(&found, predicted, fine, simulations))
}

impl<'a> Task<'a> {
    fn new(text: &'a str, shorter: f64) -> Result<Task<'a>, BadSetting> {
        let bad = |what: String, remedy: &str| BadSetting { what, remedy: remedy.into() };
        let machine = Machine::load(text)
            .map_err(|defects| bad(defects.replace('\n', "; "), "correct the file"))?;
        let name = &machine.name;
        if machine.calibrated.is_empty() {
            let what = format!("{name} has no [[calibrated]] costs: no published value is of it");
            return Err(bad(what, "use another machine"));
        }
        let all = base_values(name);
        let named = |name: &String| {
            let found = all.iter().find(|value| value.name() == *name).copied();
            found.ok_or_else(|| {
                let names: Vec<String> = all.iter().map(BaseValue::name).collect();
                let what = format!("'{name}' is no published value of a base on {}", machine.name);
                bad(what, &format!("use {}", names.join("; ")))
            })
        };
        let mut names: Vec<&String> = machine.calibrated.iter().flat_map(|one| &one.by).collect();
        names.sort();
        names.dedup();
        let targets = names.into_iter().map(named).collect::<Result<_, _>>()?;
        Ok(Task { text, machine, shorter, targets })
    }

    /// The machine with other costs, and settings of the experiment.
    fn with(&self, at: &[u64]) -> (Machine, Vec<String>) {
        let all = || self.machine.calibrated.iter().zip(at);
        let costs: Vec<(&str, u64)> = all()
            .filter(|(one, _)| one.setting().is_none())
            .map(|(one, to)| (one.cost.as_str(), *to))
            .collect();
        let setting = |(one, to): (&Calibrated, &u64)| Some(format!("{}={to}", one.setting()?));
        let machine = Machine::load_with(self.text, &costs);
        (
            machine.expect("costs are searched where a machine is sound"),
            all().filter_map(setting).collect(),
        )
    }

    fn coarse(&self, fine: u64) -> u64 {
        let fits = |scale: u64| {
            let check = |value: &BaseValue| {
                let experiment = value.run().at(self.machine.clone(), scale, &[]);
                experiment.and_then(|experiment| simulate::check(&experiment)).is_ok()
            };
            self.targets.iter().all(check)
        };
        COARSER.map(|by| fine * by).into_iter().find(|scale| fits(*scale)).unwrap_or(fine)
    }

    /// The values of the targets at each point.
    fn measure(
        &self,
        points: &[Vec<u64>],
        scale: u64,
        progress: &(impl Fn(&str) + Sync),
    ) -> Result<Vec<Vec<f64>>, RunError> {
        let runs: Vec<Run> = self.targets.iter().map(BaseValue::run).collect();
        let jobs = points.iter().flat_map(|at| runs.iter().map(|run| (at.clone(), *run)));
        let figures = self.simulate(jobs.collect(), scale, progress)?;
        let value = |at: &Vec<u64>, value: &BaseValue| {
            value.take(&figures[&(at.clone(), value.run().name())])
        };
        Ok(points
            .iter()
            .map(|at| self.targets.iter().map(|one| value(at, one)).collect())
            .collect())
    }

    /// Simulations of runs at points, each once; some at a time.
    fn simulate(
        &self,
        jobs: Vec<(Vec<u64>, Run)>,
        scale: u64,
        progress: &(impl Fn(&str) + Sync),
    ) -> Result<BTreeMap<(Vec<u64>, String), SimulationFigures>, RunError> {
        let named = jobs.into_iter().map(|(at, run)| ((at, run.name()), run));
        let jobs: BTreeMap<(Vec<u64>, String), Run> = named.collect();
        let left = Mutex::new(jobs.iter());
        let done = Mutex::new(BTreeMap::new());
        let failure = Mutex::new(None);
        let one = |at: &[u64], run: &Run| {
            let (machine, settings) = self.with(at);
            let experiment = run.at(machine, scale, &settings).map_err(RunError::Setup)?;
            let experiment = experiment.shortened(self.shorter);
            Ok(simulate::run(&experiment)?.figures)
        };
        let take = || left.lock().expect("no panic").next();
        let work = || {
            while let Some((key, run)) = take() {
                match one(&key.0, run) {
                    Ok(figures) => {
                        progress(&format!("{} at {:?}, scale {scale}", key.1, key.0));
                        done.lock().expect("no panic").insert(key.clone(), figures);
                    }
                    Err(error) => return *failure.lock().expect("no panic") = Some(error),
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(RUNS_MAX);
        thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        match failure.into_inner().expect("no panic") {
            Some(error) => Err(error),
            None => Ok(done.into_inner().expect("no panic")),
        }
    }

    /// The changes that experiments on the machine predict, at the best point and at both ends of
    /// each cost that the base does not fix.
    fn predict(
        &self,
        found: &Found<'_>,
        scale: u64,
        progress: &(impl Fn(&str) + Sync),
    ) -> Result<Vec<Prediction>, RunError> {
        let tasks: Vec<usize> = self.targets.iter().map(|value| value.run().tasks()).collect();
        let ratios = ratios(&self.machine.name, &tasks);
        let is_open = |(axis, ends): &(usize, &[&Tried; 2])| {
            !report::is_fixed(ends.map(|point| point.at[*axis]))
        };
        let ends = found.ends.iter().enumerate().filter(is_open).flat_map(|(_, ends)| ends);
        let points: Vec<&Tried> = [found.best].into_iter().chain(ends.copied()).collect();
        let both = |ratio: &Ratio| [ratio.base, ratio.improved];
        let runs: Vec<Run> = ratios.iter().flat_map(both).collect();
        let jobs = points.iter().flat_map(|point| runs.iter().map(|run| (point.at.clone(), *run)));
        let figures = self.simulate(jobs.collect(), scale, progress)?;
        let at = |ratio: &Ratio, point: &Tried| {
            let of = |run: &Run| &figures[&(point.at.clone(), run.name())];
            ratio.take(of(&ratio.base), of(&ratio.improved))
        };
        let prediction = |ratio: &Ratio| {
            let all: Vec<f64> = points.iter().filter_map(|point| at(ratio, point)).collect();
            let best = at(ratio, found.best)?;
            let [least, most] = [f64::min, f64::max].map(|of| all.iter().copied().fold(best, of));
            Some(Prediction { change: ratio.name(), best, least, most })
        };
        Ok(ratios.iter().filter_map(prediction).collect())
    }

    fn report(
        &self,
        found: &Found<'_>,
        predictions: Vec<Prediction>,
        scale: u64,
        simulations: usize,
    ) -> Calibration {
        let cost = |(at, one): (usize, &Calibrated)| CostRange {
            cost: one.cost.clone(),
            in_file: Machine::cost_in(self.text, &one.cost),
            search: one.search,
            best: found.best.at[at],
            allowed: found.ends[at].map(|point| point.at[at]),
        };
        let residual = |(value, measured): (&BaseValue, &f64)| Residual {
            value: value.name(),
            unit: value.unit().into(),
            published: value.published,
            best: *measured,
        };
        Calibration {
            machine: self.machine.name.clone(),
            scale,
            shorter: self.shorter,
            simulations,
            bound: found.bound,
            costs: self.machine.calibrated.iter().enumerate().map(cost).collect(),
            residuals: self.targets.iter().zip(&found.best.values).map(residual).collect(),
            predictions,
        }
    }
}

#[cfg(test)]
mod tests;
