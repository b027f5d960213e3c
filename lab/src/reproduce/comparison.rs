//! Each variant beside the base: quantities and their ratios, and curves over numbers of tasks.

use super::options::{Event, Options};
use super::rows::{Row, Values, ratio};
use super::runs::Measured;
use super::study::{Quantity, Study, Variant};
use crate::report::plot::{Plot, Series};
use crate::simulate::RunError;

impl Study {
    /// The base's quantities, then each variant's with their ratios to the base's.
    pub(super) fn comparison(&self, all: &[Measured]) -> Vec<Row> {
        let (base, others) = all.split_first().expect("a study has a base");
        let of_base = self.quantities.iter().map(|quantity| {
            let published = self.published(base.variant, quantity, base.tasks);
            row(base.variant, quantity, published, base.values(quantity))
        });
        let of_others = others.iter().flat_map(|measured| {
            self.quantities.iter().flat_map(|quantity| self.changed(quantity, base, measured))
        });
        of_base.chain(of_others).collect()
    }

    /// A quantity of a variant, and its ratio to the base's.
    fn changed(&self, quantity: &Quantity, base: &Measured, measured: &Measured) -> Vec<Row> {
        let variant = measured.variant;
        let published = self.published(variant, quantity, measured.tasks);
        let value = row(variant, quantity, published, measured.values(quantity));
        let change = self.change(quantity, base, measured, &value);
        [Some(value), change].into_iter().flatten().collect()
    }

    /// The ratio of a quantity to the base's, if it is compared.
    pub(super) fn change(
        &self,
        quantity: &Quantity,
        base: &Measured,
        measured: &Measured,
        value: &Row,
    ) -> Option<Row> {
        let published = self.published_ratio(quantity, base.variant, measured.variant, base.tasks);
        let is_shown = quantity.is_compared() || published.is_some();
        let ratio = measured.compared(base, quantity, ratio).filter(|_| is_shown)?;
        Some(value.change(published, ratio))
    }

    /// The first quantity of variants that have a curve, by number of tasks: as a plot and as rows.
    pub(super) fn curves(
        &self,
        scale: u64,
        all: &[Measured],
        options: Options<'_>,
        progress: &impl Fn(Event<'_>),
    ) -> Result<(Plot, Vec<Row>), RunError> {
        let quantity = self.quantities.first().expect("a study measures something");
        let (mut series, mut rows) = (Vec::new(), Vec::new());
        for measured in all.iter().filter(|measured| !measured.variant.curve.is_empty()) {
            let variant = measured.variant;
            let mut points = Vec::new();
            for &tasks in variant.curve {
                let value = if tasks == measured.tasks {
                    measured.first(quantity)
                } else {
                    let once = Options { seeds: 1, ..options };
                    self.runs(variant, tasks, scale, once, progress)?.first(quantity)
                };
                points.push((tasks as f64, value));
                rows.push(point(variant, quantity, tasks, value));
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
}

/// A point of a curve.
fn point(variant: &Variant, quantity: &Quantity, tasks: usize, value: f64) -> Row {
    row(variant, quantity, None, Values::exactly(value)).with(tasks)
}

fn row(variant: &Variant, quantity: &Quantity, published: Option<f64>, values: Values) -> Row {
    Row::new(variant.name, quantity.name, quantity.unit, variant.role, published, values)
}
