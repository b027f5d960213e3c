//! Searches for costs with which a base gives its published values, and for the range in which each
//! cost may lie.
//!
//! ```text
//! points spread over the box ──> measured ──> Surrogate ──> for each cost the least and the most
//!                                   ^                       that should fit, and the best point
//!                                   └────────── measured ─────────────┘   some rounds
//! ```
//! The misfit of a point is that of its worst value: the distance from the published value, as a
//! fraction of the published value. Only points that were measured count as fitting.

use super::surrogate::{Sample, Surrogate};
use crate::workload::lcg::Lcg;

/// A point fits if its misfit is at most this, or [`BEST_FACTOR`] times that of the best point.
pub(super) const MISFIT: f64 = 0.05;
pub(super) const BEST_FACTOR: f64 = 1.25;

/// Steps of the search on the surrogate for one proposal.
const STEPS: usize = 4000;

/// A range whose ends have a larger ratio is searched by factors, any other by differences.
const WIDE: f64 = 3.0;

/// The range of a cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    /// The least.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// The distance between possible values, counted from the least.
    pub step: u64,
}

impl Axis {
    fn is_wide(self) -> bool {
        self.least > 0 && self.most as f64 > WIDE * self.least as f64
    }

    /// The value at a place from 0 to 1.
    pub(super) fn value(self, place: f64) -> u64 {
        let (least, most) = (self.least as f64, self.most as f64);
        let value = if self.is_wide() {
            least * (most / least).powf(place)
        } else {
            least + (most - least) * place
        };
        let steps = (value - least) / self.step as f64;
        self.least + (steps.round() as u64).min((self.most - self.least) / self.step) * self.step
    }

    fn place(self, value: u64) -> f64 {
        let (least, most, value) = (self.least as f64, self.most as f64, value as f64);
        if self.is_wide() {
            (value / least).ln() / (most / least).ln()
        } else {
            (value - least) / (most - least)
        }
    }
}

/// A point that was measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tried {
    /// The costs.
    pub(super) at: Vec<u64>,
    /// Simulated values, in the order of the published ones.
    pub(super) values: Vec<f64>,
    /// The misfit.
    pub(super) misfit: f64,
}

/// The best point, and how far the base determines each cost.
#[derive(Debug)]
pub(super) struct Found<'a> {
    /// The point with the least misfit.
    pub(super) best: &'a Tried,
    /// The misfit up to which points fit.
    pub(super) bound: f64,
    /// For each cost the points with the least and with the most of those that fit.
    pub(super) ends: Vec<[&'a Tried; 2]>,
}

/// A search.
pub(super) struct Search<'a> {
    pub(super) axes: &'a [Axis],
    pub(super) published: &'a [f64],
    /// Rounds after the first.
    pub(super) rounds: usize,
}

