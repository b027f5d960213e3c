//! Swap devices: memory, plain or compressed; an unlinked file; a server; two of these with the
//! same pages, or as levels.
//!
//! ```text
//! Area: Spec, priority
//! Spec --open--> Box<dyn Device>      Arena: addresses of the frames
//!                 |- Ram              a mapping of slots, plain copies
//!                 |- Zram             compressed objects in blocks of one size class
//!                 |- FileDevice       an unlinked sparse file (create), or an existing one
//!                 |   |- Disk         properties of the disk below the file
//!                 |   |- Pool         io_urings of this process (uring), one per batch in flight
//!                 |   |- Tail         the last page of a file that existed, if it is partial
//!                 |   |- Room         blocks of the file system, allocated before they are written
//!                 |   '- plain        preadv and pwritev, without a ring (transfer)
//!                 |- Remote           pages on a server: Redis, Valkey, NBD (remote)
//!                 |- Sealed           another device, encrypted and authenticated
//!                 |- Replicated       two devices with the same pages (replicate)
//!                 |- Flaky            another device, with injected faults, for tests
//!                 |- Part             a range of another device
//!                 |- Quota            room that the devices of several processes share
//!                 '- Tier             Ram or Zram over a slow device, and a thread for write-back
//! ```
//! **A new kind of device** touches three places. Its file implements the trait [`Device`]
//! (`device.rs`; `ram.rs` is the shortest example). `spec.rs` gets a variant of [`Spec`] with its
//! syntax: `KINDS`, `parse_kind`, `Display`, `Spec::size`. `open.rs` gets an arm in [`open_with`].
//! The tests in `devices/tests` run over all specifications that they list. A new protocol for
//! servers implements `Store` instead of the trait (`remote/store.rs`).
//!
//! Locks: one per shard of Zram, one around the free blocks of each level of a Tier; of Remote, one
//! around the list of servers and one for each server's lost connections (Redis), or one around the
//! extents (NBD). Others are taken rarely, to wake, pause or end threads, to change keys, and to
//! give back parts of an export. Any number of threads use a device at once; they share rings,
//! codecs, bounce pages and connections by masks of those in use. A batch allocates nothing once
//! these exist.
//!
//! The crate is also linked into the preload library, which replaces mmap, munmap, madvise and
//! malloc of the program. So its own memory comes from raw system calls (`sys`).

mod area;
mod arena;
mod array;
mod busy;
mod compression;
mod create;
mod device;
mod disk;
mod environment;
mod error;
mod existing;
mod file;
mod flaky;
mod flights;
mod open;
mod own_area;
mod part;
mod places;
mod pool;
mod queues;
mod quota;
mod ram;
mod remote;
mod replicate;
mod replication;
mod room;
mod seal;
mod short_file;
mod size;
mod slot_set;
mod spec;
#[cfg(test)]
mod spec_fuzz;
mod standby;
mod sys;
mod tail;
#[cfg(test)]
mod test_frames;
mod tier;
mod tiering;
mod transfer;
mod uring;
mod zram;

pub use area::Area;
pub use arena::Arena;
pub use compression::Compression;
pub use create::file_size_limit;
pub use device::{Device, Offer};
pub use environment::{is_privileged, secure_var};
pub use error::{OpenError, Reason, TlsFault};
pub use existing::{FileError, open_file};
pub use file::Submission;
pub use flaky::{FaultKind, FaultPlan, Faults, When};
pub use highwater_platform::FileAccess;
pub use open::{OpenOptions, flaky, open, open_with, open_wrapped, part, tier};
pub use own_area::map_own;
pub use pool::Started;
pub use quota::{Lender, Lenders};
pub use remote::{RemoteOptions, Secret, Server, TlsFiles, seconds};
pub use replication::{LostReplica, Replication};
pub use seal::Seal;
pub use short_file::read_short_file;
pub use size::{Exact, SizeError, size};
pub use spec::{Algorithm, Injection, SIZE_MAX, SIZE_MIN, Spec};
pub use standby::Standby;
pub use tiering::Tiering;
pub use zram::{Sample, Sampler};
