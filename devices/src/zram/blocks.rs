//! The blocks and objects of a shard: bookkeeping without the memory.
//!
//! ```text
//!            take           take, to the last object
//!   Bare ---------> Dense <--------------------------> Full (on no list)
//!    ^     dress      |      free
//!    |                v  under half
//!    '---- Spare <- Sparse
//!  strip   empty
//! ```
//! Each class has a list of dense and one of sparse blocks. Dense blocks are filled first, so that
//! sparse ones become empty. A few empty blocks keep their memory (spare): about as many pages are
//! swapped out as in, and freeing memory costs a TLB flush on all CPUs.
//! Conservation: fresh (never used) + bare + spare + listed under a class + full = blocks.
//! Locks: the shard's lock protects it.

use crate::array::{Array, Zeroable};
use crate::zram::class::{CLASSES, Class, OBJECTS_MAX};
use highwater_units::IndexLists;

/// The most empty blocks of a shard that keep their memory.
const SPARE_MAX: u32 = 8;

const BARE: usize = 2 * CLASSES;
const SPARE: usize = BARE + 1;
const LISTS: usize = SPARE + 1;

#[repr(C)]
struct Block {
    taken: [u64; OBJECTS_MAX / 64],
    used: u16,
    class: u8,
    memory: Memory,
}

/// Whether a block has memory.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Memory {
    None = 0,
    Given = 1,
}

// SAFETY: integers, and an enum that has a variant for zero.
unsafe impl Zeroable for Block {}

/// The block for the next object of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A block with memory.
    Ready(u32),
    /// A block that needs memory first.
    Bare(u32),
}

/// What happens to the memory of a block after an object was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The block keeps it.
    Kept,
    /// The block is empty and now bare: the caller frees its memory.
    Stripped,
}

/// The blocks of a shard.
pub(crate) struct Blocks {
    blocks: Array<Block>,
    lists: IndexLists,
    /// Blocks from this one on were never used: they are bare, on no list, and their records take
    /// no memory.
    fresh: u32,
}

impl Blocks {
    /// `count` bare blocks, at least one.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn new(count: u32) -> Result<Blocks, i32> {
        let lists = IndexLists::new(LISTS, count as usize);
        Ok(Blocks { blocks: Array::new(count as usize)?, lists, fresh: 0 })
    }

    /// The block for the next object of a class; `None` if all are in use.
    pub(crate) fn find(&mut self, class: Class) -> Option<Found> {
        if self.lists.is_empty(BARE) && (self.fresh as usize) < self.blocks.len() {
            self.lists.push_back(BARE, self.fresh);
            self.fresh += 1;
        }
        let front = |list| self.lists.iter(list).next();
        let [dense, sparse] = lists_of(class);
        let ready = [dense, sparse, SPARE].into_iter().find_map(front);
        ready.map(Found::Ready).or_else(|| front(BARE).map(Found::Bare))
    }

    /// Takes an object of a block that [`Blocks::find`] returned and that has memory now.
    pub(crate) fn take(&mut self, block: u32, class: Class) -> u16 {
        self.change(block, |block| {
            assert!(block.used == 0 || block.class == class.0, "a block that was found");
            let index = first_clear(&block.taken);
            assert!(index < class.objects(), "a block that was found has room");
            block.taken[usize::from(index / 64)] |= 1 << (index % 64);
            (block.used, block.class, block.memory) = (block.used + 1, class.0, Memory::Given);
            index
        })
    }

    /// Frees an object.
    pub(crate) fn free(&mut self, block: u32, class: Class, index: u16) -> Freed {
        let used = self.change(block, |block| {
            let (word, bit) = (&mut block.taken[usize::from(index / 64)], 1 << (index % 64));
            assert!(*word & bit != 0 && block.class == class.0, "freed twice, or never taken");
            *word &= !bit;
            block.used -= 1;
            block.used
        });
        match used {
            0 if self.lists.len(SPARE) > SPARE_MAX => {
                self.change(block, |block| block.memory = Memory::None);
                Freed::Stripped
            }
            _ => Freed::Kept,
        }
    }

    /// Changes a block, and moves it to the list for its new state.
    fn change<R>(&mut self, block: u32, act: impl FnOnce(&mut Block) -> R) -> R {
        let record = &mut self.blocks[block as usize];
        let from = list_of(record);
        let result = act(record);
        let to = list_of(record);
        if from != to {
            from.into_iter().for_each(|list| self.lists.remove(list, block));
            to.into_iter().for_each(|list| self.lists.push_front(list, block));
        }
        result
    }

    /// Checks all blocks and lists; returns (objects taken, blocks with memory).
    #[cfg(test)]
    pub(crate) fn verify(&self) -> (usize, usize) {
        let mut home = vec![None; self.blocks.len()];
        for list in 0..LISTS {
            for block in self.lists.iter(list) {
                assert_eq!(home[block as usize].replace(list), None, "{block} is on two lists");
            }
        }
        let (used, fresh) = home.split_at(self.fresh as usize);
        assert!(fresh.iter().all(Option::is_none), "a fresh block is on no list");
        for (block, home) in self.blocks.iter().zip(used.iter().copied()) {
            let bits: u32 = block.taken.iter().map(|word| word.count_ones()).sum();
            assert_eq!(bits, u32::from(block.used), "a block counts its objects");
            assert!(home == list_of(block), "a block is on the list that fits it");
        }
        assert!(self.lists.len(SPARE) <= SPARE_MAX);
        let objects = self.blocks.iter().map(|block| usize::from(block.used)).sum();
        (objects, (self.fresh - self.lists.len(BARE)) as usize)
    }
}

/// The list that a block belongs to; `None` if it is full.
fn list_of(block: &Block) -> Option<usize> {
    let objects = Class(block.class).objects();
    let [dense, sparse] = lists_of(Class(block.class));
    match (block.used, block.memory) {
        (0, Memory::None) => Some(BARE),
        (0, Memory::Given) => Some(SPARE),
        (used, _) if used == objects => None,
        (used, _) if used * 2 < objects => Some(sparse),
        _ => Some(dense),
    }
}

fn lists_of(class: Class) -> [usize; 2] {
    [2 * usize::from(class.0), 2 * usize::from(class.0) + 1]
}

fn first_clear(words: &[u64]) -> u16 {
    let with_room = words.iter().position(|word| *word != u64::MAX);
    with_room.map_or(OBJECTS_MAX as u16, |at| at as u16 * 64 + (!words[at]).trailing_zeros() as u16)
}