impl Search<'_> {
    /// Measures points. `known` are points of a coarser model, from which the search starts: it
    /// uses the ratios between their values, but not the values themselves.
    pub(super) fn run<E>(
        &self,
        known: &[Tried],
        mut measure: impl FnMut(&[Vec<u64>]) -> Result<Vec<Vec<f64>>, E>,
    ) -> Result<Vec<Tried>, E> {
        let mut tried: Vec<Tried> = Vec::new();
        let mut next = if known.is_empty() { self.spread() } else { ends(known) };
        for round in 0..=self.rounds {
            next.sort();
            next.dedup();
            next.retain(|at| tried.iter().all(|old| old.at != *at));
            if next.is_empty() {
                break;
            }
            let values = measure(&next)?;
            let points = next.drain(..).zip(values).map(|(at, values)| self.tried(at, values));
            tried.extend(points);
            next = self.proposals(&tried, known, round as u64 + 1);
        }
        Ok(tried)
    }

    pub(super) fn tried(&self, at: Vec<u64>, values: Vec<f64>) -> Tried {
        let off = |(value, published): (&f64, &f64)| (value / published - 1.0).abs();
        let misfit = values.iter().zip(self.published).map(off).fold(0.0, f64::max);
        Tried { at, values, misfit }
    }

    /// The middle, and points spread evenly over the box.
    fn spread(&self) -> Vec<Vec<u64>> {
        let middle = vec![0.5; self.axes.len()];
        let count = 2 * self.axes.len() as u64 + 2;
        let even = (1..=count).map(|at| (0..self.axes.len()).map(|of| halton(at, of)).collect());
        [middle].into_iter().chain(even).map(|place| self.values(&place)).collect()
    }

    fn values(&self, place: &[f64]) -> Vec<u64> {
        self.axes.iter().zip(place).map(|(axis, place)| axis.value(*place)).collect()
    }

    fn place(&self, at: &[u64]) -> Vec<f64> {
        self.axes.iter().zip(at).map(|(axis, value)| axis.place(*value)).collect()
    }

    /// The best point by the surrogate, and for each cost the least and the most that should fit.
    fn proposals(&self, tried: &[Tried], known: &[Tried], round: u64) -> Vec<Vec<u64>> {
        let best = best(tried);
        let surrogate = Surrogate::fit(&self.samples(tried, known));
        let misfit = |place: &[f64]| {
            let off = |(log, published): (&f64, &f64)| (log - published.ln()).abs();
            surrogate.at(place).iter().zip(self.published).map(off).fold(0.0, f64::max)
        };
        let start = self.place(&best.at);
        let mut random = Lcg::new(round);
        let center = climb(&start, &mut random, |place| -misfit(place));
        let bound = bound(best.misfit.min(misfit(&center)));
        let end = |axis: usize, sign: f64, random: &mut Lcg| {
            let worth =
                |place: &[f64]| sign * place[axis] - 50.0 * (misfit(place) - bound).max(0.0);
            climb(&center, random, worth)
        };
        let axes = 0..self.axes.len();
        let far: Vec<Vec<f64>> =
            axes.flat_map(|axis| [-1.0, 1.0].map(|sign| end(axis, sign, &mut random))).collect();
        [center].iter().chain(&far).map(|place| self.values(place)).collect()
    }

    /// Points that fit better have more weight. Values of the coarser model are scaled by the ratio
    /// of both models at the same points.
    fn samples(&self, tried: &[Tried], known: &[Tried]) -> Vec<Sample> {
        let both: Vec<(&Tried, &Tried)> = tried
            .iter()
            .filter_map(|fine| Some((fine, known.iter().find(|coarse| coarse.at == fine.at)?)))
            .collect();
        let shift = |value: usize| {
            let logs =
                both.iter().map(|(fine, coarse)| (fine.values[value] / coarse.values[value]).ln());
            logs.sum::<f64>() / both.len().max(1) as f64
        };
        let shifts: Vec<f64> = (0..self.published.len()).map(shift).collect();
        let sample = |point: &Tried, shifts: &[f64]| Sample {
            place: self.place(&point.at),
            logs: point.values.iter().zip(shifts).map(|(v, by)| v.max(1e-9).ln() + by).collect(),
            weight: (point.misfit + MISFIT).powi(-2),
        };
        let none = vec![0.0; self.published.len()];
        let coarse = known.iter().filter(|point| tried.iter().all(|fine| fine.at != point.at));
        tried
            .iter()
            .map(|point| sample(point, &none))
            .chain(coarse.map(|point| sample(point, &shifts)))
            .collect()
    }
}

/// Which points fit, and how far apart they are.
pub(super) fn found(tried: &[Tried]) -> Found<'_> {
    let best = best(tried);
    let bound = bound(best.misfit);
    let fit: Vec<&Tried> = tried.iter().filter(|point| point.misfit <= bound).collect();
    let end = |axis: usize| {
        let by = |point: &&&Tried| point.at[axis];
        let least = fit.iter().min_by_key(by).expect("the best point fits");
        let most = fit.iter().max_by_key(by).expect("the best point fits");
        [*least, *most]
    };
    Found { best, bound, ends: (0..best.at.len()).map(end).collect() }
}

