//! Room that the devices of several processes share.
//!
//! ```text
//! write -- Quota::take --> spare      room that was granted and is not in use
//!                            | ^
//!                    is short| | more than two batches: gives back all but one
//!                            v |
//!                          Lender     the room of all processes
//! SlotQuota -- none, or Quota
//!           \- stored     slots with contents: each takes room when it is first written, until it
//!                         is discarded
//! ```
//! A device without a lender has all of its size to itself. A write for which there is no room ends
//! as `Full`, as on a full disk.
//! Conservation: the room that the lender has granted is `spare` plus the room in use.
//! Locks: none. `spare` is one word of the process; the lender is asked once per batch.

use crate::slot_set::SlotSet;
use highwater_platform::{Io, IoError};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// A batch is this share of a device, ...
const BATCH_SHARE: u32 = 256;
/// ... at least these pages, ...
const BATCH_MIN: u32 = 16;
/// ... and at most these: 2 MiB.
const BATCH_MAX: u32 = 512;

/// Grants room for the contents of a device, in pages. A lender is called in writes and under locks
/// of the manager, so it makes no transfer and waits for no page.
pub trait Lender: Send + Sync {
    /// Grants up to `pages` pages; returns how many.
    fn claim(&self, pages: u32) -> u32;

    /// Takes pages back.
    fn give_back(&self, pages: u32);

    /// Whether more than half of the room was in use a moment ago. Called in page faults.
    fn is_scarce(&self) -> bool;
}

/// The lenders of devices: each call returns that of the next level.
pub type Lenders<'a> = dyn FnMut() -> Arc<dyn Lender> + 'a;

/// The room of a device, from a lender.
pub(crate) struct Quota {
    lender: Arc<dyn Lender>,
    spare: AtomicU32,
    batch: u32,
}

impl Quota {
    /// The room of a device of `pages` pages, which is empty.
    pub(crate) fn new(pages: u32, lender: Arc<dyn Lender>) -> Quota {
        let batch = (pages / BATCH_SHARE).clamp(BATCH_MIN, BATCH_MAX);
        Quota { lender, spare: AtomicU32::new(0), batch }
    }

    pub(crate) fn is_scarce(&self) -> bool {
        self.lender.is_scarce()
    }

    /// Takes room for contents.
    ///
    /// # Errors
    /// `Full`: there is too little. A shorter run may still take the rest.
    pub(crate) fn take(&self, pages: u32) -> Result<(), IoError> {
        if self.take_spare(pages) {
            return Ok(());
        }
        let granted = self.lender.claim(pages + self.batch);
        let own = pages.min(granted);
        self.spare.fetch_add(granted - own, Relaxed);
        if own == pages || self.take_spare(pages - own) {
            return Ok(());
        }
        self.spare.fetch_add(own, Relaxed);
        Err(IoError::Full)
    }

    /// Returns all room that is not in use.
    pub(crate) fn put_spare(&self) {
        self.lender.give_back(self.spare.swap(0, Relaxed));
    }

    fn take_spare(&self, pages: u32) -> bool {
        self.spare.fetch_update(Relaxed, Relaxed, |spare| spare.checked_sub(pages)).is_ok()
    }

    /// Returns the room of contents that were dropped.
    pub(crate) fn put(&self, pages: u32) {
        let most = 2 * self.batch;
        if self.spare.fetch_add(pages, Relaxed) + pages > most {
            let rest = |spare: u32| (spare > most).then_some(self.batch);
            // An error means that another thread has given it back.
            if let Ok(spare) = self.spare.fetch_update(Relaxed, Relaxed, rest) {
                self.lender.give_back(spare - self.batch);
            }
        }
    }
}

/// The room of a device whose slots take a page each; without a lender, all of its size.
#[derive(Default)]
pub(crate) struct SlotQuota(OnceLock<Lent>);

struct Lent {
    quota: Quota,
    stored: SlotSet,
}

impl SlotQuota {
    /// From now on room comes from a lender. The device has `pages` slots, and is empty.
    ///
    /// # Errors
    /// The system's error number.
    pub(crate) fn share(&self, pages: u32, lender: Arc<dyn Lender>) -> Result<(), i32> {
        let lent = Lent { quota: Quota::new(pages, lender), stored: SlotSet::new(pages)? };
        let is_first = self.0.set(lent).is_ok();
        assert!(is_first, "room comes from one lender");
        Ok(())
    }

    /// Takes room for the slots of a write that have none yet.
    ///
    /// # Errors
    /// As [`Quota::take`].
    pub(crate) fn take(&self, io: &Io) -> Result<(), IoError> {
        let Some(Lent { quota, stored }) = self.0.get() else { return Ok(()) };
        let pages = io.frames.len() as u32;
        let missing = stored.missing(io.slot, pages);
        if missing > 0 {
            quota.take(missing)?;
            stored.insert(io.slot, pages);
        }
        Ok(())
    }

    pub(crate) fn is_scarce(&self) -> bool {
        self.0.get().is_some_and(|lent| lent.quota.is_scarce())
    }

    /// Returns all room that is not in use.
    pub(crate) fn put_spare(&self) {
        self.0.get().iter().for_each(|lent| lent.quota.put_spare());
    }

