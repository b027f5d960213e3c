//! Mapped files.

use crate::access::{expect_data, place, text};
use crate::memory::{highwater_memory, own};
use crate::pin::highwater_access::{HIGHWATER_ACCESS_READ, HIGHWATER_ACCESS_WRITE};
use crate::status::highwater_status::HIGHWATER_ERROR_INVALID;
use crate::status::{Failure, highwater_status, status_of};
use crate::table::{Held, Part};
use highwater::{FileAccess, FileMapping};
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

/// Maps the file at `path`, which must not be empty, and stores the address of the mapping in
/// `*address`, or NULL on errors; highwater_size gives its length. `access` is one of
/// highwater_access: with HIGHWATER_ACCESS_WRITE, changed pages are written to the file, at the
/// latest by highwater_free and highwater_close; a process that is killed loses the changes that it
/// had not synced (highwater_sync).
///
/// The budget limits how much of the file is in memory. Each mapped file reserves 256 KiB of
/// memory, which other mappings cannot use. The file is locked by flock(2), shared for reading,
/// exclusive for writing, so that this library refuses other mappings that would not see its
/// changes. Later changes by other programs are not seen in pages that are in memory.
///
/// A plain store to a file that is mapped for reading ends the process, as does an access to a page
/// that cannot be read.
///
/// # Errors
/// HIGHWATER_ERROR_FILE: the file cannot be opened. HIGHWATER_ERROR_IN_USE, HIGHWATER_ERROR_FILES.
/// HIGHWATER_ERROR_INVALID: the file is empty, or there is no such access. HIGHWATER_ERROR_FULL,
/// HIGHWATER_ERROR_FRAGMENTED, HIGHWATER_ERROR_SYSTEM, HIGHWATER_ERROR_FORKED,
/// HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open. `path` is NULL or NUL-terminated. `address` is NULL or has room for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_map_file(
    memory: *mut highwater_memory,
    path: *const c_char,
    access: c_int,
    address: *mut *mut c_void,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let map = || unsafe {
        let found = place(address, ptr::null_mut(), "address")?;
        let path = text(path, "path")?;
        let memory = own(memory)?;
        let file = memory.memory.map_file(path, access_of(access)?)?;
        *found = memory.table.add(Held::File(expect_pages(file, path)?)).cast();
        Ok(())
    };
    status_of(map())
}

/// Makes a file of `size` zeros at `path`, replacing the contents of an existing file, and maps it
/// for reading and writing, as highwater_map_file does.
///
/// # Errors
/// Those of highwater_map_file; HIGHWATER_ERROR_INVALID: `size` is 0.
///
/// # Safety
/// Those of highwater_map_file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_create_file(
    memory: *mut highwater_memory,
    path: *const c_char,
    size: usize,
    address: *mut *mut c_void,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let create = || unsafe {
        let found = place(address, ptr::null_mut(), "address")?;
        let path = text(path, "path")?;
        let memory = own(memory)?;
        if size == 0 {
            return Err(empty(path));
        }
        *found = memory.table.add(Held::File(memory.memory.create_file(path, size)?)).cast();
        Ok(())
    };
    status_of(create())
}

/// Writes the changed pages of `size` bytes at `address`, each as a whole, to their file, and
/// returns when they are durable, like msync(2) with MS_SYNC. `address` may lie anywhere in the
/// mapping of a file; for other mappings the call does nothing.
///
/// # Errors
/// HIGHWATER_ERROR_WRITE: pages that could not be written keep their changes, and a later call
/// tries again to write them. HIGHWATER_ERROR_BUSY: a part of the range is pinned.
/// HIGHWATER_ERROR_NOT_MAPPED, HIGHWATER_ERROR_RANGE, HIGHWATER_ERROR_FORKED, HIGHWATER_ERROR_NULL.
///
/// # Safety
/// `memory` is NULL or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_sync(
    memory: *mut highwater_memory,
    address: *mut c_void,
    size: usize,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let sync = || unsafe {
        expect_data(address, "address")?;
        let Part { block, range } = own(memory)?.table.find(address.cast(), size)?;
        // Excludes other calls, so that nothing is pinned between the check and the sync, which
        // would wait for the pin.
        let mut mapping = block.mapping_alone();
        block.expect_unpinned(range.clone())?;
        Ok(mapping.sync_range(range)?)
    };
    status_of(sync())
}

fn access_of(access: c_int) -> Result<FileAccess, Failure> {
    const READ: c_int = HIGHWATER_ACCESS_READ as c_int;
    const WRITE: c_int = HIGHWATER_ACCESS_WRITE as c_int;
    match access {
        READ => Ok(FileAccess::Read),
        WRITE => Ok(FileAccess::ReadWrite),
        other => {
            Err(Failure::new(HIGHWATER_ERROR_INVALID, format!("access {other} does not exist")))
        }
    }
}

fn expect_pages(file: FileMapping, path: &str) -> Result<FileMapping, Failure> {
    if file.is_empty() { Err(empty(path)) } else { Ok(file) }
}

fn empty(path: impl AsRef<Path>) -> Failure {
    let what = format!("file {:?} would have no bytes to map", path.as_ref());
    Failure::new(HIGHWATER_ERROR_INVALID, what)
}
