//! A cheap stand-in for simulations: the logarithm of each measured value as a polynomial of the
//! places of the costs, fitted by weighted least squares.

/// Keeps the equations solvable if there are too few points.
const RIDGE: f64 = 1e-5;

/// A polynomial of degree 1, or of 2 with enough points, for each value.
pub(super) struct Surrogate {
    terms: usize,
    coefficients: Vec<Vec<f64>>,
}

/// A point that was measured.
pub(super) struct Sample {
    /// Places of the costs, from 0 to 1.
    pub(super) place: Vec<f64>,
    /// Logarithms of the values.
    pub(super) logs: Vec<f64>,
    /// Its weight in the fit.
    pub(super) weight: f64,
}

impl Surrogate {
    /// Fits samples of at least one point.
    pub(super) fn fit(samples: &[Sample]) -> Surrogate {
        let costs = samples[0].place.len();
        let (linear, quadratic) = (costs + 1, (costs + 1) * (costs + 2) / 2);
        let terms = if samples.len() >= quadratic + costs { quadratic } else { linear };
        let rows: Vec<Vec<f64>> = samples.iter().map(|of| basis(&of.place, terms)).collect();
        let of = |value: usize| solve(normal(samples, &rows, value, terms));
        Surrogate { terms, coefficients: (0..samples[0].logs.len()).map(of).collect() }
    }

    /// The logarithms of all values at a place.
    pub(super) fn at(&self, place: &[f64]) -> Vec<f64> {
        let row = basis(place, self.terms);
        let sum = |of: &Vec<f64>| of.iter().zip(&row).map(|(a, b)| a * b).sum();
        self.coefficients.iter().map(sum).collect()
    }
}

/// 1, each place, and products of two, as many as `terms`.
fn basis(place: &[f64], terms: usize) -> Vec<f64> {
    let pairs = place.iter().enumerate();
    let products = pairs.flat_map(|(at, a)| place[at..].iter().map(move |b| a * b));
    [1.0].into_iter().chain(place.iter().copied()).chain(products).take(terms).collect()
}

/// The normal equations of one value, with its right-hand side last.
fn normal(samples: &[Sample], rows: &[Vec<f64>], value: usize, terms: usize) -> Vec<Vec<f64>> {
    let mut equations = vec![vec![0.0; terms + 1]; terms];
    for (sample, row) in samples.iter().zip(rows) {
        for (equation, a) in equations.iter_mut().zip(row) {
            for (sum, b) in equation.iter_mut().zip(row.iter().chain([&sample.logs[value]])) {
                *sum += sample.weight * a * b;
            }
        }
    }
    let all: f64 = samples.iter().map(|sample| sample.weight).sum();
    (1..terms).for_each(|at| equations[at][at] += RIDGE * all);
    equations
}

/// Solves linear equations by elimination.
fn solve(mut equations: Vec<Vec<f64>>) -> Vec<f64> {
    let count = equations.len();
    for at in 0..count {
        let largest = (at..count)
            .max_by(|a, b| equations[*a][at].abs().total_cmp(&equations[*b][at].abs()))
            .expect("there are equations left");
        equations.swap(at, largest);
        let pivot = equations[at].clone();
        for (_, other) in equations.iter_mut().enumerate().filter(|(of, _)| *of != at) {
            let factor = other[at] / pivot[at];
            other.iter_mut().zip(&pivot).for_each(|(value, by)| *value -= factor * by);
        }
    }
    equations.iter().enumerate().map(|(at, equation)| equation[count] / equation[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polynomial_is_found_again() {
        let truth = |x: f64, y: f64| 1.0 + 2.0 * x - y + 0.5 * x * y;
        let grid = (0..16).map(|at| (f64::from(at % 4) / 3.0, f64::from(at / 4) / 3.0));
        let sample =
            |(x, y)| Sample { place: vec![x, y], logs: vec![truth(x, y), -x], weight: 1.0 };
        let samples: Vec<Sample> = grid.map(sample).collect();
        let found = Surrogate::fit(&samples).at(&[0.3, 0.9]);
        assert!((found[0] - truth(0.3, 0.9)).abs() < 1e-3, "{found:?}");
        assert!((found[1] + 0.3).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn few_points_make_a_plane() {
        let sample = |x: f64| Sample { place: vec![x, 0.5], logs: vec![3.0 * x], weight: 1.0 };
        let found = Surrogate::fit(&[0.0, 0.5, 1.0].map(sample)).at(&[0.25, 0.7]);
        assert!((found[0] - 0.75).abs() < 1e-3, "{found:?}");
    }
}
