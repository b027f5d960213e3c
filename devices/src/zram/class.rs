//! Size classes of compressed pages.
//!
//! A block of 16 KiB holds objects of one class, which may cross pages within it. Above 1 KiB the
//! sizes divide a block with little rest; below, they go in steps of 16 and 32 bytes. If compressed
//! sizes are spread evenly from 32 bytes to the limit, 7% of the memory is lost to rounding.

use highwater_units::PAGE_SIZE;

/// Bytes of a block.
pub(crate) const BLOCK: usize = 16 << 10;

/// The smallest object.
const STEP: usize = 16;

/// The most objects in a block.
pub(crate) const OBJECTS_MAX: usize = BLOCK / SIZES[0] as usize;

const SIZES: [u16; 44] = [
    32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 352, 384, 416,
    448, 480, 512, 576, 624, 672, 736, 816, 848, 896, 960, 1024, 1088, 1168, 1248, 1360, 1488,
    1632, 1808, 2048, 2336, 2720, 3264, 4096,
];

/// Number of classes.
pub(crate) const CLASSES: usize = SIZES.len();

/// A page that compresses to more than this is stored uncompressed: it would take an object of a
/// whole page anyway (the kernel's `huge_class_size`, with the same value).
pub(crate) const COMPRESSED_MAX: usize = SIZES[CLASSES - 2] as usize;

/// The class for each length, counted in steps and rounded up.
const BY_LENGTH: [u8; PAGE_SIZE / STEP + 1] = {
    let mut table = [0; PAGE_SIZE / STEP + 1];
    let (mut class, mut step) = (0, 0);
    while step < table.len() {
        if step * STEP > SIZES[class] as usize {
            class += 1;
        }
        table[step] = class as u8;
        step += 1;
    }
    table
};

const _: () = assert!(SIZES[CLASSES - 1] as usize == PAGE_SIZE, "a page fits as it is");

/// A size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(pub(crate) u8);

impl Class {
    /// The class of incompressible pages.
    pub(crate) const RAW: Class = Class(CLASSES as u8 - 1);

    /// The smallest class for `len` bytes, at most a page.
    pub(crate) fn of(len: usize) -> Class {
        Class(BY_LENGTH[len.div_ceil(STEP)])
    }

    /// Bytes of an object.
    pub(crate) fn size(self) -> usize {
        usize::from(SIZES[usize::from(self.0)])
    }

    /// Objects in a block.
    pub(crate) fn objects(self) -> u16 {
        (BLOCK / self.size()) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_the_smallest_class_that_holds_it() {
        for len in 1..=PAGE_SIZE {
            let smallest = SIZES.iter().position(|size| usize::from(*size) >= len).unwrap();
            assert_eq!(Class::of(len), Class(smallest as u8), "{len} bytes");
        }
        assert_eq!(Class::of(COMPRESSED_MAX + 1), Class::RAW);
    }

    #[test]
    fn little_of_a_block_is_left_over() {
        for class in (0..CLASSES as u8).map(Class) {
            let left = BLOCK - class.size() * usize::from(class.objects());
            assert!(left < BLOCK / 32, "{left} bytes of objects of {}", class.size());
        }
    }
}
