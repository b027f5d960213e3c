//! Mappings: plain pointers, checked copies, advice.

use crate::access::{expect_data, place};
use crate::memory::{highwater_memory, own};
use crate::status::highwater_status::{HIGHWATER_ERROR_INVALID, HIGHWATER_OK};
use crate::status::{Failure, highwater_status, status_of};
use crate::table::{Held, Part};
use highwater::Advice;
use std::ffi::{c_int, c_void};
use std::ptr;

/// How a range of a mapping is going to be used, as in madvise(2).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum highwater_advice {
    /// In any order: sequential access, to higher or to lower addresses, is recognised by its
    /// faults and read ahead. Applies to the whole mapping.
    HIGHWATER_ADVICE_NORMAL = 0,
    /// At random: a fault reads only its own page. Applies to the whole mapping.
    HIGHWATER_ADVICE_RANDOM = 1,
    /// One page after the other; for now the same as HIGHWATER_ADVICE_NORMAL. Applies to the whole
    /// mapping.
    HIGHWATER_ADVICE_SEQUENTIAL = 2,
    /// Soon: a readahead thread reads those pages of the range that are on a device that makes
    /// faults wait. This is a hint; the call does not wait.
    HIGHWATER_ADVICE_WILLNEED = 3,
    /// No longer: the bytes of the range become zeros, and the whole pages among them are freed.
    HIGHWATER_ADVICE_DONTNEED = 4,
}

use highwater_advice::*;

const ADVICE: [highwater_advice; 5] = [
    HIGHWATER_ADVICE_NORMAL,
    HIGHWATER_ADVICE_RANDOM,
    HIGHWATER_ADVICE_SEQUENTIAL,
    HIGHWATER_ADVICE_WILLNEED,
    HIGHWATER_ADVICE_DONTNEED,
];

/// Adds a mapping of `size` bytes and stores its address in `*address`, or NULL on errors. The
/// mapping is aligned to pages of 4 KiB and reads as zeros; it takes memory page by page as it is
/// written.
///
/// The mapping is plain memory for all threads. The caller frees it with highwater_free;
/// highwater_close frees it, too. An access through the pointer cannot return an error: if a page
/// cannot be brought in, because a device has failed, the process writes one line to standard
/// error and ends by abort(3). highwater_read, highwater_write and highwater_pin_range return an
/// error instead.
///
/// A forked child has none of its parent's mappings: an access to one writes one line and raises
/// SIGSEGV.
///
/// # Errors
/// HIGHWATER_ERROR_FULL: memory and swap could not hold the mapping together with all others.
/// HIGHWATER_ERROR_INVALID: `size` is 0. HIGHWATER_ERROR_FRAGMENTED, HIGHWATER_ERROR_FORKED,
/// HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open. `address` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_alloc(
    memory: *mut highwater_memory,
    size: usize,
    address: *mut *mut c_void,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let alloc = || unsafe {
        let found = place(address, ptr::null_mut(), "address")?;
        let memory = own(memory)?;
        expect_bytes(size)?;
        *found = memory.table.add(Held::Memory(memory.memory.map(size)?)).cast();
        Ok(())
    };
    status_of(alloc())
}

/// Changes the length of the mapping that begins at `address`, and stores its new address in
/// `*moved`, which may be the variable that holds `address`. Added bytes read as zeros; pages
/// beyond the end are freed. The address may change, but nothing is copied.
///
/// As with realloc(3), no other thread may use the mapping meanwhile. On errors the mapping is as
/// it was (but see below for files), and `*moved` is not changed. If a file is mapped, its length
/// changes as well, after all changes have been written; after HIGHWATER_ERROR_FILE,
/// HIGHWATER_ERROR_FULL and HIGHWATER_ERROR_FRAGMENTED the file has the changes, and the mapping is
/// freed.
///
/// # Errors
/// Those of highwater_alloc; HIGHWATER_ERROR_NOT_MAPPED; HIGHWATER_ERROR_BUSY: a part of the
/// mapping is pinned; HIGHWATER_ERROR_READ, HIGHWATER_ERROR_OUT_OF_MEMORY: its last page cannot be
/// brought in. For a file also HIGHWATER_ERROR_FILE, HIGHWATER_ERROR_READ_ONLY,
/// HIGHWATER_ERROR_WRITE.
///
/// # Safety
/// `memory` is NULL or open. `moved` is NULL or has room for a pointer. No other thread uses the
/// mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_resize(
    memory: *mut highwater_memory,
    address: *mut c_void,
    size: usize,
    moved: *mut *mut c_void,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let resize = || unsafe {
        expect_data(moved, "moved")?;
        expect_data(address, "address")?;
        let memory = own(memory)?;
        expect_bytes(size)?;
        let block = memory.table.take(address.cast())?;
        let resized = block.mapping_alone().resize(size);
        // If its file could not be opened again, the mapping has no pages.
        let now =
            if block.mapping().is_empty() { ptr::null_mut() } else { memory.table.put(block) };
        resized?;
        moved.write(now.cast());
        Ok(())
    };
    status_of(resize())
}

/// Frees the mapping that begins at `address`, with its contents; the changes of a file are
/// written first. Does nothing if `address` is NULL, or in a forked child.
///
/// # Errors
/// HIGHWATER_ERROR_WRITE: changes of a file cannot be written; the mapping stays.
/// HIGHWATER_ERROR_NOT_MAPPED: no mapping begins at `address`, or it was already freed.
/// HIGHWATER_ERROR_BUSY: a part of the mapping is pinned; the mapping stays. HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open. No other thread uses the mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_free(
    memory: *mut highwater_memory,
    address: *mut c_void,
) -> highwater_status {
    if address.is_null() {
        return HIGHWATER_OK;
    }
    // SAFETY: as the caller promises.
    let free = || unsafe {
        let given = crate::access::shared(memory, "memory")?;
        if given.memory.is_inherited() {
            return Ok(());
        }
        let block = given.table.take(address.cast())?;
        let len = block.mapping().len();
        let written = block.mapping_alone().sync_range(0..len);
        if written.is_err() {
            given.table.put(block);
        }
        Ok(written?)
    };
    status_of(free())
}

