//! Moves cold pages from the fast level to the slow one, in rounds.
//!
//! ```text
//! plan    number and minimum age of pages to move      from the ages of all pages
//! gather  copies up to BATCH of them out, one by one   from here on they are marked, not pinned
//! write   to runs of free blocks, all in flight together
//! commit  the pages that were not used meanwhile
//! ```
//! Locks: none. [`crate::tier::table`] resolves conflicts with callers.

use crate::arena::Arena;
use crate::sys::Mapping;
use crate::tier::blocks::Near;
use crate::tier::shared::Shared;
use crate::tier::table::{Committed, Unpinned};
use highwater_platform::{Io, IoError};
use highwater_units::{FrameList, PAGE_SIZE, Pfn, RUN_PAGES_MAX};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// How full the fast level is, in thousandths, when write-back begins ...
const HIGH_PER_MILLE: u64 = 900;
/// ... and when it ends.
const LOW_PER_MILLE: u64 = 800;

/// Pages written together: a few runs. Each process has a buffer for them, of 256 KiB.
const BATCH: usize = 64;

const AGES: usize = 1 << u8::BITS;

/// The plan of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The number of pages to move.
    pub(super) pages: u64,
    /// Their minimum age.
    pub(super) age: u8,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// Pages were moved.
    Moved,
    /// No page was moved: the slow level is full or fails, or no page would free memory.
    Stuck,
}

/// The result of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Batch {
    /// The number of pages moved, and the slot at which the rest of the round begins.
    Moved(u64, u32),
    /// The slow level is full, or fails.
    Refused,
}

/// A page that is being moved.
#[derive(Clone, Copy, Debug)]
struct Move {
    slot: u32,
    /// Its block in the fast level.
    from: u32,
}

/// The memory and lists of the thread that moves pages.
pub(super) struct Writeback {
    shared: Arc<Shared>,
    buffer: Mapping,
    moves: Vec<Move>,
    ios: Vec<Io>,
}

impl Shared {
    /// Whether write-back is to begin.
    pub(super) fn is_high(&self) -> bool {
        self.fast.use_per_mille() >= HIGH_PER_MILLE
    }

    /// The plan for now; `None` if the fast level has room.
    pub(super) fn plan(&self) -> Option<Plan> {
        let used = self.fast.use_per_mille();
        let pages = u64::from(self.fast.used()) * used.saturating_sub(LOW_PER_MILLE) / used.max(1);
        (used >= HIGH_PER_MILLE).then(|| Plan { pages: pages.max(1), age: self.age_of(pages) })
    }

    /// The age that at least `pages` pages of the fast level have reached.
    pub(super) fn age_of(&self, pages: u64) -> u8 {
        let (mut held, now) = ([0u64; AGES], self.now());
        for slot in self.table.ever_fast() {
            if let Some((age, _)) = self.table.age(slot, now).filter(|(_, at)| self.fast.gains(*at))
            {
                held[usize::from(age)] += 1;
            }
        }
        let mut left = pages;
        let old = (0..AGES).rev().find(|age| {
            left = left.saturating_sub(held[*age]);
            left == 0
        });
        old.unwrap_or(0) as u8
    }
}

impl Writeback {
    /// Reserves the memory of batches.
    ///
    /// # Errors
    /// The system's error number.
    pub(super) fn new(shared: Arc<Shared>) -> Result<Writeback, i32> {
        // The buffer takes memory only during rounds: most processes write nothing back.
        let buffer = Mapping::new(BATCH * PAGE_SIZE)?;
        let (moves, ios) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        Ok(Writeback { shared, buffer, moves, ios })
    }

    /// Moves up to `left` pages of at least that age, from slot `first` on.
    pub(super) fn batch(&mut self, first: u32, age: u8, left: u64) -> Batch {
        let most = left.min(BATCH as u64) as usize;
        let next = self.gather(first, age, most);
        let refused = self.write();
        let moved = self.commit();
        if refused || moved.failed { Batch::Refused } else { Batch::Moved(moved.pages, next) }
    }

    /// Gives the memory of the buffer back, at the end of a round.
    pub(super) fn rest(&mut self) {
        // SAFETY: the pages are in the slow level, or still in the fast one.
        unsafe { self.buffer.give_back(0, self.buffer.len()) };
    }

