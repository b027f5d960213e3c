//! Memory for objects: a mapping of blocks, divided among shards.
//!
//! ```text
//! Store -- memory: Mapping               adjacent blocks, up to the limit
//!       |- Quota                         room that several processes share: a block takes some
//!       \- Shard x n -- Lock<Blocks>     1/n of the blocks
//!                    \- Tally            statistics, readable without the lock
//! ```
//! Locks: one per shard, held for some tens of instructions, or for a system call when a block gets
//! or frees memory. An object's bytes are accessed without it: they belong to the thread that took
//! the object. Nearby slots have the same shard; different threads use distant slots, and therefore
//! different shards. A shard without room takes objects from the others.
//!
//! Objects never move. So a forked child, which has a private copy, reads its slots without locks
//! and bookkeeping.

use crate::quota::Quota;
use crate::sys::{Mapping, io_error};
use crate::zram::blocks::{Blocks, Found, Freed};
use crate::zram::class::{BLOCK, Class};
use crate::zram::content::Object;
use highwater_platform::{Direction, IoError};
use highwater_units::{Bytes, PAGE_SIZE};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The fewest blocks of a shard: 4 MiB. Each shard has partly full blocks of every class, which
/// would waste the memory of smaller shards.
const SHARD_BLOCKS_MIN: usize = 256;
const SHARDS_MAX: usize = 64;
/// How many adjacent slots have the same shard: a swap cluster of the manager, which one CPU fills.
const NEAR_SLOTS: u32 = 512;

/// Memory for objects.
pub(crate) struct Store {
    memory: Mapping,
    /// Absent: there is room up to the limit.
    pub(crate) quota: OnceLock<Quota>,
    shards: Box<[Shard]>,
    shard_blocks: usize,
}

/// Aligned so that two shards share no cache line, nor a pair of lines that the CPU fetches
/// together.
#[repr(align(128))]
struct Shard {
    blocks: Mutex<Blocks>,
    tally: Tally,
}

/// The statistics of a shard.
#[derive(Default)]
pub(crate) struct Tally {
    /// Blocks with memory.
    blocks: AtomicU64,
    /// Objects.
    objects: AtomicU64,
    /// Uncompressed objects.
    raw: AtomicU64,
    /// Slots of this shard filled with one word.
    pub(crate) same: AtomicU64,
}

/// The statistics of all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) used: Bytes,
    pub(crate) objects: u64,
    pub(crate) raw: u64,
    pub(crate) same: u64,
}

