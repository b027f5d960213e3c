//! Whether a device accepts pages, by its last answers.
//!
//! ```text
//! Open ---- a run of n was refused ----> runs of n/2, ..., 1, none
//!  ^ ^                                        |
//!  | '-- runs of 16 are written again --------+
//!  '---- slots of a cluster were freed -------'
//! Open ---- a write failed ------------> Failing: asked after all others, until one succeeds,
//!                                        with some runs for each round of an allocation
//! any ----- swapoff -------------------> Leaving ---- its slots are free ---> Removed
//! Open <--- swapoff is undone -------------'    Open <---- swapon ---------------'
//! ```
//! A device may have free slots but no room: a compressed device is limited in bytes, a file by a
//! file system that other programs fill, too. A device that refuses a run is skipped, and the next
//! device takes over at once. The refusing device is then tried with half of the refused run, so
//! that its room is used up. Slots that are freed on it let it be tried again: with a page for each
//! when no other device accepts pages, and with whole runs once a cluster's worth is free. An
//! allocation that would otherwise fail grants it some tries, since room may have appeared in other
//! ways.
//!
//! A device that is leaving accepts no page, whatever its answers, until it is opened again: by
//! swapon, or by an allocation that would otherwise fail. The allocator of slots checks this again
//! under the lock of a cluster, so once swapoff has seen all clusters empty, no slot is in use.
//!
//! A failing device is not tried for every page that reclaim scans: its answers may take long, and
//! a round would last as long as all of them.
//!
//! The slots of a refused run are given back, but are no room: `freed` starts with them as a debt.
//! Locking: none. The words are hints and race: an error costs one more refusal, or a try when an
//! allocation is about to fail.

use highwater_platform::IoError;
use highwater_units::RUN_PAGES_MAX;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering::Relaxed};

/// `most` of a device that accepts all pages that it has slots for.
const OPEN: u32 = u32::MAX;
/// `most` of a device that swapoff empties, and of one that it has removed. Above all lengths of
/// runs.
const LEAVING: u32 = u32::MAX - 1;
const REMOVED: u32 = u32::MAX - 2;
/// Freed slots after which whole runs are tried again; of a small device, this share of its slots.
const WORTHWHILE: u32 = super::cluster::CLUSTER_SLOTS;
const SMALL_SHARE: u32 = 8;
/// Pages tried for an allocation that would fail: one may compress better than another.
const GRANT: u32 = 64;
/// Runs tried on a device that fails, after its first failure and in a round of an allocation.
const RETRIES: u32 = 16;

/// How urgently slots are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Other devices may have some.
    First,
    /// No device accepted a page.
    Last,
}

/// What a device accepts.
pub(super) struct Standing {
    /// The longest run that is tried, in pages.
    most: AtomicU32,
    /// Slots freed since the last refusal, less those of the refused run.
    freed: AtomicI64,
    /// Pages that may be tried all the same; runs if the last write failed.
    granted: AtomicU32,
    /// 1: the last write failed, and not for want of room.
    failing: AtomicU32,
    /// Clusters that CPUs gave up because writes to them failed or were turned away.
    set_aside: AtomicU32,
    /// The last pages were turned away at their slots.
    busy: AtomicBool,
    worthwhile: i64,
}

impl Standing {
    /// A device that accepts pages, with `slots` slots.
    pub(super) fn new(slots: u32) -> Standing {
        let least = RUN_PAGES_MAX as u32;
        Standing {
            most: AtomicU32::new(OPEN),
            freed: AtomicI64::new(0),
            granted: AtomicU32::new(0),
            failing: AtomicU32::new(0),
            set_aside: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            worthwhile: i64::from((slots / SMALL_SHARE).clamp(least, WORTHWHILE)),
        }
    }

    /// Whether it accepts all pages that it has slots for.
    pub(super) fn is_open(&self) -> bool {
        self.most.load(Relaxed) == OPEN
    }

