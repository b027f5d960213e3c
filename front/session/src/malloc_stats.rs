//! What malloc holds in a process: its slabs by size, as in /proc/slabinfo, and large blocks.
//!
//! ```text
//! MallocStats -- now       MallocReport { a CacheReport for each size | large blocks }
//!             \- at_most   a MallocReport of the time when most bytes were handed out
//! words:  1 | rows of now | large of now | rows of at_most | large of at_most
//! ```
//! The words follow the snapshot in a process's statistics file, which can be read while the
//! process runs. There is a row for each of malloc's sizes, in their order; unused rows are zero.

use highwater_mm::slab::CacheReport;

/// First word, if the library's malloc serves the process. Zero if the C library's does.
const PRESENT: u64 = 1;

/// Maximum number of sizes.
pub const MALLOC_SIZES_MAX: usize = 80;

/// The name of malloc's cache of objects of `size` bytes.
pub fn malloc_cache_name(size: u32) -> String {
    format!("malloc-{size}")
}

/// What malloc holds at one time, or its sum over processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MallocReport {
    /// Blocks below 64 KiB: one cache per size.
    pub caches: Vec<CacheReport>,
    /// Blocks of 64 KiB and more: regions of their own.
    pub large_blocks: u64,
    /// Their pages in all.
    pub large_pages: u64,
}

/// What malloc holds now, and at its maximum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MallocStats {
    /// Of the last sample.
    pub now: MallocReport,
    /// Of the sample with most bytes in use.
    pub at_most: MallocReport,
}

impl MallocReport {
    const WORDS: usize = 2 + MALLOC_SIZES_MAX * CacheReport::WORDS;

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        let large = self.large_pages * highwater_units::PAGE_SIZE as u64;
        self.caches.iter().map(CacheReport::used_bytes).sum::<u64>() + large
    }

    /// Adds what another process holds.
    pub fn merge(&mut self, other: &MallocReport) {
        self.large_blocks += other.large_blocks;
        self.large_pages += other.large_pages;
        for theirs in &other.caches {
            match self.caches.iter_mut().find(|mine| mine.size == theirs.size) {
                Some(mine) => mine.merge(theirs),
                None => self.caches.push(theirs.clone()),
            }
        }
        self.caches.sort_by_key(|cache| cache.size);
    }

    fn add_words(&self, words: &mut Vec<u64>) {
        let end = words.len() + Self::WORDS;
        words.extend([self.large_blocks, self.large_pages]);
        let caches = self.caches.iter().take(MALLOC_SIZES_MAX);
        caches.for_each(|cache| words.extend(cache.to_words()));
        words.resize(end, 0);
    }

    fn from_words(words: &[u64]) -> MallocReport {
        let rows = words[2..].chunks_exact(CacheReport::WORDS);
        let cache = |row: &[u64]| CacheReport::from_words(malloc_cache_name, row);
        let caches = rows.map_while(cache).collect();
        MallocReport { caches, large_blocks: words[0], large_pages: words[1] }
    }
}

impl MallocStats {
    /// Length in words.
    pub(crate) const WORDS: usize = 1 + 2 * MallocReport::WORDS;

    /// Adds a sample.
    pub fn note(&mut self, now: MallocReport) {
        if now.used_bytes() >= self.at_most.used_bytes() {
            self.at_most = now.clone();
        }
        self.now = now;
    }

    /// Adds what another process holds.
    pub fn merge(&mut self, other: &MallocStats) {
        self.now.merge(&other.now);
        self.at_most.merge(&other.at_most);
    }

    pub(crate) fn to_words(&self) -> Vec<u64> {
        let mut words = vec![PRESENT];
        self.now.add_words(&mut words);
        self.at_most.add_words(&mut words);
        words
    }

    pub(crate) fn from_words(words: &[u64]) -> Option<MallocStats> {
        let (present, rest) = words.get(..Self::WORDS)?.split_first()?;
        let (now, at_most) = rest.split_at(MallocReport::WORDS);
        let [now, at_most] = [now, at_most].map(MallocReport::from_words);
        (*present == PRESENT).then_some(MallocStats { now, at_most })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use highwater_mm::slab::EVENTS;

    pub(crate) fn holding(used: u64) -> MallocReport {
        let cache = |size| CacheReport {
            name: malloc_cache_name(size),
            size,
            slab_pages: 8,
            slab_objects: (32_768 / size) as u16,
            slabs: 1,
            pages: 8,
            used,
            at_hand: 3,
            objects: u64::from(32_768 / size),
            partial: 0,
            events: [used; EVENTS],
        };
        MallocReport { caches: vec![cache(64), cache(80)], large_blocks: 1, large_pages: 16 }
    }

    #[test]
    fn most_is_kept_and_words_bring_both_back() {
        let mut stats = MallocStats::default();
        [5, 90, 7].into_iter().for_each(|used| stats.note(holding(used)));
        assert_eq!((&stats.now, &stats.at_most), (&holding(7), &holding(90)));
        let words = stats.to_words();
        assert_eq!(words.len(), MallocStats::WORDS);
        assert_eq!(MallocStats::from_words(&words), Some(stats));
        assert_eq!(MallocStats::from_words(&words[1..]), None);
        assert_eq!(MallocStats::from_words(&vec![0; MallocStats::WORDS]), None);
    }

    #[test]
    fn sums_are_by_size() {
        let mut sum = holding(1);
        sum.caches.remove(0);
        sum.merge(&holding(2));
        let used: Vec<_> = sum.caches.iter().map(|cache| (cache.size, cache.used)).collect();
        assert_eq!((used, sum.large_blocks), (vec![(64, 2), (80, 3)], 2));
        assert_eq!(sum.used_bytes(), 2 * 64 + 3 * 80 + 32 * 4096);
    }
}
