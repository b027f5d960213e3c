//! Frames of a thread in tests: filled from seeds, and checked against them.

use crate::arena::Arena;
use crate::sys::Mapping;
use highwater_units::{PAGE_SIZE, Pfn};

const WORDS: usize = PAGE_SIZE / 8;

/// Frames that one thread uses.
pub(crate) struct Frames {
    memory: Mapping,
    count: u32,
    /// The word at an index of the page of a seed.
    word_of: fn(u64, usize) -> u64,
}

impl Frames {
    /// `count` populated frames.
    pub(crate) fn new(count: u32, word_of: fn(u64, usize) -> u64) -> Frames {
        let len = count as usize * PAGE_SIZE;
        let memory = Mapping::new(len).unwrap();
        memory.populate(0, len).unwrap();
        Frames { memory, count, word_of }
    }

    pub(crate) fn arena(&self) -> Arena {
        // SAFETY: the mapping has so many pages, and only this thread uses it.
        unsafe { Arena::new(self.memory.at(0), self.count) }
    }

    fn word(&self, pfn: Pfn, word: usize) -> *mut u64 {
        self.memory.at(pfn.index() * PAGE_SIZE + word * 8).cast()
    }

    /// Writes the page of a seed to a frame.
    pub(crate) fn fill(&self, pfn: Pfn, seed: u64) {
        let word_of = |word| (self.word_of)(seed, word);
        // SAFETY: words of this thread's memory, which no device touches meanwhile.
        (0..WORDS).for_each(|word| unsafe { self.word(pfn, word).write(word_of(word)) });
    }

    /// Whether a frame holds the page of a seed.
    pub(crate) fn holds(&self, pfn: Pfn, seed: u64) -> bool {
        // SAFETY: as above.
        (0..WORDS).all(|word| unsafe { self.word(pfn, word).read() } == (self.word_of)(seed, word))
    }
}
