//! The entries of a large block: 512 consecutive pages from a multiple of 512 on.
//!
//! Each page keeps its own entry and lock; a thread that changes the whole block locks all of them.
//! It only tries to, in ascending order, so it cannot deadlock.

use super::entry::Entry;
use super::held::{Held, Pinned};
use super::page_table::Space;
use crate::frame::Owner;
use highwater_platform::Platform;
use highwater_units::{LARGE_PAGES, RUN_PAGES_MAX, Vpn};

/// Runs in a block.
const RUNS: usize = LARGE_PAGES / RUN_PAGES_MAX;

/// The first page of the block that a page belongs to.
pub fn block_of(vpn: Vpn) -> Vpn {
    Vpn(vpn.0 / LARGE_PAGES as u64 * LARGE_PAGES as u64)
}

/// The locked entries of a block. Dropping it unlocks them as they were.
pub struct HeldBlock<'a, P: Platform> {
    runs: [Option<Held<'a, P>>; RUNS],
}

impl<'a, P: Platform> HeldBlock<'a, P> {
    /// Tries to lock all entries of the block that starts at `first`. `wanted` gets each entry and
    /// its place in the block.
    pub fn lock(
        space: &'a Space<P>,
        first: Vpn,
        pinned: Pinned,
        wanted: impl Fn(usize, Entry) -> bool,
    ) -> Option<HeldBlock<'a, P>> {
        let mut runs = [const { None }; RUNS];
        for (run, place) in runs.iter_mut().enumerate() {
            let at = run * RUN_PAGES_MAX;
            let mut held = Held::lock(space, first.offset(at as u64), pinned)?;
            let all = wanted(at, held.entries()[0])
                && (at + 1..at + RUN_PAGES_MAX)
                    .all(|page| held.extend(pinned, |entry| wanted(page, entry)));
            *place = all.then_some(held);
            place.as_ref()?;
        }
        Some(HeldBlock { runs })
    }

    /// The page `index` pages after the first.
    pub fn owner(&self, index: usize) -> Owner {
        self.run(index).owner(index % RUN_PAGES_MAX)
    }

    /// The value of an entry when it was locked.
    pub fn entry(&self, index: usize) -> Entry {
        self.run(index).entries()[index % RUN_PAGES_MAX]
    }

    /// The values of all entries when they were locked.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..LARGE_PAGES).map(|index| self.entry(index))
    }

    /// Unlocks all entries with new values, made from their places and old values.
    pub fn release(self, value: impl Fn(usize, Entry) -> Entry) {
        for (run, held) in self.runs.into_iter().flatten().enumerate() {
            held.release(|index, was| value(run * RUN_PAGES_MAX + index, was));
        }
    }

    fn run(&self, index: usize) -> &Held<'a, P> {
        self.runs[index / RUN_PAGES_MAX].as_ref().expect("all runs are held")
    }
}
