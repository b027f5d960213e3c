//! malloc and its family: small blocks are objects of the heap, large ones regions of the range.
//!
//! ```text
//! request -- 64 KiB and more, or aligned to more than a page -> region of whole pages (Use::Block)
//!         \- smaller: called by a served program -> object of a slab       heap/
//!                     otherwise --------------------> the C library
//! ```
//! A block's size is in the table of regions or in its slab's record, so freeing never touches its
//! pages. One comparison of the address decides which allocator a block belongs to. The exported
//! functions only add their return address, which identifies the caller (caller.rs).

use crate::behind::{Behind, behind};
use crate::caller;
use crate::errno::set_errno;
use crate::heap::{self, Heap};
use crate::native::c_library;
use crate::process::{self, Process};
use crate::regions::{Region, Use};
use crate::signals::Blocked;
use crate::units::{Commit, PAGED_MIN, pages_of};
use crate::{demand, start};
use highwater_mm::Range;
use highwater_units::PAGE_SIZE;
use libc::{c_char, c_int, c_void, size_t};
use std::arch::naked_asm;
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::OnceLock;

/// From dlfcn.h: dladdr1 is to find the symbol, too.
const RTLD_DL_SYMENT: c_int = 1;
/// From elf.h: a symbol's section, if another object defines it.
const SHN_UNDEF: u16 = 0;

/// Defines a function of the C library that passes on its arguments and, in the next argument
/// register, its return address.
macro_rules! with_caller {
    ($(#[$doc:meta])* $name:ident($($argument:ty),*) -> $result:ty, $to:path,
     $x86_64:literal, $aarch64:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C library's function.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name($(_: $argument),*) -> $result {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(concat!("mov ", $x86_64, ", [rsp]"), "jmp {to}", to = sym $to);
            #[cfg(target_arch = "aarch64")]
            naked_asm!(concat!("mov ", $aarch64, ", x30"), "b {to}", to = sym $to);
        }
    };
}

pub(crate) use with_caller;

fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    ptr::null_mut()
}

/// Paged memory for a request. `None`: the request is not to be paged. `Some(null)`: it is, but
/// memory is exhausted.
#[inline]
fn paged(size: usize, align: usize, caller: usize) -> Option<*mut c_void> {
    if size >= PAGED_MIN {
        return start::get().map(|process| block(process, size, align));
    }
    match heap::get() {
        Some(_) if caller::is_inside(caller) => None,
        Some(heap) => Some(object(heap, size, align)),
        None => {
            demand::note(size, caller);
            // Another thread may have started the manager, and this one waited for it.
            heap::get().filter(|_| !caller::is_inside(caller)).map(|heap| object(heap, size, align))
        }
    }
}

#[inline]
fn object(heap: &'static Heap, size: usize, align: usize) -> *mut c_void {
    let class = match align {
        0..=16 => Some(heap::class_of(size)),
        _ => heap::aligned_class_of(size, align.next_power_of_two()),
    };
    match class {
        Some(class) => {
            let object = heap.alloc(class);
            if object.is_null() { no_memory() } else { object.cast() }
        }
        None => process::running().map_or_else(no_memory, |process| block(process, size, align)),
    }
}

#[cold]
fn block(process: &Process, size: usize, align: usize) -> *mut c_void {
    let align = (align / PAGE_SIZE).max(1) as u64;
    match process.take(pages_of(size.max(1)), align, Use::Block, Commit::Checked) {
        Some(range) => process.address(range.first).cast(),
        None => no_memory(),
    }
}

/// malloc(3).
pub(crate) type MallocFn = unsafe extern "C" fn(size_t) -> *mut c_void;
/// realloc(3).
type ReallocFn = unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void;

