//! Published experiments, run again on simulated machines.
//!
//! ```text
//! Experiment: machine, workload, settings ── a run for each Variant ──> figures
//!     Quantity: taken from the figures  beside  published/*.csv ──> rows: base, improved, change
//! ```
//! One file for each experiment; it says where its settings come from. Nothing is shared between
//! runs.

mod published;
mod rows;
mod swap_2020;

pub use rows::{Role, Row, table};

use crate::machines;
use crate::report::plot::{Plot, Series};
use crate::report::simulation::SimulationFigures;
use crate::simulate::{self, BadSetting, Settings, Trouble, Workload};
use highwater_sim::Traced;
use highwater_units::Nanos;

/// What fixes everything that is drawn.
const SEED: u64 = 1;

/// A published experiment.
#[derive(Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// What it is, on one line.
    pub about: &'static str,
    /// What it ran on, among the simulated machines.
    pub machine: &'static str,
    /// What it ran.
    pub workload: Workload,
    /// How many tasks it was published for.
    pub tasks: usize,
    /// For how many tasks a curve is drawn.
    pub curve: &'static [usize],
    /// How long the tasks are measured, in virtual time; none for a pass.
    pub time: Option<Nanos>,
    /// What memory and devices are divided by: the first for which this machine has memory.
    pub scales: &'static [u64],
    /// Settings of all variants, as `key=value`.
    pub settings: &'static [&'static str],
    /// What is compared, the base first.
    pub variants: &'static [Variant],
    /// What is measured.
    pub quantities: &'static [Quantity],
    /// The published values, as CSV.
    pub published: &'static str,
}

/// One way to run it.
#[derive(Debug)]
pub struct Variant {
    /// The experiment that the rows are of: several variants may be compared with one base.
    pub name: &'static str,
    /// What it is compared as.
    pub role: Role,
    /// Whether the published values are of it.
    pub known: Known,
    /// Its settings, as `key=value`.
    pub settings: &'static [&'static str],
}

/// Whether a variant was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its values are in the file.
    Published,
    /// It goes beyond what was.
    Beyond,
}

/// Something that is measured.
#[derive(Debug)]
pub struct Quantity {
    /// What it is.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Rows of the published file whose sum is the same.
    pub published: &'static [&'static str],
    /// Its change, and where that was published.
    pub change: Change,
    /// How it is taken from the figures.
    pub take: fn(&SimulationFigures) -> f64,
}

/// What is said of the way from base to improved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: it is a share.
    None,
    /// Percent of the base; published as far as both values are.
    Percent,
    /// The same, published in a row of its own.
    Row(&'static str),
}

/// What came of it.
#[derive(Debug)]
pub struct Reproduced {
    /// Published and measured, side by side.
    pub rows: Vec<Row>,
    /// Throughput by tasks, if that was asked for.
    pub plot: Option<Plot>,
    /// What the runs took place in, on two lines.
    pub conditions: String,
}

/// Whether there are to be runs for a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curves {
    /// No.
    No,
    /// Yes.
    Yes,
}

/// All experiments.
pub const ALL: &[&Experiment] = &[&swap_2020::EXPERIMENT];

/// An experiment by name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name).copied()
}

impl Experiment {
    /// Runs all variants, at a scale or at the experiment's; `told` hears what begins.
    ///
    /// # Errors
    /// This machine has too little memory for any of the scales, or a run fails.
    pub fn reproduce(
        &self,
        scale: Option<u64>,
        curves: Curves,
        told: impl Fn(&str, usize),
    ) -> Result<Reproduced, Trouble> {
        let scale = scale.map_or_else(|| self.scale(), Ok).map_err(Trouble::Setup)?;
        let mut quoted = Vec::new();
        let mut series = Vec::new();
        for variant in self.variants {
            let run = |tasks| {
                told(&format!("{}, {}", variant.name, variant.role.name()), tasks);
                let experiment = self.at(variant, tasks, scale).map_err(Trouble::Setup)?;
                simulate::run(&experiment).map(|simulation| simulation.figures)
            };
            let figures = run(self.tasks)?;
            if curves == Curves::Yes {
                let others = self.curve.iter().filter(|tasks| **tasks != self.tasks);
                let mut runs = others.map(|tasks| run(*tasks)).collect::<Result<Vec<_>, _>>()?;
                runs.push(figures.clone());
                series.push(curve(variant, &runs));
            }
            quoted.push((variant, figures));
        }
        let (_, base) = quoted.first().expect("an experiment has a base");
        let conditions = base.heading(crate::report::simulation::Tasks::One);
        let plot = (curves == Curves::Yes).then(|| self.plot(series));
        Ok(Reproduced { rows: rows::rows(self, &quoted), plot, conditions })
    }

    /// The first scale that this machine has memory for.
    fn scale(&self) -> Result<u64, BadSetting> {
        let base = self.variants.first().expect("an experiment has a base");
        let tried = |scale: &u64| {
            self.at(base, self.tasks, *scale).and_then(|e| simulate::check(&e)).map(|()| *scale)
        };
        let mut last = None;
        for scale in self.scales {
            match tried(scale) {
                Ok(scale) => return Ok(scale),
                Err(bad) => last = Some(bad),
            }
        }
        Err(last.expect("an experiment has a scale"))
    }

    /// A variant as something to simulate.
    fn at(
        &self,
        variant: &Variant,
        tasks: usize,
        scale: u64,
    ) -> Result<simulate::Experiment, BadSetting> {
        let mut settings = Settings::default();
        settings.set(&format!("scale={scale}"))?;
        let texts = self.settings.iter().chain(variant.settings);
        texts.copied().try_for_each(|text| settings.set(text))?;
        Ok(simulate::Experiment {
            machine: machines::find(self.machine).expect("a test finds them all"),
            workload: self.workload,
            tasks,
            seed: SEED,
            time: self.time,
            settings,
            traced: Traced::Off,
        })
    }

    fn plot(&self, series: Vec<Series>) -> Plot {
        Plot {
            title: format!("{} on {}", self.workload.name(), self.machine),
            x_label: "processes".into(),
            y_label: "accesses per second".into(),
            series,
        }
    }
}

/// Throughput of runs by tasks.
fn curve(variant: &Variant, runs: &[SimulationFigures]) -> Series {
    let mut points: Vec<(f64, f64)> =
        runs.iter().map(|run| (run.tasks as f64, run.figures.accesses_per_s)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Series { name: format!("{}, {}", variant.name, variant.role.name()), points }
}

#[cfg(test)]
mod tests;
