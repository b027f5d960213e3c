//! Decides whether a page that would be stored only if it compresses to a small object is worth
//! compressing. It is not if hardly any page was small lately.
//!
//! Locks: none. Threads may lose each other's updates, which only delays the average.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// All pages were small.
const ALL: u32 = 1 << 16;
/// If fewer than one page in this many is small, most pages are not tried ...
const FEW: u32 = 8;
/// ... except one in this many, to see whether that has changed.
const PROBE: u32 = 8;
/// The weight of a new page in the average is one part in this many.
const WEIGHT: u32 = 16;

/// The average over the pages that were tried, and the number of pages that were offered.
pub(super) struct Admission {
    /// The share of small pages, as a part of [`ALL`].
    small: AtomicU32,
    offered: AtomicU32,
}

impl Admission {
    pub(super) fn new() -> Admission {
        Admission { small: AtomicU32::new(ALL), offered: AtomicU32::new(0) }
    }

    /// Whether to try the next page.
    pub(super) fn tries(&self) -> bool {
        is_tried(self.small.load(Relaxed), self.offered.fetch_add(1, Relaxed))
    }

    /// Records whether a page that was tried was small.
    pub(super) fn note(&self, is_small: bool) {
        self.small.store(average(self.small.load(Relaxed), is_small), Relaxed);
    }
}

fn is_tried(small: u32, offered: u32) -> bool {
    small >= ALL / FEW || offered.is_multiple_of(PROBE)
}

fn average(small: u32, is_small: bool) -> u32 {
    let new = if is_small { ALL } else { 0 };
    (small * (WEIGHT - 1) + new) / WEIGHT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `pages` pages, small or not, are tried.
    fn tried(admission: &Admission, pages: u32, is_small: impl Fn(u32) -> bool) -> u32 {
        let tries = |page| {
            let tries = admission.tries();
            if tries {
                admission.note(is_small(page));
            }
            tries
        };
        (0..pages).filter(|page| tries(*page)).count() as u32
    }

    #[test]
    fn one_page_of_eight_is_tried_while_none_is_small() {
        let admission = Admission::new();
        assert_eq!(tried(&admission, 1000, |_| true), 1000);
        let first = tried(&admission, 100, |_| false);
        assert!((30..50).contains(&first), "{first}");
        assert_eq!(tried(&admission, 800, |_| false), 100);
        let again = tried(&admission, 1000, |_| true);
        assert!(again > 960, "{again}");
    }

    #[test]
    fn all_pages_are_tried_where_one_of_four_is_small() {
        let admission = Admission::new();
        assert_eq!(tried(&admission, 1000, |page| page % 4 == 0), 1000);
    }
}
