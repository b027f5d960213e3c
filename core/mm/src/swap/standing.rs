//! Whether a device takes pages, as far as its last answers say.
//!
//! ```text
//! Open ---- a run of n was refused ----> runs of n/2, ..., 1, none
//!  ^ ^                                        |
//!  | '-- runs of 16 are written again --------+
//!  '---- slots of a cluster were freed -------'
//! Open ---- a write failed ------------> Failing: asked after all others, until one succeeds
//! ```
//! A device may have slots and no room: a compressed one holds bytes, and a file lies on a file
//! system that others fill, too. One that refuses is passed over, so that the next one has its turn
//! at once; half of what it refused is tried, so that what room it has is used. It is asked again
//! for what was freed there meanwhile: for a page each when no other device takes any, and for all
//! when that is worth a cluster. An allocation that would fail otherwise grants it some tries, for
//! what has changed elsewhere.
//!
//! The slots of a refused run are given back, and are not room: they are a debt that this pays.
//! Locking: none. The words are hints, and race: what they get wrong is refused once more, or tried
//! when an allocation is about to fail.

use highwater_platform::IoError;
use highwater_units::RUN_PAGES_MAX;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

/// `most` of a device that takes what its slots are enough for.
const OPEN: u32 = u32::MAX;
/// Slots freed that are worth asking with whole runs again, or so many of a small device.
const WORTHWHILE: u32 = super::cluster::CLUSTER_SLOTS;
const SMALL_SHARE: u32 = 8;
/// Pages that are tried for an allocation that would fail: they may compress differently.
const GRANT: u32 = 64;

/// How urgently slots are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Another device may have some.
    First,
    /// No device has taken a page.
    Last,
}

/// How a device stands.
pub(super) struct Standing {
    /// Pages of the longest run that is tried.
    most: AtomicU32,
    /// Slots freed since the last refusal, less those that are yet to be given back after it.
    freed: AtomicI64,
    /// Pages to try all the same.
    granted: AtomicU32,
    /// Writes fail, and not for want of room.
    failing: AtomicU32,
    worthwhile: i64,
}

impl Standing {
    /// Open, with so many slots.
    pub(super) fn new(slots: u32) -> Standing {
        let least = RUN_PAGES_MAX as u32;
        Standing {
            most: AtomicU32::new(OPEN),
            freed: AtomicI64::new(0),
            granted: AtomicU32::new(0),
            failing: AtomicU32::new(0),
            worthwhile: i64::from((slots / SMALL_SHARE).clamp(least, WORTHWHILE)),
        }
    }

    /// Whether it takes all that its slots are enough for.
    pub(super) fn is_open(&self) -> bool {
        self.most.load(Relaxed) == OPEN
    }