/// Which allocator a block belongs to.
enum Owner {
    Heap(&'static Heap),
    /// A heap that was given up.
    Abandoned(&'static Heap),
    Block(&'static Process, Region),
    /// The malloc of a library behind this one (behind.rs).
    Behind(&'static Behind),
    /// The C library's, or null.
    Libc,
}

/// A pointer into the range that is not a block of malloc ends the program with a message, as in
/// glibc. Pointers into the heap are checked later.
#[inline]
fn owner(pointer: *mut c_void) -> Owner {
    let address = pointer as usize;
    match heap::get().filter(|heap| heap.holds(address)) {
        Some(heap) => Owner::Heap(heap),
        None => process::holding(address).map_or(Owner::Libc, |process| block_at(process, pointer)),
    }
}

#[cold]
fn block_at(process: &'static Process, pointer: *mut c_void) -> Owner {
    let blocked = Blocked::now();
    let found = process.regions(&blocked).find(process.page(pointer as usize));
    drop(blocked);
    let starts = |region: &Region| process.address(region.range.first).cast() == pointer;
    let owner = match found.map(|region| (region.used_as, region)) {
        Some((Use::Block, region)) if starts(&region) => Some(Owner::Block(process, region)),
        Some((Use::Mapping, _)) => behind().map(Owner::Behind),
        _ => heap::abandoned(pointer as usize).map(Owner::Abandoned),
    };
    owner.unwrap_or_else(|| heap::end_foreign(pointer as usize))
}

fn pages(region: &Region) -> u64 {
    region.range.end.0 - region.range.first.0
}

fn bytes(region: &Region) -> usize {
    pages(region) as usize * PAGE_SIZE
}

with_caller!(
    /// malloc(3).
    malloc(size_t) -> *mut c_void, malloc_for, "rsi", "x1"
);

/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C" fn malloc_for(size: size_t, caller: usize) -> *mut c_void {
    // SAFETY: the C library's allocator, under its other name.
    paged(size, 1, caller).unwrap_or_else(|| unsafe { (c_library().malloc)(size) })
}

with_caller!(
    /// calloc(3). Pages of a region read as zeros; an object may have been used before.
    calloc(size_t, size_t) -> *mut c_void, calloc_for, "rdx", "x2"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn calloc_for(count: size_t, size: size_t, caller: usize) -> *mut c_void {
    let total = count.checked_mul(size);
    let Some(block) = total.and_then(|total| paged(total, 1, caller)) else {
        // SAFETY: as in malloc; the C library refuses a product that overflows.
        return unsafe { (c_library().calloc)(count, size) };
    };
    let bytes = count.wrapping_mul(size);
    if bytes < PAGED_MIN && !block.is_null() {
        // SAFETY: a new block of at least so many bytes.
        unsafe { block.write_bytes(0, bytes) };
    }
    block
}

/// free(3), which keeps errno.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn free(pointer: *mut c_void) {
    // SAFETY: as the caller says.
    unsafe { release(pointer) };
}

/// # Safety
/// As for free.
#[inline]
pub(crate) unsafe fn release(pointer: *mut c_void) {
    if pointer.is_null() {
        return;
    }
    match owner(pointer) {
        Owner::Heap(heap) => heap.free(pointer as usize),
        Owner::Abandoned(_) => {}
        Owner::Block(process, region) => {
            // SAFETY: errno is the thread's own.
            let errno = unsafe { *libc::__errno_location() };
            process.release(region.range);
            set_errno(errno);
        }
        // SAFETY: a block of that malloc.
        Owner::Behind(behind) => unsafe { (behind.free)(pointer) },
        // SAFETY: not in the range, so the C library's.
        Owner::Libc => unsafe { (c_library().free)(pointer) },
    }
}

/// free_sized(3) of C23; the size is already known.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn free_sized(pointer: *mut c_void, _: size_t) {
    // SAFETY: as for free.
    unsafe { release(pointer) };
}

/// free_aligned_sized(3) of C23.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn free_aligned_sized(pointer: *mut c_void, _: size_t, _: size_t) {
    // SAFETY: as for free.
    unsafe { release(pointer) };
}

with_caller!(
    /// realloc(3). A region that stays a region is never copied.
    realloc(*mut c_void, size_t) -> *mut c_void, realloc_for, "rdx", "x2"
);

/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C" fn realloc_for(
    p: *mut c_void,
    size: size_t,
    caller: usize,
) -> *mut c_void {
    if p.is_null() {
        // SAFETY: as for malloc.
        return unsafe { malloc_for(size, caller) };
    }
    // SAFETY: the caller's block, whose usable bytes these are.
    unsafe {
        match owner(p) {
            Owner::Heap(heap) => {
                let now = heap.size_of(p as usize);
                if size > 0 && fits(size, now) { p } else { change(p, now, size, caller) }
            }
            Owner::Abandoned(heap) => change(p, heap.size_of(p as usize), size, caller),
            Owner::Block(process, region) if size >= PAGED_MIN => resize(process, region, size),
            Owner::Block(_, region) => change(p, bytes(&region), size, caller),
            Owner::Behind(behind) => (behind.realloc)(p, size),
            Owner::Libc => from_libc(p, size, caller),
        }
    }
}

/// Whether an object of `now` bytes stays when `size` are requested: saving less than half is not
/// worth a copy.
fn fits(size: usize, now: usize) -> bool {
    size <= now && (size >= now / 2 || now == 16)
}

/// Resizes a paged block, in place or by moving its pages.
fn resize(process: &Process, region: Region, size: usize) -> *mut c_void {
    let (now, wanted) = (pages(&region), pages_of(size));
    let start = region.range.first;
    if wanted < now {
        process.release(Range { first: start.offset(wanted), end: region.range.end });
    }
    if wanted <= now || grow(process, region, wanted - now) {
        return process.address(start).cast();
    }
    if !process.can_hold(wanted - now, Commit::Checked) {
        return no_memory();
    }
    let Some(range) = process.take(wanted, 1, Use::Block, Commit::Unchecked) else {
        return no_memory();
    };
    process.relocate(region.range, range.first);
    process.release(region.range);
    process.address(range.first).cast()
}

