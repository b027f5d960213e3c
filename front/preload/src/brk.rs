//! brk and sbrk, for the program: a break of its own, in paged memory.
//!
//! ```text
//! reservation, of the range:  START ---- in use, ordinary ---- BREAK ---- no access ---- END
//! ```
//! What the C library's malloc asks for does not come by here: that break is the kernel's, and
//! stays where it is. A program's first call that can be served makes the reservation; what was
//! asked for before that (by a malloc of the program's before main) stays the kernel's.
//!
//! Locking: none, as in the C library: threads that change the break take turns.

use crate::malloc::set_errno;
use crate::native::native;
use crate::process::{self, Commit, Process, SPACE};
use crate::regions::Use;
use crate::signals::Blocked;
use highwater_mm::Range;
use highwater_units::PAGE_SIZE;
use libc::{c_int, c_void, intptr_t};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Addresses; 0: there is no reservation.
static START: AtomicUsize = AtomicUsize::new(0);
static BREAK: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// The reservation is this part of the range.
const PART: u64 = 8;

const FAILED: *mut c_void = usize::MAX as *mut c_void;

/// sbrk(2).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn sbrk(increment: intptr_t) -> *mut c_void {
    let Some(process) = served() else {
        // SAFETY: as the caller says.
        return unsafe { (native().sbrk)(increment) };
    };
    let now = BREAK.load(Acquire);
    match now.checked_add_signed(increment).is_some_and(|to| set(process, to)) {
        true => now as *mut c_void,
        false => {
            set_errno(libc::ENOMEM);
            FAILED
        }
    }
}

/// sbrk by the name that some mallocs call it by.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn __sbrk(increment: intptr_t) -> *mut c_void {
    // SAFETY: as the caller says.
    unsafe { sbrk(increment) }
}

/// brk(2).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn brk(to: *mut c_void) -> c_int {
    match served() {
        // SAFETY: as the caller says.
        None => unsafe { (native().brk)(to) },
        Some(process) if set(process, to as usize) => 0,
        Some(_) => {
            set_errno(libc::ENOMEM);
            -1
        }
    }
}

/// This process, if it has a reservation, which may have to be made.
fn served() -> Option<&'static Process> {
    let process = process::get()?;
    (START.load(Acquire) != 0 || reserve(process)).then_some(process)
}

#[cold]
fn reserve(process: &Process) -> bool {
    let (_, pages) = process.extent();
    let taken = process.take(pages / PART, 1, Use::Mapping, Commit::Unchecked);
    let Some(range) = taken else { return false };
    if !protect(process, range, libc::PROT_NONE) {
        process.release(range);
        return false;
    }
    let [start, end] = [range.first, range.end].map(|vpn| process.address(vpn) as usize);
    END.store(end, Relaxed);
    BREAK.store(start, Relaxed);
    START.store(start, Release);
    true
}

fn protect(process: &Process, range: Range, access: c_int) -> bool {
    let _blocked = Blocked::now();
    process.manager.platform().protect(SPACE, range.first, range.end, access).is_ok()
}

/// Moves the break; whether it could be.
fn set(process: &Process, to: usize) -> bool {
    let [start, now, end] = [&START, &BREAK, &END].map(|address| address.load(Acquire));
    if !(start..=end).contains(&to) {
        return false;
    }
    let [before, after] = [now, to].map(|address| {
        let whole = address.next_multiple_of(PAGE_SIZE);
        process.page(start).offset(((whole - start) / PAGE_SIZE) as u64)
    });
    let moved = if after > before {
        to - start <= data_bytes_max() && give(process, Range { first: before, end: after })
    } else {
        after == before || take_back(process, Range { first: after, end: before })
    };
    if moved {
        BREAK.store(to, Release);
    }
    moved
}

/// Makes pages accessible, which read as zeros.
fn give(process: &Process, range: Range) -> bool {
    range.end.0 - range.first.0 <= process.manager.capacity_left()
        && protect(process, range, libc::PROT_READ | libc::PROT_WRITE)
}

/// Drops pages; not those that the program unmapped, which may be something else now.
fn take_back(process: &Process, range: Range) -> bool {
    let blocked = Blocked::now();
    let found = process.regions().find(range.first);
    drop(blocked);
    let whole = found.is_some_and(|region| region.range.end >= range.end);
    if !whole || !process.covers(range) {
        return true;
    }
    let protected = protect(process, range, libc::PROT_NONE);
    if protected {
        process.discard(range);
    }
    protected
}

/// RLIMIT_DATA.
fn data_bytes_max() -> usize {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the call fills the limit, unless it fails.
    unsafe {
        match libc::getrlimit(libc::RLIMIT_DATA, limit.as_mut_ptr()) {
            0 => limit.assume_init().rlim_cur as usize,
            _ => usize::MAX,
        }
    }
}