/// Stores the length of the mapping that begins at `address` in `*size`, in bytes.
///
/// # Errors
/// HIGHWATER_ERROR_NOT_MAPPED, HIGHWATER_ERROR_FORKED, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open. `size` is NULL or has room for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_size(
    memory: *const highwater_memory,
    address: *const c_void,
    size: *mut usize,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let ask = || unsafe {
        let found = place(size, 0, "size")?;
        expect_data(address, "address")?;
        *found = own(memory)?.table.len_of(address.cast())?;
        Ok(())
    };
    status_of(ask())
}

/// Copies `size` bytes from paged memory at `from`, which may lie anywhere in a mapping, to other
/// memory. Unlike memcpy(3) it returns an error if a page cannot be brought in; bytes before that
/// page are copied.
///
/// Several threads may copy from one mapping, and to different parts of it, at the same time.
///
/// # Errors
/// HIGHWATER_ERROR_READ: a device could not read a page. HIGHWATER_ERROR_OUT_OF_MEMORY: no frame
/// can be freed, since swap is full or refuses writes. HIGHWATER_ERROR_NOT_MAPPED,
/// HIGHWATER_ERROR_RANGE, HIGHWATER_ERROR_PINNED, HIGHWATER_ERROR_FORKED, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open. `to` is NULL or has room for `size` bytes, which do not overlap those
/// at `from`. No thread writes to the bytes at `from` meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_read(
    memory: *mut highwater_memory,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let read = || unsafe {
        expect_data(to, "to")?;
        expect_data(from, "from")?;
        let Part { block, range } = own(memory)?.table.find(from.cast(), size)?;
        Ok(block.mapping().copy_out(range.start, to.cast(), size)?)
    };
    status_of(read())
}

/// Copies `size` bytes from other memory to paged memory at `to`, which may lie anywhere in a
/// mapping. Unlike memcpy(3) it returns an error if a page cannot be brought in; bytes before that
/// page are copied.
///
/// # Errors
/// Those of highwater_read; HIGHWATER_ERROR_READ_ONLY: a file that is mapped for reading.
///
/// # Safety
/// `memory` is NULL or open. `from` is NULL or has `size` bytes, which do not overlap those at
/// `to`. No other thread uses the bytes at `to` meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_write(
    memory: *mut highwater_memory,
    to: *mut c_void,
    from: *const c_void,
    size: usize,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let write = || unsafe {
        expect_data(to, "to")?;
        expect_data(from, "from")?;
        let Part { block, range } = own(memory)?.table.find(to.cast(), size)?;
        Ok(block.mapping().copy_in(range.start, from.cast(), size)?)
    };
    status_of(write())
}

/// Says how `size` bytes at `address`, which may lie anywhere in a mapping, are going to be used.
/// `advice` is one of highwater_advice.
///
/// # Errors
/// HIGHWATER_ERROR_INVALID: no such advice. HIGHWATER_ERROR_NOT_MAPPED, HIGHWATER_ERROR_RANGE,
/// HIGHWATER_ERROR_FORKED, HIGHWATER_ERROR_NULL. For HIGHWATER_ADVICE_DONTNEED also
/// HIGHWATER_ERROR_BUSY if a part of the range is pinned, HIGHWATER_ERROR_INVALID for files, and
/// the errors of highwater_write.
///
/// # Safety
/// `memory` is NULL or open. With HIGHWATER_ADVICE_DONTNEED no other thread uses the bytes
/// meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_advise(
    memory: *mut highwater_memory,
    address: *mut c_void,
    size: usize,
    advice: c_int,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let advise = || unsafe {
        expect_data(address, "address")?;
        let part = own(memory)?.table.find(address.cast(), size)?;
        let known = ADVICE.into_iter().find(|known| *known as c_int == advice);
        let unknown = || Failure::new(HIGHWATER_ERROR_INVALID, format!("advice {advice} is none"));
        follow(&part, known.ok_or_else(unknown)?)
    };
    status_of(advise())
}

fn follow(part: &Part, advice: highwater_advice) -> Result<(), Failure> {
    let Part { block, range } = part;
    match advice {
        HIGHWATER_ADVICE_NORMAL | HIGHWATER_ADVICE_SEQUENTIAL => {
            block.mapping().advise(Advice::Detect);
        }
        HIGHWATER_ADVICE_RANDOM => block.mapping().advise(Advice::Random),
        HIGHWATER_ADVICE_WILLNEED => block.mapping().prefetch(range.clone()),
        HIGHWATER_ADVICE_DONTNEED if range.is_empty() => {}
        HIGHWATER_ADVICE_DONTNEED => {
            // Excludes other calls, so that nothing is pinned between the check and the discard.
            let mut mapping = block.mapping_alone();
            block.expect_unpinned(range.clone())?;
            mapping.discard(range.clone())?;
        }
    }
    Ok(())
}

fn expect_bytes(size: usize) -> Result<(), Failure> {
    match size {
        0 => Err(Failure::new(HIGHWATER_ERROR_INVALID, "size is 0: give one byte or more")),
        _ => Ok(()),
    }
}
