//! The peers that Highwater is compared with: the same memory served by the kernel, and the bare
//! disk.
//!
//! ```text
//! Mapping ── anonymous() or of a file() ──> Kernel: Service, counters from /proc
//! Reads: a file read in blocks, through the page cache or past it: Service
//! disk::run: transfers of a file through io_uring, no memory manager at all
//! Keeper process: zram + swapon, memory cgroup; undone when its input closes, however that comes
//! ```

pub mod cgroup;
pub mod disk;
mod file;
pub mod keeper;
mod kernel;
mod mapping;
mod reader;
mod zram;

pub use kernel::{Kernel, Traffic};
pub use mapping::{Mapping, Order};
pub(crate) use reader::Block;
pub use reader::{Cache, Prepared, Reads};

/// A set-up that this machine or user does not allow. The text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Unavailable {
    /// What failed, and the system's reason.
    fn because(what: impl std::fmt::Display, reason: impl std::fmt::Display) -> Unavailable {
        Unavailable(format!("{what}: {reason}"))
    }
}
