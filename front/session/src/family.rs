//! Pages that a fork has shared count once in the budget.
//!
//! Each process says how many of its pages count for others (`shared`), and that many more pages
//! may be granted in all. A child begins with half of the pages that it shares, as the kernel
//! counts them. The other half is its parent's: it is `lent` until the parent takes it over. Each
//! page that parts (stops being shared) lowers the sum by one, whichever process parts it, so the
//! number of a process that parts more than its half becomes negative. If that process then
//! measures that it still shares pages, it takes these from its family, which still counts them.
//! When a process ends, the others of its family have fewer pages in common.
//!
//! Locking: none, as for [`crate::Budget`].

use crate::budget::{Budget, Entry};
use crate::shared_pages::{PAGES_MAX, pages_in};
use std::sync::atomic::Ordering::SeqCst;

/// Pages of a parent that count for its child, which maps them, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lent {
    pub(crate) pages: u64,
    /// The parent's entry.
    pub(crate) parent: u16,
}

impl Lent {
    pub(crate) fn to_bits(self) -> u64 {
        self.pages << 16 | u64::from(self.parent)
    }

    fn from_bits(bits: u64) -> Lent {
        Lent { pages: (bits >> 16).min(PAGES_MAX), parent: bits as u16 }
    }
}

impl Budget {
    /// The entries of other processes that may have pages in common with that of an entry.
    pub(crate) fn kin(&self, index: usize) -> impl Iterator<Item = &Entry> {
        let family = self.words().entries[index].family.load(SeqCst);
        let others = self.others(index).map(|other| &self.words().entries[other]);
        others.filter(move |other| {
            other.family.load(SeqCst) == family && other.common.load(SeqCst) > 0
        })
    }

    /// The process of an entry is ending: pages that it has in common with others will soon be
    /// those of one process fewer.
    pub(crate) fn end_common(&self, index: usize) {
        let common = pages_in(&self.words().entries[index].common).cast_signed();
        let kin: Vec<&Entry> = self.kin(index).collect();
        // A page of n + 1 processes counts n / (n + 1) for others, in each; one of n, (n - 1) / n.
        let count = kin.len().max(1) as i64;
        kin.iter().for_each(|kin| kin.lose_shared(common / (count * count)));
        if common > 0 && !kin.is_empty() {
            self.notify();
        }
    }

    /// The entries of children that have pages in common with the process of an entry.
    pub(crate) fn lent_by(&self, index: usize) -> impl Iterator<Item = &Entry> {
        self.taken().filter(move |entry| {
            let lent = entry.lent();
            lent.pages > 0 && usize::from(lent.parent) == index
        })
    }
}

impl Entry {
    pub(crate) fn lent(&self) -> Lent {
        Lent::from_bits(self.lent.load(SeqCst))
    }

    /// Clears `lent`; returns how many pages there were.
    pub(crate) fn take_lent(&self) -> u64 {
        Lent::from_bits(self.lent.swap(0, SeqCst)).pages
    }

    /// `pages` fewer of its pages count for others than it knows.
    pub(crate) fn lose_shared(&self, pages: i64) {
        self.shared.fetch_sub(pages, SeqCst);
        self.taken.fetch_add(pages, SeqCst);
    }
}
