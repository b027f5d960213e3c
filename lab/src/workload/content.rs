//! What every word must hold: a pure function of (seed, page, word, version).
//!
//! ```text
//! value = key(seed, page, word) ^ | mix32(version) : 32 | version : 32 |
//! ```
//! `mix32` is a bijection, so any change of one half alone, and so of any single bit, is always
//! detected. A word of another place, zeros or noise pass the check with a probability of 2^-32.
//! Contents look random, so a compressing device gains nothing, as with pmbench's `-i`.

use std::fmt;

/// The contents of a set of pages, by seed.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    seed: u64,
}

impl Content {
    /// Contents that differ in every word from those of another seed.
    pub fn new(seed: u64) -> Content {
        Content { seed }
    }

    /// Its seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The value of a word after its `version`th write; version 0 is the fill.
    pub fn value(&self, page: u64, word: usize, version: u32) -> u64 {
        self.key(page, word) ^ (u64::from(mix32(version)) << 32 | u64::from(version))
    }

    /// The version a value carries, if it is a value of this place at all.
    pub fn version(&self, page: u64, word: usize, value: u64) -> Option<u32> {
        let open = value ^ self.key(page, word);
        let version = open as u32;
        (mix32(version) == (open >> 32) as u32).then_some(version)
    }

    /// Splitmix's finaliser over the place: one key for each word there is.
    fn key(&self, page: u64, word: usize) -> u64 {
        let place = page * super::WORDS as u64 + word as u64;
        let mut z = self.seed.wrapping_add((place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A bijection on 32 bits that spreads every bit over all (Wellons' lowbias32), moved off 0.
fn mix32(version: u32) -> u32 {
    let mut x = version ^ 0x9e37_79b9;
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// A word that does not hold what it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The page.
    pub page: u64,
    /// The 8-byte word in it.
    pub word: usize,
    /// The version last written there, as known to the reader; none for a word never written.
    pub version: Option<u32>,
    /// The value of that version.
    pub expected: u64,
    /// What was read.
    pub found: u64,
    /// The version of `found`; none if it is no value of this place.
    pub found_version: Option<u32>,
    /// Seed of the contents.
    pub seed: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { page, word, version, expected, found, seed, .. } = self;
        write!(f, "page {page} word {word}: expected {expected:#018x} ")?;
        match version {
            Some(version) => write!(f, "(version {version}), ")?,
            None => write!(f, "(never written), ")?,
        }
        write!(f, "found {found:#018x} (")?;
        match self.found_version {
            Some(old) if Some(old) < *version => write!(f, "version {old}: a write was lost")?,
            Some(other) => write!(f, "version {other}")?,
            None => write!(f, "no value of this word")?,
        }
        write!(f, "), seed {seed}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_single_bit_flip_is_found() {
        let content = Content::new(42);
        for version in [0, 1, 2, 77, 1 << 20, u32::MAX] {
            for (page, word) in [(0, 0), (1, 511), (262_143, 8)] {
                let value = content.value(page, word, version);
                assert_eq!(content.version(page, word, value), Some(version));
                for bit in 0..64 {
                    assert_eq!(content.version(page, word, value ^ 1 << bit), None, "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_word_of_another_place_or_seed_is_found() {
        let content = Content::new(42);
        let value = content.value(5, 9, 3);
        assert_eq!(content.version(5, 10, value), None);
        assert_eq!(content.version(6, 9, value), None);
        assert_eq!(Content::new(43).version(5, 9, value), None);
        assert_eq!(content.version(5, 9, 0), None);
    }

    #[test]
    fn a_mismatch_reads_as_one_line() {
        let (content, page, word) = (Content::new(1), 4, 2);
        let (expected, found) = (content.value(page, word, 7), content.value(page, word, 6));
        let found_version = Some(6);
        let seed = 1;
        let version = Some(7);
        let wrong = Mismatch { page, word, version, expected, found, found_version, seed };
        let text = wrong.to_string();
        assert!(text.starts_with("page 4 word 2: expected 0x"), "{text}");
        assert!(text.ends_with("(version 6: a write was lost), seed 1"), "{text}");
        let untouched = Mismatch { version: None, expected: 0, ..wrong }.to_string();
        assert!(untouched.contains("000 (never written), found 0x"), "{untouched}");
        assert!(untouched.ends_with("(version 6), seed 1"), "{untouched}");
    }
}
