//! Keys of `--set` for highalloc: kernels that are built.

use super::Key;
use super::words::number;

/// Memory of the compilers.
pub(super) const COMPILERS: Key = Key {
    name: "compilers",
    values: "0.01 to 16, in parts of memory",
    help: "anonymous pages of the compilers of highalloc, all together, at most",
    take: |s, text| {
        s.compilers = number(text, 0.01..=16.0)?;
        Some(())
    },
    show: |s| s.compilers.to_string(),
};

/// Memory of the kernel.
pub(super) const KERNEL: Key = Key {
    name: "kernel",
    values: "0 to 0.5, in parts of memory",
    help: "what the kernel keeps for the builds of highalloc, and cannot move",
    take: |s, text| {
        s.kernel = number(text, 0.0..=0.5)?;
        Some(())
    },
    show: |s| s.kernel.to_string(),
};

/// What is left of that.
pub(super) const KERNEL_LEFT: Key = Key {
    name: "kernel_left",
    values: "0 to 100",
    help: "percent of it that it still keeps when they have ended",
    take: |s, text| {
        s.kernel_left = number(text, 0..=100)?;
        Some(())
    },
    show: |s| s.kernel_left.to_string(),
};