fn grow(process: &Process, region: Region, pages: u64) -> bool {
    process.can_hold(pages, Commit::Checked) && process.grow(region, pages)
}

/// Copies as much of a block of `now` bytes as fits into a new block. Size 0 frees the block.
///
/// # Safety
/// `pointer` is a live block of `now` bytes.
unsafe fn change(pointer: *mut c_void, now: usize, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: both blocks are at least as long as what is copied, and disjoint.
    unsafe {
        if size == 0 {
            release(pointer);
            return ptr::null_mut();
        }
        let new = malloc_for(size, caller);
        if !new.is_null() {
            ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast(), size.min(now));
            release(pointer);
        }
        new
    }
}

/// Resizes a block of the C library. If it grows, and the caller may get paged memory, it becomes
/// paged.
///
/// # Safety
/// `pointer` is a block of the C library.
unsafe fn from_libc(pointer: *mut c_void, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: the caller's block.
    let now = unsafe { libc_usable_size(pointer) };
    let grown = (size > now).then(|| paged(size, 1, caller)).flatten();
    let Some(new) = grown else {
        // SAFETY: the caller's block.
        return unsafe { (c_library().realloc)(pointer, size) };
    };
    if !new.is_null() {
        // SAFETY: the blocks are disjoint, and both at least as long as what is copied.
        unsafe {
            ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast(), now);
            (c_library().free)(pointer);
        }
    }
    new
}

with_caller!(
    /// reallocarray(3).
    reallocarray(*mut c_void, size_t, size_t) -> *mut c_void, reallocarray_for, "rcx", "x3"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn reallocarray_for(
    pointer: *mut c_void,
    count: size_t,
    size: size_t,
    caller: usize,
) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else { return no_memory() };
    // SAFETY: as for realloc; if the program has a malloc of its own, the block is from that.
    unsafe {
        match other_realloc() {
            Some(realloc) => realloc(pointer, total),
            None => realloc_for(pointer, total, caller),
        }
    }
}

