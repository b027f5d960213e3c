//! Published tables with a column for each variant: a run for each variant and seed, line by line.
//!
//! ```text
//! Variant: settings ── a run for each seed ──> figures ── Line::take ──> rows
//!     the first is the base: Ratio::Told lines are also told as parts of its value
//! CSV: quantity,variant,variant,...     a line each
//! ```
//! Beside each line with published values: how many pairs of variants are in the published order.

use super::rows::Values;
use super::{Asked, Curves, Drawn, Known, Reproduced, Role, Row};
use crate::machines;
use crate::report::plot::{Plot, Series};
use crate::report::simulation::{SimulationFigures, Tasks};
use crate::simulate::{self, BadSetting, Settings, Trouble, Workload};
use highwater_sim::Traced;

/// A table that is run again.
#[derive(Debug)]
pub struct Matrix {
    /// The machine, among the simulated ones.
    pub machine: &'static str,
    /// What runs on it.
    pub workload: Workload,
    /// How many tasks.
    pub tasks: usize,
    /// What memory and devices are divided by: the first for which this machine has memory.
    pub scales: &'static [u64],
    /// Settings of all, as `key=value`.
    pub settings: &'static [&'static str],
    /// The columns, the base first.
    pub variants: &'static [Variant],
    /// The lines.
    pub lines: &'static [Line],
    /// Names of lines that a plot shows side by side, for each variant a curve.
    pub plot: &'static [&'static str],
    /// As published.
    pub csv: &'static str,
}

/// A column.
#[derive(Debug)]
pub struct Variant {
    /// Its heading, in the CSV where it was published.
    pub name: &'static str,
    /// Whether it was.
    pub known: Known,
    /// Settings of its own; later ones count.
    pub settings: &'static [&'static str],
}

/// A line.
#[derive(Debug)]
pub struct Line {
    /// What is measured: the line's name in the CSV, if it has one.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Whether it is also told as a part of the base's.
    pub ratio: Ratio,
    /// How it is taken from the figures.
    pub take: fn(&SimulationFigures) -> f64,
}

/// Whether a value is also told as a part of the base's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ratio {
    /// No.
    Hidden,
    /// Yes.
    Told,
}

/// A variant that was run, once for each seed.
type Run<'a> = (&'a Variant, Vec<SimulationFigures>);

impl Matrix {
    /// Runs all variants; rows, and plots if asked for, are added to `all`.
    ///
    /// # Errors
    /// This machine has too little memory for any of the scales, or a run fails.
    pub(super) fn reproduce(
        &self,
        name: &str,
        asked: Asked,
        all: &mut Reproduced,
        told: &impl Fn(&str, usize),
    ) -> Result<(), Trouble> {
        let scale = asked.scale.map_or_else(|| self.scale(), Ok).map_err(Trouble::Setup)?;
        let mut runs: Vec<Run<'_>> = Vec::new();
        for variant in self.variants {
            told(&format!("{name}, {} on {}", variant.name, self.machine), self.tasks);
            let run = |seed| {
                let drawn = Drawn { tasks: self.tasks, scale, seed };
                let experiment = self.at(variant, drawn).map_err(Trouble::Setup)?;
                simulate::run(&experiment).map(|simulation| simulation.figures)
            };
            runs.push((variant, (1..=asked.seeds.max(1)).map(run).collect::<Result<_, _>>()?));
        }
        all.conditions.push(runs[0].1[0].heading(Tasks::One));
        for run in &runs {
            all.rows
                .extend(self.lines.iter().flat_map(|line| self.rows(name, line, run, &runs[0])));
        }
        all.rows.extend(self.lines.iter().filter_map(|line| self.order(name, line, &runs)));
        if asked.curves == Curves::Yes {
            all.plots.extend([(String::new(), self.values(&runs)), self.ratios(&runs)]);
        }
        Ok(())
    }

    /// A line of a variant, and what part it is of the base's.
    fn rows(&self, name: &str, line: &Line, run: &Run<'_>, base: &Run<'_>) -> Vec<Row> {
        let (variant, figures) = run;
        let is_base = variant.name == base.0.name;
        let row = |quantity: String, unit: &str, published, values: Values| Row {
            experiment: format!("{name}-{}", variant.name),
            quantity,
            unit: unit.into(),
            role: if is_base { Role::Base } else { Role::Improved },
            published,
            measured: values.median,
            spread: values.spread,
        };
        let values = Values::of(figures.iter().map(line.take)).expect("a variant was run");
        let known = self.published(line, variant);
        let mut rows = vec![row(line.name.into(), line.unit, known, values)];
        if line.ratio == Ratio::Told && !is_base {
            let pairs = figures.iter().zip(&base.1);
            let parts = pairs.filter_map(|(run, base)| part((line.take)(run), (line.take)(base)));
            let published =
                known.zip(self.published(line, base.0)).and_then(|(is, was)| part(is, was));
            let quantity = format!("{}, of {}'s", line.name, base.0.name);
            rows.extend(Values::of(parts).map(|values| row(quantity, "part", published, values)));
        }
        rows
    }

