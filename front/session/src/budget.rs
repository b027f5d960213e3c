//! The memory of a run, shared by its processes: who may use how many pages.
//!
//! ```text
//! run_dir/budget:  layout | limit, its maximum, scope | unpaged, measures | short until | turn
//!                  | tuning | compactions | used | changes | Entry x 4096
//!                  | SwapWords: the room of swap devices                          swap_room.rs
//!                  | SwapList: the swap devices                                   swap_list.rs
//! Entry:           owner: pid and image   granted   unpaged   spare   misses   short until
//!                  activity   shared   common   taken   family   lent
//!                  followed: the last change of the swap devices   compacted   request, requests
//! Share --- the entry of this process: borrow, give back, aim
//! ```
//! A limit on all memory ([`Scope::Everything`]) includes memory that cannot be paged: that is
//! measured, and processes may be granted the rest as pages.
//!
//! No process keeps the sum. A process that borrows first adds to its own entry, then adds all
//! entries up, and gives the excess over the limit back. Of two processes that borrow at the same
//! time, the later one sees both additions, so they never keep too much; both may give back, and
//! ask again. Nothing has to be repaired after a process was killed in the middle of this.
//!
//! Pages that a fork has shared count once: `family.rs`.
//!
//! A process is alive as long as the lock of its statistics file is held (stats_file.rs): the
//! system releases the lock when the process's helper ends, for whatever reason. Another process
//! then clears its entry ([`Share::reap`]).
//!
//! While a process is short of memory, every process calculates the targets ([`crate::targets`])
//! from the same entries at short intervals, and keeps to its own target: [`Share::aim`].
//!
//! Locking: none. The words are atomics in shared memory, `owner` is taken and released by
//! compare-and-swap, and only the owner changes the rest of its entry, except `shared`, `taken`,
//! `lent`, `request` and `requests`.

use crate::arbitration::Claim;
use crate::entry::{Entries, Entry};
use crate::family::Left;
use crate::shared_pages::pages_in;
use crate::stats_file::{Image, is_ended, map_shared};
use crate::swap_list::{SwapFailure, SwapInUse, SwapItem, SwapList, SwapOpenings, Wanted};
use crate::swap_room::{SwapRoom, SwapWords};
use crate::tuning::{Tuning, TuningWords};
use highwater_devices::Area;
use rustix::fs::{Mode, OFlags};
use rustix::thread::futex;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The file's name in the directory of a run.
pub const BUDGET_FILE: &str = "budget";

/// The most processes at a time.
pub(crate) const ENTRIES: usize = 4096;

/// Identifies the layout of the file.
const LAYOUT: u64 = 0x4857_6275_6467_0009;

/// The pages that a process may always have, whatever the others have: with less, watermarks and
/// batches leave a manager that pages no room.
pub const FLOOR: u64 = 1024;

/// The pages that a process begins with, and always keeps. Most processes of a shell script or a
/// make need no more.
pub(crate) const START: u64 = FLOOR / 4;

/// One page in this many of a limit on all memory is kept free, for memory that is used before it
/// is measured.
pub const MARGIN: u64 = 32;

/// The shared words.
#[repr(C, align(64))]
pub(crate) struct Head {
    pub(crate) layout: AtomicU64,
    /// Pages that all processes may use together.
    pub(crate) limit: AtomicU64,
    /// The highest limit that can be set.
    pub(crate) limit_max: AtomicU64,
    /// A [`Scope`], as a number.
    pub(crate) scope: AtomicU64,
    /// Pages of processes that have no entry.
    pub(crate) unpaged: AtomicU64,
    /// How often the pages of these processes were measured.
    pub(crate) measures: AtomicU64,
    /// Until when a process is short: milliseconds of the monotonic clock.
    pub(crate) short_until: AtomicU64,
    /// Whose turn it is: a [`crate::turns::Turn`].
    pub(crate) turn: AtomicU64,
    /// Settings of each process's manager.
    pub(crate) tuning: TuningWords,
    /// Requests to compact memory so far.
    pub(crate) compactions: AtomicU32,
    /// Entries from this one on were never taken.
    pub(crate) used: AtomicU32,
    /// Changes whenever processes should look at their targets; they sleep on it.
    pub(crate) changes: AtomicU32,
}

/// How a process spent its time lately, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// It stalled for lack of memory.
    pub stalled: u64,
    /// It ran.
    pub runs: u64,
}

impl Activity {
    pub(crate) fn to_bits(self) -> u64 {
        self.stalled << 32 | self.runs
    }

