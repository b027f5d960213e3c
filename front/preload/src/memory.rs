//! The manager's own memory: an allocator over raw mappings, apart from the program's.
//!
//! ```text
//! Own -- main    everything                                       Pages
//!     \- spare   when nobody can get at main, since the thread that has it was interrupted there,
//!                and the handler of the signal asks, or makes others wait     Pieces
//! ```
//! Its locks are held over a fork ([`ForkLock`]), so that the child finds it whole. A handler that
//! interrupted a thread at `main`, and forks, cannot have that lock: its child leaves `main` alone
//! for good.

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

/// Memory straight from the kernel.
struct Pages;

// SAFETY: what `alloc` returns is a fresh mapping of at least the size asked for; `free` gives
// whole mappings back; `free_part` gives back their ends.
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

/// Memory of the spare arena: pieces that are never given back, so that an address tells.
struct Pieces;

/// How many there may be: each is twice as large as the one before, or as large as it must be.
const PIECES_MAX: usize = 32;
const PIECE_MIN: usize = 1 << 20;

/// First address and bytes of each.
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

// SAFETY: what `alloc` returns is a fresh mapping of at least the size asked for; nothing is freed.
unsafe impl Allocator for Pieces {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // Under the lock of the arena, as all calls are.
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

/// The allocator behind every Box and Vec of this library.
struct Own {
    main: Mutex<Dlmalloc<Pages>>,
    /// For when nobody can get at `main`.
    spare: Mutex<Dlmalloc<Pieces>>,
}

#[global_allocator]
static OWN: Own = Own {
    main: Mutex::new(Dlmalloc::new_with_allocator(Pages)),
    spare: Mutex::new(Dlmalloc::new_with_allocator(Pieces)),
};

/// Whether the thread that has `main` was interrupted there by a signal, whose handler waits for
/// threads that may wait for it. In a child that it forks, for good.
static STUCK: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread is at `main`: if it asks again, from a signal's handler.
    static AT_MAIN: Cell<bool> = const { Cell::new(false) };
}

impl Own {
    /// Calls `act` with the main arena; `None`: it cannot be had.
    fn main<R>(&self, act: impl FnOnce(&mut Dlmalloc<Pages>) -> R) -> Option<R> {
        if AT_MAIN.replace(true) {
            return None;
        }
        // A handler sees it set whenever the lock is held.
        compiler_fence(SeqCst);
        let guard = self.lock_main();
        let result = guard.map(|mut main| act(&mut main));
        compiler_fence(SeqCst);
        AT_MAIN.set(false);
        result
    }

    /// The main arena; `None`: who has it is stuck.
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

    /// Calls `act` with the spare arena, which no signal interrupts.
    #[cold]
    fn spare<R>(&self, act: impl FnOnce(&mut Dlmalloc<Pieces>) -> R) -> R {
        let _blocked = Blocked::now();
        act(&mut self.spare.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// SAFETY: Dlmalloc meets the contract of GlobalAlloc under its lock; size and alignment are handed
// on unchanged, and what is freed or resized goes to the arena that it is of. What is of an arena
// that cannot be had is not freed, and copied to be resized.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as the caller of alloc says.
        let block = self.main(|main| unsafe { main.malloc(size, align) });
        // SAFETY: likewise.
        block.unwrap_or_else(|| self.spare(|spare| unsafe { spare.malloc(size, align) }))
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        let (size, align) = (layout.size(), layout.align());
        if Pieces::hold(address) {
            // SAFETY: as the caller of dealloc says.
            return self.spare(|spare| unsafe { spare.free(address, size, align) });
        }
        // SAFETY: likewise. Of no use to anybody if it cannot be had.
        let _ = self.main(|main| unsafe { main.free(address, size, align) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        // SAFETY: as the caller of alloc_zeroed says.
        let block = self.main(|main| unsafe { main.calloc(size, align) });
        // SAFETY: likewise.
        block.unwrap_or_else(|| self.spare(|spare| unsafe { spare.calloc(size, align) }))
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (before, align) = (layout.size(), layout.align());
        if Pieces::hold(address) {
            // SAFETY: as the caller of realloc says.
            return self.spare(|spare| unsafe { spare.realloc(address, before, align, size) });
        }
        // SAFETY: likewise.
        let block = self.main(|main| unsafe { main.realloc(address, before, align, size) });
        block.unwrap_or_else(|| {
            self.spare(|spare| {
                // SAFETY: a new block, apart from the old one; both have what is copied.
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

/// Bytes mapped for the manager's own memory.
pub(crate) fn mapped() -> usize {
    MAPPED.load(Relaxed)
}

/// Before this thread waits for others, possibly from a signal's handler: if it is at the arena
/// itself, they go on without that, and lose what they free of it meanwhile.
pub(crate) fn step_aside() {
    if is_interrupted() {
        STUCK.store(true, Release);
    }
}

/// In the helper, when the program has ended: one of its threads may have `main` for ever.
pub(crate) fn abandon() {
    STUCK.store(true, Release);
}

/// Whether this thread is at the arena, so that this is a signal's handler.
pub(crate) fn is_interrupted() -> bool {
    AT_MAIN.get()
}

/// What [`step_aside`] began is over: in the parent of a forked child, that is; in the child,
/// others that may have been at the arena are gone, and it stays as it is.
pub(crate) fn step_back() {
    if is_interrupted() {
        STUCK.store(false, Release);
    }
}

/// Keeps the allocator as it is until dropped. Its holder must not allocate.
pub(crate) struct ForkLock(
    #[expect(dead_code, reason = "held, not read")] Option<MutexGuard<'static, Dlmalloc<Pages>>>,
    #[expect(dead_code, reason = "held, not read")] MutexGuard<'static, Dlmalloc<Pieces>>,
);

/// Takes the allocator's locks for a fork; but for one that a thread is stuck with. Signals are
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
