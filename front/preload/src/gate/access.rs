//! Copies between the program's memory and ours, which end where a system call would fail.
//!
//! Missing pages are brought in by the faults of ordinary loads and stores. Before that, the kernel
//! is asked whether a page may be accessed at all: MADV_POPULATE reports EFAULT for a page that is
//! only missing, and another error for one that is not mapped, or not permitted; and the regions
//! say which missing pages the program has unmapped. Memory outside the range is checked in the
//! same way. Regions that a thread has looked up are not asked about again (known.rs). If the
//! program handles SIGBUS, each page is probed before a call, and copies end at a page that is lost
//! (probe.rs): its handler must not run in the middle of a copy.

use super::kept::has_handler;
use super::mask::{Mask, without};
use super::range::is_paged;
use super::state::call;
use super::{known, probe};
use crate::errno::{errno, set_errno};
use crate::process::{self, SPACE};
use crate::regions::Use;
use highwater_mm::Range;
use highwater_units::PAGE_SIZE;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

impl Access {
    fn advice(self) -> i32 {
        match self {
            Access::Read => libc::MADV_POPULATE_READ,
            Access::Write => libc::MADV_POPULATE_WRITE,
        }
    }

    /// The error of populating pages; 0 if there is none.
    fn populate(self, first: usize, end: usize) -> i32 {
        let arguments = [first, end - first, self.advice() as usize, 0, 0, 0];
        // SAFETY: populating changes no contents.
        let result = unsafe { call(libc::SYS_madvise, arguments) };
        -result as i32
    }
}

/// Whether all pages are the program's, readable and writable.
fn is_plain(first: usize, end: usize) -> bool {
    let process = process::holding(first).filter(|process| process.holds(end - 1));
    process.is_some_and(|process| {
        let range = Range { first: process.page(first), end: process.page(end - 1).offset(1) };
        let platform = process.manager.platform();
        process.covers(range) && platform.protected(SPACE, range.first, range.end).is_empty()
    })
}

/// Whether a page of the range that is not present is the program's. To the kernel, pages that the
/// program has unmapped look the same.
fn is_in_use(page: usize, access: Access) -> bool {
    process::holding(page).is_some_and(|process| {
        match (process.use_of(process.page(page)), access) {
            (None | Some(Use::Foreign | Use::Locked), _) | (Some(Use::File(_)), Access::Write) => {
                false
            }
            (Some(Use::File(_)), Access::Read) => true,
            (Some(Use::Mapping | Use::Block | Use::Objects | Use::Changing), _) => true,
        }
    })
}

/// How many bytes from `address` on, of `len`, can be accessed.
pub(super) fn accessible(address: usize, len: usize, access: Access) -> usize {
    let len = permitted(address, len, access);
    // A program without a handler is ended when it needs a lost page.
    if has_handler(libc::SIGBUS) && is_paged(address) {
        before_lost(address, len, access)
    } else {
        len
    }
}

/// Whether an access to a page may find it lost now. A page that is lost later ends the copy.
fn may_fail(address: usize) -> bool {
    process::holding(address)
        .is_some_and(|process| process.manager.may_fail(SPACE, process.page(address)))
}

/// How many bytes from `address` on, of `len`, come before the first lost page. Brings in the pages
/// before it that are swapped out, and no others: the call may use only a part of a buffer.
fn before_lost(address: usize, len: usize, access: Access) -> usize {
    let is_there = |at: usize| match access {
        Access::Read => probe::load(at),
        Access::Write => probe::store(at),
    };
    let next_page = |at: &usize| Some((at / PAGE_SIZE + 1) * PAGE_SIZE);
    let bytes = std::iter::successors(Some(address), next_page);
    let lost =
        bytes.take_while(|at| *at - address < len).find(|at| may_fail(*at) && !is_there(*at));
    lost.map_or(len, |lost| lost - address)
}

