//! Which caller asks for memory: the program, or the C library for its own use.
//!
//! ```text
//! malloc, called from 0x7f..   in [C library | dynamic loader | this library] -> the C library's
//!                              elsewhere ------------------------------------> may be paged
//! ```
//! Memory that the C library allocates for itself must not be paged. Every thread that serves
//! faults may access another thread's vector of thread-local blocks; open files and fork handlers
//! are accessed in a forked child before its manager exists. So the return address of a request
//! decides. Freeing needs no such check: a block's address identifies its allocator.

use crate::native;
use libc::{c_int, c_void, dl_phdr_info, size_t};
use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// First address and length of a library in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    start: usize,
    len: usize,
}

impl Extent {
    #[inline]
    fn holds(self, address: usize) -> bool {
        address.wrapping_sub(self.start) < self.len
    }
}

/// The libraries whose requests are not paged.
static INSIDE: OnceLock<[Extent; 3]> = OnceLock::new();

/// Whether no library comes before this one.
static FIRST: AtomicBool = AtomicBool::new(false);

/// Whether an address belongs to a caller that must not get paged memory. True for all addresses
/// until [`learn`] has run.
#[inline]
pub(crate) fn is_inside(address: usize) -> bool {
    INSIDE.get().is_none_or(|extents| extents.iter().any(|extent| extent.holds(address)))
}

/// Whether [`learn`] has run.
pub(crate) fn are_known() -> bool {
    INSIDE.get().is_some()
}

/// Whether an address is in this library.
pub(crate) fn is_own(address: usize) -> bool {
    INSIDE.get().is_some_and(|[.., own]| own.holds(address))
}

/// Whether names of functions are looked up in this library before all others.
pub(crate) fn is_first() -> bool {
    FIRST.load(Relaxed)
}

/// Whether the program was built with a sanitizer that fixes where mappings lie (TSAN, MSAN).
static FIXED: AtomicBool = AtomicBool::new(false);

/// Whether mappings may lie only where a sanitizer leaves room. Does not take the dynamic loader's
/// lock, which a thread that waits for this one may hold.
pub(crate) fn are_addresses_fixed() -> bool {
    FIXED.load(Relaxed)
}

/// Looks up the addresses of these libraries.
pub(crate) fn learn() {
    let has = |name: &CStr| {
        // SAFETY: looks a name up.
        !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
    };
    FIXED.store(has(c"__tsan_init") || has(c"__msan_init"), Relaxed);
    // SAFETY: looks a name up, of what the loader has for all; ours is not seen by dlsym.
    let loader = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__tls_get_addr".as_ptr()) };
    let known = [learn as *const c_void as usize, native::inside_libc(), loader as usize];
    let mut search = Search { known, found: [None; 3], before: 0 };
    // SAFETY: the callback gets this search, which lives for the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    FIRST.store(search.before == 0, Relaxed);
    if let [Some(own), Some(libc), Some(loader)] = search.found {
        let _ = INSIDE.set([libc, loader, own]);
    }
}

struct Search {
    known: [usize; 3],
    found: [Option<Extent>; 3],
    /// Libraries before this one, in the order in which names are looked up.
    before: usize,
}

/// Compares a loaded object with the searched addresses.
///
/// # Safety
/// `object` describes a loaded object, and `search` points to a [`Search`].
unsafe extern "C" fn look(object: *mut dl_phdr_info, _: size_t, search: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object and `learn`'s search, both for this call.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    // SAFETY: the object has so many headers there.
    let headers =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let bounds = loaded.map(|header| (header.p_vaddr, header.p_vaddr + header.p_memsz));
    let Some((start, end)) = bounds.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1))) else {
        return 0;
    };
    let start_at = (object.dlpi_addr + start) as usize;
    let extent = Extent { start: start_at, len: (end - start) as usize };
    for (known, found) in search.known.iter().zip(&mut search.found) {
        if extent.holds(*known) {
            *found = Some(extent);
        }
    }
    // The program has an empty name, and the kernel's library one without a directory.
    // SAFETY: the loader's name of the object, or null.
    let is_library = !object.dlpi_name.is_null()
        && unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes().contains(&b'/');
    let [own, ..] = search.found;
    search.before += usize::from(is_library && own.is_none());
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_holds_its_first_byte_and_not_the_one_behind_it() {
        let extent = Extent { start: 100, len: 50 };
        for (address, expected) in
            [(0, false), (99, false), (100, true), (149, true), (150, false), (usize::MAX, false)]
        {
            assert_eq!(extent.holds(address), expected, "{address}");
        }
        assert!(!Extent::default().holds(0), "an empty one holds nothing");
    }

    #[test]
    fn the_c_library_is_inside_and_the_heap_is_not() {
        learn();
        assert!(are_known());
        assert!(is_inside(libc::fopen as *const c_void as usize));
        assert!(is_inside(learn as *const c_void as usize));
        assert!(is_own(learn as *const c_void as usize));
        assert!(!is_own(libc::fopen as *const c_void as usize));
        let local = 0;
        assert!(!is_inside(&raw const local as usize), "a stack is no library");
    }
}
