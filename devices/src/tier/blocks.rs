//! The free blocks of a level.
//!
//! ```text
//! taken   one bit per block
//! full    one bit per word of `taken`: all its blocks are taken
//! ```
//! Locks: none here. The level holds one around it, for some tens of instructions.

use crate::array::{Array, Zeroable};
use std::ops::Range;

const BITS: usize = u64::BITS as usize;

/// Up to twice this many blocks, the search does not start again at the first block.
const SPREAD_MIN: u32 = 256;

// SAFETY: every bit pattern is a value.
unsafe impl Zeroable for u64 {}

/// Where the search for free blocks begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Near {
    /// At this block, modulo the number of blocks.
    Block(u32),
    /// At the end of the last run, so that consecutive writes are adjacent; or at the first block,
    /// once more than half of the blocks before that end are free: a device may keep a record for
    /// each block that was ever used.
    Last,
}

/// A bitmap of taken blocks. `used` is the number of its bits within the blocks.
pub(super) struct Blocks {
    taken: Array<u64>,
    full: Array<u64>,
    blocks: u32,
    used: u32,
    last_end: u32,
}

impl Blocks {
    /// `blocks` free blocks, at least one.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new(blocks: u32) -> Result<Blocks, i32> {
        let words = (blocks as usize).div_ceil(BITS);
        let (taken, full) = (Array::new(words)?, Array::new(words.div_ceil(BITS))?);
        let mut new = Blocks { taken, full, blocks, used: 0, last_end: 0 };
        // Blocks beyond the end are never free.
        for block in blocks as usize..words * BITS {
            new.mark(block);
        }
        for word in words..words.div_ceil(BITS) * BITS {
            new.full[word / BITS] |= 1 << (word % BITS);
        }
        Ok(new)
    }

    /// Takes the first free block from `near` on, wrapping at the end, and the free blocks right
    /// behind it, up to `most` in all. `None` if all are taken.
    pub(super) fn take(&mut self, near: Near, most: u32) -> Option<Range<u32>> {
        let first = self.first_free(self.start(near))?;
        let end = (first..first + most as usize)
            .find(|block| !self.is_free(*block))
            .unwrap_or(first + most as usize);
        (first..end).for_each(|block| self.mark(block));
        self.used += (end - first) as u32;
        self.last_end = end as u32;
        Some(first as u32..end as u32)
    }

    fn start(&self, near: Near) -> u32 {
        let from = match near {
            Near::Block(block) => block,
            Near::Last if self.last_end / 2 > self.used.max(SPREAD_MIN) => 0,
            Near::Last => self.last_end,
        };
        from % self.blocks
    }

    /// Frees a taken block.
    pub(super) fn free(&mut self, block: u32) {
        let (word, bit) = (block as usize / BITS, block as usize % BITS);
        assert!(block < self.blocks && self.taken[word] & 1 << bit != 0, "block freed twice");
        self.taken[word] &= !(1 << bit);
        self.full[word / BITS] &= !(1 << (word % BITS));
        self.used -= 1;
    }

    /// The number of taken blocks.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    fn is_free(&self, block: usize) -> bool {
        self.taken.get(block / BITS).is_some_and(|word| word & 1 << (block % BITS) == 0)
    }

    fn mark(&mut self, block: usize) {
        let word = block / BITS;
        self.taken[word] |= 1 << (block % BITS);
        if self.taken[word] == u64::MAX {
            self.full[word / BITS] |= 1 << (word % BITS);
        }
    }

    fn first_free(&self, near: u32) -> Option<usize> {
        let (word, bit) = (near as usize / BITS, near as usize % BITS);
        let here = !self.taken[word] & u64::MAX << bit;
        if here != 0 {
            return Some(word * BITS + here.trailing_zeros() as usize);
        }
        let word = self.free_word(word)?;
        Some(word * BITS + (!self.taken[word]).trailing_zeros() as usize)
    }

    /// The first word after `word` with a free block, wrapping around to `word` itself.
    fn free_word(&self, word: usize) -> Option<usize> {
        let (start, bit) = (word / BITS, word % BITS);
        let after = u64::MAX.checked_shl(bit as u32 + 1).unwrap_or(0);
        let of = |index: usize, mask: u64| {
            let free = !self.full[index] & mask;
            (free != 0).then(|| index * BITS + free.trailing_zeros() as usize)
        };
        let others = (start + 1..self.full.len()).chain(0..start);
        of(start, after)
            .or_else(|| others.into_iter().find_map(|index| of(index, u64::MAX)))
            .or_else(|| of(start, !after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;
    use std::collections::BTreeSet;

    #[test]
    fn runs_go_back_to_the_first_blocks_when_half_of_those_before_are_free() {
        let mut map = Blocks::new(100_000).unwrap();
        let mut held = std::collections::VecDeque::new();
        for _ in 0..20_000 {
            held.push_back(map.take(Near::Last, 16).unwrap());
            if held.len() > 100 {
                held.pop_front().unwrap().for_each(|block| map.free(block));
            }
        }
        assert!(held.iter().all(|run| run.len() == 16 && run.end <= 2 * 1616 + 16), "{held:?}");
    }

    /// Takes and frees random runs, against a set of the taken blocks.
    #[test]
    fn random_runs_match_a_set() {
        for (seed, blocks) in [1, 63, 64, 65, 300, 4096, 9000].into_iter().enumerate() {
            let mut random = Prng::new(seed as u64);
            let (mut map, mut taken) = (Blocks::new(blocks).unwrap(), BTreeSet::new());
            for step in 0..4000 {
                // The bitmap fills and empties in turns.
                if random.percent(if step / 500 % 2 == 0 { 70 } else { 30 }) {
                    let near = if random.percent(50) {
                        Near::Block(random.below(u64::from(blocks) * 2) as u32)
                    } else {
                        Near::Last
                    };
                    let most = 1 + random.below(100) as u32;
                    check_take(&mut map, &mut taken, blocks, near, most);
                } else {
                    for _ in 0..random.below(60) {
                        let from = random.below(u64::from(blocks)) as u32;
                        let Some(&block) = taken.range(from..).next() else { continue };
                        taken.remove(&block);
                        map.free(block);
                    }
                }
                assert_eq!(map.used() as usize, taken.len());
            }
        }
    }

    fn check_take(map: &mut Blocks, taken: &mut BTreeSet<u32>, blocks: u32, near: Near, most: u32) {
        let from = map.start(near);
        let mut round = (from..blocks).chain(0..from);
        let first = round.find(|block| !taken.contains(block));
        let found = map.take(near, most);
        assert_eq!(found.as_ref().map(|run| run.start), first, "of {blocks} from {from}");
        let Some(run) = found else { return };
        assert!(run.clone().all(|block| block < blocks && taken.insert(block)), "taken twice");
        let ended = run.end == blocks || taken.contains(&run.end);
        assert!(run.len() as u32 == most || (run.len() as u32) < most && ended, "cut short");
    }

    #[test]
    #[should_panic = "freed twice"]
    fn a_free_block_is_not_freed() {
        let mut map = Blocks::new(10).unwrap();
        let run = map.take(Near::Last, 3).unwrap();
        map.free(run.end);
    }
}
