//! Published experiments, run again on simulated machines.
//!
//! ```text
//! Experiment -- Part: machine, workload, settings ── a run for each Variant ──> figures
//!     Quantity: taken from the figures  beside  published/*.csv ──> rows: base, improved, change
//! ```
//! One file for each experiment; it says where its settings come from. Nothing is shared between
//! runs. docs/reproduction.md has what came of them.

mod published;
mod rows;
mod swap_2016;
mod swap_2020;

pub use rows::{Role, Row, table};

use crate::machines;
use crate::report::latency::LatencyBucket;
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
    /// What it consists of; the first is what a plot shows.
    pub parts: &'static [Part],
    /// The published values, as CSV.
    pub published: &'static str,
}

/// Runs of one workload on one machine.
#[derive(Debug)]
pub struct Part {
    /// What it ran on, among the simulated machines.
    pub machine: &'static str,
    /// What it ran.
    pub workload: Workload,
    /// How many tasks it was published for.
    pub tasks: usize,
    /// How long the tasks are measured, in virtual time; none for a pass.
    pub time: Option<Nanos>,
    /// What memory and devices are divided by: the first for which this machine has memory.
    pub scales: &'static [u64],
    /// Settings of all variants, as `key=value`.
    pub settings: &'static [&'static str],
    /// What is compared, the base first.
    pub variants: &'static [Variant],
    /// Whether text shows how long accesses took.
    pub distribution: Distribution,
    /// What is measured; the first is what a plot shows.
    pub quantities: &'static [Quantity],
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
    /// For how many tasks a curve has points; none for no curve.
    pub curve: &'static [usize],
    /// Its settings, as `key=value`; later ones count.
    pub settings: &'static [&'static [&'static str]],
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
    /// Published and measured, side by side; then the points of curves, if these were asked for.
    pub rows: Vec<Row>,
    /// The first quantity by tasks, likewise.
    pub plot: Option<Plot>,
    /// What each part took place in.
    pub conditions: Vec<String>,
    /// How long accesses took, by what that was of.
    pub latency: Vec<(String, Vec<LatencyBucket>)>,
}

/// Whether text shows how long accesses took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// No.
    Hidden,
    /// Yes.
    Shown,
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
pub const ALL: &[&Experiment] = &[&swap_2016::EXPERIMENT, &swap_2020::EXPERIMENT];

/// An experiment by name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name).copied()
}

/// A variant that was run with the experiment's number of tasks.
type Run<'a> = (&'a Variant, SimulationFigures);

impl Experiment {
    /// Runs all variants, at a scale or at that of each part; `told` hears what begins.
    ///
    /// # Errors
    /// This machine has too little memory for any of the scales, or a run fails.
    pub fn reproduce(
        &self,
        scale: Option<u64>,
        curves: Curves,
        told: impl Fn(&str, usize),
    ) -> Result<Reproduced, Trouble> {
        let mut all = Reproduced {
            rows: Vec::new(),
            plot: None,
            conditions: Vec::new(),
            latency: Vec::new(),
        };
        let file = published::rows(self.published);
        for part in self.parts {
            let scale = scale.map_or_else(|| part.scale(), Ok).map_err(Trouble::Setup)?;
            let runs = part.run(scale, &told)?;
            let (_, base) = runs.first().expect("an experiment has a base");
            all.conditions.push(base.heading(crate::report::simulation::Tasks::One));
            all.rows.extend(rows::rows(&file, part.quantities, &runs));
            if part.distribution == Distribution::Shown {
                let of = |(variant, figures): &Run<'_>| (variant.title(), figures.latency.clone());
                all.latency.extend(runs.iter().map(of));
            }
            if curves == Curves::Yes && all.plot.is_none() {
                let (plot, points) = part.curves(scale, &runs, &told)?;
                all.rows.extend(points);
                all.plot = Some(plot);
            }
        }
        Ok(all)
    }
}

impl Part {
    fn run(&self, scale: u64, told: &impl Fn(&str, usize)) -> Result<Vec<Run<'static>>, Trouble> {
        let run = |variant| Ok((variant, self.figures(variant, self.tasks, scale, told)?));
        self.variants.iter().map(run).collect()
    }

    fn figures(
        &self,
        variant: &Variant,
        tasks: usize,
        scale: u64,
        told: &impl Fn(&str, usize),
    ) -> Result<SimulationFigures, Trouble> {
        told(&format!("{} on {}", variant.title(), self.machine), tasks);
        let experiment = self.at(variant, tasks, scale).map_err(Trouble::Setup)?;
        simulate::run(&experiment).map(|simulation| simulation.figures)
    }

    /// The first quantity of variants by tasks: as a plot, and as rows.
    fn curves(
        &self,
        scale: u64,
        runs: &[Run<'_>],
        told: &impl Fn(&str, usize),
    ) -> Result<(Plot, Vec<Row>), Trouble> {
        let quantity = self.quantities.first().expect("an experiment measures something");
        let (mut series, mut rows) = (Vec::new(), Vec::new());
        for (variant, figures) in runs.iter().filter(|(variant, _)| !variant.curve.is_empty()) {
            let mut points = Vec::new();
            for tasks in variant.curve {
                let value = match *tasks == self.tasks {
                    true => (quantity.take)(figures),
                    false => (quantity.take)(&self.figures(variant, *tasks, scale, told)?),
                };
                points.push((*tasks as f64, value));
                rows.push(rows::point(variant, quantity, *tasks, value));
            }
            series.push(Series { name: variant.title(), points });
        }
        let plot = Plot {
            title: format!("{} on {}", self.workload.name(), self.machine),
            x_label: "processes".into(),
            y_label: format!("{}, {}", quantity.name, quantity.unit),
            series,
        };
        Ok((plot, rows))
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
        let texts = self.settings.iter().chain(variant.settings.iter().copied().flatten());
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
}

impl Variant {
    fn title(&self) -> String {
        format!("{}, {}", self.name, self.role.name())
    }
}

/// Time waited for locks of these classes, in percent of all CPU time.
fn lock_share(run: &SimulationFigures, classes: &[&str]) -> f64 {
    let rows = run.figures.locks.iter().flatten();
    let waits = rows.filter(|row| classes.contains(&row.class.as_str())).map(|row| row.wait_ns);
    waits.sum::<u64>() as f64 / run.figures.cpu_ns.max(1) as f64 * 100.0
}

#[cfg(test)]
mod tests;