/// How many bytes from `address` on, of `len`, the program may access.
fn permitted(address: usize, len: usize, access: Access) -> usize {
    let Some(end) = address.checked_add(len) else { return 0 };
    let mask = PAGE_SIZE - 1;
    let Some(last) = end.checked_add(mask) else { return 0 };
    let (first, last) = (address & !mask, last & !mask);
    if len == 0 || known::is_plain(first, last) {
        return len;
    }
    if access.populate(first, last) == 0 || is_plain(first, last) {
        known::learn(first);
        return len;
    }
    let may = |page: &usize| match access.populate(*page, page + PAGE_SIZE) {
        0 => true,
        libc::EFAULT => is_in_use(*page, access),
        _ => false,
    };
    let bad = (first..last).step_by(PAGE_SIZE).find(|page| !may(page));
    bad.map_or(len, |bad| bad.saturating_sub(address))
}

/// Whether a page in use is writable, or missing: whether a store would be served. Takes no lock.
pub(crate) fn is_writable(page: usize) -> bool {
    let before = errno();
    let error = Access::Write.populate(page, page + PAGE_SIZE);
    set_errno(before);
    matches!(error, 0 | libc::EFAULT)
}

/// Copies bytes that the program has at `from`; returns how many could be read.
///
/// # Safety
/// `to` has room for `len` bytes.
pub(super) unsafe fn copy_in(to: *mut u8, from: usize, len: usize) -> usize {
    let len = permitted(from, len, Access::Read);
    // SAFETY: readable, as just checked; the caller vouches for `to`.
    unsafe { copy(to, std::ptr::with_exposed_provenance(from), len) }
}

/// Copies bytes to where the program wants them; returns how many could be written.
///
/// # Safety
/// `from` has `len` bytes.
pub(super) unsafe fn copy_out(to: usize, from: *const u8, len: usize) -> usize {
    let len = permitted(to, len, Access::Write);
    // SAFETY: writable, as just checked; the caller vouches for `from`.
    unsafe { copy(std::ptr::with_exposed_provenance_mut(to), from, len) }
}

/// Copies bytes; returns how many were copied: those before the first lost page, or all.
///
/// # Safety
/// Both have `len` bytes, and the program's may be accessed. They do not overlap.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: as the caller says.
    unsafe {
        if has_handler(libc::SIGBUS) {
            return probe::copy(to, from, len);
        }
        to.copy_from_nonoverlapping(from, len);
    }
    len
}

/// A value that the program has.
pub(super) fn read<T: Copy>(from: usize) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    let len = size_of::<T>();
    // SAFETY: `value` has room; T is a plain structure of the kernel's interface, for which all
    // bytes are valid, and is used only if all were copied.
    unsafe {
        let got = copy_in(value.as_mut_ptr().cast(), from, len);
        (got == len).then(|| value.assume_init())
    }
}

/// The mask of a call that waits with it, such as ppoll, without the gate's signals.
pub(super) fn read_mask(from: usize) -> Option<Mask> {
    read::<Mask>(from).map(without)
}

/// Writes a value to where the program wants it.
pub(super) fn write<T: Copy>(to: usize, value: &T) -> bool {
    // SAFETY: a value of that size.
    unsafe { copy_out(to, (&raw const *value).cast(), size_of::<T>()) == size_of::<T>() }
}

/// The length of a string of at most `most` bytes, without its 0; `None`: memory ends before it
/// does.
pub(super) fn string_len(address: usize, most: usize) -> Option<usize> {
    let mut len = 0;
    while len < most {
        let at = address + len;
        let part = (PAGE_SIZE - at % PAGE_SIZE).min(most - len);
        if accessible(at, part, Access::Read) < part {
            return None;
        }
        // SAFETY: readable, as just checked.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(at), part)
        };
        if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
            return Some(len + end);
        }
        len += part;
    }
    Some(most)
}

/// Touches a word, so that it is present; `false` if the program may not.
pub(super) fn touch(address: usize, access: Access) -> bool {
    if accessible(address, 1, access) == 0 {
        return false;
    }
    let byte = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // Not a fetch_or of 0: the compiler makes that a load.
    // SAFETY: accessible, as just checked. The exchange changes nothing, but needs a writable page.
    unsafe {
        match access {
            Access::Read => drop(byte.read_volatile()),
            Access::Write => {
                let atomic = AtomicU8::from_ptr(byte);
                let _ = atomic.compare_exchange(0, 0, Relaxed, Relaxed);
            }
        }
    }
    true
}
