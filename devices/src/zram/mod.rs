//! Swap in compressed memory.
//!
//! ```text
//! Zram -- Codecs                        contexts of this process
//!      \- Arc<Slots> -- table           per slot: Empty | Same | Object (content)
//!                    |- words           the word of a page that is filled with one word
//!                    \- Store           objects in blocks of one size class (store, blocks, class)
//! ```
//! Locks: one per shard of the store. The caller never makes two transfers of one slot at once, so
//! an entry of the table and its object belong to one thread at a time.
//!
//! SIZE limits the memory of the blocks. A device of its own has three times as many slots as
//! uncompressed pages would fit: programs' memory compresses to about a third if many pages are
//! zeros or hold small numbers. Source text compresses to 64% (lz4) or 46% (zstd), random bytes not
//! at all. Pages that do not fit are refused with `Full`, and stay resident. The bookkeeping takes
//! 8 bytes for each slot ever used, and 0.5% of the memory in use.
//!
//! A fork needs no preparation, because the mappings are private: the child has table and blocks as
//! they were at the fork, and reads only slots that were not being written then. Codecs and locks
//! may have been in use at the fork: the child creates its own codecs, and reading takes no lock.

mod admission;
mod blocks;
#[cfg(test)]
mod blocks_fuzz;
mod class;
mod codec;
mod content;
mod sample;
mod store;
mod zstd;

use crate::arena::Arena;
use crate::array::Array;
use crate::compression::Compression;
use crate::device::{Device, Offer};
use crate::error::Reason;
use crate::quota::{Lenders, Quota};
use crate::spec::{Algorithm, Spec};
use crate::transfer::admit;
use admission::Admission;
use codec::Codecs;
use content::{Content, Corrupt, Page};
use highwater_platform::{DeviceInfo, DeviceRole, Direction, Io, IoError, Latency, Medium};
use highwater_units::{Bytes, PAGE_SIZE, Pfn};
use std::ptr::copy_nonoverlapping;
use std::slice::from_raw_parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use store::Store;

pub use sample::{Sample, Sampler};

/// The largest object of [`Offer::Small`]: two pages take the memory of one.
const SMALL_MAX: usize = PAGE_SIZE / 2;

/// Compressed slots in memory.
pub(crate) struct Zram {
    info: DeviceInfo,
    codecs: Codecs,
    slots: Arc<Slots>,
    admission: Admission,
}

struct Slots {
    table: Array<AtomicU64>,
    words: Array<AtomicU64>,
    store: Store,
}

impl Zram {
    /// Reserves address space; blocks get memory when they are used.
    pub(crate) fn open(
        spec: &Spec,
        slots: u32,
        limit: Bytes,
        algorithm: Algorithm,
    ) -> Result<Zram, Reason> {
        let info = DeviceInfo {
            name: spec.to_string(),
            pages: slots,
            latency: Latency::Synchronous,
            medium: Medium::SolidState,
            node: None,
            priority: None,
            role: DeviceRole::Swap,
            read_only: false,
        };
        let threads = threads();
        let made = Slots::new(info.pages, limit, threads)
            .and_then(|slots| Ok((slots, Codecs::new(algorithm, threads)?)));
        let (slots, codecs) = made.map_err(|errno| Reason::from_errno("map memory", errno))?;
        Ok(Zram { info, codecs, slots: Arc::new(slots), admission: Admission::new() })
    }

