//! Containers on paged memory.
//!
//! ```text
//! PagedAllocator -- Memory
//!                |- blocks of 64 KiB and more: a mapping each, by address
//!                \- smaller ones: the global allocator's
//! ```
//! Locking: `mappings`, while no other lock is taken but the memory's own.

use crate::mapping::Mapping;
use crate::memory::Memory;
use allocator_api2::alloc::{AllocError, Allocator, Global, Layout};
use highwater_units::PAGE_SIZE;
use std::collections::HashMap;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks from this length on are paged: a mapping takes whole pages, and an entry of a table.
const PAGED_MIN: usize = 64 << 10;

/// An allocator for containers that take one by the crate allocator-api2: its `Vec` and `Box`, and
/// hashbrown's maps. Blocks of 64 KiB and more are paged, and grow without a copy; smaller ones are
/// the global allocator's. What does not fit is an `AllocError` (`try_reserve` returns it).
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
    /// Blocks from a memory. It stays until the last clone and the last container are dropped.
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

    /// Another length of a paged block, which may move without a copy.
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
    /// Another length of a block. `of_small` changes one that is not paged, before and after.
    ///
    /// # Safety
    /// The block is of this allocator, with the layout `old`.
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
        // SAFETY: both blocks have as many bytes, and differ; the old one is not used any more.
        unsafe {
            ptr::copy_nonoverlapping(block.as_ptr(), to.cast::<u8>().as_ptr(), kept);
            self.deallocate(block, old);
        }
        Ok(to)
    }
}

// SAFETY: a block stays where it is until it is freed or resized, also if the allocator is moved or
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
        // What a mapping gets is zero, and so is what `change` does not copy.
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
