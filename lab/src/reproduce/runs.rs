//! The runs of a study: a simulation for each variant, number of tasks and seed.

use super::options::{Event, Options};
use super::rows::Values;
use super::study::{Presentation, Quantity, Study, Variant};
use crate::machines;
use crate::report::simulation::SimulationFigures;
use crate::simulate::{self, BadSetting, RunError, Settings};
use highwater_sim::Traced;
use std::slice;
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Instant;

/// The largest number of runs of a sweep at the same time: each takes memory of the host.
const RUNS_MAX: usize = 4;

/// A variant that was run with a number of tasks, once for each seed.
pub(super) struct Measured {
    pub(super) variant: &'static Variant,
    pub(super) tasks: usize,
    pub(super) runs: Vec<SimulationFigures>,
}

impl Measured {
    /// A quantity, over all seeds.
    pub(super) fn values(&self, quantity: &Quantity) -> Values {
        Values::of(self.runs.iter().map(quantity.take)).expect("a variant was run")
    }

    /// A quantity of the first seed.
    pub(super) fn first(&self, quantity: &Quantity) -> f64 {
        (quantity.take)(&self.runs[0])
    }

    /// How a quantity compares with the base's, seed by seed; `None` where it cannot be compared.
    pub(super) fn compared(
        &self,
        base: &Measured,
        quantity: &Quantity,
        compare: fn(f64, f64) -> Option<f64>,
    ) -> Option<Values> {
        let pairs = base.runs.iter().zip(&self.runs);
        Values::of(
            pairs.filter_map(|(base, run)| compare((quantity.take)(base), (quantity.take)(run))),
        )
    }
}

/// One simulation of a study.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub(super) tasks: usize,
    pub(super) scale: u64,
    pub(super) seed: u64,
}

impl Study {
    /// Runs all variants with their numbers of tasks, in order. Runs of a sweep share nothing, and
    /// run in parallel.
    pub(super) fn measure(
        &self,
        scale: u64,
        options: Options<'_>,
        progress: &(impl Fn(Event<'_>) + Sync),
    ) -> Result<Vec<Measured>, RunError> {
        let of =
            |variant| self.rows_of(variant, options).into_iter().map(move |tasks| (variant, tasks));
        let all: Vec<(&'static Variant, usize)> = self.variants.iter().flat_map(of).collect();
        let results: Vec<OnceLock<_>> = all.iter().map(|_| OnceLock::new()).collect();
        let left = Mutex::new(all.iter().zip(&results));
        let take = || left.lock().expect("no panic").next();
        let work = || {
            while let Some(((variant, tasks), result)) = take() {
                let measured = self.runs(variant, *tasks, scale, options, progress);
                result.set(measured).unwrap_or_else(|_| unreachable!("it is taken once"));
            }
        };
        match self.presentation {
            Presentation::Comparison(_) | Presentation::Matrix { .. } => work(),
            Presentation::Sweep(_) => {
                let threads = thread::available_parallelism().map_or(1, usize::from).min(RUNS_MAX);
                thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
            }
        }
        results.into_iter().map(|result| result.into_inner().expect("all were run")).collect()
    }

    /// Runs a variant with each seed.
    pub(super) fn runs(
        &self,
        variant: &'static Variant,
        tasks: usize,
        scale: u64,
        options: Options<'_>,
        progress: &impl Fn(Event<'_>),
    ) -> Result<Measured, RunError> {
        let what = format!("{} on {}", variant.title(), self.machine);
        let run = |seed| {
            progress(Event::Began { what: &what, tasks });
            let began = Instant::now();
            let experiment = self.at(variant, Point { tasks, scale, seed });
            let experiment = experiment.map_err(RunError::Setup)?;
            let figures = match options.kept {
                Some(kept) => kept.run(&experiment),
                None => simulate::run(&experiment).map(|done| done.figures),
            };
            let figures = figures.map_err(|error| match error {
                RunError::Setup(bad) => RunError::Setup(self.refused(bad, scale)),
                other => other,
            })?;
            progress(Event::Ended { seconds: began.elapsed().as_secs_f64() });
            Ok(figures)
        };
        let runs = (1..=options.seeds.max(1)).map(run).collect::<Result<_, _>>()?;
        Ok(Measured { variant, tasks, runs })
    }

    /// The scale that is asked for, else the first of its own that fits into this machine's memory.
    ///
    /// # Errors
    /// None fits: why not, and which option of `reproduce` helps.
    pub(super) fn fits(&self, wanted: Option<u64>) -> Result<u64, BadSetting> {
        let tasks = self.tasks_of(self.base())[0];
        let mut last = None;
        for &scale in wanted.as_ref().map_or(self.scales, slice::from_ref) {
            let point = Point { tasks, scale, seed: 1 };
            match self.at(self.base(), point).and_then(|run| simulate::check(&run)) {
                Ok(()) => return Ok(scale),
                Err(bad) => last = Some(self.refused(bad, scale)),
            }
        }
        Err(last.expect("a study has a scale"))
    }

    /// A study's settings are sound, so one that is refused does not fit at this scale.
    pub(super) fn refused(&self, bad: BadSetting, scale: u64) -> BadSetting {
        let what = format!("on {} at scale {scale}: {}", self.machine, bad.what);
        let most = *self.scales.iter().max().expect("a study has a scale");
        let remedy = match scale > most {
            true => format!("give --scale {most} or less"),
            false => "give a larger --scale N".into(),
        };
        BadSetting { what, remedy }
    }

    /// A simulation of a variant.
    pub(super) fn at(
        &self,
        variant: &Variant,
        point: Point,
    ) -> Result<simulate::Experiment, BadSetting> {
        let Point { tasks, scale, seed } = point;
        let mut settings = Settings::default();
        settings.set(&format!("scale={scale}"))?;
        let texts = self.settings.iter().chain(variant.settings.iter().copied().flatten());
        texts.copied().try_for_each(|text| settings.set(text))?;
        Ok(simulate::Experiment {
            machine: machines::find(self.machine).expect("a test finds them all"),
            workload: self.workload,
            tasks,
            seed,
            time: self.time,
            settings,
            traced: Traced::Off,
        })
    }
}
