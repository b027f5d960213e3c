//! Where swapped pages go: memory, plain or compressed, a file that nobody else can see, or both.
//!
//! ```text
//! Area: Spec, priority
//! Spec --open--> Box<dyn Device>      Arena: where frames lie
//!                 |- Ram              mapping of slots, plain copies
//!                 |- Zram             compressed objects in blocks of one size class
//!                 |- FileDevice       unlinked sparse file (create)
//!                 |   |- Disk         what the system says of the disk below it
//!                 |   |- Pool         rings of this process (uring), one per batch in flight
//!                 |   |- Tail         of a file that existed: its last page, if partial (existing)
//!                 |   |- Room         blocks of the file system, taken before they are written
//!                 |   '- plain        preadv and pwritev, where there is no ring (transfer)
//!                 |- Part             pages of another, from one on
//!                 '- Tier             one of the first two over one of the third, and a thread
//! ```
//! Locks: those of Zram's shards and of Tier's free blocks. A device is used by any number of
//! threads at once; else the only thing they share is the mask of rings or codecs in use, one
//! atomic word. A batch allocates nothing once its ring exists.
//!
//! The crate is also linked into a library that replaces mmap, munmap, madvise and malloc of the
//! program it serves, so its own memory comes from raw system calls (`sys`).

mod area;
mod arena;
mod array;
mod compression;
mod create;
mod device;
mod disk;
mod error;
mod existing;
mod file;
mod open;
mod part;
mod pool;
mod ram;
mod room;
mod spec;
mod sys;
mod tail;
mod tier;
mod tiering;
mod transfer;
mod uring;
mod zram;

pub use area::Area;
pub use arena::Arena;
pub use compression::Compression;
pub use device::Device;
pub use error::{OpenError, Reason};
pub use existing::{FileError, open_file};
pub use file::Submission;
pub use highwater_platform::FileAccess;
pub use open::{open, open_with, part, tier};
pub use pool::Started;
pub use spec::{Algorithm, SIZE_MAX, SIZE_MIN, Spec};
pub use tiering::Tiering;
