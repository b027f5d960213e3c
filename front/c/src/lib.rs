//! The C library: `highwater.h`, over the crate `highwater`.
//!
//! ```text
//! highwater_options (options.rs) --highwater_open--> highwater_memory (memory.rs)
//!                                                      |- Table (table.rs)  mappings by address
//!                                                      |   '- alloc, resize, free, read, write,
//!                                                      |      advise (mapping.rs)
//!                                                      |      files (file.rs)
//!                                                      |- highwater_pin (pin.rs)
//!                                                      '- counters.rs
//! status.rs  codes, and the thread's message       access.rs  null pointers, text
//! ```
//! Names are those of the header, which `tests/header.rs` generates from this source. A panic ends
//! the process where it would leave the library: `extern "C"` functions do not unwind.
#![allow(non_camel_case_types, reason = "the names of the C interface")]

mod access;
pub mod counters;
pub mod file;
pub mod mapping;
pub mod memory;
pub mod options;
pub mod pin;
pub mod status;
mod table;
