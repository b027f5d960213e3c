//! The result of a calibration, as JSON and as text.

use highwater_command::value;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The costs that a base fixes, and the changes predicted from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The machine's name.
    pub machine: String,
    /// The scale of the fine search.
    pub scale: u64,
    /// Divisor of warm-up and measured time.
    pub shorter: f64,
    /// Points that were simulated.
    pub simulations: usize,
    /// The largest misfit at which a point fits, as a fraction of the published value that fits
    /// worst.
    pub bound: f64,
    /// The costs.
    pub costs: Vec<CostRange>,
    /// The base values.
    pub residuals: Vec<Residual>,
    /// The changes.
    pub predictions: Vec<Prediction>,
}

/// How far the base fixes a cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostRange {
    /// Its place in the machine's file, or a setting of the experiment.
    pub cost: String,
    /// Its value in the file; `None` for a setting.
    pub in_file: Option<u64>,
    /// The range in which it was searched.
    pub search: [u64; 2],
    /// Its value where the base fits best.
    pub best: u64,
    /// The range in which the base fits.
    pub allowed: [u64; 2],
}

/// A base value where the base fits best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Residual {
    /// Its name.
    pub value: String,
    /// Its unit.
    pub unit: String,
    /// The published value.
    pub published: f64,
    /// The simulated value.
    pub best: f64,
}

/// A ratio of improved to base, predicted without the published ratio.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Of what: the variant and the quantity.
    pub change: String,
    /// Where the base fits best.
    pub best: f64,
    /// The least, there and at the ends of costs that the base does not fix.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// Whether the base fixes a cost: the most that it allows is at most a quarter above the least.
pub(super) fn is_fixed([least, most]: [u64; 2]) -> bool {
    most * 4 <= least * 5
}

impl CostRange {
    /// In words, how far the base fixes it.
    pub fn verdict(&self) -> &'static str {
        let [least, most] = self.allowed;
        let [first, last] = self.search;
        if is_fixed(self.allowed) {
            "fixed"
        } else if (least - first) * 20 <= last - first && (last - most) * 20 <= last - first {
            "not fixed at all"
        } else {
            "not fixed"
        }
    }
}

impl Calibration {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}: {} points at scale {} and coarser, which fit if no base value is {:.1} % off\n\n",
            self.machine,
            self.simulations,
            self.scale,
            self.bound * 100.0
        );
        let widest = |names: Vec<usize>| names.into_iter().max().unwrap_or(0) + 2;
        let width = widest(self.residuals.iter().map(|r| r.value.len()).collect());
        let _ = writeln!(
            text,
            "{:width$}{:9}{:>12}{:>12}{:>10}",
            "base value", "unit", "published", "best fit", "residual"
        );
        for Residual { value: name, unit, published, best } in &self.residuals {
            let off = format!("{:+.1} %", (best / published - 1.0) * 100.0);
            let (published, best) = (value(*published), value(*best));
            let _ = writeln!(text, "{name:width$}{unit:9}{published:>12}{best:>12}{off:>10}");
        }
        let width = widest(self.costs.iter().map(|c| c.cost.len()).collect());
        let _ = writeln!(
            text,
            "\n{:width$}{:>9}{:>10}{:>18}{:>18}  the base leaves it",
            "cost", "in file", "best fit", "searched", "allowed"
        );
        for cost in &self.costs {
            let in_file = cost.in_file.map_or("-".into(), |value| value.to_string());
            let [search, allowed] = [cost.search, cost.allowed].map(|[a, b]| format!("{a} to {b}"));
            let (name, best, verdict) = (&cost.cost, cost.best, cost.verdict());
            let _ = writeln!(
                text,
                "{name:width$}{in_file:>9}{best:>10}{search:>18}{allowed:>18}  {verdict}"
            );
        }
        let width = widest(self.predictions.iter().map(|p| p.change.len()).collect());
        let _ = writeln!(
            text,
            "\n{:width$}{:>10}{:>18}",
            "predicted improved / base", "best fit", "interval"
        );
        for Prediction { change, best, least, most } in &self.predictions {
            let interval = format!("{least:.3} to {most:.3}");
            let _ = writeln!(text, "{change:width$}{best:>10.3}{interval:>18}");
        }
        text
    }
}
