//! Memory larger than RAM, inside a program: [`Memory`] keeps as many pages in RAM as its budget
//! allows, and the others on its own swap devices.
//!
//! ```text
//! Builder --build--> Memory -- Engine  (engine.rs)   the manager, and its limits
//!                      |               (serving.rs)  the threads that serve faults
//!                      |               (owner.rs)    faults that cannot be served
//!                      |               (regions.rs)  where they lie; files.rs, opening.rs: files
//!                      |               (forked.rs)   forked children have no paged memory
//!                      |- map_file -> FileMapping   a Mapping of a file, resize, sync
//!                      '- map -> Mapping   plain pointers; read_at, write_at: checked copies
//!                                 |- PagedVec, PagedBox    typed
//!                                 |- PagedAllocator        containers, by allocator-api2
//!                                 |- Fetch                 a future: pages are in memory
//!                                 |- PageRef, PageMut      pinned pages
//!                                 '- Reader, Writer        std::io, by copies
//! ```
//! Mappings are plain memory: slices, pointers and the code of any library work on them. An access
//! to a page that is not in memory faults, and a thread of this process brings the page in. The
//! crate needs Linux on x86-64 with userfaultfd; `highwater doctor` says what a machine permits.
//! docs/library.md explains system calls, signals and fork.

mod advice;
mod allocator;
mod boxed;
mod budget;
mod builder;
mod element;
mod engine;
mod error;
mod fetch;
mod file;
mod files;
mod forked;
mod mapping;
mod memory;
mod opening;
mod owner;
mod page;
mod regions;
mod serving;
mod statistics;
mod stream;
mod vec;

pub use advice::Advice;
pub use allocator::PagedAllocator;
pub use boxed::PagedBox;
pub use builder::Builder;
pub use error::Error;
pub use fetch::Fetch;
pub use file::FileMapping;
pub use highwater_devices::{OpenError, Seal};
pub use highwater_platform::{FileAccess, IoError};
pub use highwater_session::{FaultThreads, LargePages};
pub use highwater_units::Bytes;
pub use mapping::Mapping;
pub use memory::Memory;
pub use page::{PageMut, PageRef};
pub use statistics::Statistics;
pub use stream::{Reader, Writer};
pub use vec::PagedVec;

/// The program of the first page compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/start-rust.md")]
mod start {}