    fn from_bits(bits: u64) -> Activity {
        Activity { stalled: bits >> 32, runs: bits & u64::from(u32::MAX) }
    }
}

/// A request to compact that a process has carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Compaction {
    pub(crate) request: u32,
    /// Blocks of 2 MiB that it made.
    pub(crate) blocks: u32,
}

impl Compaction {
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.request) << 32 | u64::from(self.blocks)
    }

    fn from_bits(bits: u64) -> Compaction {
        Compaction { request: (bits >> 32) as u32, blocks: bits as u32 }
    }
}

/// How far processes have carried out a request to compact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Processes that have carried it out.
    pub done: usize,
    /// Blocks of 2 MiB that these processes made.
    pub blocks: u32,
    /// Living processes that have not carried it out.
    pub behind: usize,
}

#[repr(C)]
pub(crate) struct Words {
    pub(crate) head: Head,
    pub(crate) entries: [Entry; ENTRIES],
    pub(crate) swap: SwapWords<ENTRIES>,
    pub(crate) swap_list: SwapList,
}

/// One process of a run, as the budget has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The process.
    pub image: Image,
    /// Its state.
    pub claim: Claim,
    /// Pages that it uses in addition, which cannot be paged.
    pub unpaged: u64,
}

/// The memory that the limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All memory of the processes, as for a container's limit.
    Everything,
    /// Paged memory alone; the rest comes on top.
    Paged,
}

/// The result of a look at another process's entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// The process lives.
    Lives,
    /// The entry is free, or another process clears it.
    Free,
}

/// The budget of a run, mapped.
pub struct Budget {
    words: NonNull<Words>,
    run_dir: PathBuf,
    /// Milliseconds, of a clock that all processes share.
    clock: fn() -> u64,
}

// SAFETY: a mapping belongs to the process, not to a thread, and its words are atomics.
unsafe impl Send for Budget {}
// SAFETY: as for Send.
unsafe impl Sync for Budget {}

