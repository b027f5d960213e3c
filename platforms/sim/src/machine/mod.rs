//! The machine that is simulated: CPUs, nodes, what things cost, devices. Read from TOML.
//!
//! ```text
//! Machine -- sockets x cores x threads, smt_slowdown
//!         |- memory per node
//!         |- Costs    nanoseconds; sections: what a lock's holder does with what it protects
//!         \- Device   latency, bandwidth, channels, synchronous or not, seek
//! ```
//! CPUs are numbered as Linux does: the first threads of all cores, socket by socket, then the
//! second ones. Nodes are equal parts of the cores in that order: one for each socket, as a rule.
//! docs/simulator.md says how each cost was chosen, and what a scaled machine keeps.

mod check;
mod description;
#[cfg(test)]
mod files;
mod load;
mod scale;

pub use description::{
    Answer, CPUS_MAX, Costs, DEVICES_MAX, DeviceSpec, Machine, NODES_MAX, Role, Section, Sections,
};
pub use scale::MarkSettings;
