//! A walk through memory: each step reads a word at random, and that word decides the next. Nothing
//! hides the cost of a step, in particular that of its address translation.
//!
//! ```text
//! pages, held ──> fill: every word by its place ──> walk: timed ──> where it ends
//!                                                   the same walk over the formula: where it must
//! ```

use super::content::Content;
use super::{WORDS, Words};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// What a walk took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WalkFigures {
    /// Bytes that it went through.
    pub set_bytes: u64,
    /// Of these, in huge pages.
    pub huge_bytes: u64,
    /// Words that it read.
    pub steps: u64,
    /// Nanoseconds for each of them.
    pub step_ns: f64,
}

/// Fills all of `pages`, stretches of equal length, and walks through them; nanoseconds a step.
///
/// # Errors
/// One line: a word was not what was written.
pub fn run(pages: &[&[Words]], steps: u64, seed: u64) -> Result<f64, String> {
    let content = Content::new(seed);
    let each = pages.first().map_or(0, |stretch| stretch.len());
    assert!(pages.iter().all(|stretch| stretch.len() == each), "of equal length");
    for (number, words) in (0..).zip(pages.iter().copied().flatten()) {
        let cells = words.iter().enumerate();
        cells.for_each(|(word, cell)| cell.store(content.value(number, word, 0), Relaxed));
    }
    let all = (pages.len() * each * WORDS) as u64;
    let stretch = (each * WORDS) as u64;
    let read = |word: u64| {
        let within = word % stretch;
        let page = &pages[(word / stretch) as usize][within as usize / WORDS];
        page[within as usize % WORDS].load(Relaxed)
    };
    let start = Instant::now();
    let end = walk(read, all, steps, seed);
    let nanos = start.elapsed().as_nanos() as f64;
    let page = WORDS as u64;
    let written = |word: u64| content.value(word / page, (word % page) as usize, 0);
    if walk(written, all, steps, seed) == end {
        Ok(nanos / steps.max(1) as f64)
    } else {
        Err(format!("seed {seed}: a word was not what was written there"))
    }
}

/// The word at which a walk over `words` words ends.
fn walk(read: impl Fn(u64) -> u64, words: u64, steps: u64, seed: u64) -> u64 {
    (0..steps).fold(seed, |at, _| {
        let next = (at ^ read(at % words)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        next ^ next >> 29
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn pages(count: usize) -> Vec<Words> {
        (0..count).map(|_| [const { AtomicU64::new(0) }; WORDS]).collect()
    }

    #[test]
    fn a_walk_ends_where_contents_say() {
        let pages = pages(24);
        let stretches: Vec<&[Words]> = pages.chunks(8).collect();
        assert!(run(&stretches, 5000, 3).is_ok());
    }

    #[test]
    fn pages_that_are_one_are_found() {
        let pages = pages(8);
        assert!(run(&[&pages, &pages], 5000, 3).is_err());
    }

    #[test]
    fn a_walk_goes_everywhere() {
        let seen = std::cell::RefCell::new(std::collections::BTreeSet::new());
        let content = Content::new(1);
        let read = |word: u64| {
            seen.borrow_mut().insert(word);
            content.value(word, 0, 0)
        };
        walk(read, 1000, 20_000, 1);
        assert_eq!(seen.borrow().len(), 1000);
    }
}
