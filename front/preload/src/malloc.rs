//! malloc and its family: blocks of 64 KiB and more are paged, the others are the C library's.
//!
//! A block is a region of whole pages of its own; its size is in the table of regions, so that
//! freeing a block never touches its pages. Pointers tell whose they are by one comparison.

use crate::process::{self, Commit, PAGED_MIN, Process, pages_of};
use crate::regions::{Region, Use};
use crate::signals::Blocked;
use highwater_mm::Range;
use highwater_units::PAGE_SIZE;
use libc::{c_int, c_void, size_t};
use std::ptr;

unsafe extern "C" {
    fn __libc_malloc(size: size_t) -> *mut c_void;
    fn __libc_calloc(count: size_t, size: size_t) -> *mut c_void;
    fn __libc_realloc(block: *mut c_void, size: size_t) -> *mut c_void;
    fn __libc_free(block: *mut c_void);
    fn __libc_memalign(align: size_t, size: size_t) -> *mut c_void;
}

fn set_errno(errno: c_int) {
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// A paged block, if the request is large and this process is served. `Some(null)`: it is, and
/// there is no memory.
fn paged(size: usize, align: usize) -> Option<*mut c_void> {
    if size < PAGED_MIN {
        return None;
    }
    process::get().map(|process| block(process, size, align))
}

fn block(process: &Process, size: usize, align: usize) -> *mut c_void {
    let align = (align / PAGE_SIZE).max(1) as u64;
    match process.take(pages_of(size), align, Use::Block, Commit::Checked) {
        Some(range) => process.address(range.first).cast(),
        None => {
            set_errno(libc::ENOMEM);
            ptr::null_mut()
        }
    }
}

/// The process and region of a pointer in the range. A pointer that is no block's start is the
/// program's error: it ends, with a line, as with the C library.
fn block_of(pointer: *mut c_void) -> Option<(&'static Process, Region)> {
    let process = process::holding(pointer as usize)?;
    let blocked = Blocked::now();
    let found = process.regions().find(process.page(pointer as usize));
    drop(blocked);
    let starts = |region: &Region| process.address(region.range.first).cast() == pointer;
    match found.filter(|region| region.used_as == Use::Block && starts(region)) {
        Some(region) => Some((process, region)),
        None => crate::report::end("free or realloc of a pointer that malloc did not return"),
    }
}

fn pages(region: &Region) -> u64 {
    region.range.end.0 - region.range.first.0
}

fn bytes(region: &Region) -> usize {
    pages(region) as usize * PAGE_SIZE
}

/// malloc(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(size: size_t) -> *mut c_void {
    // SAFETY: the C library's allocator, by its other name.
    paged(size, 1).unwrap_or_else(|| unsafe { __libc_malloc(size) })
}

/// calloc(3). Pages taken anew read as zeros.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: size_t, size: size_t) -> *mut c_void {
    let total = count.checked_mul(size);
    // SAFETY: as in malloc; the C library refuses a product that overflows.
    total.and_then(|total| paged(total, 1)).unwrap_or_else(|| unsafe { __libc_calloc(count, size) })
}

/// free(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(pointer: *mut c_void) {
    // SAFETY: errno is the thread's own; free keeps it.
    let errno = unsafe { *libc::__errno_location() };
    match block_of(pointer) {
        Some((process, region)) => process.release(region.range),
        // SAFETY: not of the range, so the C library's, or null.
        None => unsafe { __libc_free(pointer) },
    }
    set_errno(errno);
}

/// realloc(3). A paged block that stays paged is never copied.
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(pointer: *mut c_void, size: size_t) -> *mut c_void {
    if pointer.is_null() {
        // SAFETY: as for malloc.
        return unsafe { malloc(size) };
    }
    match block_of(pointer) {
        Some((process, region)) if size >= PAGED_MIN => resize(process, region, size),
        // SAFETY: the caller's block, of the range.
        Some((_, region)) => unsafe { to_libc(pointer, &region, size) },
        // SAFETY: the caller's block, the C library's.
        None => unsafe { from_libc(pointer, size) },
    }
}

