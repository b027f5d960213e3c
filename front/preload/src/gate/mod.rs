//! The gate: system calls of a process whose paged memory the kernel cannot reach.
//!
//! ```text
//! program --- system call ---> filter.rs   no argument points into the range --> the kernel
//!                                 |  SIGSYS
//!                                 v
//!   handler.rs --- own_stack.rs: the way to the thread's own stack, or to call_stack.rs
//!   make.rs    --- table.rs, calls.rs: what does the call do with its arguments?
//!     long.rs      reads and writes of files that are too long for one copy
//!     copied.rs    copies in (access.rs, known.rs, probe.rs), bounce buffer (bounce.rs), call,
//!                  copies out
//!     special.rs   vectors.rs  exec.rs  filters.rs     calls with pointers in structures
//!     page.rs      the one instruction whose system calls the filter lets through
//! hot.rs      --- read, write and their like: copies without the signal
//! wrappers.rs --- C library functions with pointers in structures, which the filter cannot see
//! signals.rs
//! actions.rs  --- no signal mask blocks SIGSYS and SIGBUS (mask.rs); the program's own actions
//!                 (kept.rs)
//! bus.rs      --- SIGBUS: faults of threads that serve themselves
//! stacks.rs   --- a signal stack per thread, which is not paged
//! delivery.rs --- and the way from there to the interrupted stack, for the program's handlers
//! ```
//! A userfaultfd for faults of user mode only needs no privileges, but a system call that meets a
//! missing page fails with EFAULT. So the handler makes the call with copies outside the range. It
//! copies as ordinary code, whose faults are served.
//!
//! The filter outlives exec. It compares addresses with a fixed range (range.rs), which programs
//! that are not served do not use, so it does not affect them. That is why it does not trap calls
//! only because their structures may contain pointers: a program without this library would be
//! killed.
//!
//! Locks: none. The handler runs in any thread, on a signal stack; most calls are made on the
//! thread's own stack, and may be interrupted.

mod access;
mod actions;
mod bounce;
mod buffer;
mod bus;
mod call_stack;
mod calls;
mod copied;
mod delivery;
mod exec;
mod filter;
mod filters;
mod handler;
mod hot;
mod kept;
mod known;
mod long;
mod make;
mod mask;
mod own_stack;
mod page;
mod peers;
mod probe;
mod range;
mod signals;
mod special;
mod stacks;
mod state;
mod table;
mod vectors;
mod wrappers;

use highwater_units::PAGE_SIZE;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::io;

pub(crate) use access::is_writable;
pub(crate) use bus::may_be_restricted;
pub(crate) use exec::with_copies;
pub(crate) use kept::has_handler;
pub(crate) use mask::exchange as exchange_mask;
pub(crate) use range::RANGE;
pub(crate) use state::{Follow, call, is_on};
pub(crate) use wrappers::{function_for, function_for_request, learn};

/// Prepares the process for the filter: the helper may inherit it. `follow`: for advice about
/// memory that is given past the C library.
///
/// # Errors
/// Why there can be no gate, in one line.
pub(crate) fn prepare(follow: Follow) -> Result<(), String> {
    page::map().map_err(|error| format!("the gate for system calls cannot be mapped: {error}"))?;
    handler::install();
    bus::install();
    state::turn_on(follow);
    stacks::begin_process();
    Ok(())
}

/// Undoes [`prepare`]: this process will not be served.
pub(crate) fn give_up() {
    if is_on() {
        state::turn_off();
        actions::give_back();
    }
}

/// Reserves the addresses of `pages` pages. In a process that is served they are free.
///
/// # Errors
/// The system's refusal.
pub(crate) fn reserve(pages: u64) -> io::Result<()> {
    let at = std::ptr::with_exposed_provenance_mut(RANGE.start);
    let len = (pages as usize * PAGE_SIZE).min(RANGE.len());
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    unsafe { mmap_anonymous(at, len, ProtFlags::empty(), flags)? };
    Ok(())
}

/// Loads the filter, unless an ancestor has. `traps_madvise`: the manager itself makes no such
/// call on paged memory.
///
/// # Errors
/// Why there can be no gate, in one line.
pub(crate) fn close(traps_madvise: bool) -> Result<(), String> {
    if handler::is_trapped() {
        return Ok(());
    }
    filter::load(traps_madvise).map_err(|error| format!("no filter for system calls: {error}"))
}
