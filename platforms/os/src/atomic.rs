//! Shared words: the standard library's atomics.

use crate::os::Os;
use highwater_platform::{Atomics, Int};
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

impl Atomics for Os {
    type Atomic<T: Int> = T::Std;

    fn zeros<T: Int>(len: usize) -> Vec<T::Std> {
        zeros::<T>(len)
    }
}

/// A table of `len` words of value 0, in memory that the allocator knows to be zero.
///
/// `vec![0; len]` with a conversion of each word does the same, but copies the table onto itself
/// where the compiler does not see through the conversion.
pub fn zeros<T: Int>(len: usize) -> Vec<T::Std> {
    let layout = Layout::array::<T::Std>(len).expect("a table fits into memory");
    if layout.size() == 0 {
        return Vec::new();
    }
    // SAFETY: the layout has a size. Zeros are the standard library's atomic of value 0, and the
    // vector owns memory of the layout that it frees.
    unsafe {
        let first = alloc_zeroed(layout).cast::<T::Std>();
        if first.is_null() {
            handle_alloc_error(layout);
        }
        Vec::from_raw_parts(first, len, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    fn minor_faults() -> i64 {
        // SAFETY: all zeros are a value, which the call fills.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt
        }
    }

    #[test]
    fn a_table_takes_memory_where_it_is_used() {
        let before = minor_faults();
        let words = zeros::<u64>(1 << 24);
        words[1 << 23].store(7, Relaxed);
        assert!(minor_faults() < before + 100, "of 32,768 pages one is used");
        assert_eq!(
            (words.len(), words[0].load(Relaxed), words[1 << 23].load(Relaxed)),
            (1 << 24, 0, 7)
        );
        assert!(zeros::<u8>(0).is_empty());
    }
}
