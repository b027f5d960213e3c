//! The room of this process's swap devices, where all processes of the run share it.
//!
//! ```text
//! write to a device -- Lender::claim --> Level --> Share: room of the run, by level
//! ```
//! A device that gets no room refuses the write, and the next device takes over. No message tells
//! that a process was killed, so the helper then searches for killed processes.

use highwater_devices::{Device, Lender};
use highwater_os::{helper, sys};
use highwater_session::{Share, SwapInUse, SwapRoom};
use highwater_units::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Milliseconds between searches for processes that have ended.
const SEARCH_INTERVAL: u64 = 20;

/// How often a fork looks for room, and how long it waits in between.
const LOOKS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(5);

/// The room of the run.
struct Room {
    share: Arc<Share>,
    began: Instant,
    /// When the last search ended, in milliseconds since `began`.
    searched: AtomicU64,
}

/// The room of a level.
struct Level {
    room: Arc<Room>,
    level: usize,
}

/// Lets new devices, by their places in the list of the run, take room that all processes share.
///
/// # Errors
/// The system is out of memory.
pub(crate) fn share(share: &Arc<Share>, devices: &[Option<Box<dyn Device>>]) -> Result<(), String> {
    let (_, items) = share.swap_items();
    let opened = devices
        .iter()
        .zip(&items)
        .filter_map(|(device, item)| Some((item.as_ref()?.level, device.as_deref()?)));
    opened.into_iter().try_for_each(|(level, device)| share_one(share, level, device))
}

/// Lets a new device take room that all processes share, from its first level on.
///
/// # Errors
/// The system is out of memory.
pub(crate) fn share_one(
    share: &Arc<Share>,
    first: usize,
    device: &dyn Device,
) -> Result<(), String> {
    let room = Room { share: share.clone(), began: Instant::now(), searched: AtomicU64::new(0) };
    let room = Arc::new(room);
    let mut levels = (first..).map(|level| Level { room: room.clone(), level });
    let mut next = || -> Arc<dyn Lender> { Arc::new(levels.next().expect("there is a next one")) };
    let shared = device.share_room(&mut next);
    shared.map_err(|reason| format!("swap {}: {reason}", device.info().name))
}

impl Room {
    /// Looks for processes that have ended, in the helper: the program may not open files.
    fn search(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        let last = self.searched.load(Relaxed);
        let is_due = now >= last + SEARCH_INTERVAL && helper::is_inside();
        if is_due && self.searched.compare_exchange(last, now, Relaxed, Relaxed).is_ok() {
            self.share.reap_all();
        }
    }
}

impl Lender for Level {
    fn claim(&self, pages: u32) -> u32 {
        let share = &self.room.share;
        let granted = share.claim_swap(self.level, pages);
        if granted == pages {
            return granted;
        }
        self.room.search();
        granted + share.claim_swap(self.level, pages - granted)
    }

    fn give_back(&self, pages: u32) {
        self.room.share.give_back_swap(self.level, pages);
    }

    fn is_scarce(&self) -> bool {
        self.room.share.swap_is_scarce(self.level)
    }
}

/// Whether the run has room for `slots` slots now.
pub(crate) fn has_slots(share: &Share, slots: u64) -> bool {
    slots_left(share) >= slots
}

/// Whether the run soon has room for `slots` slots. A process that was killed a moment ago still
/// has its room. Runs in the helper.
pub(crate) fn await_slots(share: &Share, slots: u64) -> bool {
    let look = |attempt: u32| {
        if attempt > 0 {
            sys::sleep(PAUSE);
            share.reap_all();
        }
        has_slots(share, slots)
    };
    (0..LOOKS).any(look)
}

/// Slots for which the run has room.
fn slots_left(share: &Share) -> u64 {
    share.swap_in_use().iter().map(SwapInUse::slots_left).sum()
}

/// The room of the run's swap that all processes use, in words.
pub(crate) fn in_words(share: &Share) -> String {
    let used = share.swap_in_use();
    let sum = |of: fn(&SwapRoom) -> u64| {
        Bytes::of_pages(used.iter().flat_map(|device| &device.rooms).map(of).sum())
    };
    let (claimed, limit) = (sum(|room| room.claimed), sum(|room| room.limit));
    format!(", all processes {claimed} of {limit}")
}
