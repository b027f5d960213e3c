//! Size classes of objects.
//!
//! ```text
//! 16 32 48 64 80 96 112 128 | 144 160 .. 240 256 | 288 320 .. 480 512 | ... | .. 61440 65536
//! ```
//! Eight per doubling, so that at most a ninth of an object is wasted (15 bytes of small ones); all
//! are multiples of 16, the alignment of malloc.

/// Number of classes.
pub(crate) const CLASSES: usize = FINE_MAX / STEP + PER_DOUBLING * DOUBLINGS;

/// Sizes in bytes, ascending.
pub(crate) const SIZES: [u32; CLASSES] = sizes();

/// Sizes up to this one are multiples of [`STEP`].
const FINE_MAX: usize = 128;
const STEP: usize = 16;
/// Classes from a power of two to the next, above [`FINE_MAX`].
const PER_DOUBLING: usize = 8;
/// Doublings from [`FINE_MAX`] to 64 KiB.
const DOUBLINGS: usize = 9;

const fn sizes() -> [u32; CLASSES] {
    let mut sizes = [0; CLASSES];
    let (mut size, mut step, mut at) = (STEP as u32, STEP as u32, 0);
    while at < CLASSES {
        sizes[at] = size;
        if size >= FINE_MAX as u32 && size.is_power_of_two() {
            step = size / PER_DOUBLING as u32;
        }
        size += step;
        at += 1;
    }
    sizes
}

/// The smallest class for `bytes`, up to the largest size; 0 counts as 1.
#[inline]
pub(crate) fn class_of(bytes: usize) -> usize {
    let last = bytes.saturating_sub(1);
    if last < FINE_MAX {
        return last / STEP;
    }
    let log = last.ilog2();
    let doubling = (log - FINE_MAX.ilog2()) as usize;
    let within = last >> (log - PER_DOUBLING.ilog2()) & (PER_DOUBLING - 1);
    FINE_MAX / STEP + PER_DOUBLING * doubling + within
}

/// The smallest class for `bytes` whose objects are multiples of `align`, a power of two.
#[inline]
pub(crate) fn aligned_class_of(bytes: usize, align: usize) -> Option<usize> {
    let least = class_of(bytes);
    if align <= STEP {
        return Some(least);
    }
    // Runs of pages are aligned to pages only.
    let usable = align <= highwater_units::PAGE_SIZE;
    (least..CLASSES).find(|class| usable && (SIZES[*class] as usize).is_multiple_of(align))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        assert_eq!((SIZES[0], SIZES[8], SIZES[CLASSES - 1]), (16, 144, 64 << 10));
        for bytes in 0..=SIZES[CLASSES - 1] as usize {
            let expected = SIZES.partition_point(|size| (*size as usize) < bytes);
            assert_eq!(class_of(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn aligned_sizes_are_multiples() {
        let aligned = |bytes, align| aligned_class_of(bytes, align).map(|class| SIZES[class]);
        assert_eq!(aligned(1, 8), Some(16));
        assert_eq!(aligned(100, 64), Some(128));
        assert_eq!(aligned(129, 64), Some(192));
        assert_eq!(aligned(5000, 4096), Some(8192));
        assert_eq!(aligned(1, 4096), Some(4096));
        assert_eq!(aligned(1, 8192), None);
        assert_eq!(aligned(60_000, 4096), Some(61_440));
    }
}
