//! How an experiment is run, and the events that it reports meanwhile.

use super::kept::Kept;

/// How to run an experiment.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Divisor of memory and devices; `None` for the first that fits into this machine's memory.
    pub scale: Option<u64>,
    /// Runs of each variant, with seeds 1, 2, ...; rows have the medians.
    pub seeds: u64,
    /// Numbers of tasks of which rows are run, where there are several; `None` for all.
    pub tasks: Option<&'a [usize]>,
    /// Whether to make plots, from runs with the first seed.
    pub curves: Curves,
    /// Where figures of runs are kept; `None` for nowhere.
    pub kept: Option<&'a Kept>,
}

/// What happens while an experiment runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A run begins.
    Began {
        /// Of what.
        what: &'a str,
        /// With how many tasks.
        tasks: usize,
    },
    /// A run ended.
    Ended {
        /// The host's time that it took; little if its figures were kept.
        seconds: f64,
    },
}

/// Whether to make plots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curves {
    /// Rows only.
    Skip,
    /// Plots too, and the further runs that they take.
    Plot,
}
