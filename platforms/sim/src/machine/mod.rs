//! The description of the simulated machine: CPUs, nodes, costs, devices. Read from TOML.
//!
//! ```text
//! Machine -- sockets x cores x threads, smt_slowdown
//!         |- memory per node
//!         |- Costs    nanoseconds; sections: the critical sections of lock classes
//!         |- Device   latency, bandwidth, channels, synchronous or not, seek
//!         \- Calibrated   which costs published base values fix, and how far
//! ```
//! CPUs are numbered as in Linux: the first threads of all cores, socket by socket, then the second
//! threads. Nodes are equal parts of the cores in that order, usually one per socket.
//! docs/simulator.md explains how each cost was chosen, and what scaling a machine preserves.

mod calibrated;
mod check;
mod description;
#[cfg(test)]
mod files;
mod load;
#[cfg(test)]
mod machine_fuzz;
mod scale;

pub use description::{
    Answer, CPUS_MAX, Calibrated, Costs, DEVICES_MAX, DeviceSpec, Machine, NODES_MAX, Role,
    Section, Sections,
};
pub use scale::MarkSettings;