/// Makes a paged block larger or smaller, in place or by moving its pages.
fn resize(process: &Process, region: Region, size: usize) -> *mut c_void {
    let (now, wanted) = (pages(&region), pages_of(size));
    let start = region.range.first;
    if wanted < now {
        process.release(Range { first: start.offset(wanted), end: region.range.end });
    }
    if wanted <= now || grow(process, region, wanted - now) {
        return process.address(start).cast();
    }
    let moved = process.take(wanted, 1, Use::Block, Commit::Unchecked);
    let fits = wanted - now <= process.manager.capacity_left();
    let Some(range) = moved.filter(|_| fits) else {
        set_errno(libc::ENOMEM);
        return ptr::null_mut();
    };
    process.relocate(region.range, range.first);
    process.release(region.range);
    process.address(range.first).cast()
}

fn grow(process: &Process, region: Region, pages: u64) -> bool {
    let tail = Range { first: region.range.end, end: region.range.end.offset(pages) };
    pages <= process.manager.capacity_left()
        && process.grow(region, pages)
        && process.make_ordinary(tail)
}

/// Moves a block that shrank below 64 KiB to the C library.
///
/// # Safety
/// `pointer` is the start of `region`.
unsafe fn to_libc(pointer: *mut c_void, region: &Region, size: usize) -> *mut c_void {
    // SAFETY: the old block is longer than `size`; the new one is as long, and apart from it.
    unsafe {
        if size == 0 {
            free(pointer);
            return ptr::null_mut();
        }
        let new = __libc_malloc(size);
        if !new.is_null() {
            ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast(), size.min(bytes(region)));
            free(pointer);
        }
        new
    }
}

/// Resizes a block of the C library; one that grows to 64 KiB becomes paged.
///
/// # Safety
/// `pointer` is a block of the C library.
unsafe fn from_libc(pointer: *mut c_void, size: usize) -> *mut c_void {
    let Some(new) = paged(size, 1) else {
        // SAFETY: the caller's block.
        return unsafe { __libc_realloc(pointer, size) };
    };
    if !new.is_null() {
        // SAFETY: the blocks are apart, and both at least as long as what is copied.
        unsafe {
            let old = libc_usable_size(pointer);
            ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast(), old.min(size));
            __libc_free(pointer);
        }
    }
    new
}

/// reallocarray(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(p: *mut c_void, count: size_t, size: size_t) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: as for realloc.
        Some(total) => unsafe { realloc(p, total) },
        None => {
            set_errno(libc::ENOMEM);
            ptr::null_mut()
        }
    }
}

/// memalign(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: as in malloc.
    paged(size, align).unwrap_or_else(|| unsafe { __libc_memalign(align, size) })
}

/// aligned_alloc(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(align: size_t, size: size_t) -> *mut c_void {
    // SAFETY: as for memalign.
    unsafe { memalign(align, size) }
}

/// posix_memalign(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(
    pointer: *mut *mut c_void,
    align: size_t,
    size: size_t,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: errno is the thread's own, which this call does not change; `pointer` is the
    // caller's, to be filled.
    unsafe {
        let errno = *libc::__errno_location();
        let block = memalign(align, size);
        set_errno(errno);
        if block.is_null() {
            return libc::ENOMEM;
        }
        *pointer = block;
    }
    0
}

/// valloc(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn valloc(size: size_t) -> *mut c_void {
    // SAFETY: as for memalign.
    unsafe { memalign(PAGE_SIZE, size) }
}

/// pvalloc(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn pvalloc(size: size_t) -> *mut c_void {
    // SAFETY: as for memalign.
    unsafe { memalign(PAGE_SIZE, size.next_multiple_of(PAGE_SIZE)) }
}

/// malloc_usable_size(3).
///
/// # Safety
/// As for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> size_t {
    match block_of(pointer) {
        Some((_, region)) => bytes(&region),
        None if pointer.is_null() => 0,
        // SAFETY: a block of the C library.
        None => unsafe { libc_usable_size(pointer) },
    }
}

/// What the C library's malloc_usable_size says, which this library hides: from the header of the
/// block, the word before it, as in every version of glibc's malloc.
///
/// # Safety
/// `pointer` is a live block of glibc's malloc.
unsafe fn libc_usable_size(pointer: *mut c_void) -> usize {
    const MMAPPED: usize = 2;
    const FLAGS: usize = 7;
    // SAFETY: as the caller says.
    let header = unsafe { *pointer.cast::<usize>().sub(1) };
    // A mapped block has both its header words to itself; others share the next one's first.
    let overhead = if header & MMAPPED != 0 { 2 } else { 1 };
    (header & !FLAGS) - overhead * size_of::<usize>()
}