    /// Whether its last write failed, and not for want of room.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed) != 0
    }

    /// Whether the last pages were turned away at their slots; others may be taken.
    fn is_busy(&self) -> bool {
        self.busy.load(Relaxed)
    }

    /// Whether the last pages were not accepted at their slots; others may be.
    pub(super) fn is_partial(&self) -> bool {
        self.is_busy() || self.is_failing()
    }

    /// Counts a cluster that is set aside.
    pub(super) fn count_set_aside(&self) {
        self.set_aside.fetch_add(1, Relaxed);
    }

    /// Clusters that were set aside so far.
    pub(super) fn clusters_set_aside(&self) -> u32 {
        self.set_aside.load(Relaxed)
    }

    /// Whether swapoff empties it, or has removed it.
    pub(super) fn is_closed(&self) -> bool {
        is_closed(self.most.load(Relaxed))
    }

    /// Whether swapoff empties it.
    pub(super) fn is_leaving(&self) -> bool {
        self.most.load(Relaxed) == LEAVING
    }

    /// Whether swapoff has removed it.
    pub(super) fn is_removed(&self) -> bool {
        self.most.load(Relaxed) == REMOVED
    }

    /// Whether it is asked after others, or not at all, until something changes.
    pub(super) fn is_passed_over(&self) -> bool {
        let most = self.most.load(Relaxed);
        most != OPEN && !is_closed(most)
    }

    /// From now on it accepts no page.
    pub(super) fn leave(&self) {
        self.change(|_| LEAVING);
    }

    /// It has no slot in use. Returns `false` if it was opened again meanwhile.
    pub(super) fn remove(&self) -> bool {
        self.most.compare_exchange(LEAVING, REMOVED, Relaxed, Relaxed).is_ok()
    }

    /// Accepts pages again, if it was leaving or removed. Returns whether it was.
    pub(super) fn reopen(&self) -> bool {
        self.forget_answers();
        let opened = |most| is_closed(most).then_some(OPEN);
        self.most.fetch_update(Relaxed, Relaxed, opened).is_ok()
    }

    /// Changes `most`, unless the device leaves.
    fn change(&self, to: impl Fn(u32) -> u32) {
        let changed = |most| (!is_closed(most)).then(|| to(most));
        // An error: the device leaves, whatever its answers are.
        let _ = self.most.fetch_update(Relaxed, Relaxed, changed);
    }

    /// How many of `wanted` pages in a run may be tried now.
    pub(super) fn allows(&self, wanted: usize, turn: Turn) -> usize {
        let most = self.most.load(Relaxed);
        if most == OPEN {
            return wanted;
        }
        if is_closed(most) {
            return 0;
        }
        match turn {
            Turn::First => wanted.min(most as usize),
            Turn::Last if !self.has_tries() => 0,
            Turn::Last if self.is_failing() => wanted,
            Turn::Last => wanted.min(1),
        }
    }

    fn has_tries(&self) -> bool {
        self.freed.load(Relaxed) > 0 || self.granted.load(Relaxed) > 0
    }

    /// Counts a page or run tried in the last turn.
    pub(super) fn tries(&self) {
        if self.is_open() {
            return;
        }
        let fewer = |freed: i64| (freed > 0).then(|| freed - 1);
        if self.freed.fetch_update(Relaxed, Relaxed, fewer).is_err() {
            let fewer = |granted: u32| granted.checked_sub(1);
            // At 0 another thread used the last try: one page too many is tried.
            let _ = self.granted.fetch_update(Relaxed, Relaxed, fewer);
        }
    }

    /// Notes the answer to the write of a run.
    pub(super) fn answered(&self, pages: usize, result: Result<(), IoError>) {
        match result {
            Ok(()) => self.took(pages as u32),
            Err(IoError::Full) => self.refused(pages as u32),
            Err(IoError::Busy) => self.busy.store(true, Relaxed),
            Err(IoError::Failed(_)) => self.failed(pages as u32),
        }
    }

    fn took(&self, pages: u32) {
        if self.is_busy() {
            self.busy.store(false, Relaxed);
        }
        let most = self.most.load(Relaxed);
        if most == OPEN || (pages < most && !self.is_failing()) {
            return;
        }
        if self.is_failing() || 2 * pages > RUN_PAGES_MAX as u32 {
            return self.open();
        }
        self.change(|most| most.max(2 * pages));
    }

    fn refused(&self, pages: u32) {
        self.failing.store(0, Relaxed);
        self.change(|most| most.min(pages / 2));
        self.freed.fetch_sub(i64::from(pages), Relaxed);
    }

    fn failed(&self, pages: u32) {
        if self.failing.swap(1, Relaxed) == 0 {
            self.retry_failing();
        }
        self.change(|_| 0);
        self.freed.fetch_sub(i64::from(pages), Relaxed);
    }

    /// Notes that slots were freed.
    pub(super) fn freed(&self, slots: u32) {
        if !self.is_passed_over() {
            return;
        }
        let slots = i64::from(slots);
        if self.freed.fetch_add(slots, Relaxed) + slots >= self.worthwhile {
            self.open();
        }
    }

    fn open(&self) {
        self.forget_answers();
        self.change(|_| OPEN);
    }

    fn forget_answers(&self) {
        self.freed.store(0, Relaxed);
        self.granted.store(0, Relaxed);
        self.failing.store(0, Relaxed);
    }

    /// Grants some tries to a device that refuses pages. Returns whether it does.
    pub(super) fn grant(&self) -> bool {
        let refuses = self.refuses();
        if refuses {
            self.granted.store(GRANT, Relaxed);
        }
        refuses
    }

    /// Lets a device that fails be tried again.
    pub(super) fn retry_failing(&self) {
        if self.is_failing() {
            self.granted.store(RETRIES, Relaxed);
        }
    }

    /// Whether it refuses pages for want of room.
    pub(super) fn refuses(&self) -> bool {
        self.is_passed_over() && !self.is_failing()
    }

    /// Whether no page may be tried.
    pub(super) fn is_shut(&self) -> bool {
        let refuses = self.refuses() && self.most.load(Relaxed) == 0 && !self.has_tries();
        refuses || self.is_closed()
    }

    /// How many of `slots` free slots the device is believed to have room for, without the pages
    /// that were granted.
    pub(super) fn room(&self, slots: u32) -> u32 {
        let most = self.most.load(Relaxed);
        if is_closed(most) {
            return 0;
        }
        if most as usize >= RUN_PAGES_MAX || self.is_failing() {
            return slots;
        }
        let freed = self.freed.load(Relaxed).clamp(0, i64::from(u32::MAX / 2)) as u32;
        slots.min(most + freed)
    }
}