fn best(tried: &[Tried]) -> &Tried {
    let least = tried.iter().min_by(|a, b| a.misfit.total_cmp(&b.misfit));
    least.expect("points were measured")
}

fn bound(best: f64) -> f64 {
    MISFIT.max(BEST_FACTOR * best)
}

/// The best point and the ends of each cost.
fn ends(tried: &[Tried]) -> Vec<Vec<u64>> {
    let found = found(tried);
    [found.best].into_iter().chain(found.ends.into_iter().flatten()).map(|p| p.at.clone()).collect()
}

/// Goes to a better place in random steps, which become smaller, inside the box.
fn climb(start: &[f64], random: &mut Lcg, worth: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let (mut at, mut most) = (start.to_vec(), worth(start));
    for step in 0..STEPS {
        let width = 0.5 * 0.001_f64.powf(step as f64 / STEPS as f64);
        let mut draw = || random.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0;
        let next: Vec<f64> =
            at.iter().map(|place| (place + width * draw()).clamp(0.0, 1.0)).collect();
        let value = worth(&next);
        if value > most {
            (at, most) = (next, value);
        }
    }
    at
}

/// The `at`th place of the sequence in the base of the `of`th prime.
fn halton(mut at: u64, of: usize) -> f64 {
    let base = [2, 3, 5, 7, 11, 13, 17, 19][of];
    let (mut place, mut part) = (0.0, 1.0);
    while at > 0 {
        part /= base as f64;
        place += part * (at % base) as f64;
        at /= base;
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXES: [Axis; 3] = [
        Axis { least: 100, most: 10_000, step: 1 },
        Axis { least: 0, most: 400, step: 4 },
        Axis { least: 10, most: 1000, step: 1 },
    ];

    /// A throughput that depends only on the sum of the first two costs, and a share that depends
    /// on the third.
    fn model(at: &[u64]) -> Vec<f64> {
        let sum = (at[0] + at[1]) as f64;
        vec![1e6 / sum, at[2] as f64 / (at[2] as f64 + 500.0)]
    }

    fn search(rounds: usize) -> Vec<Tried> {
        let published = model(&[800, 200, 125]);
        let search = Search { axes: &AXES, published: &published, rounds };
        let all = |points: &[Vec<u64>]| Ok::<_, ()>(points.iter().map(|at| model(at)).collect());
        search.run(&[], all).expect("a formula")
    }

    #[test]
    fn what_the_values_fix_is_found_and_what_they_do_not_fix_has_a_range() {
        let tried = search(6);
        let found = found(&tried);
        assert!(found.best.misfit < 0.02, "{:?}", found.best);
        let [[a, b], [c, d], [e, f]] = [0, 1, 2].map(|axis| found.ends[axis].map(|p| p.at[axis]));
        assert!((548..680).contains(&a) && (940..=1054).contains(&b), "{a} to {b}");
        assert!(c < 40 && d > 360, "{c} to {d}");
        assert!((116..=124).contains(&e) && (126..=133).contains(&f), "{e} to {f}");
        let mut ends = found.ends.iter().flatten();
        assert!(ends.all(|point| tried.contains(point) && point.misfit <= found.bound), "measured");
        assert!(tried.len() < 60, "{} simulations", tried.len());
    }

    #[test]
    fn a_finer_model_begins_where_the_coarser_one_ended() {
        let coarse = search(4);
        let published = model(&[880, 220, 125]);
        let search = Search { axes: &AXES, published: &published, rounds: 2 };
        let mut count = 0;
        let fine = |points: &[Vec<u64>]| {
            count += points.len();
            Ok::<_, ()>(points.iter().map(|at| model(at)).collect())
        };
        let tried = search.run(&coarse, fine).expect("a formula");
        assert!(found(&tried).best.misfit < 0.03 && count <= 3 * 7, "{count} simulations");
    }

    #[test]
    fn places_and_values_agree() {
        for axis in AXES {
            for value in [axis.least, axis.most, axis.value(0.5)] {
                assert_eq!(axis.value(axis.place(value)), value);
            }
        }
    }
}
