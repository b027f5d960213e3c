//! Whether a page that would be stored only if it is small is worth compressing: not where hardly
//! any page was small lately.
//!
//! Locks: none. Threads may lose each other's updates, which only delays the average.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// All pages were small.
const ALL: u32 = 1 << 16;
/// Below one small page in so many, most are not tried ...
const FEW: u32 = 8;
/// ... but one of so many, to see whether that has changed.
const PROBE: u32 = 8;
/// The share of a new page in the average is one of so many.
const WEIGHT: u32 = 16;

/// The average of pages that were tried, and a count of those that were offered.
pub(super) struct Admission {
    /// The share of small pages, of [`ALL`].
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

    /// A page that was tried was small, or not.
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

    /// Pages that were tried, of so many that are small or not.
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