fn is_closed(most: u32) -> bool {
    matches!(most, LEAVING | REMOVED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Turn::{First, Last};

    const FULL: Result<(), IoError> = Err(IoError::Full);
    const FAILED: Result<(), IoError> = Err(IoError::Failed(5));

    /// Pages that a device with room for `room` accepts, in runs of up to 16, and how many runs are
    /// tried.
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
    fn all_room_is_used_with_few_tries() {
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
    fn a_freed_page_allows_a_try_in_the_last_turn() {
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
    fn a_freed_cluster_opens_the_device() {
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
    fn a_device_that_refuses_is_granted_some_tries() {
        let standing = Standing::new(10_000);
        assert!(!standing.grant(), "it accepts pages");
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
    fn a_failing_device_is_last_until_a_write_succeeds() {
        let standing = Standing::new(10_000);
        standing.answered(16, FAILED);
        standing.freed(16);
        assert_eq!((standing.allows(16, First), standing.allows(16, Last)), (0, 16));
        assert_eq!((standing.room(100), standing.is_shut()), (100, false));
        standing.tries();
        assert!(!standing.grant(), "it is tried anyway");
        standing.answered(2, Ok(()));
        assert!(standing.is_open());
    }

    #[test]
    fn a_failing_device_is_tried_with_some_runs_a_round() {
        let standing = Standing::new(10_000);
        standing.retry_failing();
        let tried = || {
            let fail = |()| {
                standing.tries();
                standing.answered(16, FAILED);
                standing.freed(16);
            };
            let may = || (standing.allows(16, Last) == 16).then_some(());
            std::iter::repeat_with(may).map_while(|may| may.map(fail)).count()
        };
        standing.answered(16, FAILED);
        standing.freed(16);
        assert_eq!((tried(), tried()), (RETRIES as usize, 0));
        assert_eq!((standing.room(100), standing.is_shut()), (100, false));
        standing.retry_failing();
        assert_eq!(tried(), RETRIES as usize);
    }

    #[test]
    fn a_device_that_leaves_accepts_no_page_whatever_it_answers() {
        for failing in [false, true] {
            let standing = Standing::new(32);
            if failing {
                standing.answered(1, FAILED);
            }
            standing.leave();
            for answer in [Ok(()), FULL, FAILED] {
                standing.answered(16, answer);
                standing.freed(32);
                assert_eq!([First, Last].map(|turn| standing.allows(16, turn)), [0, 0]);
                assert_eq!((standing.room(100), standing.grant()), (0, false));
                assert!(standing.is_shut() && standing.is_leaving() && !standing.is_passed_over());
            }
            assert!(standing.reopen() && !standing.reopen());
            assert_eq!((standing.allows(16, First), standing.room(100)), (16, 100));
            assert!(!standing.remove(), "it was opened again");
            standing.leave();
            assert!(standing.remove() && standing.is_removed() && standing.reopen());
            assert!(standing.is_open());
        }
    }
}
