//! The manager's own memory: an allocator over raw mappings, apart from the program's.
//!
//! Its lock is held over a fork ([`ForkLock`]), so that the child finds it whole.

use dlmalloc::Dlmalloc;
use highwater_os::sys;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes mapped for the manager's own memory.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Memory straight from the kernel.
struct Pages;

// SAFETY: what `alloc` returns is a fresh mapping of at least the size asked for; `free` gives
// whole mappings back; `free_part` gives back their ends.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // SAFETY: a new mapping at an address of the kernel's choice.
        match unsafe { sys::map_anonymous(None, size) } {
            Ok(address) => {
                MAPPED.fetch_add(size, Relaxed);
                (address, size, 0)
            }
            Err(_) => (ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, address: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the end of a mapping that the allocator has given up.
        unsafe { sys::unmap(address.add(new), old - new) };
        MAPPED.fetch_sub(old - new, Relaxed);
        true
    }

    fn free(&self, address: *mut u8, size: usize) -> bool {
        // SAFETY: a whole mapping that the allocator has given up.
        unsafe { sys::unmap(address, size) };
        MAPPED.fetch_sub(size, Relaxed);
        true
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        highwater_units::PAGE_SIZE
    }
}

/// The allocator behind every Box and Vec of this library.
struct Own(Mutex<Dlmalloc<Pages>>);

#[global_allocator]
static OWN: Own = Own(Mutex::new(Dlmalloc::new_with_allocator(Pages)));

impl Own {
    fn lock(&self) -> MutexGuard<'_, Dlmalloc<Pages>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: Dlmalloc meets the contract of GlobalAlloc under its lock; size and alignment are handed
// on unchanged.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller of alloc says.
        unsafe { self.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as the caller of dealloc says.
        unsafe { self.lock().free(address, layout.size(), layout.align()) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller of alloc_zeroed says.
        unsafe { self.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller of realloc says.
        unsafe { self.lock().realloc(address, layout.size(), layout.align(), size) }
    }
}

/// Bytes mapped for the manager's own memory.
pub(crate) fn mapped() -> usize {
    MAPPED.load(Relaxed)
}

/// Keeps the allocator as it is until dropped. Its holder must not allocate.
pub(crate) struct ForkLock(
    #[expect(dead_code, reason = "held, not read")] MutexGuard<'static, Dlmalloc<Pages>>,
);

/// Takes the allocator's lock for a fork.
pub(crate) fn lock_for_fork() -> ForkLock {
    ForkLock(OWN.lock())
}
