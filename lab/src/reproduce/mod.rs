//! Published experiments, run again on simulated machines.
//!
//! ```text
//! swap_2016, ..., scaleswap_2026: a file for each document
//!    |  Experiment (experiment) of Study, Variant, Quantity (study), published/*.csv (published)
//!    v
//! runs       a simulation for each variant, number of tasks and seed
//!    v
//! comparison, sweep, matrix    published and measured values side by side: Row (rows), plots
//!    v
//! table: text      results: a file, from which crate::page writes docs/reproduction.md
//! ```
//! `base` hands published values of bases to crate::calibrate. `kept` stores figures of finished
//! runs, so that a command can continue an interrupted one.
//!
//! Runs share nothing. docs/reproduction.md has the results.

mod base;
mod compaction_2012;
mod comparison;
mod experiment;
mod figures;
mod kept;
mod kswapd_2018;
mod matrix;
mod options;
mod published;
mod results;
mod rows;
mod runs;
mod scaleswap_2026;
mod slub_2023;
mod study;
mod swap_2016;
mod swap_2020;
mod sweep;
mod table;

pub use base::{BaseValue, Ratio, Run, base_values, ratios};
pub use experiment::{Experiment, Reproduced};
pub use kept::Kept;
pub use options::{Curves, Event, Options};
pub use results::{Outcome, Results};
pub use rows::{Role, Row, Verdict};
pub use study::{Changes, Compared, Known, Latency, Presentation, Quantity, Study, Tasks, Variant};
pub use table::{Scale, table};

/// All experiments.
pub const ALL: &[&Experiment] = &[
    &swap_2016::EXPERIMENT,
    &swap_2020::EXPERIMENT,
    &kswapd_2018::EXPERIMENT,
    &kswapd_2018::THREADS,
    &slub_2023::EXPERIMENT,
    &compaction_2012::EXPERIMENT,
    &scaleswap_2026::EXPERIMENT,
];

/// Experiments with published values: what `all` stands for.
pub fn published() -> impl Iterator<Item = &'static Experiment> {
    ALL.iter().copied().filter(|experiment| experiment.is_published())
}

/// Finds an experiment by its name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name).copied()
}

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod tests;
