//! Pins: pages that stay in memory.
//!
//! A pin keeps its block alive, and so the mapping whose pages it holds. The page guards are its
//! first field, so that they are dropped before the mapping that they borrow.

use crate::access::{expect_data, place};
use crate::memory::{highwater_memory, own};
use crate::status::highwater_status::HIGHWATER_ERROR_INVALID;
use crate::status::{Failure, highwater_status, status_of};
use crate::table::{Block, Part};
use highwater::{Mapping, Memory, PageMut, PageRef};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

const PAGE: usize = 4096;

/// How pinned memory, or a mapped file, is going to be accessed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum highwater_access {
    /// It is only read: a write may fault.
    HIGHWATER_ACCESS_READ = 0,
    /// It is read and written.
    HIGHWATER_ACCESS_WRITE = 1,
}

use highwater_access::*;

/// Pages that stay in memory until highwater_unpin.
pub struct highwater_pin {
    guards: Vec<Guard>,
    range: Range<usize>,
    block: Arc<Block>,
    memory: Memory,
}

/// Holds a page until it is dropped.
enum Guard {
    Read { _page: PageRef<'static> },
    Write { _page: PageMut<'static> },
}

/// Pins the pages of `size` bytes at `address`, which may lie anywhere in a mapping, and stores the
/// pin in `*pin`, or NULL on errors. Until highwater_unpin, accesses to the bytes do not fault, so
/// system calls and signal handlers may use them. `access` is one of highwater_access; a pin for
/// reading does not cover writes.
///
/// At most half of the budget may be pinned. Several pins may cover the same page. All threads may
/// use the bytes; any thread may unpin them.
///
/// # Errors
/// HIGHWATER_ERROR_PINNED: too much is pinned, and no page of the range has been pinned.
/// HIGHWATER_ERROR_INVALID: `size` is 0, or there is no such access.
/// HIGHWATER_ERROR_READ_ONLY: to write to a file that is mapped for reading. Otherwise those of
/// highwater_read.
///
/// # Safety
/// `memory` is NULL or open. `pin` is NULL or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_pin_range(
    memory: *mut highwater_memory,
    address: *mut c_void,
    size: usize,
    access: c_int,
    pin: *mut *mut highwater_pin,
) -> highwater_status {
    // SAFETY: as the caller promises.
    let pin = || unsafe {
        let made = place(pin, ptr::null_mut(), "pin")?;
        expect_data(address, "address")?;
        let memory = own(memory)?;
        let part = memory.table.find(address.cast(), size)?;
        let known = [HIGHWATER_ACCESS_READ, HIGHWATER_ACCESS_WRITE];
        let access = known.into_iter().find(|known| *known as c_int == access && size > 0);
        let access = access.ok_or_else(|| {
            Failure::new(HIGHWATER_ERROR_INVALID, "a size of 0, or an access that does not exist")
        })?;
        *made = Box::into_raw(Box::new(pinned(&memory.memory, part, access)?));
        Ok(())
    };
    status_of(pin())
}

fn pinned(memory: &Memory, part: Part, access: highwater_access) -> Result<highwater_pin, Failure> {
    let Part { block, range } = part;
    let guards = {
        let mapping = block.mapping();
        let pages = (range.start / PAGE * PAGE..range.end).step_by(PAGE);
        let guards: Result<Vec<Guard>, Failure> =
            pages.map(|page| guard(&mapping, page, access)).collect();
        let guards = guards?;
        block.add_pin(range.clone())?;
        guards
    };
    Ok(highwater_pin { guards, range, block, memory: memory.clone() })
}

/// Pins a page. The guard must be dropped before the mapping.
fn guard(mapping: &Mapping, offset: usize, access: highwater_access) -> Result<Guard, Failure> {
    // SAFETY: the mapping is kept by the pin's block: it is neither freed nor resized while a part
    // is pinned, and the guards are dropped first. No guard is dereferenced.
    unsafe {
        let mapping: &'static Mapping = &*ptr::from_ref(mapping);
        Ok(match access {
            HIGHWATER_ACCESS_READ => Guard::Read { _page: mapping.page(offset)? },
            HIGHWATER_ACCESS_WRITE => Guard::Write { _page: mapping.page_shared(offset)? },
        })
    }
}

/// Unpins the pages that highwater_pin_range has pinned, and frees the pin. Does nothing if `pin`
/// is NULL, or in a forked child.
///
/// # Safety
/// `pin` is NULL, or was made by highwater_pin_range and has not been unpinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn highwater_unpin(pin: *mut highwater_pin) {
    // SAFETY: the box of `highwater_pin_range`. In a forked child it is left alone: a thread that
    // exists only in the parent may have held a lock of its block.
    unsafe {
        if pin.is_null() || (*pin).memory.is_inherited() {
            return;
        }
        let highwater_pin { guards, range, block, memory } = *Box::from_raw(pin);
        drop(guards);
        block.remove_pin(range);
        drop((block, memory));
    }
}
