//! A sample of the pages that are written to swap. Each page is compressed as by `zram:` and
//! decompressed, to measure how much memory `zram:` would take and how long its reads would last.
//!
//! Locks: none beside the codecs' places.

use crate::arena::Arena;
use crate::spec::Algorithm;
use crate::zram::class::Class;
use crate::zram::codec::Codecs;
use crate::zram::content::{Corrupt, Page};
use crate::zram::{SMALL_MAX, page, same_word};
use highwater_platform::Io;
use highwater_units::PAGE_SIZE;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// One page in this many is sampled, which costs 3 us.
const EVERY: u64 = 256;

/// The pages of a sample, compressed by lz4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The number of pages.
    pub pages: u64,
    /// The memory that they would take, in bytes.
    pub bytes: u64,
    /// The time that decompressing them took, in nanoseconds.
    pub nanos: u64,
    /// Pages that would take half of a page or less.
    pub small: u64,
    /// Those small pages that would take no memory: filled with one word.
    pub filled: u64,
}

/// Takes a sample of the pages that a device writes.
pub struct Sampler {
    codecs: Codecs,
    written: AtomicU64,
    pages: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
    small: AtomicU64,
    filled: AtomicU64,
}

impl Sampler {
    /// A sampler with an empty sample.
    #[expect(clippy::new_without_default, reason = "it takes memory")]
    pub fn new() -> Sampler {
        let codecs = Codecs::new(Algorithm::Lz4, 1);
        let codecs = codecs.unwrap_or_else(|errno| unreachable!("lz4 asks for nothing: {errno}"));
        let [written, pages, bytes, nanos, small, filled] = Default::default();
        Sampler { codecs, written, pages, bytes, nanos, small, filled }
    }

    /// Samples every 256th page of the pages that are about to be written.
    ///
    /// # Safety
    /// As for [`Device::write`](crate::Device::write).
    pub unsafe fn look(&self, arena: Arena, batch: &[Io]) {
        let frames = batch.iter().flat_map(|io| io.frames.iter());
        let count: u64 = batch.iter().map(|io| io.frames.len() as u64).sum();
        let before = self.written.fetch_add(count, Relaxed);
        let skipped = before.next_multiple_of(EVERY) - before;
        for pfn in frames.skip(skipped as usize).step_by(EVERY as usize) {
            // SAFETY: populated, and nobody writes to it meanwhile, by contract.
            self.take(unsafe { &*page(arena, pfn) });
        }
    }

    fn take(&self, page: &Page) {
        let (bytes, nanos) = match same_word(page) {
            Some(_) => (0, 0),
            None => self.codecs.with(|codec| match codec.compress(page) {
                Some(bytes) => (Class::of(bytes.len()).size(), self.time_to_decompress(bytes)),
                None => (PAGE_SIZE, 0),
            }),
        };
        self.pages.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
        self.small.fetch_add(u64::from(bytes <= SMALL_MAX), Relaxed);
        self.filled.fetch_add(u64::from(bytes == 0), Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    fn time_to_decompress(&self, bytes: &[u8]) -> u64 {
        let mut page = [0; PAGE_SIZE];
        let started = Instant::now();
        let decompressed = self.codecs.decompress(bytes, &mut page);
        let took = started.elapsed();
        decompressed.unwrap_or_else(|Corrupt| unreachable!("compressed just now"));
        took.as_nanos() as u64
    }

    /// The sample so far.
    pub fn sample(&self) -> Sample {
        let words = [&self.pages, &self.bytes, &self.nanos, &self.small, &self.filled];
        let [pages, bytes, nanos, small, filled] = words.map(|word| word.load(Relaxed));
        Sample { pages, bytes, nanos, small, filled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_as_they_would_be_stored() {
        let sampler = Sampler::new();
        let mut random = highwater_units::Prng::new(1);
        let text: Page = std::array::from_fn(|i| b"the quick brown fox"[(i + i / 97) % 19]);
        let noise: Page = std::array::from_fn(|_| random.next_u64() as u8);
        sampler.take(&[7; PAGE_SIZE]);
        let same = Sample { pages: 1, small: 1, filled: 1, ..Sample::default() };
        assert_eq!(sampler.sample(), same);
        sampler.take(&noise);
        assert_eq!(sampler.sample(), Sample { pages: 2, bytes: 4096, ..same });
        sampler.take(&text);
        let Sample { pages, bytes, nanos, small, filled } = sampler.sample();
        assert!(pages == 3 && (4100..5200).contains(&bytes) && nanos > 0, "{bytes}, {nanos}");
        assert_eq!((small, filled), (2, 1));
    }

    #[test]
    fn one_page_of_many_is_taken() {
        use highwater_units::{FrameList, Pfn};
        let mut memory = vec![[0u8; PAGE_SIZE]; 9];
        let first = memory.as_mut_ptr().cast::<u8>();
        let first = first.wrapping_add(first.align_offset(PAGE_SIZE));
        // SAFETY: 8 pages within the vector, which lives until the end.
        let arena = unsafe { Arena::new(first, 8) };
        let sampler = Sampler::new();
        for pages in 1..=4 {
            let frames: FrameList = (0..8).map(Pfn).collect();
            let batch: Vec<Io> = (0..EVERY / 8).map(|_| Io::new(0, frames)).collect();
            // SAFETY: nobody else has the memory.
            unsafe { sampler.look(arena, &batch) };
            assert_eq!(sampler.sample().pages, pages);
        }
    }
}
