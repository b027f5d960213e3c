//! Results of experiments in a file, from which the tables of a page are made.

use super::experiment::Reproduced;
use super::rows::Row;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Results by experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// By the experiment's name.
    pub experiments: BTreeMap<String, Outcome>,
}

/// The result of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Runs of each variant.
    pub seeds: u64,
    /// Machine, workload and scale of each study.
    pub conditions: Vec<String>,
    /// Simulations.
    pub runs: usize,
    /// Seconds of the host for all runs, one after the other.
    pub seconds: f64,
    /// Published and measured values.
    pub rows: Vec<Row>,
}

impl Results {
    /// Adds the result of an experiment, or replaces it.
    pub fn put(&mut self, name: &str, seeds: u64, reproduced: &Reproduced) {
        let Reproduced { rows, conditions, seconds, runs, .. } = reproduced.clone();
        let outcome = Outcome { seeds, conditions, runs, seconds, rows };
        self.experiments.insert(name.into(), outcome);
    }

    /// As a file.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("text keys") + "\n"
    }
}
