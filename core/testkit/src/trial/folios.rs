//! Folios that all users share: each user owns one word in every frame of every folio. Users write,
//! drop and move folios, and check their words.
//!
//! All users use three of four folios. Every fourth has an owner, which sometimes drops it. An
//! access that fails for lack of contiguous memory is no error and is skipped.

use super::plan::Plan;
use highwater_mm::error::FaultError;
use highwater_mm::inspect::Mode;
use highwater_mm::inspect::Page;
use highwater_mm::{Access, Range};
use highwater_mm::{Manager, Pin};
use highwater_platform::{Platform, WORDS_PER_FRAME};
use highwater_units::{Prng, SpaceId, Vpn};

/// One user's view of the folios.
pub(super) struct Folios {
    random: Prng,
    thread: usize,
    threads: u64,
    space: SpaceId,
    /// The last stored value, by page.
    known: Vec<u64>,
    count: u64,
}

impl Folios {
    /// All zeros.
    pub(super) fn new(seed: u64, thread: usize, plan: &Plan, space: SpaceId) -> Folios {
        Folios {
            random: Prng::new(seed << 8 ^ thread as u64 ^ 0xf011_0000),
            thread,
            threads: plan.threads as u64,
            space,
            known: vec![0; plan.folios.pages as usize],
            count: 0,
        }
    }

    /// The owner of a page, if it has one.
    fn owner(&self, page: u64) -> Option<u64> {
        (page % 4 == 3).then_some(page / 4 % self.threads)
    }

    /// Performs an operation on a random page in `often` of 1000 calls.
    pub(super) fn step<P: Platform>(&mut self, manager: &Manager<P>, often: u64, may_fail: bool) {
        if self.random.below(1000) >= often {
            return;
        }
        let page = self.random.below(self.known.len() as u64);
        if self.owner(page).is_some_and(|owner| owner != self.thread as u64) {
            return;
        }
        match self.random.below(10) {
            0 if self.owner(page).is_some() => {
                manager.discard(self.space, Range { first: Vpn(page), end: Vpn(page + 1) });
                self.known[page as usize] = 0;
            }
            0..2 => self.migrate(manager, page),
            2..6 => self.store(manager, page, may_fail),
            _ => self.check(manager, page, may_fail),
        }
    }

    fn migrate<P: Platform>(&mut self, manager: &Manager<P>, page: u64) {
        let entry = manager.inspect().space(self.space).entry(Vpn(page));
        if let Page::Resident(head) = entry.page() {
            let mode = if self.random.percent(50) { Mode::Async } else { Mode::Sync };
            manager.migrate_folio(head, mode);
        }
    }

    fn store<P: Platform>(&mut self, manager: &Manager<P>, page: u64, may_fail: bool) {
        let Some(pin) = self.pin(manager, page, Access::Write, may_fail) else { return };
        self.assert_holds(manager, &pin, page);
        self.count += 1;
        let value = self.count << 8 | self.thread as u64;
        for frame in 0..pin.frames() {
            manager.platform().store(pin.pfn().offset(frame), self.word(frame), value);
        }
        self.known[page as usize] = value;
    }

    fn check<P: Platform>(&self, manager: &Manager<P>, page: u64, may_fail: bool) {
        if let Some(pin) = self.pin(manager, page, Access::Read, may_fail) {
            self.assert_holds(manager, &pin, page);
        }
    }

    /// A different word in every frame, so that swapped frames are detected.
    fn word(&self, frame: u32) -> usize {
        (self.thread + frame as usize * 131) % WORDS_PER_FRAME
    }

    fn assert_holds<P: Platform>(&self, manager: &Manager<P>, pin: &Pin<'_, P>, page: u64) {
        for frame in 0..pin.frames() {
            let found = manager.platform().load(pin.pfn().offset(frame), self.word(frame));
            let (expected, thread) = (self.known[page as usize], self.thread);
            assert_eq!(found, expected, "frame {frame} of page {page}, thread {thread}");
        }
    }

    fn pin<'a, P: Platform>(
        &self,
        manager: &'a Manager<P>,
        page: u64,
        access: Access,
        may_fail: bool,
    ) -> Option<Pin<'a, P>> {
        match manager.pin(self.space, Vpn(page), access) {
            Ok(pin) => Some(pin),
            Err(FaultError::OutOfMemory) => None,
            Err(error) => {
                assert!(may_fail, "nothing is wrong, but page {page}: {error}");
                None
            }
        }
    }

    /// Checks every page that the user may access.
    pub(super) fn end<P: Platform>(&mut self, manager: &Manager<P>, may_fail: bool) {
        for page in 0..self.known.len() as u64 {
            if self.owner(page).is_none_or(|owner| owner == self.thread as u64) {
                self.check(manager, page, may_fail);
            }
        }
    }
}
