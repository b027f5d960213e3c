//! The contents of a slot, packed in a word of the table.
//!
//! ```text
//! Empty   0
//! Same    kind 1                                  the word that fills the page is in `words`
//! Object  kind 2 | len: 13 | index: 9 | block: 32
//! ```

use crate::zram::class::Class;
use highwater_units::PAGE_SIZE;

/// The bytes of a page.
pub(crate) type Page = [u8; PAGE_SIZE];

/// Stored bytes that do not decompress to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

const KIND_BITS: u32 = 2;
const LEN_BITS: u32 = 13;
const INDEX_SHIFT: u32 = KIND_BITS + LEN_BITS;
const BLOCK_SHIFT: u32 = 32;

const SAME: u64 = 1;
const OBJECT: u64 = 2;

/// The object that holds a page, compressed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Object {
    /// The block.
    pub(crate) block: u32,
    /// The index of the object in the block.
    pub(crate) index: u16,
    /// Bytes in use; PAGE_SIZE if the page is not compressed.
    pub(crate) len: u16,
}

impl Object {
    /// The size class of its block.
    pub(crate) fn class(self) -> Class {
        Class::of(usize::from(self.len))
    }

    /// Whether the page is stored uncompressed.
    pub(crate) fn is_raw(self) -> bool {
        usize::from(self.len) == PAGE_SIZE
    }
}

/// The contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Never written: zeros.
    Empty,
    /// A page filled with this word.
    Same,
    /// An object in a block.
    Object(Object),
}

impl Content {
    /// The packed word; `Empty` is zero.
    pub(crate) fn pack(self) -> u64 {
        match self {
            Content::Empty => 0,
            Content::Same => SAME,
            Content::Object(Object { block, index, len }) => {
                let (len, index) = (u64::from(len) << KIND_BITS, u64::from(index) << INDEX_SHIFT);
                OBJECT | len | index | u64::from(block) << BLOCK_SHIFT
            }
        }
    }

    /// Unpacks a word.
    pub(crate) fn unpack(word: u64) -> Content {
        match word & ((1 << KIND_BITS) - 1) {
            0 => Content::Empty,
            SAME => Content::Same,
            _ => Content::Object(Object {
                block: (word >> BLOCK_SHIFT) as u32,
                index: (word as u32 >> INDEX_SHIFT) as u16,
                len: (word >> KIND_BITS) as u16 & ((1 << LEN_BITS) - 1),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zram::class::OBJECTS_MAX;

    #[test]
    fn contents_survive_packing() {
        let index_max = OBJECTS_MAX as u16 - 1;
        let ends = [(0, 0, 1), (u32::MAX, index_max, 4096), (7, 1, 4095), (1 << 30, 255, 32)];
        let objects = ends.map(|(block, index, len)| Content::Object(Object { block, index, len }));
        for content in objects.into_iter().chain([Content::Empty, Content::Same]) {
            assert_eq!(Content::unpack(content.pack()), content);
        }
        assert_eq!(Content::Empty.pack(), 0, "a fresh table is empty");
    }
}
