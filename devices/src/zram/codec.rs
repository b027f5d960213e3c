//! Compresses and decompresses pages.
//!
//! ```text
//! Codecs -- busy: places in use           places: Codec -- Lz4: hash table | Zstd: two contexts
//!                                                      \- output: where a page is compressed to
//! ```
//! Locks: none (`busy`). There are twice as many places as CPUs, so that a thread that finds all
//! taken waits for one that runs.
//!
//! Nothing is allocated after the codecs exist. The contexts of zstd are in memory of this crate,
//! so that zstd never calls malloc: that may be the program's malloc, whose memory may be swapped
//! out.

use crate::busy::{Busy, PLACES};
use crate::spec::Algorithm;
use crate::zram::class::COMPRESSED_MAX;
use crate::zram::content::{Corrupt, Page};
use crate::zram::zstd::Zstd;
use highwater_units::PAGE_SIZE;
use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use std::cell::UnsafeCell;

/// The contexts and buffers for compressing a page.
pub(crate) struct Codec {
    method: Method,
    output: Box<[u8]>,
}

enum Method {
    Lz4(CompressTable),
    Zstd(Zstd),
}

impl Codec {
    fn new(algorithm: Algorithm) -> Result<Codec, i32> {
        let method = match algorithm {
            Algorithm::Lz4 => Method::Lz4(CompressTable::small()),
            Algorithm::Zstd => Method::Zstd(Zstd::new()?),
        };
        Ok(Codec { method, output: vec![0; get_maximum_output_size(PAGE_SIZE)].into() })
    }

    /// The compressed page; `None` if it does not become smaller by enough.
    pub(crate) fn compress(&mut self, page: &Page) -> Option<&[u8]> {
        let len = match &mut self.method {
            Method::Lz4(table) => compress_into_with_table(page, &mut self.output, table).ok()?,
            Method::Zstd(zstd) => zstd.compress(page, &mut self.output[..COMPRESSED_MAX])?,
        };
        (len <= COMPRESSED_MAX).then(|| &self.output[..len])
    }

    fn decompress(&mut self, bytes: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match &mut self.method {
            Method::Lz4(_) => lz4_decompress(bytes, page),
            Method::Zstd(zstd) => zstd.decompress(bytes, page),
        }
    }
}

fn lz4_decompress(bytes: &[u8], page: &mut Page) -> Result<(), Corrupt> {
    match decompress_into(bytes, page) {
        Ok(PAGE_SIZE) => Ok(()),
        Ok(_) | Err(_) => Err(Corrupt),
    }
}

/// The codecs of a device.
pub(crate) struct Codecs {
    algorithm: Algorithm,
    busy: Busy,
    places: Box<[UnsafeCell<Codec>]>,
}

// SAFETY: only the thread that took a place reaches its codec.
unsafe impl Sync for Codecs {}

impl Codecs {
    /// Codecs for `threads` threads that run at once.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn new(algorithm: Algorithm, threads: usize) -> Result<Codecs, i32> {
        let count = (2 * threads).clamp(1, PLACES);
        let places = (0..count).map(|_| Codec::new(algorithm).map(UnsafeCell::new));
        Ok(Codecs {
            algorithm,
            busy: Busy::new(count),
            places: places.collect::<Result<_, i32>>()?,
        })
    }

    /// Codecs for a forked child, which only decompresses.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn for_reading(&self) -> Result<Codecs, i32> {
        match self.algorithm {
            Algorithm::Lz4 => {
                Ok(Codecs { algorithm: self.algorithm, busy: Busy::new(0), places: [].into() })
            }
            Algorithm::Zstd => Codecs::new(self.algorithm, self.places.len() / 2),
        }
    }

    /// Calls `act` with a codec; waits until one is free.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Codec) -> R) -> R {
        let place = self.busy.take();
        // SAFETY: this thread has taken the place.
        let result = act(unsafe { &mut *self.places[place as usize].get() });
        self.busy.put(place);
        result
    }

    /// Decompresses a page. Only zstd needs a codec for that.
    pub(crate) fn decompress(&self, bytes: &[u8], page: &mut Page) -> Result<(), Corrupt> {
        match self.algorithm {
            Algorithm::Lz4 => lz4_decompress(bytes, page),
            Algorithm::Zstd => self.with(|codec| codec.decompress(bytes, page)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;

    /// A page of a few different words, similar to text and heaps.
    fn page(random: &mut Prng, words: u64) -> Page {
        let vocabulary: Vec<u64> = (0..words).map(|_| random.next_u64()).collect();
        let mut page = [0; PAGE_SIZE];
        for bytes in page.chunks_exact_mut(8) {
            let word = vocabulary[random.below(words) as usize];
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        page
    }

    const BOTH: [Algorithm; 2] = [Algorithm::Lz4, Algorithm::Zstd];

    #[test]
    fn pages_round_trip_and_random_ones_are_incompressible() {
        let mut random = Prng::new(1);
        for algorithm in BOTH {
            let codecs = Codecs::new(algorithm, 1).unwrap();
            for _ in 0..500 {
                let words = 2 + random.below(200);
                let page = page(&mut random, words);
                let stored = codecs.with(|codec| codec.compress(&page).map(<[u8]>::to_vec));
                let bytes = stored.expect("some words over and over");
                assert!(bytes.len() <= COMPRESSED_MAX);
                let mut back = [0xee; PAGE_SIZE];
                assert_eq!(codecs.decompress(&bytes, &mut back), Ok(()));
                assert_eq!(back, page);
            }
            let mut noise = [0; PAGE_SIZE];
            noise.fill_with(|| random.next_u64() as u8);
            assert!(codecs.with(|codec| codec.compress(&noise).is_none()), "{algorithm:?}");
        }
    }

    #[test]
    fn truncated_or_padded_bytes_are_corrupt_and_others_do_not_crash() {
        let mut random = Prng::new(2);
        for algorithm in BOTH {
            let codecs = Codecs::new(algorithm, 1).unwrap();
            let page = page(&mut random, 40);
            let stored = codecs.with(|codec| codec.compress(&page).map(<[u8]>::to_vec)).unwrap();
            let mut back = [0; PAGE_SIZE];
            for len in 0..stored.len() {
                assert_eq!(codecs.decompress(&stored[..len], &mut back), Err(Corrupt), "{len}");
            }
            let padded = [&stored[..], &[7; 9]].concat();
            assert_eq!(codecs.decompress(&padded, &mut back), Err(Corrupt));
            let mut found = 0;
            for _ in 0..5_000 {
                let mut bytes = stored.clone();
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
                found += u32::from(codecs.decompress(&bytes, &mut back).is_err());
            }
            assert!(found > 100, "{algorithm:?} finds some of what was changed: {found}");
        }
    }

    #[test]
    fn more_threads_than_codecs_take_turns() {
        let mut random = Prng::new(3);
        let page = page(&mut random, 40);
        let codecs = Codecs::new(Algorithm::Lz4, 1).unwrap();
        let expected = codecs.with(|codec| codec.compress(&page).map(<[u8]>::to_vec));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let stored = codecs.with(|codec| {
                            std::thread::yield_now();
                            codec.compress(&page).map(<[u8]>::to_vec)
                        });
                        assert_eq!(stored, expected);
                    }
                });
            }
        });
        let taken = [(); 3].map(|()| codecs.busy.try_take(PLACES));
        assert_eq!(taken, [Some(0), Some(1), None], "all were given back");
    }
}
