//! Containers on paged memory.
//!
//! ```text
//! PagedAllocator -- Memory
//!                |- blocks of 64 KiB and more: a mapping each, by address
//!                \- smaller ones: the global allocator's
//! ```
//! Locking: `mappings`. While it is held, no lock is taken but the memory's own.

use crate::mapping::Mapping;
use crate::memory::Memory;
use allocator_api2::alloc::{AllocError, Allocator, Global, Layout};
use highwater_units::PAGE_SIZE;
use std::collections::HashMap;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks of this length and more are paged. Shorter ones are not, since each mapping takes whole
/// pages and a table entry.
const PAGED_MIN: usize = 64 << 10;

/// An allocator for containers that take an allocator of the crate allocator-api2: its `Vec` and
/// `Box`, and hashbrown's maps. Blocks of 64 KiB and more are paged, and grow without being copied;
/// smaller blocks come from the global allocator. A block that does not fit is refused with an
/// `AllocError` (`try_reserve` returns it).
///
/// In a forked child of the process that made the memory, nothing can be allocated, and nothing is
/// freed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use hashbrown::{DefaultHashBuilder, HashMap};
/// use highwater::{Memory, PagedAllocator};
///
/// let memory = Memory::builder().memory("16M").swap("ram:128M").build()?;
/// let alloc = PagedAllocator::new(&memory);
/// let mut squares = HashMap::with_hasher_in(DefaultHashBuilder::default(), alloc);
/// for number in 0..1_000_000u64 { // 17 MiB, 34 MiB while the table grows
///     squares.insert(number, number * number);
/// }
/// assert_eq!(squares[&999_999], 999_998_000_001);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PagedAllocator {
    blocks: Arc<Blocks>,
}

struct Blocks {
    memory: Memory,
    mappings: Mutex<HashMap<usize, Mapping>>,
}

impl PagedAllocator {
    /// An allocator of blocks from `memory`. The memory exists until the last clone of the
    /// allocator and the last container are dropped.
    pub fn new(memory: &Memory) -> PagedAllocator {
        let blocks = Blocks { memory: memory.clone(), mappings: Mutex::default() };
        PagedAllocator { blocks: Arc::new(blocks) }
    }
}

impl Blocks {
    fn mappings(&self) -> MutexGuard<'_, HashMap<usize, Mapping>> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of zeros.
    fn map(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.align() > PAGE_SIZE {
            return Err(AllocError);
        }
        self.keep(self.memory.map(layout.size()).map_err(|_| AllocError)?)
    }

    fn keep(&self, mut mapping: Mapping) -> Result<NonNull<[u8]>, AllocError> {
        let bytes = ptr::slice_from_raw_parts_mut(mapping.as_mut_ptr(), mapping.len());
        let block = NonNull::new(bytes).expect("mappings do not lie at 0");
        self.mappings().insert(block.cast::<u8>().addr().get(), mapping);
        Ok(block)
    }

    fn take(&self, block: NonNull<u8>) -> Mapping {
        self.mappings().remove(&block.addr().get()).expect("a block of this allocator")
    }

    /// Changes the length of a paged block. The block may move, but it is not copied.
    fn resize(&self, block: NonNull<u8>, len: usize) -> Result<NonNull<[u8]>, AllocError> {
        if self.memory.is_inherited() {
            return Err(AllocError);
        }
        let mut mapping = self.take(block);
        let resized = mapping.resize(len);
        let now = self.keep(mapping);
        resized.map_err(|_| AllocError).and(now)
    }
}

fn is_paged(layout: Layout) -> bool {
    layout.size() >= PAGED_MIN
}

impl PagedAllocator {
    /// Changes the length of a block. `of_small` does so for a block that is paged neither before
    /// nor after the change.
    ///
    /// # Safety
    /// The block comes from this allocator, and has the layout `old`.
    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
        of_small: impl FnOnce() -> Result<NonNull<[u8]>, AllocError>,
    ) -> Result<NonNull<[u8]>, AllocError> {
        match (is_paged(old), is_paged(new)) {
            (true, true) if new.align() <= PAGE_SIZE => {
                return self.blocks.resize(block, new.size());
            }
            (false, false) => return of_small(),
            _ => {}
        }
        let to = self.allocate_zeroed(new)?;
        let kept = old.size().min(new.size());
        // SAFETY: both blocks have as many bytes, and do not overlap; the old one is no longer
        // used.
        unsafe {
            ptr::copy_nonoverlapping(block.as_ptr(), to.cast::<u8>().as_ptr(), kept);
            self.deallocate(block, old);
        }
        Ok(to)
    }
}

// SAFETY: a block stays where it is until it is freed or resized, even if the allocator is moved or
// cloned; clones share the blocks.
unsafe impl Allocator for PagedAllocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if is_paged(layout) { self.blocks.map(layout) } else { Global.allocate(layout) }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if is_paged(layout) { self.blocks.map(layout) } else { Global.allocate_zeroed(layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        match is_paged(layout) {
            // A thread that stayed in the parent may hold the lock.
            true if self.blocks.memory.is_inherited() => {}
            true => drop(self.blocks.take(block)),
            // SAFETY: a block of the global allocator's, by contract of this function.
            false => unsafe { Global.deallocate(block, layout) },
        }
    }

    unsafe fn grow(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: by contract of this function.
        unsafe { self.change(block, old, new, || Global.grow(block, old, new)) }
    }

    unsafe fn grow_zeroed(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // Pages that a mapping gets are zeros, and so are the bytes that `change` does not copy.
        // SAFETY: by contract of this function.
        unsafe { self.change(block, old, new, || Global.grow_zeroed(block, old, new)) }
    }

    unsafe fn shrink(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: by contract of this function.
        unsafe { self.change(block, old, new, || Global.shrink(block, old, new)) }
    }
}

impl fmt::Debug for PagedAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagedAllocator").field("memory", &self.blocks.memory).finish()
    }
}
