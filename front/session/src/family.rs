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

use crate::entry::{Entries, Entry, REAPED};
use crate::shared_pages::{PAGES_MAX, pages_in, signed_pages_in};
use crate::swap_room::SwapWords;
use highwater_platform::{Atomic, Atomics};
use std::sync::atomic::Ordering::*;

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

/// The effect of a process's end on others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: it had no pages in common with them, or the entry was not its own any more.
    Nothing,
    /// Pages that they have in common with fewer.
    SharedPages,
}

impl<'a, A: Atomics> Entries<'a, A> {
    /// The entries of other processes that may have pages in common with that of an entry.
    pub(crate) fn kin(self, index: usize) -> impl Iterator<Item = &'a Entry<A>> {
        let family = self.all[index].family.load(SeqCst);
        let others = self.others(index).map(move |other| &self.all[other]);
        others.filter(move |other| {
            other.family.load(SeqCst) == family && other.common.load(SeqCst) > 0
        })
    }

    /// The process of an entry is ending: pages that it has in common with others will soon be
    /// those of one process fewer.
    fn end_common(self, index: usize) -> Left {
        let common = pages_in(&self.all[index].common).cast_signed();
        let kin: Vec<&Entry<A>> = self.kin(index).collect();
        // A page of n + 1 processes counts n / (n + 1) for others, in each; one of n, (n - 1) / n.
        let count = kin.len().max(1) as i64;
        kin.iter().for_each(|kin| kin.lose_shared(common / (count * count)));
        if common > 0 && !kin.is_empty() { Left::SharedPages } else { Left::Nothing }
    }

    /// The entries of children that have pages in common with the process of an entry.
    pub(crate) fn lent_by(self, index: usize) -> impl Iterator<Item = &'a Entry<A>> {
        self.taken().filter(move |entry| {
            let lent = entry.lent();
            lent.pages > 0 && usize::from(lent.parent) == index
        })
    }

    /// The pages that count for several processes.
    pub(crate) fn shared(self) -> i64 {
        let shared =
            |entry: &Entry<A>| signed_pages_in(&entry.shared) + entry.lent().pages.cast_signed();
        self.taken().map(shared).sum()
    }

    /// Releases an entry, and its claims, if it still has this owner.
    pub(crate) fn release<const ENTRIES: usize>(
        self,
        index: usize,
        owner: u64,
        swap: &SwapWords<ENTRIES, A>,
    ) -> Left {
        let entry = &self.all[index];
        if entry.owner.compare_exchange(owner, REAPED, AcqRel, Relaxed).is_err() {
            return Left::Nothing;
        }
        self.lent_by(index).for_each(|entry| entry.lose_shared(entry.take_lent() as i64));
        let left = self.end_common(index);
        swap.clear(index);
        entry.clear();
        left
    }
}

impl<A: Atomics> Entry<A> {
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