with_caller!(
    /// memalign(3).
    memalign(size_t, size_t) -> *mut c_void, memalign_for, "rdx", "x2"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn memalign_for(align: size_t, size: size_t, caller: usize) -> *mut c_void {
    // SAFETY: as in malloc.
    paged(size, align, caller).unwrap_or_else(|| unsafe { (c_library().memalign)(align, size) })
}

with_caller!(
    /// aligned_alloc(3).
    aligned_alloc(size_t, size_t) -> *mut c_void, memalign_for, "rdx", "x2"
);

with_caller!(
    /// posix_memalign(3).
    posix_memalign(*mut *mut c_void, size_t, size_t) -> c_int, posix_memalign_for, "rcx", "x3"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn posix_memalign_for(
    pointer: *mut *mut c_void,
    align: size_t,
    size: size_t,
    caller: usize,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: errno is the thread's own, which this call does not change; `pointer` is the
    // caller's, to be filled.
    unsafe {
        let errno = *libc::__errno_location();
        let block = memalign_for(align, size, caller);
        set_errno(errno);
        if block.is_null() {
            return libc::ENOMEM;
        }
        *pointer = block;
    }
    0
}

with_caller!(
    /// valloc(3).
    valloc(size_t) -> *mut c_void, valloc_for, "rsi", "x1"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn valloc_for(size: size_t, caller: usize) -> *mut c_void {
    // SAFETY: as for memalign.
    unsafe { memalign_for(PAGE_SIZE, size, caller) }
}

with_caller!(
    /// pvalloc(3).
    pvalloc(size_t) -> *mut c_void, pvalloc_for, "rsi", "x1"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn pvalloc_for(size: size_t, caller: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE_SIZE) {
        // SAFETY: as for memalign.
        Some(size) => unsafe { memalign_for(PAGE_SIZE, size, caller) },
        None => no_memory(),
    }
}

with_caller!(
    /// strdup(3). The C library's version would allocate for itself.
    strdup(*const c_char) -> *mut c_char, strdup_for, "rsi", "x1"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn strdup_for(text: *const c_char, caller: usize) -> *mut c_char {
    // SAFETY: the caller's string, up to its end.
    unsafe { copy(text, libc::strlen(text), caller) }
}

with_caller!(
    /// strndup(3).
    strndup(*const c_char, size_t) -> *mut c_char, strndup_for, "rdx", "x2"
);

/// # Safety
/// As for the C library's function.
unsafe extern "C" fn strndup_for(text: *const c_char, most: size_t, caller: usize) -> *mut c_char {
    // SAFETY: the caller's string, up to its end or `most`.
    unsafe { copy(text, libc::strnlen(text, most), caller) }
}

/// The malloc of a program with one of its own, whose free gets the blocks that strdup returns.
/// `None` until [`caller::learn`] has run.
pub(crate) fn other() -> Option<MallocFn> {
    static FOUND: OnceLock<Option<MallocFn>> = OnceLock::new();
    if !caller::are_known() {
        return None;
    }
    *FOUND.get_or_init(|| {
        // SAFETY: looks a name up, as the program's calls do.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
        let ours = caller::is_own(found as usize) || (is_jump(found) && caller::is_first());
        // SAFETY: what has that name is such a function.
        (!ours && !found.is_null())
            .then(|| unsafe { mem::transmute::<*mut c_void, MallocFn>(found) })
    })
}

/// Whether an address is not that of a function, but of a jump in the program to a library's
/// function. Programs without position-independent code, such as Python, have such a jump for each
/// function whose address they use.
fn is_jump(function: *const c_void) -> bool {
    let mut object = MaybeUninit::<libc::Dl_info>::uninit();
    let mut symbol: *const libc::Elf64_Sym = ptr::null();
    // SAFETY: both results live for the call.
    let known = unsafe {
        libc::dladdr1(function, object.as_mut_ptr(), (&raw mut symbol).cast(), RTLD_DL_SYMENT)
    };
    // SAFETY: null, or a symbol that the loader keeps as long as the program.
    known != 0 && unsafe { symbol.as_ref() }.is_some_and(|symbol| symbol.st_shndx == SHN_UNDEF)
}

/// The matching realloc: some mallocs replace only part of the family.
fn other_realloc() -> Option<ReallocFn> {
    static FOUND: OnceLock<usize> = OnceLock::new();
    other()?;
    // SAFETY: looks a name up, as the program's calls do.
    let find = || unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"realloc".as_ptr()) } as usize;
    let found = *FOUND.get_or_init(find);
    // SAFETY: what has that name is such a function.
    (found != 0).then(|| unsafe { mem::transmute::<usize, ReallocFn>(found) })
}

/// A new string of the first `len` bytes.
///
/// # Safety
/// `text` has at least `len` bytes.
unsafe fn copy(text: *const c_char, len: usize, caller: usize) -> *mut c_char {
    // SAFETY: the new block has room for them and the terminating zero.
    unsafe {
        let new = match other() {
            Some(malloc) => malloc(len + 1).cast::<c_char>(),
            None => malloc_for(len + 1, caller).cast(),
        };
        if !new.is_null() {
            ptr::copy_nonoverlapping(text, new, len);
            new.add(len).write(0);
        }
        new
    }
}

/// malloc_usable_size(3).
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> size_t {
    match owner(pointer) {
        Owner::Heap(heap) | Owner::Abandoned(heap) => heap.size_of(pointer as usize),
        Owner::Block(_, region) => bytes(&region),
        // SAFETY: a block of that malloc.
        Owner::Behind(behind) => unsafe { (behind.usable_size)(pointer) },
        Owner::Libc if pointer.is_null() => 0,
        // SAFETY: a block of the C library.
        Owner::Libc => unsafe { libc_usable_size(pointer) },
    }
}

/// The result of glibc's malloc_usable_size, which this library's function of that name hides. It
/// is taken from the block's header, the word before the block, as in every version of glibc's
/// malloc.
///
/// # Safety
/// `pointer` is a live block of glibc's malloc.
unsafe fn libc_usable_size(pointer: *mut c_void) -> usize {
    const MMAPPED: usize = 2;
    const FLAGS: usize = 7;
    // SAFETY: as the caller says.
    let header = unsafe { *pointer.cast::<usize>().sub(1) };
    // A mapped block has both header words to itself; other blocks share the next one's first.
    let overhead = if header & MMAPPED != 0 { 2 } else { 1 };
    (header & !FLAGS) - overhead * size_of::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_block_tells_its_size_as_the_c_library_does() {
        for size in (0..300).chain([1000, 4096, 100_000, 1 << 20, 40 << 20]) {
            // SAFETY: a block of the C library's, freed below.
            unsafe {
                let block = (c_library().malloc)(size);
                assert_eq!(libc_usable_size(block), libc::malloc_usable_size(block), "{size}");
                (c_library().free)(block);
            }
        }
    }

    #[test]
    fn an_object_stays_where_half_of_it_is_used() {
        for (size, now, expected) in [
            (64, 64, true),
            (65, 64, false),
            (32, 64, true),
            (31, 64, false),
            (1, 16, true),
            (17, 16, false),
        ] {
            assert_eq!(fits(size, now), expected, "{size} bytes in {now}");
        }
    }
}
