//! A deterministic simulator of the platform: virtual CPUs, time and devices, driven by one seed.
//!
//! ```text
//! simulate(setup, |vm| ...) -- Engine   CPUs, tasks, time                    engine/
//!                           \- Vm       the interface of the main thread     vm.rs
//! Sim (a Platform) -- SimLock, SimEvent, SimAtomic      lock.rs event.rs atomic.rs
//!   sim.rs         |- contents of frames                contents.rs memory.rs
//!                  |- page tables, flushes              page_tables.rs mmu.rs
//!                  |- devices                           device.rs block.rs files.rs
//!                  \- Watch, Order: observers           watch.rs order.rs
//! ```
//! The manager's real code runs between the calls of the platform contract; only time is modelled.
//! docs/simulator.md describes the model and its limits. Everything here runs on one host thread
//! inside [`simulate`]; use from any other thread panics.

mod atomic;
mod block;
mod clock;
mod contents;
mod cpu;
mod device;
mod engine;
mod event;
mod files;
mod injected_faults;
mod lock;
pub mod machine;
mod memory;
mod mmu;
mod order;
mod page_tables;
mod sim;
mod thread;
mod vm;
mod watch;

pub use atomic::SimAtomic;
pub use block::Transfer;
pub use contents::Words;
pub use device::SimFile;
pub use engine::{Limits, Policy, Report, RoleTime, Stuck, Trace};
pub use event::SimEvent;
pub use injected_faults::InjectedFaults;
pub use lock::{SimGuard, SimLock};
pub use machine::Machine;
pub use mmu::Seen;
pub use sim::{Sim, SimConfig};
pub use thread::SimThread;
pub use vm::{Finished, Setup, Traced, Vm, simulate};