    /// Returns the room of slots without contents.
    pub(crate) fn discard(&self, slot: u32, pages: u32) {
        let Some(Lent { quota, stored }) = self.0.get() else { return };
        let removed = stored.remove(slot, pages);
        if removed > 0 {
            quota.put(removed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::{FrameList, Pfn, Prng};
    use std::collections::BTreeSet;

    /// A lender that counts its room and the calls.
    struct Counted {
        left: AtomicU32,
        asked: AtomicU32,
    }

    impl Counted {
        fn new(left: u32) -> Arc<Counted> {
            Arc::new(Counted { left: AtomicU32::new(left), asked: AtomicU32::new(0) })
        }

        fn left(&self) -> u32 {
            self.left.load(Relaxed)
        }
    }

    impl Lender for Counted {
        fn claim(&self, pages: u32) -> u32 {
            self.asked.fetch_add(1, Relaxed);
            let rest = |left: u32| Some(left.saturating_sub(pages));
            let before = self.left.fetch_update(Relaxed, Relaxed, rest).expect("always some");
            pages.min(before)
        }

        fn give_back(&self, pages: u32) {
            self.asked.fetch_add(1, Relaxed);
            self.left.fetch_add(pages, Relaxed);
        }

        fn is_scarce(&self) -> bool {
            false
        }
    }

    fn io(slot: u32, pages: u32) -> Io {
        Io::new(slot, (0..pages).map(Pfn).collect::<FrameList>())
    }

    #[test]
    fn a_device_without_a_lender_has_its_size() {
        let quota = SlotQuota::default();
        assert_eq!(quota.take(&io(u32::MAX - 16, 16)), Ok(()));
        quota.discard(0, u32::MAX);
    }

    #[test]
    fn what_is_left_goes_to_shorter_runs() {
        let lender = Counted::new(29);
        let quota = Quota::new(1000, lender.clone());
        assert_eq!((quota.take(16), quota.take(16)), (Ok(()), Err(IoError::Full)));
        assert_eq!((quota.take(8), quota.take(4), quota.take(1)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((quota.take(1), lender.left()), (Err(IoError::Full), 0));
        lender.left.store(1, Relaxed);
        assert_eq!(quota.take(1), Ok(()));
        quota.put(30);
        quota.put_spare();
        assert_eq!((quota.spare(), lender.left()), (0, 30));
    }

    #[test]
    fn the_lender_is_asked_once_in_a_batch() {
        let lender = Counted::new(1 << 20);
        let quota = Quota::new(100 * 256, lender.clone());
        (0..10_000).for_each(|_| quota.take(1).unwrap());
        (0..10_000).for_each(|_| quota.put(1));
        assert!(lender.asked.load(Relaxed) <= 200, "{:?}", lender.asked);
        assert!(lender.left() >= (1 << 20) - 200, "two batches are kept");
        let asked = lender.asked.load(Relaxed);
        for _ in 0..10_000 {
            quota.take(16).unwrap();
            quota.put(16);
        }
        assert_eq!(lender.asked.load(Relaxed), asked, "it has spare room");
    }

    /// Random writes and discards of two devices against sets of slots.
    #[test]
    fn random_writes_of_two_devices_share_the_room() {
        let mut random = Prng::new(9);
        let (slots, room) = (600, 700);
        let lender = Counted::new(room);
        let devices = [(); 2].map(|()| {
            let quota = SlotQuota::default();
            quota.share(slots, lender.clone()).unwrap();
            (quota, std::cell::RefCell::new(BTreeSet::new()))
        });
        let mut refused = 0;
        for _ in 0..20_000 {
            let (quota, stored) = &devices[random.below(2) as usize];
            let mut stored = stored.borrow_mut();
            let slot = random.below(u64::from(slots) - 16) as u32;
            let pages = 1 + random.below(16) as u32;
            let run = slot..slot + pages;
            if random.percent(55) {
                match quota.take(&io(slot, pages)) {
                    Ok(()) => stored.extend(run),
                    Err(_) => refused += 1,
                }
            } else {
                quota.discard(slot, pages);
                stored.retain(|slot| !run.contains(slot));
            }
            drop(stored);
            let in_use: u32 = devices.iter().map(|(_, stored)| stored.borrow().len() as u32).sum();
            let spare: u32 = devices.iter().map(|(quota, _)| quota.spare()).sum();
            assert_eq!(in_use + spare + lender.left(), room);
        }
        assert!(refused > 100, "{refused} writes were refused");
    }

    #[test]
    fn threads_never_use_more_than_was_granted() {
        let lender = Counted::new(500);
        let quota = Quota::new(10_000, lender.clone());
        let used = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (quota, used) = (&quota, &used);
                scope.spawn(move || {
                    let (mut random, mut own) = (Prng::new(seed), 0);
                    for _ in 0..20_000 {
                        let pages = 1 + random.below(16) as u32;
                        if random.percent(55) && quota.take(pages).is_ok() {
                            own += pages;
                            assert!(used.fetch_add(pages, Relaxed) + pages <= 500);
                        } else if own >= pages {
                            own -= pages;
                            used.fetch_sub(pages, Relaxed);
                            quota.put(pages);
                        }
                    }
                });
            }
        });
        assert_eq!(used.load(Relaxed) + quota.spare() + lender.left(), 500);
    }

    impl Quota {
        fn spare(&self) -> u32 {
            self.spare.load(Relaxed)
        }
    }

    impl SlotQuota {
        fn spare(&self) -> u32 {
            self.0.get().map_or(0, |lent| lent.quota.spare())
        }
    }
}
