//! Sizes for objects without a cache of their own (kmalloc).
//!
//! ```text
//! 8 16 32 64 96 128 192 256 512 1024 2048 4096 8192
//! ```
//! Powers of two, and 96 and 192, because objects of such sizes are frequent. Less than half of an
//! object is wasted, except below 5 bytes.

/// The sizes in bytes, ascending.
pub const SIZE_CLASSES: [u32; 13] = [8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192];

/// The index of the smallest class for `bytes` (0 counts as 1); `None` if all are too small.
pub fn size_class(bytes: usize) -> Option<usize> {
    let class = SIZE_CLASSES.partition_point(|size| (*size as usize) < bytes);
    (class < SIZE_CLASSES.len()).then_some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_gets_the_smallest_class_that_holds_it() {
        for (bytes, size) in [(0, 8), (8, 8), (9, 16), (65, 96), (97, 128), (129, 192), (193, 256)]
        {
            assert_eq!(size_class(bytes).map(|class| SIZE_CLASSES[class]), Some(size), "{bytes}");
        }
        assert_eq!(size_class(8192), Some(SIZE_CLASSES.len() - 1));
        assert_eq!(size_class(8193), None);
    }
}
