//! A published experiment: runs its studies and collects rows, plots and conditions.

use super::rows::Row;
use super::runs::Measured;
use super::study::{Latency, Presentation, Study};
use crate::report::latency::LatencyBucket;
use crate::report::plot::Plot;
use crate::report::simulation;
use crate::simulate::RunError;

/// A published experiment.
#[derive(Debug)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, on one line.
    pub about: &'static str,
    /// What it consists of.
    pub studies: &'static [Study],
}

/// How to run an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Divisor of memory and devices; `None` for the first that fits into this machine's memory.
    pub scale: Option<u64>,
    /// Runs of each variant, with seeds 1, 2, ...; rows have the medians.
    pub seeds: u64,
    /// Whether to make plots, from runs with the first seed.
    pub curves: Curves,
}

/// Whether to make plots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curves {
    /// Rows only.
    Skip,
    /// Plots too, and the further runs that they take.
    Plot,
}

/// The results.
#[derive(Debug, Default)]
pub struct Reproduced {
    /// Published and measured values, side by side.
    pub rows: Vec<Row>,
    /// Plots, with the suffixes of their file names.
    pub plots: Vec<(String, Plot)>,
    /// Machine, workload and scale of each study.
    pub conditions: Vec<String>,
    /// Histograms of access latencies, by variant.
    pub latency: Vec<(String, Vec<LatencyBucket>)>,
}

impl Experiment {
    /// Runs all studies. `progress` gets a line and a number of tasks as runs begin and end.
    ///
    /// # Errors
    /// This machine has too little memory for any of the scales, or a run fails.
    pub fn reproduce(
        &self,
        options: Options,
        progress: impl Fn(&str, usize) + Sync,
    ) -> Result<Reproduced, RunError> {
        let mut all = Reproduced::default();
        for study in self.studies {
            let scale = options.scale.map_or_else(|| study.scale(), Ok).map_err(RunError::Setup)?;
            let measured = study.measure(scale, options.seeds, &progress)?;
            match study.presentation {
                Presentation::Comparison(latency) => {
                    all.compare(study, latency, &measured);
                    if options.curves == Curves::Plot && all.plots.is_empty() {
                        let (plot, points) = study.curves(scale, &measured, &progress)?;
                        all.rows.extend(points);
                        all.plots.push((String::new(), plot));
                    }
                }
                Presentation::Sweep(changes) => {
                    let mut left = measured.into_iter();
                    let mut done: Vec<Vec<Measured>> = Vec::new();
                    for variant in study.variants {
                        let runs = study.tasks_of(variant).len();
                        done.push(left.by_ref().take(runs).collect());
                        let heading = heading(&done[done.len() - 1], simulation::Tasks::Several);
                        all.conditions.push(format!("{}: {heading}", variant.name));
                        all.rows.extend(study.sweep(changes, &done));
                    }
                    if options.curves == Curves::Plot {
                        all.plots.extend(study.sweep_plots(&done));
                    }
                }
                Presentation::Matrix { plot } => {
                    all.conditions.push(heading(&measured, simulation::Tasks::One));
                    all.rows.extend(study.matrix(self.name, &measured));
                    if options.curves == Curves::Plot {
                        all.plots.push((String::new(), study.values_plot(plot, &measured)));
                        all.plots.push(("-ratios".into(), study.ratios_plot(&measured)));
                    }
                }
            }
        }
        Ok(all)
    }
}

impl Reproduced {
    fn compare(&mut self, study: &Study, latency: Latency, measured: &[Measured]) {
        self.conditions.push(heading(measured, simulation::Tasks::One));
        self.rows.extend(study.comparison(measured));
        if latency == Latency::Shown {
            let of = |one: &Measured| (one.variant.title(), one.runs[0].latency.clone());
            self.latency.extend(measured.iter().map(of));
        }
    }
}

/// What the first run was.
fn heading(measured: &[Measured], tasks: simulation::Tasks) -> String {
    measured[0].runs[0].heading(tasks)
}