    /// # Safety
    /// As for [`Device::read`].
    unsafe fn read_one(&self, arena: Arena, io: &Io) -> Result<(), IoError> {
        admit(&self.info, Direction::Read, arena, io)?;
        for (slot, pfn) in (io.slot..).zip(io.frames.iter()) {
            // SAFETY: the transfer was admitted, and the caller vouches for the frames.
            let page = unsafe { &mut *page(arena, pfn) };
            self.slots.read(&self.codecs, slot, page)?;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Device::read`].
    unsafe fn write_one(&self, arena: Arena, io: &Io, most: usize) -> Result<(), IoError> {
        admit(&self.info, Direction::Write, arena, io)?;
        let written = (io.slot..).zip(io.frames.iter()).try_for_each(|(slot, pfn)| {
            // SAFETY: the transfer was admitted, and the caller vouches for the frames.
            let page = unsafe { &*page(arena, pfn) };
            self.write_page(slot, page, most)
        });
        if written.is_err() {
            // The transfer failed, so its slots are never read: free what some of them took.
            self.slots.clear(io.slot, io.frames.len() as u32);
        }
        written
    }

    /// Replaces the contents of a slot, if they take at most `most` bytes; after an error it is
    /// empty.
    fn write_page(&self, slot: u32, page: &Page, most: usize) -> Result<(), IoError> {
        let Zram { slots, codecs, admission, .. } = self;
        slots.clear(slot, 1);
        let content = match same_word(page) {
            Some(word) => slots.fill_slot(slot, word),
            None if most == 0 => return Err(IoError::Full),
            None if most < PAGE_SIZE && !admission.tries() => return Err(IoError::Full),
            None => codecs.with(|codec| {
                let bytes = codec.compress(page).unwrap_or(page);
                let fits = bytes.len() <= most;
                if most < PAGE_SIZE {
                    admission.note(fits);
                }
                if fits { slots.keep(slot, bytes) } else { Err(IoError::Full) }
            })?,
        };
        slots.table[slot as usize].store(content.pack(), Relaxed);
        Ok(())
    }
}

impl Device for Zram {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        for io in batch {
            // SAFETY: by contract of this function.
            io.result = unsafe { self.read_one(arena, io) };
        }
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        for io in batch {
            // SAFETY: by contract of this function.
            io.result = unsafe { self.write_one(arena, io, PAGE_SIZE) };
        }
    }

    unsafe fn write_offer(&self, arena: Arena, batch: &mut [Io], offer: Offer) {
        let most = match offer {
            Offer::Filled => 0,
            Offer::Small => SMALL_MAX,
            Offer::Any => PAGE_SIZE,
        };
        for io in batch {
            // SAFETY: by contract of this function.
            io.result = unsafe { self.write_one(arena, io, most) };
        }
    }

    fn discard(&self, slot: u32, pages: u32) {
        let end = slot.checked_add(pages).filter(|end| *end <= self.info.pages);
        assert!(end.is_some(), "slots within the device");
        if !self.info.read_only {
            self.slots.clear(slot, pages);
        }
    }

    fn vacate(&self) {
        // The blocks gave their memory back when their last objects were freed.
        self.slots.store.quota.get().into_iter().for_each(Quota::put_spare);
    }

    fn is_scarce(&self, _slot: u32) -> bool {
        self.slots.store.quota.get().is_some_and(Quota::is_scarce)
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        let Store { quota, .. } = &self.slots.store;
        let pages = self.slots.store.limit().pages() as u32;
        let is_first = quota.set(Quota::new(pages, next())).is_ok();
        assert!(is_first, "room comes from one lender");
        Ok(())
    }

    fn footprint(&self, slot: u32) -> usize {
        match Content::unpack(self.slots.table[slot as usize].load(Relaxed)) {
            Content::Empty | Content::Same => 0,
            Content::Object(object) => object.class().size(),
        }
    }

    fn inherit(&self) -> Box<dyn Device> {
        let info = DeviceInfo { read_only: true, ..self.info.clone() };
        let codecs = self.codecs.for_reading();
        let codecs = codecs.expect("a child that cannot read its own memory cannot go on");
        let slots = Arc::clone(&self.slots);
        Box::new(Zram { info, codecs, slots, admission: Admission::new() })
    }

    fn resident(&self) -> Bytes {
        self.slots.store.totals().used
    }

    fn compression(&self) -> Option<Compression> {
        let totals = self.slots.store.totals();
        Some(Compression {
            pages: totals.objects + totals.same,
            same_filled: totals.same,
            incompressible: totals.raw,
            used: totals.used,
            limit: self.slots.store.limit(),
        })
    }
}

impl Slots {
    fn new(pages: u32, limit: Bytes, threads: usize) -> Result<Slots, i32> {
        let (table, words) = (Array::new(pages as usize)?, Array::new(pages as usize)?);
        Ok(Slots { table, words, store: Store::new(limit, threads)? })
    }

    fn read(&self, codecs: &Codecs, slot: u32, page: &mut Page) -> Result<(), IoError> {
        match Content::unpack(self.table[slot as usize].load(Relaxed)) {
            Content::Empty => page.fill(0),
            Content::Same => fill(page, self.words[slot as usize].load(Relaxed)),
            Content::Object(object) => {
                // SAFETY: an object of that length and this slot, which is not written meanwhile.
                let bytes =
                    unsafe { from_raw_parts(self.store.address(object), object.len.into()) };
                if object.is_raw() {
                    page.copy_from_slice(bytes);
                } else {
                    let decompressed = codecs.decompress(bytes, page);
                    decompressed.map_err(|Corrupt| IoError::Failed(libc::EIO))?;
                }
            }
        }
        Ok(())
    }

    fn keep(&self, slot: u32, bytes: &[u8]) -> Result<Content, IoError> {
        let object = self.store.take(slot, bytes.len())?;
        let to = self.store.address(object);
        // SAFETY: an object of that length, just taken, that does not overlap frames and codecs.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(Content::Object(object))
    }

    fn fill_slot(&self, slot: u32, word: u64) -> Content {
        let place = &self.words[slot as usize];
        // Most such pages are zeros, and entries that were never written take no memory.
        if place.load(Relaxed) != word {
            place.store(word, Relaxed);
        }
        self.store.tally(slot).same.fetch_add(1, Relaxed);
        Content::Same
    }

    /// Frees the contents of slots.
    fn clear(&self, first: u32, pages: u32) {
        for slot in first..first + pages {
            let entry = &self.table[slot as usize];
            match Content::unpack(entry.load(Relaxed)) {
                Content::Empty => continue,
                Content::Same => drop(self.store.tally(slot).same.fetch_sub(1, Relaxed)),
                Content::Object(object) => self.store.free(object),
            }
            entry.store(Content::Empty.pack(), Relaxed);
        }
    }
}

/// The number of CPUs that this process may use.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The bytes of a frame.
fn page(arena: Arena, pfn: Pfn) -> *mut Page {
    arena.address(pfn).cast()
}

const WORD: usize = size_of::<u64>();

fn word_at(page: &Page, index: usize) -> u64 {
    let bytes = &page[index * WORD..][..WORD];
    u64::from_ne_bytes(bytes.try_into().expect("a word has its length"))
}

/// The word that fills a page, if there is one. Compares the last word first: a page that begins
/// with zeros often ends with something else.
fn same_word(page: &Page) -> Option<u64> {
    let word = word_at(page, 0);
    let last = word_at(page, PAGE_SIZE / WORD - 1);
    let all = || page.chunks_exact(WORD).all(|bytes| bytes == word.to_ne_bytes());
    (last == word && all()).then_some(word)
}

fn fill(page: &mut Page, word: u64) {
    page.chunks_exact_mut(WORD).for_each(|bytes| bytes.copy_from_slice(&word.to_ne_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zram(size: Bytes, algorithm: Algorithm) -> Zram {
        let spec = Spec::Zram { size, algorithm };
        Zram::open(&spec, spec.pages(), size, algorithm).unwrap()
    }

    fn text(seed: usize) -> Page {
        std::array::from_fn(|i| b"the quick brown fox jumps over it"[(i + i / 97 * seed) % 33])
    }

    #[test]
    fn corrupt_bytes_are_an_error() {
        for algorithm in [Algorithm::Lz4, Algorithm::Zstd] {
            let zram = zram(Bytes(1 << 20), algorithm);
            zram.write_page(3, &text(0), PAGE_SIZE).unwrap();
            let Zram { codecs, slots, .. } = zram;
            let Content::Object(object) = Content::unpack(slots.table[3].load(Relaxed)) else {
                panic!("text is an object")
            };
            // SAFETY: the object of a slot that only this test uses.
            unsafe { slots.store.address(object).write_bytes(0xff, object.len.into()) };
            let read = slots.read(&codecs, 3, &mut [0; PAGE_SIZE]);
            assert_eq!(read, Err(IoError::Failed(libc::EIO)), "{algorithm:?}");
        }
    }

    #[test]
    fn empty_blocks_free_their_memory() {
        let zram = zram(Bytes(8 << 20), Algorithm::Lz4);
        let write = |slot| zram.write_page(slot, &text(slot as usize), PAGE_SIZE).unwrap();
        (0..4000).for_each(write);
        let slots = &zram.slots;
        let len = slots.store.limit().0 as usize;
        let resident = || {
            let mut held = vec![0u8; len / PAGE_SIZE];
            let first = slots.store.first_byte();
            // SAFETY: a range of the store's mapping, and a buffer with one byte per page of it.
            let status = unsafe { libc::mincore(first.cast(), len, held.as_mut_ptr()) };
            assert_eq!(status, 0);
            Bytes::of_pages(held.iter().map(|held| u64::from(held & 1)).sum())
        };
        assert_eq!(resident(), slots.store.totals().used);
        assert!(resident() > Bytes(512 << 10));
        slots.clear(0, 4000);
        assert_eq!(resident(), slots.store.totals().used);
        assert!(resident() <= Bytes(256 << 10), "{} is kept for what comes", resident());
        assert_eq!(slots.store.totals().objects, 0);
    }

    #[test]
    fn pages_filled_with_one_word_are_recognised() {
        for word in [0, 1, u64::MAX, 0xbff0_0000_0000_0000] {
            let mut page = [1; PAGE_SIZE];
            fill(&mut page, word);
            assert_eq!(same_word(&page), Some(word));
            for at in [0, 7, 8, 2000, PAGE_SIZE - 1] {
                let mut other = page;
                other[at] ^= 1;
                assert_eq!(same_word(&other), None, "byte {at} differs");
            }
        }
    }

    #[test]
    fn pages_that_are_to_be_small_and_are_not_are_refused() {
        for algorithm in [Algorithm::Lz4, Algorithm::Zstd] {
            let zram = zram(Bytes(1 << 20), algorithm);
            let mut random = highwater_units::Prng::new(1);
            let noise: Page = std::array::from_fn(|_| random.next_u64() as u8);
            for (slot, page, most, expected) in [
                (0, &text(0), SMALL_MAX, Ok(())),
                (1, &[9; PAGE_SIZE], SMALL_MAX, Ok(())),
                (2, &noise, PAGE_SIZE, Ok(())),
                (2, &noise, SMALL_MAX, Err(IoError::Full)),
                (0, &noise, SMALL_MAX, Err(IoError::Full)),
                (3, &text(0), 0, Err(IoError::Full)),
                (3, &[0; PAGE_SIZE], 0, Ok(())),
            ] {
                assert_eq!(zram.write_page(slot, page, most), expected, "{algorithm:?}, {slot}");
            }
            let held = zram.compression().unwrap();
            assert_eq!((held.pages, held.same_filled), (2, 2), "a refused slot is empty");
        }
    }
}
