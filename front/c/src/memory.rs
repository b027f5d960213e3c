//! Memories: opening, closing, the budget.

use crate::access::{place, shared};
use crate::options::highwater_options;
use crate::status::highwater_status::{HIGHWATER_ERROR_FORKED, HIGHWATER_OK};
use crate::status::{Failure, highwater_status, status_of};
use crate::table::Table;
use highwater::{Builder, Memory};
use std::ptr;

/// Paged memory of this process: mappings that may together be larger than the budget in RAM. All
/// threads may use it at the same time.
pub struct highwater_memory {
    pub(crate) memory: Memory,
    pub(crate) table: Table,
}

/// The memory that an argument points to, if it was made in this process.
///
/// # Safety
/// `memory` is null, or open for `'a`.
pub(crate) unsafe fn own<'a>(
    memory: *const highwater_memory,
) -> Result<&'a highwater_memory, Failure> {
    // SAFETY: as the caller promises.
    let memory = unsafe { shared(memory, "memory") }?;
    match memory.memory.is_inherited() {
        // Checked before any lock is taken: a thread that exists only in the parent may have held
        // the lock.
        true => Err(forked()),
        false => Ok(memory),
    }
}

/// The error of calls with a memory that belongs to the parent.
pub(crate) fn forked() -> Failure {
    let message = highwater::Error::Forked.to_string();
    Failure::new(HIGHWATER_ERROR_FORKED, message)
}

/// Opens the swap devices, starts the threads of the manager, and stores the memory in `*memory`,
/// or NULL on errors. `options` may be NULL for defaults; the settings are copied. The caller
/// closes the memory with highwater_close.
///
/// A process may have several memories, at most 16 of them with "faults" set to "in-thread".
///
/// # Errors
/// HIGHWATER_ERROR_SETTING, also for a setting that was refused when it was set;
/// HIGHWATER_ERROR_DEVICE, HIGHWATER_ERROR_USERFAULTFD, HIGHWATER_ERROR_SYSTEM,
/// HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `options` is NULL or was made by highwater_options_new, and no thread changes it meanwhile.
/// `memory` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_open(
    options: *const highwater_options,
    memory: *mut *mut highwater_memory,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let open = || unsafe {
        let opened = place(memory, ptr::null_mut(), "memory")?;
        let builder = options.as_ref().map_or(Ok(Builder::default()), |options| options.builder());
        let memory = builder?.build()?;
        *opened = Box::into_raw(Box::new(highwater_memory { memory, table: Table::default() }));
        Ok(())
    };
    status_of(open())
}

/// Frees all mappings of a memory, ends its threads and closes its devices. Does nothing if
/// `memory` is NULL, or in a forked child.
///
/// # Errors
/// HIGHWATER_ERROR_BUSY: something is pinned; the memory stays open.
///
/// # Safety
/// `memory` is NULL or open. No other thread uses the memory or any of its mappings any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_close(memory: *mut highwater_memory) -> highwater_status {
    if memory.is_null() {
        return HIGHWATER_OK;
    }
    // SAFETY: the box of `highwater_open`. In a forked child its table may be in the middle of a
    // change, so it is left alone.
    let close = || unsafe {
        if (*memory).memory.is_inherited() {
            return Ok(());
        }
        (*memory).table.expect_unpinned()?;
        drop(Box::from_raw(memory));
        Ok(())
    };
    status_of(close())
}

/// Stores the budget for pages in memory in `*size`, in bytes.
///
/// # Errors
/// HIGHWATER_ERROR_FORKED, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open. `size` is NULL or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_budget(
    memory: *const highwater_memory,
    size: *mut u64,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let ask = || unsafe {
        let found = place(size, 0, "size")?;
        *found = own(memory)?.memory.budget()?;
        Ok(())
    };
    status_of(ask())
}

/// Changes the budget to `size` bytes while mappings are in use, up to "memory-max". If the new
/// budget is smaller, the call waits until the pages above it have been evicted.
///
/// # Errors
/// HIGHWATER_ERROR_SETTING: too small or too large. HIGHWATER_ERROR_FULL: memory and swap could no
/// longer hold all mappings; the budget is unchanged. HIGHWATER_ERROR_BUDGET: no page could be
/// evicted for 5 seconds; the budget stays at the size reached by then. HIGHWATER_ERROR_FORKED,
/// HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_set_budget(
    memory: *mut highwater_memory,
    size: u64,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let set = || unsafe { Ok(own(memory)?.memory.set_budget(size)?) };
    status_of(set())
}

/// Stores in `*size` the number of bytes that further mappings may have, in memory and swap
/// together. It is lower if a swap device has failed or is full.
///
/// # Errors
/// HIGHWATER_ERROR_FORKED, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open. `size` is NULL or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_left(
    memory: *const highwater_memory,
    size: *mut u64,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let ask = || unsafe {
        let found = place(size, 0, "size")?;
        *found = own(memory)?.memory.left()?;
        Ok(())
    };
    status_of(ask())
}

/// Whether system calls accept pointers into mappings, as in a read(2) into a buffer. If not, a
/// system call fails with EFAULT at a page that is not in memory: pin the buffer
/// (highwater_pin_range), or copy (highwater_read, highwater_write). False if `memory` is NULL.
///
/// # Safety
/// `memory` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_serves_system_calls(memory: *const highwater_memory) -> bool {
    // SAFETY: as the caller promises.
    unsafe { memory.as_ref() }.is_some_and(|memory| memory.memory.serves_system_calls())
}
