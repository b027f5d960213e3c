//! Numbers of pages in words that any process of the user can write.

use highwater_platform::Atomic;
use std::sync::atomic::Ordering::SeqCst;

/// More pages than any machine has: a word counts for at most this many, so that sums of thousands
/// of words do not overflow.
pub(crate) const PAGES_MAX: u64 = 1 << 40;

/// The pages that a word says.
pub(crate) fn pages_in(word: &impl Atomic<u64>) -> u64 {
    word.load(SeqCst).min(PAGES_MAX)
}

/// The pages that a word says, which may be negative.
pub(crate) fn signed_pages_in(word: &impl Atomic<i64>) -> i64 {
    let most = PAGES_MAX.cast_signed();
    word.load(SeqCst).clamp(-most, most)
}
