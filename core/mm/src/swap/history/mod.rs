//! Swap of earlier kernels, selected by [`crate::config::history::SwapHistory`] and compiled with
//! the feature `history` only. If none is selected, [`device::Device`] passes every call to today's
//! device.
//!
//! ```text
//! device.rs      a device with the locks, the caches and the tags of the past around today's
//! order.rs       devices without nodes, and turns that all CPUs share
//! cache.rs       the swap cache: today's table, or trees
//! tree.rs        trees of 64 slots, of 64 MiB or of a whole device, each with a lock
//! slot_cache.rs  64 slots that a CPU takes or frees at a time
//! scan.rs        a scan position for each CPU
//! ```
//! Locking: `SlotCache -> SwapInfo -> SwapCpu -> SwapCluster -> SwapDevice`; `SwapCache`, a tree's
//! lock, is taken alone.

pub(super) mod cache;
pub(super) mod device;
pub(super) mod order;
pub(super) mod scan;
mod slot_cache;
mod tree;
