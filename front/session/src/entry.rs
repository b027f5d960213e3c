//! The entries of the budget: a process's words, and their sums. No files and no system calls, so
//! that the model runs this code (entry_model.rs).
//!
//! ```text
//! Entry::borrow    add to the own entry, add all entries up, give the excess back
//! Entries          those that were ever taken: sums, a free one, the others of one
//! ```
//! Locking: none, as for [`crate::Budget`].

use crate::shared_pages::pages_in;
use highwater_platform::{Atomic, Atomics, StdWords};
use std::sync::atomic::{AtomicU32, Ordering::*};

/// An entry that is being cleared.
pub(crate) const REAPED: u64 = u64::MAX;

/// The words of one process. `A` is another type in models only.
#[repr(C, align(64))]
pub(crate) struct Entry<A: Atomics = StdWords> {
    /// 0: free.
    pub(crate) owner: A::Atomic<u64>,
    pub(crate) granted: A::Atomic<u64>,
    /// Pages that it uses in addition, which cannot be paged.
    pub(crate) unpaged: A::Atomic<u64>,
    pub(crate) spare: A::Atomic<u64>,
    pub(crate) misses: A::Atomic<u64>,
    pub(crate) short_until: A::Atomic<u64>,
    /// A [`crate::Activity`], as a number.
    pub(crate) activity: A::Atomic<u64>,
    /// The granted pages that count for other processes, which map them, too; negative if more than
    /// these have parted, that is, are no longer shared.
    pub(crate) shared: A::Atomic<i64>,
    /// The number of these pages when they were last counted.
    pub(crate) common: A::Atomic<u64>,
    /// Pages that others have taken from its shared ones so far, less those that they have added.
    pub(crate) taken: A::Atomic<i64>,
    /// The owner of the entry of the ancestor with which it may have pages in common.
    pub(crate) family: A::Atomic<u64>,
    /// Pages of the parent that count for this process, until the parent takes them over: a
    /// [`crate::family::Lent`].
    pub(crate) lent: A::Atomic<u64>,
    /// The last change of the swap devices that it has carried out.
    pub(crate) followed: A::Atomic<u64>,
    /// The last request to compact that it has carried out: a [`crate::budget::Compaction`].
    pub(crate) compacted: A::Atomic<u64>,
    /// Pages that another process asks for: a [`crate::requests::Posted`]; 0: none.
    pub(crate) request: A::Atomic<u64>,
    /// Changes with each step of a request; processes sleep on it.
    pub(crate) requests: AtomicU32,
}

/// The result of a request for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    /// The process may use this many more.
    pub(crate) pages: u64,
    /// All processes together then still have this many too many.
    pub(crate) excess: u64,
}

/// All entries, of which the first `used` were ever taken.
pub(crate) struct Entries<'a, A: Atomics = StdWords> {
    pub(crate) all: &'a [Entry<A>],
    pub(crate) used: usize,
}

impl<A: Atomics> Clone for Entries<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Atomics> Copy for Entries<'_, A> {}

impl<'a, A: Atomics> Entries<'a, A> {
    /// Takes a free one for a process; returns its place.
    pub(crate) fn take(self, owner: u64) -> Option<usize> {
        let free = |entry: &Entry<A>| entry.owner.compare_exchange(0, owner, AcqRel, Relaxed);
        self.all.iter().position(|entry| free(entry).is_ok())
    }

    /// The entry at a place, if it has this owner.
    pub(crate) fn of(self, index: usize, owner: u64) -> Option<&'a Entry<A>> {
        let entry = &self.all[index];
        (entry.owner.load(Acquire) == owner).then_some(entry)
    }

    /// Those that were ever taken.
    pub(crate) fn iter(self) -> impl Iterator<Item = &'a Entry<A>> {
        self.all[..self.used].iter()
    }

    /// Those of processes.
    pub(crate) fn taken(self) -> impl Iterator<Item = &'a Entry<A>> {
        self.iter().filter(|entry| entry.is_taken())
    }

    /// The places of those after `index`, around the end, that are taken.
    pub(crate) fn others(self, index: usize) -> impl Iterator<Item = usize> {
        let places = (index + 1..self.used).chain(0..index.min(self.used));
        places.filter(move |other| self.all[*other].is_taken())
    }

    /// The pages that processes may use now.
    pub(crate) fn granted(self) -> u64 {
        self.taken().map(Entry::granted).sum()
    }
}

impl<A: Atomics> Default for Entry<A> {
    fn default() -> Entry<A> {
        let word = || Atomic::new(0);
        Entry {
            owner: word(),
            granted: word(),
            unpaged: word(),
            spare: word(),
            misses: word(),
            short_until: word(),
            activity: word(),
            shared: Atomic::new(0),
            common: word(),
            taken: Atomic::new(0),
            family: word(),
            lent: word(),
            followed: word(),
            compacted: word(),
            request: word(),
            requests: AtomicU32::new(0),
        }
    }
}

impl<A: Atomics> Entry<A> {
    pub(crate) fn is_taken(&self) -> bool {
        !matches!(self.owner.load(Acquire), 0 | REAPED)
    }

    /// The pages that its process may use.
    pub(crate) fn granted(&self) -> u64 {
        pages_in(&self.granted)
    }

    /// Adds up to `asked` pages, at least the first `certain` ones. `excess` says how many pages
    /// all processes then have too many.
    pub(crate) fn borrow(&self, asked: u64, certain: u64, excess: impl FnOnce() -> u64) -> Granted {
        self.granted.fetch_add(asked, SeqCst);
        let excess = excess();
        let refused = excess.min(asked - certain);
        self.give_back(refused);
        Granted { pages: asked - refused, excess: excess - refused }
    }

    /// Takes pages off that its process no longer uses. Another process may have cleared the entry
    /// meanwhile, because this one was taken for ended: there are never fewer than none.
    pub(crate) fn give_back(&self, pages: u64) {
        let rest = |granted: u64| Some(granted.saturating_sub(pages));
        // Never an error: there is always a rest.
        let _ = self.granted.fetch_update(SeqCst, SeqCst, rest);
    }

    /// Adds to what its process uses in addition; never fewer than none, as for `give_back`.
    pub(crate) fn add_unpaged(&self, pages: i64) {
        let now = |unpaged: u64| Some(unpaged.saturating_add_signed(pages));
        // Never an error: there is always a sum.
        let _ = self.unpaged.fetch_update(SeqCst, SeqCst, now);
    }

    /// Releases an entry that nobody else uses.
    pub(crate) fn clear(&self) {
        let Entry { owner: _, granted, unpaged, spare, misses, short_until, activity, .. } = self;
        let Entry { shared, common, taken, family, lent, followed, compacted, request, .. } = self;
        let words = [granted, unpaged, spare, misses, short_until, activity];
        let others = [common, family, lent, followed, compacted, request];
        words.into_iter().chain(others).for_each(|word| word.store(0, SeqCst));
        [shared, taken].into_iter().for_each(|word| word.store(0, SeqCst));
        self.owner.store(0, Release);
    }
}