    fn arena(&self) -> Arena {
        // SAFETY: the buffer has this many pages and lives as long as `self`; only a holder of
        // `&mut self` uses it.
        unsafe { Arena::new(self.buffer.at(0), BATCH as u32) }
    }

    /// Marks up to `most` cold slots and copies their pages; returns the slot after the last one
    /// examined.
    fn gather(&mut self, first: u32, age: u8, most: usize) -> u32 {
        self.moves.clear();
        let (shared, now) = (self.shared.clone(), self.shared.now());
        let mut slots = first..shared.table.ever_fast().end;
        while self.moves.len() < most {
            let Some(slot) = slots.next() else { break };
            let gains = |(_, block)| shared.fast.gains(block);
            if shared.table.age(slot, now).is_some_and(gains)
                && let Some(from) = shared.table.begin_move(slot, age, now)
            {
                self.copy(Move { slot, from });
            }
        }
        slots.start
    }

    /// Copies a pinned page, and unpins it.
    fn copy(&mut self, page: Move) {
        let frame = FrameList::one(Pfn(self.moves.len() as u32));
        let mut one = [Io::new(page.from, frame)];
        // SAFETY: a frame of the buffer that no other page uses.
        unsafe { self.shared.fast.device.read(self.arena(), &mut one) };
        match (self.shared.table.end_copy(page.slot), one[0].result) {
            (Unpinned::Kept, Ok(())) => self.moves.push(page),
            // The page stays in the fast level, so that its reader gets the error.
            (Unpinned::Kept, Err(_)) => self.shared.table.cancel(page.slot),
            (Unpinned::Dropped, _) => {
                self.shared.fast.free(page.from);
                self.shared.table.unpin(page.slot);
            }
        }
    }

    /// Writes the gathered pages for which there are free blocks; returns whether there were too
    /// few.
    fn write(&mut self) -> bool {
        self.ios.clear();
        let mut at = 0;
        while at < self.moves.len() {
            let most = (self.moves.len() - at).min(RUN_PAGES_MAX);
            let Some(run) = self.shared.slow.take(Near::Last, most) else { break };
            let frames = (at..at + run.len()).map(|frame| Pfn(frame as u32)).collect();
            self.ios.push(Io::new(run.start, frames));
            at += run.len();
        }
        let homeless = self.moves.drain(at..);
        let refused = homeless.len() > 0;
        homeless.for_each(|page| self.shared.table.cancel(page.slot));
        let arena = self.arena();
        // SAFETY: frames of the buffer, each in one transfer.
        unsafe { self.shared.slow.device.write(arena, &mut self.ios) };
        refused
    }

    /// Commits the moves of pages that were written and not used meanwhile.
    fn commit(&self) -> Outcome {
        let mut outcome = Outcome { pages: 0, failed: false };
        let Shared { table, fast, slow, counts, .. } = &*self.shared;
        let mut moves = self.moves.iter();
        for io in &self.ios {
            let pages = io.frames.len();
            let blocks = (io.slot..).take(pages);
            match io.result {
                Ok(()) => drop(counts.writeback_ios.fetch_add(1, Relaxed)),
                // The slow level may accept the blocks of the next batches.
                Err(IoError::Busy) => {}
                Err(IoError::Full | IoError::Failed(_)) => {
                    counts.writeback_failures.fetch_add(pages as u64, Relaxed);
                    outcome.failed = true;
                }
            }
            for (page, block) in moves.by_ref().take(pages).zip(blocks) {
                let committed = match io.result {
                    Ok(()) => table.commit(page.slot, block),
                    Err(_) => Committed::Void,
                };
                match committed {
                    Committed::Moved => {
                        fast.free(page.from);
                        outcome.pages += 1;
                    }
                    Committed::Void => {
                        table.cancel(page.slot);
                        slow.free(block);
                    }
                }
            }
        }
        counts.written_back.fetch_add(outcome.pages, Relaxed);
        outcome
    }
}

/// The result of a batch's writes.
struct Outcome {
    /// Pages moved.
    pages: u64,
    /// Whether a write failed.
    failed: bool,
}