impl Store {
    /// An empty store for up to `limit` bytes.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn new(limit: Bytes, threads: usize) -> Result<Store, i32> {
        let blocks = limit.0 as usize / BLOCK;
        let most = (2 * threads).next_power_of_two().min(SHARDS_MAX);
        let shards = (blocks / SHARD_BLOCKS_MIN).clamp(1, most);
        let shard_blocks = blocks.div_ceil(shards);
        let shards = (0..blocks).step_by(shard_blocks).map(|first| {
            let own = shard_blocks.min(blocks - first);
            Ok(Shard { blocks: Mutex::new(Blocks::new(own as u32)?), tally: Tally::default() })
        });
        let shards = shards.collect::<Result<_, i32>>()?;
        let memory = Mapping::new(blocks * BLOCK)?;
        Ok(Store { memory, quota: OnceLock::new(), shards, shard_blocks })
    }

    /// Takes an object of `len` bytes for a slot.
    ///
    /// # Errors
    /// `Full` at the limit, or if the system is out of memory.
    pub(crate) fn take(&self, slot: u32, len: usize) -> Result<Object, IoError> {
        let first = self.near(slot);
        let shards = (first..self.shards.len()).chain(0..first);
        let found = shards.map(|shard| self.take_from(shard, len));
        found.flat_map(Result::transpose).next().unwrap_or(Err(IoError::Full))
    }

    /// Takes an object of a shard; `None` if it has no room.
    fn take_from(&self, shard: usize, len: usize) -> Result<Option<Object>, IoError> {
        let class = Class::of(len);
        let Shard { tally, .. } = &self.shards[shard];
        let mut blocks = self.lock(shard);
        let block = match blocks.find(class) {
            None => return Ok(None),
            Some(Found::Ready(block)) => block,
            // Other shards may have blocks with memory.
            Some(Found::Bare(_)) if !self.take_room() => return Ok(None),
            Some(Found::Bare(block)) => {
                self.populate(self.first_block(shard) + block as usize)?;
                tally.blocks.fetch_add(1, Relaxed);
                block
            }
        };
        let index = blocks.take(block, class);
        tally.objects.fetch_add(1, Relaxed);
        tally.raw.fetch_add(u64::from(class == Class::RAW), Relaxed);
        let block = self.first_block(shard) as u32 + block;
        Ok(Some(Object { block, index, len: len as u16 }))
    }

    /// Frees an object whose bytes are not used any more.
    pub(crate) fn free(&self, object: Object) {
        let block = object.block as usize;
        let shard = block / self.shard_blocks;
        let class = object.class();
        let Shard { tally, .. } = &self.shards[shard];
        let mut blocks = self.lock(shard);
        let own = (block - self.first_block(shard)) as u32;
        match blocks.free(own, class, object.index) {
            Freed::Kept => {}
            Freed::Stripped => {
                // SAFETY: the block is empty, and no thread can take an object of it before the
                // lock is free.
                unsafe { self.memory.give_back(block * BLOCK, BLOCK) };
                self.put_room();
                tally.blocks.fetch_sub(1, Relaxed);
            }
        }
        tally.objects.fetch_sub(1, Relaxed);
        tally.raw.fetch_sub(u64::from(class == Class::RAW), Relaxed);
    }

    /// The address of a taken object.
    pub(crate) fn address(&self, object: Object) -> *mut u8 {
        let index = usize::from(object.index);
        self.memory.at(object.block as usize * BLOCK + index * object.class().size())
    }

    /// The statistics of a slot's shard.
    pub(crate) fn tally(&self, slot: u32) -> &Tally {
        &self.shards[self.near(slot)].tally
    }

    /// The sum of all shards; concurrent changes may be included in part.
    pub(crate) fn totals(&self) -> Totals {
        self.shards.iter().fold(Totals::default(), |sum, Shard { tally, .. }| Totals {
            used: Bytes(sum.used.0 + tally.blocks.load(Relaxed) * BLOCK as u64),
            objects: sum.objects + tally.objects.load(Relaxed),
            raw: sum.raw + tally.raw.load(Relaxed),
            same: sum.same + tally.same.load(Relaxed),
        })
    }

    /// The maximum of [`Totals::used`].
    pub(crate) fn limit(&self) -> Bytes {
        Bytes(self.memory.len() as u64)
    }

    /// The address of the first block.
    #[cfg(test)]
    pub(crate) fn first_byte(&self) -> *mut u8 {
        self.memory.at(0)
    }

    fn near(&self, slot: u32) -> usize {
        (slot / NEAR_SLOTS) as usize % self.shards.len()
    }

    fn first_block(&self, shard: usize) -> usize {
        shard * self.shard_blocks
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Blocks> {
        self.shards[shard].blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Populates a block that has room: lack of memory is an error here, whereas a touch would kill
    /// the process.
    fn populate(&self, block: usize) -> Result<(), IoError> {
        let populated = self.memory.populate(block * BLOCK, BLOCK);
        populated.map_err(|errno| {
            self.put_room();
            io_error(Direction::Write, errno)
        })
    }

    /// Takes room for a block; `false` if there is none.
    fn take_room(&self) -> bool {
        self.quota.get().is_none_or(|quota| quota.take(BLOCK_PAGES).is_ok())
    }

    fn put_room(&self) {
        if let Some(quota) = self.quota.get() {
            quota.put(BLOCK_PAGES);
        }
    }
}

/// The pages of a block.
const BLOCK_PAGES: u32 = (BLOCK / PAGE_SIZE) as u32;
const _: () = assert!(BLOCK.is_multiple_of(PAGE_SIZE), "memory is given and taken in pages");

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;

    /// Threads take and free random objects of a store that has not enough room for all of them.
    #[test]
    fn threads_share_a_store_that_is_too_small() {
        let store = Store::new(Bytes(12 << 20), 4).unwrap();
        assert_eq!(store.shards.len(), 3);
        let refused: u32 = std::thread::scope(|scope| {
            let work = |thread: u32| {
                let store = &store;
                scope.spawn(move || take_and_free(store, thread))
            };
            let threads: Vec<_> = (0..4).map(work).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(refused > 0, "the store was full at times");
        let blocks: usize = (0..3).map(|shard| store.lock(shard).verify().1).sum();
        let Totals { used, objects, raw, .. } = store.totals();
        assert_eq!((used, objects, raw), (Bytes((blocks * BLOCK) as u64), 0, 0));
    }

    /// Each object holds its address in its first bytes; returns how often there was no room.
    fn take_and_free(store: &Store, thread: u32) -> u32 {
        let mut random = Prng::new(u64::from(thread));
        let (mut held, mut refused) = (Vec::<Object>::new(), 0);
        for step in 0..20_000u32 {
            if random.percent(if step < 15_000 { 70 } else { 5 }) {
                let len = 1 + random.below(PAGE_SIZE as u64) as usize;
                match store.take(thread * NEAR_SLOTS, len) {
                    Err(error) => refused += u32::from(error == IoError::Full),
                    Ok(object) => {
                        let address = store.address(object);
                        // SAFETY: just taken, and of at least 32 bytes.
                        unsafe { address.cast::<usize>().write(address.addr()) };
                        held.push(object);
                    }
                }
            } else if !held.is_empty() {
                let object = held.swap_remove(random.below(held.len() as u64) as usize);
                let address = store.address(object);
                // SAFETY: still taken by this thread.
                assert_eq!(unsafe { address.cast::<usize>().read() }, address.addr());
                store.free(object);
            }
        }
        held.into_iter().for_each(|object| store.free(object));
        refused
    }
}