impl Budget {
    /// Creates the budget of a run: `limit` pages of the memory that `scope` names, and at most
    /// `limit_max` later (mode 0600; `highwater run` may open it to other users).
    ///
    /// # Errors
    /// The directory cannot be written to, or has a budget already.
    pub fn create(run_dir: &Path, scope: Scope, limit: u64, limit_max: u64) -> io::Result<Budget> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let path = run_dir.join(BUDGET_FILE);
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        // Allocated now, so that a full file system is an error here and not a later SIGBUS.
        let whole = size_of::<Words>() as u64;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, whole)?;
        let budget = Budget::map(&file, run_dir)?;
        budget.head().limit.store(limit, Relaxed);
        budget.head().limit_max.store(limit_max, Relaxed);
        budget.head().scope.store(scope as u64, Relaxed);
        budget.head().layout.store(LAYOUT, Release);
        Ok(budget)
    }

    /// Opens the budget of a run.
    ///
    /// # Errors
    /// The run has none ([`io::ErrorKind::NotFound`]), or one of another build, or this user may
    /// not open it.
    pub fn open(run_dir: &Path) -> io::Result<Budget> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(run_dir.join(BUDGET_FILE), flags, Mode::empty())?;
        let is_whole = rustix::fs::fstat(&file)?.st_size == size_of::<Words>() as i64;
        let other = || io::Error::new(io::ErrorKind::InvalidData, "it is of another build");
        let budget = if is_whole { Budget::map(&file, run_dir)? } else { return Err(other()) };
        match budget.head().layout.load(Acquire) {
            LAYOUT => Ok(budget),
            _ => Err(other()),
        }
    }

    fn map(file: &rustix::fd::OwnedFd, run_dir: &Path) -> io::Result<Budget> {
        let words = map_shared(file, size_of::<Words>())?.cast();
        Ok(Budget { words, run_dir: run_dir.to_owned(), clock: milliseconds })
    }

    /// With another clock, of milliseconds, than the system's monotonic one.
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> u64) -> Budget {
        self.clock = clock;
        self
    }

    pub(crate) fn now(&self) -> u64 {
        (self.clock)()
    }

    pub(crate) fn words(&self) -> &Words {
        // SAFETY: the mapping has this size and lives as long as `self`; any bits are valid words.
        unsafe { self.words.as_ref() }
    }

    pub(crate) fn head(&self) -> &Head {
        &self.words().head
    }

    /// The entries of processes.
    pub(crate) fn entries(&self) -> Entries<'_> {
        let count = self.head().used.load(Acquire) as usize;
        Entries { all: &self.words().entries, used: count.min(ENTRIES) }
    }

    /// The pages that all processes may use together.
    pub fn limit(&self) -> u64 {
        pages_in(&self.head().limit)
    }

    /// The highest limit that can be set: processes have made room for this many pages.
    pub fn limit_max(&self) -> u64 {
        pages_in(&self.head().limit_max)
    }

    /// The memory that the limit is for.
    pub fn scope(&self) -> Scope {
        match self.head().scope.load(Relaxed) == Scope::Paged as u64 {
            true => Scope::Paged,
            false => Scope::Everything,
        }
    }

    /// Sets the limit, up to [`Budget::limit_max`]. Processes that have more give the rest back,
    /// but keep the pages that they use, up to [`FLOOR`].
    pub fn set_limit(&self, pages: u64) {
        self.head().limit.store(pages.min(self.limit_max()), Relaxed);
        self.notify();
    }

    /// The settings that each process's manager is to have.
    pub fn tuning(&self) -> Tuning {
        self.head().tuning.get()
    }

    /// Changes the chosen settings of all processes, and of those that will join.
    pub fn tune(&self, tuning: Tuning) {
        self.head().tuning.set(tuning);
        self.notify();
    }

    /// Asks all processes to compact their memory; returns the number of the request.
    pub fn compact(&self) -> u32 {
        let request = self.head().compactions.fetch_add(1, AcqRel).wrapping_add(1);
        self.notify();
        request
    }

    /// How far a request to compact has been carried out.
    pub fn compacted(&self, request: u32) -> Compacted {
        let mut all = Compacted::default();
        for index in 0..self.entries().used {
            let entry = &self.words().entries[index];
            let own = entry.compaction();
            match entry.is_taken() {
                true if own.request >= request => {
                    all.done += 1;
                    all.blocks = all.blocks.saturating_add(own.blocks);
                }
                true if self.reap(index) == Reaped::Lives => all.behind += 1,
                true | false => {}
            }
        }
        all
    }

    /// The processes of the run.
    pub fn members(&self) -> Vec<Member> {
        let now = self.now();
        let of = |entry: &Entry| Member {
            image: Image::from_bits(entry.owner.load(Acquire)),
            claim: entry.claim(now),
            unpaged: pages_in(&entry.unpaged),
        };
        self.entries().taken().map(of).collect()
    }

    /// Adds a swap device, with its room, for all processes. Returns the number of the change;
    /// `None`: there are as many devices as can be, or its path is too long.
    pub fn add_swap(&self, area: &Area) -> Option<u64> {
        let words = self.words();
        let added = words.swap_list.add(area, |first| {
            for (level, spec) in (first..).zip(area.spec.levels()) {
                words.swap.limit(level, spec.size().pages());
            }
        });
        self.notify();
        added
    }

    /// Lets all processes use a removed device again, or move their pages off a device. Returns the
    /// number of the change.
    pub fn want_swap(&self, place: usize, wanted: Wanted) -> u64 {
        let change = self.words().swap_list.want(place, wanted);
        self.notify();
        change
    }

    /// Ends the removal of a device: all processes use it again.
    pub fn fail_swap(&self, place: usize, failure: SwapFailure) {
        self.words().swap_list.fail(place, failure);
        self.notify();
    }

    /// Why the last removal of a device has failed, if it has.
    pub fn swap_failure(&self, place: usize) -> Option<SwapFailure> {
        self.words().swap_list.failure(place)
    }

    /// How many processes could open a device since it was added, and why others could not.
    pub fn swap_openings(&self, place: usize) -> SwapOpenings {
        self.words().swap_list.openings(place)
    }

    /// The swap devices by place; `None`: the place is free.
    pub fn swap_items(&self) -> Vec<Option<SwapItem>> {
        self.words().swap_list.items()
    }

    /// The swap devices that are used, with their room.
    pub fn swap_in_use(&self) -> Vec<SwapInUse> {
        let rooms = self.swap_rooms();
        let items = self.swap_items().into_iter().enumerate();
        let used = items.filter_map(|(place, item)| {
            let SwapItem { area, level, .. } = item.filter(|it| it.wanted == Wanted::Used)?;
            let levels = rooms.iter().skip(level).take(area.spec.levels().len());
            Some(SwapInUse { place, rooms: levels.copied().collect(), area })
        });
        used.collect()
    }

    /// The pages of a device that processes have claimed.
    pub fn swap_claimed(&self, place: usize) -> u64 {
        let items = self.swap_items();
        let Some(SwapItem { area, level, .. }) = items.into_iter().nth(place).flatten() else {
            return 0;
        };
        let levels = self.swap_rooms().into_iter().skip(level).take(area.spec.levels().len());
        levels.map(|room| room.claimed).sum()
    }

    /// The pages that no process has been granted.
    pub fn pages_left(&self) -> u64 {
        self.room().saturating_sub(self.granted())
    }

    /// The living processes that have not carried out a change of the swap devices.
    pub fn swap_behind(&self, change: u64) -> usize {
        let is_behind = |index: &usize| {
            let entry = &self.words().entries[*index];
            entry.is_taken() && entry.followed.load(SeqCst) < change
        };
        let behind = (0..self.entries().used).filter(is_behind);
        behind.filter(|index| self.reap(*index) == Reaped::Lives).count()
    }

    /// The room of swap devices, by level.
    pub fn swap_rooms(&self) -> Vec<SwapRoom> {
        self.words().swap.rooms(self.entries().used)
    }

    /// The pages that processes may use now.
    pub fn granted(&self) -> u64 {
        self.entries().granted()
    }

    /// The pages in use that cannot be paged: those of processes with an entry, and of others.
    pub fn unpaged(&self) -> u64 {
        let others = pages_in(&self.head().unpaged);
        others + self.entries().taken().map(|entry| pages_in(&entry.unpaged)).sum::<u64>()
    }

    /// Measures how many pages are in use by processes that have no entry, and publishes it.
    pub fn measure_unpaged(&self, measure: impl FnOnce() -> u64) {
        // First: the measurement may miss pages that part from now on.
        self.head().measures.fetch_add(1, SeqCst);
        self.head().unpaged.store(measure(), Relaxed);
        self.notify_if_over();
    }

    /// The pages that processes may be granted in all: the limit, less the memory that cannot be
    /// paged, and plus the pages that count for several processes.
    pub(crate) fn room(&self) -> u64 {
        let paged = self.limit().saturating_sub(self.besides());
        paged.saturating_add_signed(self.entries().shared())
    }

    /// Pages that processes cannot be granted; may exceed the limit.
    pub(crate) fn besides(&self) -> u64 {
        let is_all = self.scope() == Scope::Everything;
        if is_all { self.unpaged() + self.limit() / MARGIN } else { 0 }
    }

    /// Clears the entries after `index`, around the end, until one of a living process. If every
    /// process does this, all entries are checked, and none of them by many processes.
    pub(crate) fn reap_after(&self, index: usize) {
        let _ = self.entries().others(index).find(|other| self.reap(*other) == Reaped::Lives);
    }

    /// Clears an entry if its process has ended.
    pub(crate) fn reap(&self, index: usize) -> Reaped {
        let entry = &self.words().entries[index];
        let owner = entry.owner.load(Acquire);
        if !is_ended(&self.run_dir, Image::from_bits(owner)) {
            return Reaped::Lives;
        }
        self.release(index, owner);
        Reaped::Free
    }

    /// Releases an entry, and its claims, if it still has this owner.
    pub(crate) fn release(&self, index: usize, owner: u64) {
        if self.entries().release(index, owner, &self.words().swap) == Left::SharedPages {
            self.notify();
        }
    }

    /// Makes processes give pages back if they have more than there are.
    pub(crate) fn notify_if_over(&self) {
        if self.granted() > self.room() {
            self.notify();
        }
    }

    /// Makes all processes look at their targets.
    pub(crate) fn notify(&self) {
        let changes = &self.head().changes;
        changes.fetch_add(1, Release);
        let _ = futex::wake(changes, futex::Flags::empty(), i32::MAX as u32);
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; references borrow from `self`, which ends here.
        // An error would leave the mapping in place, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), size_of::<Words>()) };
    }
}

impl Entry {
    pub(crate) fn compaction(&self) -> Compaction {
        Compaction::from_bits(self.compacted.load(SeqCst))
    }

    pub(crate) fn claim(&self, now: u64) -> Claim {
        let (granted, spare) = (self.granted(), pages_in(&self.spare));
        let Activity { stalled, runs } = Activity::from_bits(self.activity.load(Relaxed));
        Claim {
            granted,
            floor: granted.saturating_sub(spare).clamp(START, FLOOR),
            spare,
            misses: self.misses.load(Relaxed),
            is_short: self.short_until.load(Relaxed) > now,
            stalled,
            runs,
        }
    }
}

/// Milliseconds of the monotonic clock, which all processes share.
fn milliseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}
