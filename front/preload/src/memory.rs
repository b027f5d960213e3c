//! The manager's own memory: an allocator over raw mappings, apart from the program's.
//!
//! ```text
//! Own -- main    everything                                       Pages
//!     \- spare   when main cannot be locked: a signal handler interrupted the thread that has
//!                it, and allocates, or waits for threads that allocate        Pieces
//! blocks of 64 KiB and more: mappings of their own                        Pages
//! ```
//! A mapping reads as zeros, and takes memory page by page as it is written: the manager's tables
//! are sized for the whole budget, and mostly unused in a short-lived process.
//!
//! The allocator's locks are held during a fork ([`ForkLock`]), so that the child finds it
//! consistent. A signal handler that interrupted its own thread in `main`, and forks, cannot take
//! that lock: its child does not use `main` again.

use crate::blocks::BLOCKS;
use crate::dump;
use crate::signals::Blocked;
use dlmalloc::{Allocator, Dlmalloc};
use highwater_os::sys;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Bytes mapped for the manager's own memory.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Memory mapped from the kernel.
struct Pages;

// SAFETY: `alloc` returns a fresh mapping of at least the requested size; `free` unmaps whole
// mappings; `free_part` unmaps their ends.
unsafe impl Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match sys::map_anonymous(size) {
            Ok(address) => {
                MAPPED.fetch_add(size, Relaxed);
                dump::leave_out(address as u64, size);
                (address, size, 0)
            }
            Err(_) => (ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, address: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the end of a mapping, which the allocator no longer uses.
        unsafe { sys::unmap(address.add(new), old - new) };
        MAPPED.fetch_sub(old - new, Relaxed);
        true
    }

    fn free(&self, address: *mut u8, size: usize) -> bool {
        // SAFETY: a whole mapping, which the allocator no longer uses.
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

/// Memory of the spare arena: pieces that are never unmapped, so that an address identifies them.
struct Pieces;

/// Maximum number of pieces; each is at least twice as large as the one before.
const PIECES_MAX: usize = 32;
const PIECE_MIN: usize = 1 << 20;

/// First address and length of each.
static PIECES: [(AtomicUsize, AtomicUsize); PIECES_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; PIECES_MAX];
static PIECES_MADE: AtomicUsize = AtomicUsize::new(0);

impl Pieces {
    #[inline]
    fn hold(address: *mut u8) -> bool {
        let made = &PIECES[..PIECES_MADE.load(Acquire)];
        made.iter().any(|(first, len)| {
            (address as usize).wrapping_sub(first.load(Relaxed)) < len.load(Relaxed)
        })
    }
}

// SAFETY: `alloc` returns a fresh mapping of at least the requested size; nothing is freed.
unsafe impl Allocator for Pieces {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // Called with the arena locked.
        let made = PIECES_MADE.load(Relaxed);
        let Some((first, len)) = PIECES.get(made) else { return (ptr::null_mut(), 0, 0) };
        let bytes = size.max(PIECE_MIN << made);
        let (address, bytes, flags) = Pages.alloc(bytes);
        if !address.is_null() {
            first.store(address as usize, Relaxed);
            len.store(bytes, Relaxed);
            PIECES_MADE.store(made + 1, Release);
        }
        (address, bytes, flags)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        Pages.page_size()
    }
}

/// The allocator of this library.
struct Own {
    main: Mutex<Dlmalloc<Pages>>,
    /// Used while `main` cannot be locked.
    spare: Mutex<Dlmalloc<Pieces>>,
}

#[global_allocator]
static OWN: Own = Own {
    main: Mutex::new(Dlmalloc::new_with_allocator(Pages)),
    spare: Mutex::new(Dlmalloc::new_with_allocator(Pieces)),
};

/// Set while a signal handler, which interrupted the thread that has `main` locked, waits for other
/// threads, which may need `main`. Stays set in a child that the handler forks.
static STUCK: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread has `main` locked: an allocation in a signal handler sees it set.
    static AT_MAIN: Cell<bool> = const { Cell::new(false) };
}

