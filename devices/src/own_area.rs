//! Addresses of the manager's own mappings, apart from those that the kernel chooses.
//!
//! ```text
//! OWN_AREA   start [ tables | heap | swap in RAM | rings | next -> ...              ]
//! others     code, stacks, libraries, the program's mappings; and holes between them
//! ```
//! The preload library's manager works in the address space of a program that does not know of it.
//! Such a program may unmap memory and map the same addresses again (MAP_FIXED): with one thread it
//! may assume that nothing else was mapped there meanwhile. The kernel would put the manager's
//! mappings into exactly such holes, and the program would replace them.
//!
//! Addresses are given out in order, and again from the start once the end is reached; addresses in
//! use are skipped. Locks: none.

use rustix::io::Errno;
use rustix::mm::MapFlags;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The kernel's own choices begin at 0x2aaa_aaaa_a000 (legacy layout) or near the stack, and the
/// shadow memory of sanitizers ends before 0x1001_0000_0000.
const OWN_AREA: Range<usize> = 0x1c00_0000_0000..0x1dff_0000_0000;
const PAGE: usize = 4096;
/// The first mapping begins at a random one of this many pages: a quarter of the area, so that a
/// mapping of half the area fits behind it.
const FIRST_PAGES: usize = 1 << 27;
/// How many addresses in use are skipped before the kernel chooses.
const TRIES: usize = 64;

/// Where the next mapping goes; 0 before the first.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Makes a mapping of `len` bytes by `map`, which is given an address and flags for mmap(2). The
/// kernel chooses the address only if it refuses addresses in the area.
///
/// # Errors
/// The error of `map`, for an address of the kernel's choice.
pub fn map_own(
    len: usize,
    mut map: impl FnMut(*mut c_void, MapFlags) -> rustix::io::Result<*mut c_void>,
) -> rustix::io::Result<*mut c_void> {
    for _ in 0..TRIES {
        let Some(address) = take(len) else { break };
        match map(with_exposed_provenance_mut(address), MapFlags::FIXED_NOREPLACE) {
            Err(Errno::EXIST) => {}
            Ok(mapped) => return Ok(mapped),
            Err(_) => break,
        }
    }
    map(null_mut(), MapFlags::empty())
}

/// The address of a mapping of `len` bytes. `None`: the area is shorter.
fn take(len: usize) -> Option<usize> {
    let len = len.checked_next_multiple_of(PAGE).filter(|len| *len <= OWN_AREA.len())?;
    let place = |next| match place(next, len) {
        Placed::At(address) => (address, address + len),
        Placed::Again => (OWN_AREA.start, OWN_AREA.start + len),
    };
    let next = NEXT.fetch_update(Relaxed, Relaxed, |next| Some(place(next).1));
    Some(place(next.unwrap_or_else(|next| next)).0)
}

enum Placed {
    At(usize),
    /// At the start of the area.
    Again,
}

fn place(next: usize, len: usize) -> Placed {
    let next = if next == 0 { first(&raw const NEXT as usize) } else { next };
    if len <= OWN_AREA.end - next { Placed::At(next) } else { Placed::Again }
}

/// The address of the first mapping: as random as the address of this library.
fn first(seed: usize) -> usize {
    OWN_AREA.start + seed / PAGE % FIRST_PAGES * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{ProtFlags, mmap_anonymous, munmap};

    fn map(len: usize) -> rustix::io::Result<*mut c_void> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: replaces nothing.
        map_own(len, |at, more| unsafe { mmap_anonymous(at, len, ProtFlags::READ, flags | more) })
    }

    #[test]
    fn mappings_lie_in_the_area_whatever_was_mapped_there() {
        let lens = [1, PAGE, 3 * PAGE + 1, 1 << 20, 1 << 40];
        let mapped = lens.map(|len| map(len).expect("addresses") as usize);
        for (at, len) in mapped.into_iter().zip(lens) {
            assert!(OWN_AREA.contains(&at) && at + len <= OWN_AREA.end, "{at:x}");
            assert_eq!(at % PAGE, 0);
        }
        for (at, len) in mapped.into_iter().zip(lens) {
            // SAFETY: mapped above.
            unsafe { munmap(with_exposed_provenance_mut(at), len).expect("mapped") };
        }
    }

    #[test]
    fn addresses_are_used_again_from_the_start() {
        let at = |next, len| match place(next, len) {
            Placed::At(address) => Some(address),
            Placed::Again => None,
        };
        assert_eq!(at(OWN_AREA.end - PAGE, PAGE), Some(OWN_AREA.end - PAGE));
        assert_eq!(at(OWN_AREA.end - PAGE, 2 * PAGE), None);
        assert_eq!(at(OWN_AREA.end, PAGE), None);
        assert!(at(0, PAGE).is_some_and(|first| OWN_AREA.contains(&first)));
        assert!(OWN_AREA.contains(&first(usize::MAX)));
        assert_eq!(take(OWN_AREA.len() + 1), None);
    }

    #[test]
    fn what_is_in_use_is_passed_over() {
        let mut refused = Vec::new();
        let found = map_own(PAGE, |at, flags| match refused.len() {
            0..3 => {
                assert_eq!(flags, MapFlags::FIXED_NOREPLACE);
                refused.push(at as usize);
                Err(Errno::EXIST)
            }
            _ => Ok(at),
        });
        let found = found.expect("an address") as usize;
        assert!(refused.iter().all(|at| OWN_AREA.contains(at) && *at != found));
        let kernels = map_own(PAGE, |at, _| if at.is_null() { Ok(at) } else { Err(Errno::NOMEM) });
        assert_eq!(kernels, Ok(null_mut()), "no such addresses");
        let full = map_own(PAGE, |_, _| Err(Errno::NOMEM));
        assert_eq!(full, Err(Errno::NOMEM));
    }
}
