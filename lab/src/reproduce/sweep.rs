//! Quantities by number of tasks, variant by variant, with their ratios to the base before.

use super::rows::{Role, Row, Values, ratio};
use super::runs::Measured;
use super::study::{Changes, Quantity, Study};
use crate::report::plot::{Plot, Series};

impl Study {
    /// Rows of the last variant of `done`; each item has all numbers of tasks of a variant.
    pub(super) fn sweep(&self, changes: Changes, done: &[Vec<Measured>]) -> Vec<Row> {
        let last = done.last().expect("a study has variants");
        let values = last
            .iter()
            .flat_map(|of| self.quantities.iter().map(|quantity| self.row(of, quantity)));
        let base = done.iter().rev().find(|runs| runs[0].variant.role == Role::Base);
        let base = base.filter(|_| last[0].variant.role == Role::Improved);
        let ratios = self.quantities.iter().flat_map(|quantity| {
            let peak = match changes {
                Changes::Peak if quantity.is_compared() => self.peak(quantity, base, last),
                Changes::Peak | Changes::Each => Vec::new(),
            };
            self.each_change(quantity, base, last).into_iter().chain(peak)
        });
        values.chain(ratios).collect()
    }

    fn row(&self, measured: &Measured, quantity: &Quantity) -> Row {
        let Measured { variant, tasks, .. } = *measured;
        let published = self.published(variant, quantity, tasks);
        let values = measured.values(quantity);
        Row::new(variant.name, quantity.name, quantity.unit, variant.role, published, values)
            .with(tasks)
    }

    /// The ratio of a quantity to the base's, for each number of tasks.
    fn each_change(
        &self,
        quantity: &Quantity,
        base: Option<&Vec<Measured>>,
        last: &[Measured],
    ) -> Vec<Row> {
        let of = |measured: &Measured| {
            let was = base?.iter().find(|was| was.tasks == measured.tasks)?;
            self.change(quantity, was, measured, &self.row(measured, quantity))
        };
        last.iter().filter_map(of).collect()
    }

    /// The highest value of a quantity, and its ratio to the base's.
    fn peak(
        &self,
        quantity: &Quantity,
        base: Option<&Vec<Measured>>,
        last: &[Measured],
    ) -> Vec<Row> {
        let highest = |values: Vec<f64>| values.into_iter().max_by(f64::total_cmp);
        let of = |runs: &[Measured]| {
            let measured = runs.iter().map(|measured| measured.values(quantity).median).collect();
            let known = runs.iter().filter_map(|of| self.published(of.variant, quantity, of.tasks));
            (highest(measured), highest(known.collect()))
        };
        let (Some(measured), known) = of(last) else { return Vec::new() };
        let name = format!("{}, peak", quantity.name);
        let (unit, variant) = (quantity.unit, last[0].variant);
        let values = Values::exactly(measured);
        let row = Row::new(variant.name, &name, unit, variant.role, known, values);
        let change = base.and_then(|runs| {
            let (was, was_known) = of(runs);
            let published = was_known.zip(known).and_then(|(was, is)| ratio(was, is));
            let ratio = ratio(was?, measured)?;
            Some(row.change(published, Values::exactly(ratio)))
        });
        [row].into_iter().chain(change).collect()
    }

    /// Plots of quantities, measured and published, with the suffixes of their file names.
    pub(super) fn sweep_plots(&self, done: &[Vec<Measured>]) -> Vec<(String, Plot)> {
        let plot = |quantity: &Quantity| {
            let suffix = quantity.plot?;
            Some((suffix.to_owned(), self.sweep_plot(quantity, done)))
        };
        self.quantities.iter().filter_map(plot).collect()
    }

    fn sweep_plot(&self, quantity: &Quantity, done: &[Vec<Measured>]) -> Plot {
        let mut series = Vec::new();
        for runs in done {
            let name = runs[0].variant.name;
            let point = |of: &Measured| (of.tasks as f64, of.first(quantity));
            series.push(Series { name: name.into(), points: runs.iter().map(point).collect() });
            let known = |of: &Measured| {
                let value = self.published(of.variant, quantity, of.tasks);
                value.map(|value| (of.tasks as f64, value))
            };
            let points: Vec<_> = runs.iter().filter_map(known).collect();
            if !points.is_empty() {
                series.push(Series { name: format!("{name}, published"), points });
            }
        }
        Plot {
            title: format!("{} on {}", self.workload.name(), self.machine),
            x_label: "tasks".into(),
            y_label: format!("{}, {}", quantity.name, quantity.unit),
            series,
        }
    }
}
