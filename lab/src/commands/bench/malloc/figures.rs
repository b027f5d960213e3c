//! What `bench malloc` measures.

use super::load::{Load, LoadFigures};
use clap::ValueEnum;
use serde::Serialize;

/// Whose malloc serves the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Allocator {
    /// The C library
    Glibc,
    /// Debian's libjemalloc2
    Jemalloc,
    /// Debian's libmimalloc2.0 or libmimalloc3
    Mimalloc,
    /// Highwater's malloc, under `highwater run`
    Highwater,
}

/// A load under an allocator: its median round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AllocatorRun {
    pub(super) load: Load,
    pub(super) allocator: Allocator,
    #[serde(flatten)]
    pub(super) figures: LoadFigures,
    /// None outside `highwater run`.
    pub(super) paging: Option<Paging>,
}

/// The paging figures of a report of `highwater run`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Paging {
    pub(super) major_faults: u64,
    pub(super) swapped_in_pages: u64,
    pub(super) paged_peak_bytes: u64,
}

/// Everything that ran.
#[derive(Debug, Serialize)]
pub(super) struct MallocFigures {
    pub(super) runs: Vec<AllocatorRun>,
    /// What did not, and why.
    pub(super) notes: Vec<String>,
    pub(super) rounds: u32,
    pub(super) threads: u32,
    pub(super) set_bytes: u64,
    pub(super) memory_bytes: Option<u64>,
    pub(super) checked_percent: u64,
    pub(super) seed: u64,
}
