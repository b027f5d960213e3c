//! Quantities by number of tasks, variant by variant, with their change from the base before.

use super::rows::{Role, Row, Values, percent};
use super::runs::Measured;
use super::study::{Changes, Compared, Quantity, Study};
use crate::report::plot::{Plot, Series};

impl Study {
    /// Rows of the last variant of `done`; each item has all numbers of tasks of a variant.
    pub(super) fn sweep(&self, changes: Changes, done: &[Vec<Measured>]) -> Vec<Row> {
        let last = done.last().expect("a study has variants");
        let value = |measured: &Measured, quantity: &Quantity| {
            let published = self.published(measured.variant, quantity, measured.tasks);
            let name = format!("{}, {} tasks", quantity.name, measured.tasks);
            let (unit, role) = (quantity.unit, measured.variant.role);
            row(measured, name, unit, role, published, measured.values(quantity))
        };
        let values = last
            .iter()
            .flat_map(|measured| self.quantities.iter().map(move |q| value(measured, q)));
        let base = done.iter().rev().find(|runs| runs[0].variant.role == Role::Base);
        let base = base.filter(|_| last[0].variant.role == Role::Improved);
        let compared = self.quantities.iter().filter(|q| q.compared == Compared::Percent);
        let changes = compared.flat_map(|quantity| match changes {
            Changes::Peak => self.peak(quantity, base, last),
            Changes::Each => self.each_change(quantity, base, last),
        });
        values.chain(changes).collect()
    }

    /// The change of a quantity from the base, for each number of tasks.
    fn each_change(
        &self,
        quantity: &Quantity,
        base: Option<&Vec<Measured>>,
        last: &[Measured],
    ) -> Vec<Row> {
        let of = |measured: &Measured| {
            let was = base?.iter().find(|was| was.tasks == measured.tasks)?;
            let change = measured.compared(was, quantity, percent)?;
            let known = |of: &Measured| self.published(of.variant, quantity, of.tasks);
            let published = known(was).zip(known(measured));
            let published = published.and_then(|(was, is)| percent(was, is));
            let name = format!("{}, {} tasks", quantity.name, measured.tasks);
            Some(row(measured, name, "percent", Role::Change, published, change))
        };
        last.iter().filter_map(of).collect()
    }

    /// The highest value of a quantity, and its change from the base's.
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
        let (unit, role, values) = (quantity.unit, last[0].variant.role, Values::exactly(measured));
        let mut rows = vec![row(&last[0], name.clone(), unit, role, known, values)];
        if let Some((Some(was), was_known)) = base.map(|runs| of(runs)) {
            let published = was_known.zip(known).and_then(|(was, is)| percent(was, is));
            let change = percent(was, measured).map(Values::exactly);
            let of = |change| row(&last[0], name, "percent", Role::Change, published, change);
            rows.extend(change.map(of));
        }
        rows
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

fn row(
    measured: &Measured,
    quantity: String,
    unit: &str,
    role: Role,
    published: Option<f64>,
    values: Values,
) -> Row {
    Row::new(measured.variant.name.into(), quantity, unit, role, published, values)
}
