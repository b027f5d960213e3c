//! Each variant beside the base: quantities and their changes, and curves over numbers of tasks.

use super::rows::{Role, Row, Values, percent};
use super::runs::Measured;
use super::study::{Compared, Known, Quantity, Study, Variant};
use crate::report::plot::{Plot, Series};
use crate::simulate::RunError;

impl Study {
    /// The base's quantities, then each variant's with their changes.
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

    /// A quantity of a variant, and its change from the base.
    fn changed(&self, quantity: &Quantity, base: &Measured, measured: &Measured) -> Vec<Row> {
        let variant = measured.variant;
        let published = self.published(variant, quantity, measured.tasks);
        let value = row(variant, quantity, published, measured.values(quantity));
        let change = match (quantity.compared, variant.known) {
            (Compared::Never | Compared::Ratio, _) => return vec![value],
            (Compared::PublishedPercent(name), Known::Published) => {
                variant.table().value(name, variant.column)
            }
            (Compared::Percent | Compared::PublishedPercent(_), _) => {
                let was = self.published(base.variant, quantity, base.tasks);
                was.zip(published).and_then(|(was, is)| percent(was, is))
            }
        };
        let change = measured.compared(base, quantity, percent).map(|values| Row {
            unit: "percent".into(),
            role: Role::Change,
            published: change,
            measured: values.median,
            spread: values.spread,
            ..value.clone()
        });
        [Some(value), change].into_iter().flatten().collect()
    }

    /// The first quantity of variants that have a curve, by number of tasks: as a plot and as rows.
    pub(super) fn curves(
        &self,
        scale: u64,
        all: &[Measured],
        progress: &impl Fn(&str, usize),
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
                    self.runs(variant, tasks, scale, 1, progress)?.first(quantity)
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
    let processes = if tasks == 1 { "process" } else { "processes" };
    let name = format!("{}, {tasks} {processes}", quantity.name);
    Row { quantity: name, ..row(variant, quantity, None, Values::exactly(value)) }
}

fn row(variant: &Variant, quantity: &Quantity, published: Option<f64>, values: Values) -> Row {
    let (experiment, name) = (variant.name.into(), quantity.name.into());
    Row::new(experiment, name, quantity.unit, variant.role, published, values)
}
