//! Each variant's quantities and their ratios to the base's. Where values were published, a row
//! counts how many pairs of variants are in the published order.

use super::rows::{Role, Row, Values, ratio};
use super::runs::Measured;
use super::study::{Compared, Quantity, Study};
use crate::report::plot::{Plot, Series};

impl Study {
    /// All rows of experiment `name`.
    pub(super) fn matrix(&self, name: &str, all: &[Measured]) -> Vec<Row> {
        let orders = self.quantities.iter().filter_map(|quantity| self.order(name, quantity, all));
        self.comparison(all).into_iter().chain(orders).collect()
    }

    /// How many pairs of variants are in the published order; `None` if nothing was published.
    fn order(&self, name: &str, quantity: &Quantity, all: &[Measured]) -> Option<Row> {
        let value = |of: &Measured| {
            let published = self.published(of.variant, quantity, of.tasks);
            published.map(|published| (published, of.values(quantity).median))
        };
        let values: Vec<(f64, f64)> = all.iter().filter_map(value).collect();
        let (pairs, alike) = ordered(&values);
        let (all, alike) = (Some(f64::from(pairs)), Values::exactly(f64::from(alike)));
        (pairs > 0).then(|| Row::new(name, quantity.name, "pairs", Role::Order, all, alike))
    }

    /// The named quantities, numbered from 1, with a curve for each variant.
    pub(super) fn values_plot(&self, names: &[&str], all: &[Measured]) -> Plot {
        let quantities: Vec<&Quantity> =
            self.quantities.iter().filter(|quantity| names.contains(&quantity.name)).collect();
        let curve = |measured: &Measured| {
            let value = |(at, q): (usize, &&Quantity)| (at as f64 + 1.0, measured.first(q));
            let points = quantities.iter().enumerate().map(value).collect();
            Series { name: measured.variant.column.into(), points }
        };
        Plot {
            title: format!("{} on {}", self.workload.name(), self.machine),
            x_label: names.join(", "),
            y_label: quantities.first().map_or_else(String::new, |quantity| quantity.unit.into()),
            series: all.iter().map(curve).collect(),
        }
    }

    /// Ratios to the base, measured and published; variants are numbered from 1.
    pub(super) fn ratios_plot(&self, all: &[Measured]) -> Plot {
        let mut series = Vec::new();
        for quantity in self.quantities.iter().filter(|q| q.compared == Compared::Plotted) {
            let measured = ratios(all, |of| Some(of.first(quantity)));
            let published = ratios(all, |of| self.published(of.variant, quantity, of.tasks));
            for (name, points) in [
                (quantity.name.into(), measured),
                (format!("{}, published", quantity.name), published),
            ] {
                if !points.is_empty() {
                    series.push(Series { name, points });
                }
            }
        }
        let names: Vec<&str> = all.iter().map(|measured| measured.variant.column).collect();
        Plot {
            title: format!("{} on {}", self.workload.name(), self.machine),
            x_label: names.join(", "),
            y_label: format!("of {}'s", names[0]),
            series,
        }
    }
}

/// The number of each variant, and its value as a part of the first one's.
fn ratios(all: &[Measured], value: impl Fn(&Measured) -> Option<f64>) -> Vec<(f64, f64)> {
    let base = value(&all[0]);
    let point = |(at, measured)| {
        let ratio = base.zip(value(measured)).and_then(|(was, is)| ratio(was, is));
        ratio.map(|ratio| (at as f64 + 1.0, ratio))
    };
    all.iter().enumerate().filter_map(point).collect()
}

/// Pairs whose published values differ, and how many of these are measured in the same order.
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
