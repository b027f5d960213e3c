//! A published experiment: runs its studies and collects rows, plots and conditions.

use super::options::{Curves, Event, Options};
use super::rows::Row;
use super::runs::Measured;
use super::study::{Known, Latency, Presentation, Study, Tasks};
use crate::report::latency::LatencyBucket;
use crate::report::plot::Plot;
use crate::report::simulation;
use crate::simulate::{BadSetting, RunError};
use std::collections::BTreeSet;

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

/// The results.
#[derive(Clone, Debug, Default)]
pub struct Reproduced {
    /// Published and measured values, side by side.
    pub rows: Vec<Row>,
    /// Plots, with the suffixes of their file names.
    pub plots: Vec<(String, Plot)>,
    /// Machine, workload and scale of each study.
    pub conditions: Vec<String>,
    /// Histograms of access latencies, by variant.
    pub latency: Vec<(String, Vec<LatencyBucket>)>,
    /// Simulations, without those for plots.
    pub runs: usize,
    /// The host's time that all of them took, one after the other.
    pub seconds: f64,
}

impl Experiment {
    /// Whether a document has values to compare with.
    pub fn is_published(&self) -> bool {
        let mut variants = self.studies.iter().flat_map(|study| study.variants);
        variants.any(|variant| variant.known == Known::Published)
    }

    /// The number of simulations, without those for plots.
    pub fn runs(&self, options: Options<'_>) -> usize {
        let runs = |study: &Study| -> usize {
            study.variants.iter().map(|variant| study.rows_of(variant, options).len()).sum()
        };
        self.studies.iter().map(runs).sum::<usize>() * options.seeds.max(1) as usize
    }

    /// The numbers of tasks of its rows, ascending; none if all runs of a study have the same.
    pub fn rows(&self) -> BTreeSet<usize> {
        let studies = self.studies.iter().filter(|study| study.tasks == Tasks::PerRow);
        let variants = studies.flat_map(|study| study.variants.iter().map(move |of| (study, of)));
        variants.flat_map(|(study, variant)| study.tasks_of(variant)).collect()
    }

    /// Checks that all studies fit into this machine's memory as it is now, without running them.
    ///
    /// # Errors
    /// One does not fit: the option of `reproduce` that helps.
    pub fn check(&self, scale: Option<u64>) -> Result<(), BadSetting> {
        self.studies.iter().try_for_each(|study| study.fits(scale).map(drop)).map_err(|bad| {
            BadSetting { what: format!("{} {}", self.name, bad.what), remedy: bad.remedy }
        })
    }

    /// Runs all studies.
    ///
    /// # Errors
    /// This machine has too little memory for any of the scales, or a run fails.
    pub fn reproduce(
        &self,
        options: Options<'_>,
        progress: impl Fn(Event<'_>) + Sync,
    ) -> Result<Reproduced, RunError> {
        let mut all = Reproduced::default();
        for study in self.studies {
            let scale = study.fits(options.scale).map_err(RunError::Setup)?;
            let measured = study.measure(scale, options, &progress)?;
            if measured.is_empty() {
                continue;
            }
            for figures in measured.iter().flat_map(|measured| &measured.runs) {
                all.runs += 1;
                all.seconds += figures.cost.real_seconds;
            }
            match study.presentation {
                Presentation::Comparison(latency) => {
                    all.compare(study, latency, &measured);
                    if options.curves == Curves::Plot && all.plots.is_empty() {
                        let (plot, points) = study.curves(scale, &measured, options, &progress)?;
                        all.rows.extend(points);
                        all.plots.push((String::new(), plot));
                    }
                }
                Presentation::Sweep(changes) => {
                    let mut left = measured.into_iter();
                    let mut done: Vec<Vec<Measured>> = Vec::new();
                    for variant in study.variants {
                        let runs = study.rows_of(variant, options).len();
                        if runs == 0 {
                            continue;
                        }
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