    /// Whether its last write failed, and not for want of room.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed) != 0
    }

    /// How many of `wanted` pages in a run may be tried now.
    pub(super) fn allows(&self, wanted: usize, turn: Turn) -> usize {
        let most = self.most.load(Relaxed);
        if most == OPEN {
            return wanted;
        }
        match turn {
            Turn::First => wanted.min(most as usize),
            Turn::Last if self.is_failing() => wanted,
            Turn::Last if self.has_tries() => wanted.min(1),
            Turn::Last => 0,
        }
    }

    fn has_tries(&self) -> bool {
        self.freed.load(Relaxed) > 0 || self.granted.load(Relaxed) > 0
    }

    /// A page is tried in the last turn.
    pub(super) fn tries(&self) {
        if self.is_open() || self.is_failing() {
            return;
        }
        let fewer = |freed: i64| (freed > 0).then(|| freed - 1);
        if self.freed.fetch_update(Relaxed, Relaxed, fewer).is_err() {
            let fewer = |granted: u32| granted.checked_sub(1);
            // Failing that, another thread had the last one: a page too many is tried.
            let _ = self.granted.fetch_update(Relaxed, Relaxed, fewer);
        }
    }

    /// A run was written, or was not.
    pub(super) fn answered(&self, pages: usize, result: Result<(), IoError>) {
        match result {
            Ok(()) => self.took(pages as u32),
            Err(IoError::Full) => self.refused(pages as u32),
            Err(IoError::Failed(_)) => self.failed(pages as u32),
        }
    }

    fn took(&self, pages: u32) {
        let most = self.most.load(Relaxed);
        if most == OPEN || (pages < most && !self.is_failing()) {
            return;
        }
        if self.is_failing() || 2 * pages > RUN_PAGES_MAX as u32 {
            return self.open();
        }
        self.most.fetch_max(2 * pages, Relaxed);
    }

    fn refused(&self, pages: u32) {
        self.failing.store(0, Relaxed);
        self.most.fetch_min(pages / 2, Relaxed);
        self.freed.fetch_sub(i64::from(pages), Relaxed);
    }

    fn failed(&self, pages: u32) {
        self.failing.store(1, Relaxed);
        self.most.store(0, Relaxed);
        self.freed.fetch_sub(i64::from(pages), Relaxed);
    }

    /// Slots were freed.
    pub(super) fn freed(&self, slots: u32) {
        if self.is_open() {
            return;
        }
        let slots = i64::from(slots);
        if self.freed.fetch_add(slots, Relaxed) + slots >= self.worthwhile {
            self.open();
        }
    }

    fn open(&self) {
        self.freed.store(0, Relaxed);
        self.granted.store(0, Relaxed);
        self.failing.store(0, Relaxed);
        self.most.store(OPEN, Relaxed);
    }

    /// Grants some tries to a device that refuses; says whether it is one.
    pub(super) fn grant(&self) -> bool {
        let refuses = self.refuses();
        if refuses {
            self.granted.store(GRANT, Relaxed);
        }
        refuses
    }

    /// Whether it has refused a page, for want of room.
    pub(super) fn refuses(&self) -> bool {
        !self.is_open() && !self.is_failing()
    }

    /// Whether nothing is tried any more.
    pub(super) fn is_shut(&self) -> bool {
        self.refuses() && self.most.load(Relaxed) == 0 && !self.has_tries()
    }

    /// How many of `slots` free slots the device is believed to have room for, without the pages
    /// that were granted.
    pub(super) fn room(&self, slots: u32) -> u32 {
        let most = self.most.load(Relaxed);
        if most as usize >= RUN_PAGES_MAX || self.is_failing() {
            return slots;
        }
        let freed = self.freed.load(Relaxed).clamp(0, i64::from(u32::MAX / 2)) as u32;
        slots.min(most + freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Turn::{First, Last};

    const FULL: Result<(), IoError> = Err(IoError::Full);
    const FAILED: Result<(), IoError> = Err(IoError::Failed(5));

    /// How many of 16 pages a device takes that has room for `room`, and how often it is asked.
    fn filled(standing: &Standing, room: &mut usize, turn: Turn) -> (usize, usize) {
        let (mut taken, mut asked) = (0, 0);
        loop {
            let run = standing.allows(RUN_PAGES_MAX, turn);
            if run == 0 {
                return (taken, asked);
            }
            if turn == Last {
                standing.tries();
            }
            asked += 1;
            if run <= *room {
                (*room, taken) = (*room - run, taken + run);
                standing.answered(run, Ok(()));
            } else {
                standing.answered(run, FULL);
                // The slots of the run are given back.
                standing.freed(run as u32);
            }
        }
    }

    #[test]
    fn what_room_there_is_is_used_and_the_rest_is_not_asked_for() {
        for room in 0..64 {
            let standing = Standing::new(10_000);
            let (taken, asked) = filled(&standing, &mut { room }, First);
            assert_eq!(taken, room);
            assert!(asked <= room / 8 + 12, "{room}: asked {asked} times");
            assert!(standing.is_shut());
            assert_eq!(standing.room(100), 0);
            assert_eq!(filled(&standing, &mut 9, Last), (0, 0), "nothing was freed");
        }
    }

    #[test]
    fn a_page_freed_is_a_page_tried_but_only_in_the_last_turn() {
        let standing = Standing::new(10_000);
        filled(&standing, &mut 0, First);
        standing.freed(5);
        assert_eq!(standing.room(100), 5);
        assert_eq!(standing.allows(16, First), 0);
        let mut tried = 0;
        while standing.allows(16, Last) > 0 {
            assert_eq!(standing.allows(16, Last), 1);
            standing.tries();
            standing.answered(1, FULL);
            standing.freed(1);
            tried += 1;
        }
        assert_eq!(tried, 5);
    }

    #[test]
    fn a_cluster_freed_opens_the_device() {
        for (slots, worthwhile) in [(10_000, 512), (1600, 200), (32, 16)] {
            let standing = Standing::new(slots);
            filled(&standing, &mut 0, First);
            standing.freed(worthwhile - 1);
            assert!(!standing.is_open());
            standing.freed(1);
            assert!(standing.is_open(), "{slots}");
        }
    }

    #[test]
    fn tries_are_granted_to_who_refuses_and_end() {
        let standing = Standing::new(10_000);
        assert!(!standing.grant(), "it takes all");
        filled(&standing, &mut 0, First);
        assert!(standing.grant());
        assert!(!standing.is_shut());
        assert_eq!(standing.room(100), 0, "what is granted is no room");
        assert_eq!(filled(&standing, &mut 0, Last), (0, GRANT as usize));
        assert!(standing.grant());
        // There is room again: a page succeeds, and then runs do.
        standing.tries();
        standing.answered(1, Ok(()));
        assert_eq!(filled(&standing, &mut 100, First).0, 100);
    }

    #[test]
    fn who_fails_is_asked_last_until_a_write_succeeds() {
        let standing = Standing::new(10_000);
        standing.answered(16, FAILED);
        standing.freed(16);
        assert_eq!((standing.allows(16, First), standing.allows(16, Last)), (0, 16));
        assert_eq!((standing.room(100), standing.is_shut()), (100, false));
        standing.tries();
        assert!(!standing.grant(), "it is asked anyway");
        standing.answered(2, Ok(()));
        assert!(standing.is_open());
    }
}
