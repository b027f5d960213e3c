//! The memory manager.
#![forbid(unsafe_code)]

pub mod stats;
