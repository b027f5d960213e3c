//! Published experiments, run again on simulated machines.
//!
//! ```text
//! Experiment -- Part: machine, workload, settings ── a run for each Variant ──> figures
//!     Quantity: taken from the figures  beside  published/*.csv ──> rows: base, improved, change
//!            |- Tables: a run for each row of published tables
//!            \- Matrix: a run for each column of a published table
//! ```
//! One file for each experiment; it says where its settings come from. Nothing is shared between
//! runs. docs/reproduction.md has what came of them.

mod compaction_2012;
mod kswapd_2018;
mod matrix;
mod published;
mod rows;
mod slub_2023;
mod swap_2016;
mod swap_2020;
mod tables;

pub use matrix::{Line, Matrix, Ratio};
pub use rows::{Role, Row, table};
pub use tables::{Changes, Column, Table, Tables};

use crate::machines;
use crate::report::latency::LatencyBucket;
use crate::report::locks::LockRow;
use crate::report::plot::{Plot, Series};
use crate::report::simulation::SimulationFigures;
use crate::simulate::{self, BadSetting, Settings, Trouble, Workload};
use highwater_sim::Traced;
use highwater_units::Nanos;

/// A published experiment.
#[derive(Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// What it is, on one line.
    pub about: &'static str,
    /// What it consists of; the first is what a plot shows.
    pub parts: &'static [Part],
    /// What it consists of instead, where tables were published.
    pub tables: &'static [Tables],
    /// What it consists of instead, where a table with a column for each variant was.
    pub matrix: Option<Matrix>,
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
    /// The first quantity by tasks, likewise; of tables several, with what their files' names add.
    pub plots: Vec<(String, Plot)>,
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

/// What is asked of an experiment.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// What memory and devices are divided by; none for the first that there is memory for.
    pub scale: Option<u64>,
    /// Runs of each variant, with the seeds from 1 on: the median of each quantity is told.
    pub seeds: u64,
    /// Whether there are to be runs for a plot, with the first seed.
    pub curves: Curves,
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
pub const ALL: &[&Experiment] = &[
    &swap_2016::EXPERIMENT,
    &swap_2020::EXPERIMENT,
    &kswapd_2018::EXPERIMENT,
    &kswapd_2018::THREADS,
    &slub_2023::EXPERIMENT,
    &compaction_2012::EXPERIMENT,
];

/// An experiment by name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name).copied()
}

/// A variant that was run with the experiment's number of tasks, once for each seed.
type Run<'a> = (&'a Variant, Vec<SimulationFigures>);

impl Experiment {
    /// Runs all variants; `told` hears what begins.
    ///
    /// # Errors
    /// This machine has too little memory for any of the scales, or a run fails.
    pub fn reproduce(
        &self,
        asked: Asked,
        told: impl Fn(&str, usize) + Sync,
    ) -> Result<Reproduced, Trouble> {
        let mut all = Reproduced {
            rows: Vec::new(),
            plots: Vec::new(),
            conditions: Vec::new(),
            latency: Vec::new(),
        };
        let file = published::rows(self.published);
        for part in self.parts {
            let scale = asked.scale.map_or_else(|| part.scale(), Ok).map_err(Trouble::Setup)?;
            let runs = part.run(scale, asked.seeds, &told)?;
            let (_, base) = runs.first().expect("an experiment has a base");
            all.conditions.push(base[0].heading(crate::report::simulation::Tasks::One));
            all.rows.extend(rows::rows(&file, part.quantities, &runs));
            if part.distribution == Distribution::Shown {
                let of = |(variant, runs): &Run<'_>| (variant.title(), runs[0].latency.clone());
                all.latency.extend(runs.iter().map(of));
            }
            if asked.curves == Curves::Yes && all.plots.is_empty() {
                let (plot, points) = part.curves(scale, &runs, &told)?;
                all.rows.extend(points);
                all.plots.push((String::new(), plot));
            }
        }
        for tables in self.tables {
            tables.reproduce(asked, &mut all, &told)?;
        }
        if let Some(matrix) = &self.matrix {
            matrix.reproduce(self.name, asked, &mut all, &told)?;
        }
        Ok(all)
    }
}

/// What a run of a variant is drawn with.
#[derive(Clone, Copy)]
struct Drawn {
    tasks: usize,
    scale: u64,
    seed: u64,
}

impl Part {
    fn run(
        &self,
        scale: u64,
        seeds: u64,
        told: &impl Fn(&str, usize),
    ) -> Result<Vec<Run<'static>>, Trouble> {
        let run = |variant| {
            let of = |seed| self.figures(variant, Drawn { tasks: self.tasks, scale, seed }, told);
            Ok((variant, (1..=seeds.max(1)).map(of).collect::<Result<_, _>>()?))
        };
        self.variants.iter().map(run).collect()
    }

    fn figures(
        &self,
        variant: &Variant,
        drawn: Drawn,
        told: &impl Fn(&str, usize),
    ) -> Result<SimulationFigures, Trouble> {
        let seed = if drawn.seed == 1 { String::new() } else { format!(", seed {}", drawn.seed) };
        told(&format!("{} on {}{seed}", variant.title(), self.machine), drawn.tasks);
        let experiment = self.at(variant, drawn).map_err(Trouble::Setup)?;
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
        for (variant, seeds) in runs.iter().filter(|(variant, _)| !variant.curve.is_empty()) {
            let mut points = Vec::new();
            for tasks in variant.curve {
                let value = match *tasks == self.tasks {
                    true => (quantity.take)(&seeds[0]),
                    false => {
                        let drawn = Drawn { tasks: *tasks, scale, seed: 1 };
                        (quantity.take)(&self.figures(variant, drawn, told)?)
                    }
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
            let drawn = Drawn { tasks: self.tasks, scale: *scale, seed: 1 };
            self.at(base, drawn).and_then(|e| simulate::check(&e)).map(|()| *scale)
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
    fn at(&self, variant: &Variant, drawn: Drawn) -> Result<simulate::Experiment, BadSetting> {
        let Drawn { tasks, scale, seed } = drawn;
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

impl Variant {
    fn title(&self) -> String {
        format!("{}, {}", self.name, self.role.name())
    }
}

/// Time waited for locks of these classes, in percent of all CPU time.
fn lock_share(run: &SimulationFigures, classes: &[&str]) -> f64 {
    share(run, |row| classes.contains(&row.class.as_str()))
}

/// The same of one phase.
fn lock_share_in(run: &SimulationFigures, phase: &str, classes: &[&str]) -> f64 {
    share(run, |row| row.phase == phase && classes.contains(&row.class.as_str()))
}

fn share(run: &SimulationFigures, counts: impl Fn(&LockRow) -> bool) -> f64 {
    let rows = run.figures.locks.iter().flatten().filter(|row| counts(row));
    rows.map(|row| row.wait_ns).sum::<u64>() as f64 / run.figures.cpu_ns.max(1) as f64 * 100.0
}

#[cfg(test)]
mod tests;