    /// How many pairs of variants are in the order that was published; none if nothing was.
    fn order(&self, name: &str, line: &Line, runs: &[Run<'_>]) -> Option<Row> {
        let value = |(variant, figures): &Run<'_>| {
            let measured = Values::of(figures.iter().map(line.take))?.median;
            self.published(line, variant).map(|published| (published, measured))
        };
        let values: Vec<(f64, f64)> = runs.iter().filter_map(value).collect();
        let (all, alike) = ordered(&values);
        (all > 0).then(|| Row {
            experiment: name.into(),
            quantity: format!("{}: pairs in order", line.name),
            unit: "pairs".into(),
            role: Role::Change,
            published: Some(f64::from(all)),
            measured: f64::from(alike),
            spread: None,
        })
    }

    /// The lines of the plot, by their number: a curve for each variant.
    fn values(&self, runs: &[Run<'_>]) -> Plot {
        let lines: Vec<&Line> =
            self.lines.iter().filter(|line| self.plot.contains(&line.name)).collect();
        let curve = |(variant, figures): &Run<'_>| {
            let value = |(at, line): (usize, &&Line)| (at as f64 + 1.0, (line.take)(&figures[0]));
            let points = lines.iter().enumerate().map(value).collect();
            Series { name: variant.name.into(), points }
        };
        Plot {
            title: format!("{} on {}", self.workload.name(), self.machine),
            x_label: self.plot.join(", "),
            y_label: lines.first().map_or_else(String::new, |line| line.unit.into()),
            series: runs.iter().map(curve).collect(),
        }
    }

    /// Parts of the base's values, by the number of the variant; and what was published.
    fn ratios(&self, runs: &[Run<'_>]) -> (String, Plot) {
        let mut series = Vec::new();
        for line in self.lines.iter().filter(|line| line.ratio == Ratio::Told) {
            let of = |value: &dyn Fn(&Run<'_>) -> Option<f64>| {
                let base = value(&runs[0]);
                let point = |(at, run): (usize, &Run<'_>)| {
                    let share = value(run).zip(base).and_then(|(is, was)| part(is, was));
                    share.map(|share| (at as f64 + 1.0, share))
                };
                runs.iter().enumerate().filter_map(point).collect::<Vec<_>>()
            };
            let measured = of(&|run| Some((line.take)(&run.1[0])));
            let published = of(&|run| self.published(line, run.0));
            for (name, points) in
                [(line.name.into(), measured), (format!("{}, published", line.name), published)]
            {
                if !points.is_empty() {
                    series.push(Series { name, points });
                }
            }
        }
        let names: Vec<&str> = runs.iter().map(|(variant, _)| variant.name).collect();
        let plot = Plot {
            title: format!("{} on {}", self.workload.name(), self.machine),
            x_label: names.join(", "),
            y_label: format!("of {}'s", names[0]),
            series,
        };
        ("-ratios".into(), plot)
    }

    /// A published value; none where there is none.
    pub(super) fn published(&self, line: &Line, variant: &Variant) -> Option<f64> {
        if variant.known == Known::Beyond {
            return None;
        }
        let mut lines = self.csv.lines();
        let at = lines.next()?.split(',').position(|heading| heading == variant.name)?;
        let of_line = |text: &&str| text.split(',').next() == Some(line.name);
        let cell = lines.find(of_line)?.split(',').nth(at)?;
        Some(cell.parse().unwrap_or_else(|_| panic!("'{cell}' of {}", line.name)))
    }

    /// The first scale that this machine has memory for.
    fn scale(&self) -> Result<u64, BadSetting> {
        let base = self.variants.first().expect("a matrix has a base");
        let mut last = None;
        for scale in self.scales {
            let drawn = Drawn { tasks: self.tasks, scale: *scale, seed: 1 };
            match self.at(base, drawn).and_then(|experiment| simulate::check(&experiment)) {
                Ok(()) => return Ok(*scale),
                Err(bad) => last = Some(bad),
            }
        }
        Err(last.expect("a matrix has a scale"))
    }

    /// A variant as something to simulate.
    pub(super) fn at(
        &self,
        variant: &Variant,
        drawn: Drawn,
    ) -> Result<simulate::Experiment, BadSetting> {
        let Drawn { tasks, scale, seed } = drawn;
        let mut settings = Settings::default();
        settings.set(&format!("scale={scale}"))?;
        self.settings.iter().chain(variant.settings).try_for_each(|text| settings.set(text))?;
        Ok(simulate::Experiment {
            machine: machines::find(self.machine).expect("a test finds them all"),
            workload: self.workload,
            tasks,
            seed,
            time: None,
            settings,
            traced: Traced::Off,
        })
    }
}

fn part(is: f64, was: f64) -> Option<f64> {
    (was > 0.0).then(|| is / was)
}

/// Pairs whose first values differ, and how many of these have their second ones in that order.
fn ordered(values: &[(f64, f64)]) -> (u32, u32) {
    let pairs =
        values.iter().enumerate().flat_map(|(at, a)| values[..at].iter().map(move |b| (a, b)));
    pairs.filter(|(a, b)| a.0 != b.0).fold((0, 0), |(all, alike), (a, b)| {
        let same = a.0.total_cmp(&b.0) == a.1.total_cmp(&b.1);
        (all + 1, alike + u32::from(same))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_in_order_or_not() {
        assert_eq!(ordered(&[]), (0, 0));
        assert_eq!(ordered(&[(1.0, 5.0), (2.0, 6.0), (2.0, 1.0)]), (2, 1));
        assert_eq!(ordered(&[(1.0, 5.0), (2.0, 5.0)]), (1, 0), "equal is not more");
    }
}
