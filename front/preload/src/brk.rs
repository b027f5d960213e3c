//! brk and sbrk: a break for the program, in paged memory.
//!
//! ```text
//! reservation, of the range:  START ---- in use, ordinary ---- BREAK ---- no access ---- END
//! ```
//! The C library's malloc does not use these functions: its break stays the kernel's, where it is.
//! The program's first call after the process is served makes the reservation; memory from earlier
//! calls, such as those of the program's own malloc before main, stays the kernel's.
//!
//! Locking: none, as in the C library: the program's threads must not change the break
//! concurrently.

use crate::errno::set_errno;
use crate::native::native;
use crate::process::{Process, SPACE};
use crate::regions::Use;
use crate::signals::Blocked;
use crate::start;
use crate::units::Commit;
use highwater_mm::Range;
use highwater_units::PAGE_SIZE;
use libc::{c_int, c_void, intptr_t};
use rustix::process::{Resource, getrlimit};
use std::cmp::Ordering;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Addresses; 0: there is no reservation.
static START: AtomicUsize = AtomicUsize::new(0);
static BREAK: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// The reservation is the range divided by this.
const PART: u64 = 8;

const FAILED: *mut c_void = usize::MAX as *mut c_void;

/// sbrk(2).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn sbrk(increment: intptr_t) -> *mut c_void {
    // SAFETY: as the caller says.
    unsafe { move_break(increment) }
}

/// # Safety
/// As for sbrk.
unsafe fn move_break(increment: intptr_t) -> *mut c_void {
    let Some(process) = served() else {
        // SAFETY: as the caller says.
        return unsafe { (native().sbrk)(increment) };
    };
    let now = BREAK.load(Acquire);
    if now.checked_add_signed(increment).is_some_and(|to| set(process, to)) {
        now as *mut c_void
    } else {
        set_errno(libc::ENOMEM);
        FAILED
    }
}

/// sbrk, under the name by which a malloc with a sbrk of its own calls it: so this must not call
/// `sbrk`.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn __sbrk(increment: intptr_t) -> *mut c_void {
    // SAFETY: as the caller says.
    unsafe { move_break(increment) }
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

/// This process if it has a reservation; makes one if necessary.
fn served() -> Option<&'static Process> {
    let process = start::get()?;
    (START.load(Acquire) != 0 || reserve(process)).then_some(process)
}

/// Pages of the reservation.
pub(crate) fn reserved_pages() -> u64 {
    ((END.load(Relaxed) - START.load(Acquire)) / PAGE_SIZE) as u64
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

/// Moves the break. Returns whether it succeeded.
fn set(process: &Process, to: usize) -> bool {
    let [start, now, end] = [&START, &BREAK, &END].map(|address| address.load(Acquire));
    if !(start..=end).contains(&to) {
        return false;
    }
    let page = |address| process.page(start).offset(((address - start) / PAGE_SIZE) as u64);
    let moved = match step(now, to) {
        Step::Within => true,
        Step::Up(from, to) => {
            to - start <= data_bytes_max()
                && give(process, Range { first: page(from), end: page(to) })
        }
        Step::Down(from, to) => take_back(process, Range { first: page(to), end: page(from) }),
    };
    if moved {
        BREAK.store(to, Release);
    }
    moved
}

/// How a move of the break changes whole pages, given by first address and address after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The break stays within its page.
    Within,
    /// Pages from the first address to the second come into use.
    Up(usize, usize),
    /// Pages from the first address down to the second go out of use.
    Down(usize, usize),
}

fn step(now: usize, to: usize) -> Step {
    let [before, after] = [now, to].map(|address| address.next_multiple_of(PAGE_SIZE));
    match before.cmp(&after) {
        Ordering::Less => Step::Up(before, after),
        Ordering::Equal => Step::Within,
        Ordering::Greater => Step::Down(before, after),
    }
}

/// Makes pages accessible. They read as zeros.
fn give(process: &Process, range: Range) -> bool {
    process.manager.can_commit(range.end.0 - range.first.0)
        && protect(process, range, libc::PROT_READ | libc::PROT_WRITE)
}

/// Drops pages, except those that the program has unmapped, which may have another use now.
fn take_back(process: &Process, range: Range) -> bool {
    let blocked = Blocked::now();
    let found = process.regions(&blocked).find(range.first);
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
    getrlimit(Resource::Data).current.map_or(usize::MAX, |bytes| bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;

    #[test]
    fn the_break_takes_and_gives_whole_pages() {
        const P: usize = PAGE_SIZE;
        for (now, to, expected) in [
            (P, P, Step::Within),
            (P, P + 1, Step::Up(P, 2 * P)),
            (P + 1, 2 * P, Step::Within),
            (P + 1, 2 * P + 1, Step::Up(2 * P, 3 * P)),
            (2 * P, P + 1, Step::Within),
            (2 * P + 1, 2 * P, Step::Down(3 * P, 2 * P)),
            (5 * P, P, Step::Down(5 * P, P)),
        ] {
            assert_eq!(step(now, to), expected, "{now} to {to}");
        }
    }

    #[test]
    fn pages_below_the_break_are_in_use_and_no_others() {
        let mut random = Prng::new(1);
        let (mut now, mut in_use) = (0, [false; 16]);
        for _ in 0..2000 {
            let to = random.below((in_use.len() * PAGE_SIZE) as u64) as usize;
            let pages = |from: usize, to: usize| from / PAGE_SIZE..to / PAGE_SIZE;
            match step(now, to) {
                Step::Within => {}
                Step::Up(from, to) => in_use[pages(from, to)].fill(true),
                Step::Down(from, to) => in_use[pages(to, from)].fill(false),
            }
            now = to;
            let expected = |page: usize| page * PAGE_SIZE < now;
            assert!(in_use.iter().enumerate().all(|(page, used)| *used == expected(page)));
        }
    }
}