impl Own {
    /// Calls `act` with the main arena; `None`: it cannot be locked.
    fn main<R>(&self, act: impl FnOnce(&mut Dlmalloc<Pages>) -> R) -> Option<R> {
        if AT_MAIN.replace(true) {
            return None;
        }
        // Set before the lock is taken, so that a signal handler always sees it.
        compiler_fence(SeqCst);
        let guard = self.lock_main();
        let result = guard.map(|mut main| act(&mut main));
        compiler_fence(SeqCst);
        AT_MAIN.set(false);
        result
    }

    /// The main arena; `None`: its holder cannot release it.
    fn lock_main(&self) -> Option<MutexGuard<'_, Dlmalloc<Pages>>> {
        let mut attempt = 0;
        loop {
            match self.main.try_lock() {
                Ok(main) => return Some(main),
                Err(TryLockError::Poisoned(main)) => return Some(main.into_inner()),
                Err(TryLockError::WouldBlock) if STUCK.load(Acquire) => return None,
                Err(TryLockError::WouldBlock) => highwater_os::relax(attempt),
            }
            attempt += 1;
        }
    }

    /// Calls `act` with the spare arena. Signals are blocked.
    #[cold]
    fn spare<R>(&self, act: impl FnOnce(&mut Dlmalloc<Pieces>) -> R) -> R {
        let _blocked = Blocked::now();
        act(&mut self.spare.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Length from which a block is a mapping of its own.
const MAPPING_MIN: usize = 64 << 10;

/// The length of the mapping for a block; `None`: it comes from an arena. A pure function of the
/// layout.
fn mapping_of(layout: Layout) -> Option<usize> {
    let page = highwater_units::PAGE_SIZE;
    let fits = layout.size() >= MAPPING_MIN && layout.align() <= page;
    fits.then(|| layout.size().next_multiple_of(page))
}

/// A mapping of zeros for a block; null if there is none.
fn block(len: usize) -> *mut u8 {
    let address = Pages.alloc(len).0;
    if !address.is_null() {
        BLOCKS.add(address, len);
    }
    address
}

// SAFETY: Dlmalloc meets the contract of GlobalAlloc under its lock; size and alignment are passed
// on unchanged, and a block goes back to its own arena. A block of an arena that cannot be locked
// is not freed, and is copied to be resized. A mapping is aligned to pages, and unmapped whole.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(len) = mapping_of(layout) {
            return block(len);
        }
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as the caller of alloc guarantees.
        let block = self.main(|main| unsafe { main.malloc(size, align) });
        // SAFETY: as the caller of alloc guarantees.
        block.unwrap_or_else(|| self.spare(|spare| unsafe { spare.malloc(size, align) }))
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if let Some(len) = mapping_of(layout) {
            BLOCKS.remove(address);
            Pages.free(address, len);
            return;
        }
        let (size, align) = (layout.size(), layout.align());
        if Pieces::hold(address) {
            // SAFETY: as the caller of dealloc guarantees.
            return self.spare(|spare| unsafe { spare.free(address, size, align) });
        }
        // SAFETY: as the caller of dealloc guarantees. If the arena cannot be locked the block is
        // lost.
        let _ = self.main(|main| unsafe { main.free(address, size, align) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if let Some(len) = mapping_of(layout) {
            return block(len);
        }
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as the caller of alloc_zeroed guarantees.
        let block = self.main(|main| unsafe { main.calloc(size, align) });
        // SAFETY: as the caller of alloc_zeroed guarantees.
        block.unwrap_or_else(|| self.spare(|spare| unsafe { spare.calloc(size, align) }))
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (before, align) = (layout.size(), layout.align());
        // SAFETY: as the caller of realloc guarantees.
        let new = unsafe { Layout::from_size_align_unchecked(size, align) };
        if mapping_of(layout).is_some() || mapping_of(new).is_some() {
            // SAFETY: as the caller of realloc guarantees; a new block, disjoint from the old one.
            unsafe {
                let block = self.alloc(new);
                if !block.is_null() {
                    ptr::copy_nonoverlapping(address, block, before.min(size));
                    self.dealloc(address, layout);
                }
                return block;
            }
        }
        if Pieces::hold(address) {
            // SAFETY: as the caller of realloc guarantees.
            return self.spare(|spare| unsafe { spare.realloc(address, before, align, size) });
        }
        // SAFETY: as the caller of realloc guarantees.
        let block = self.main(|main| unsafe { main.realloc(address, before, align, size) });
        block.unwrap_or_else(|| {
            self.spare(|spare| {
                // SAFETY: a new block, disjoint from the old one; both hold what is copied.
                unsafe {
                    let new = spare.malloc(size, align);
                    if !new.is_null() {
                        ptr::copy_nonoverlapping(address, new, before.min(size));
                    }
                    new
                }
            })
        })
    }
}

/// Bytes in use for the manager's own memory. Looks up each page of large blocks.
pub(crate) fn resident() -> usize {
    MAPPED.load(Relaxed).saturating_sub(BLOCKS.unused())
}

/// Call before waiting for other threads, possibly in a signal handler. If this thread has `main`
/// locked, others continue without it, and leak what they free meanwhile.
pub(crate) fn step_aside() {
    if is_interrupted() {
        STUCK.store(true, Release);
    }
}

/// [`step_aside`] until it is dropped.
pub(crate) struct Aside(bool);

impl Aside {
    pub(crate) fn now() -> Aside {
        Aside(is_interrupted() && !STUCK.swap(true, AcqRel))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.0 {
            STUCK.store(false, Release);
        }
    }
}

/// In the helper, once the program has ended: one of its threads may have had `main` locked.
pub(crate) fn abandon() {
    STUCK.store(true, Release);
}

/// Whether this thread has `main` locked; the caller then runs in a signal handler.
pub(crate) fn is_interrupted() -> bool {
    AT_MAIN.get()
}

/// Ends [`step_aside`] in the parent of a forked child. In the child, the state stays: other
/// threads that may have been at the arena do not exist there.
pub(crate) fn step_back() {
    if is_interrupted() {
        STUCK.store(false, Release);
    }
}

/// Keeps the allocator locked until dropped. Its holder must not allocate.
pub(crate) struct ForkLock(
    #[expect(dead_code, reason = "held, not read")] Option<MutexGuard<'static, Dlmalloc<Pages>>>,
    #[expect(dead_code, reason = "held, not read")] MutexGuard<'static, Dlmalloc<Pieces>>,
);

/// Locks the allocator for a fork, except an arena whose holder cannot release it. Signals are
/// blocked.
pub(crate) fn lock_for_fork(_: &Blocked) -> ForkLock {
    let main = if is_interrupted() { None } else { OWN.lock_main() };
    ForkLock(main, OWN.spare.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_interrupted_at_the_arena_gets_memory_from_the_spare_one() {
        let before = vec![7u8; 1000];
        let stuck = OWN.main(|_| {
            assert!(AT_MAIN.get(), "a handler would see it");
            let mut grown = before;
            grown.resize(5000, 8);
            let mut new = Box::new([9u8; 300]);
            let spare = [grown.as_mut_ptr(), new.as_mut_ptr()];
            assert_eq!(spare.map(Pieces::hold), [true; 2]);
            assert!(grown[..1000].iter().all(|byte| *byte == 7) && new[299] == 9);
            (grown, new)
        });
        let (mut grown, new) = stuck.expect("nobody is stuck");
        let mut later = vec![1u8; 1000];
        assert!(!Pieces::hold(later.as_mut_ptr()), "the interruption is over");
        grown.resize(50_000, 3);
        assert!(Pieces::hold(grown.as_mut_ptr()) && grown[4999] == 8 && grown[49_999] == 3);
        drop((grown, new, later));
    }
}
