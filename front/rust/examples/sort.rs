//! Sorts 32 MiB of random numbers in 8 MiB of memory. Pages beyond the 8 MiB are written to an
//! unnamed file in $TMPDIR, /var/tmp or /tmp.

use highwater::{Error, Memory, PagedVec};

const NUMBERS: usize = 4 << 20;

/// Sorts, checks the result, and prints how many pages were read from swap and written to it.
///
/// # Errors
/// Memory is refused, or a page cannot be brought in.
pub(crate) fn main() -> Result<(), Error> {
    let memory = Memory::builder().memory("8M").build()?;
    let mut numbers = PagedVec::with_capacity(&memory, NUMBERS)?;
    let (mut state, mut sum) = (1u64, 0u64);
    for _ in 0..NUMBERS {
        // Knuth's MMIX generator.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        sum = sum.wrapping_add(state >> 16);
        numbers.push(state >> 16)?;
    }
    numbers.sort_unstable();
    assert!(numbers.is_sorted(), "sorted");
    let found = numbers.iter().fold(0u64, |sum, number| sum.wrapping_add(*number));
    assert_eq!(found, sum, "the same numbers as before");
    let statistics = memory.statistics()?;
    let [read, written] = ["pswpin", "pswpout"].map(|name| statistics.get(name).unwrap_or(0));
    println!("{NUMBERS} numbers sorted; {read} pages read from swap, {written} written");
    assert!(written > 0, "more than the budget");
    Ok(())
}
