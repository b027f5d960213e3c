//! Published experiments, run again on simulated machines.
//!
//! ```text
//! swap_2016, swap_2020, kswapd_2018, slub_2023, compaction_2012: one file for each document
//!    |  Experiment (experiment) of Study, Variant, Quantity (study), published/*.csv (published)
//!    v
//! runs       a simulation for each variant, number of tasks and seed
//!    v
//! comparison, sweep, matrix    published and measured values side by side: Row (rows), plots
//! ```
//! Nothing is shared between runs. docs/reproduction.md has the results.

mod compaction_2012;
mod comparison;
mod experiment;
mod figures;
mod kswapd_2018;
mod matrix;
mod published;
mod rows;
mod runs;
mod slub_2023;
mod study;
mod swap_2016;
mod swap_2020;
mod sweep;

pub use experiment::{Curves, Experiment, Options, Reproduced};
pub use rows::{Role, Row, table};
pub use study::{Changes, Compared, Known, Latency, Presentation, Quantity, Study, Tasks, Variant};

/// All experiments.
pub const ALL: &[&Experiment] = &[
    &swap_2016::EXPERIMENT,
    &swap_2020::EXPERIMENT,
    &kswapd_2018::EXPERIMENT,
    &kswapd_2018::THREADS,
    &slub_2023::EXPERIMENT,
    &compaction_2012::EXPERIMENT,
];

/// Finds an experiment by its name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name).copied()
}

#[cfg(test)]
mod tests;
