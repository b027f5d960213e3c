//! Workloads on simulated machines.
//!
//! ```text
//! Experiment: machine, tasks, seed, time, Settings ── run ──> Simulation: figures, trace
//!   machine scaled ── simulate ──> Simulated: Manager<Sim> ── workload's run ──> Outcome
//! keys, kinds, words   what --set accepts     prepare   from an Experiment to the simulator's
//! ```
//! Runs share nothing: equal experiments give equal figures, except for the host's time.

pub(crate) mod experiment;
mod keys;
mod kinds;
mod objects;
pub(crate) mod prepare;
mod run;
mod settings;
mod words;

pub use experiment::{Experiment, RunError, Workload};
pub use keys::{KEYS, Key};
pub use prepare::Conditions;
pub use run::{Simulation, check, run};
pub use settings::{BadSetting, Processes, Scale, Settings};

#[cfg(test)]
mod tests;
