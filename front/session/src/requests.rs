//! Requests for pages of another process: that process brings them into memory and keeps them
//! there, because the kernel cannot do so when process_vm_readv(2) and its relative meet a
//! swapped-out page.
//!
//! ```text
//! Entry::request   0 --- Share::request: pages, access, who asks ---> requested
//!                  0 <-- Share::refuse ------------------------------/   |
//!                  0 <-- Held::end --- how many are held <-- Share::hold -/
//! Entry::requests  counts these steps: processes sleep on it
//! ```
//! A process does not wait long for one that does not answer, and keeps no pages for one that has
//! ended.
//!
//! Locking: none. Each step is a compare-and-swap of the word.

use crate::budget::{Budget, ENTRIES, Reaped};
use crate::entry::Entry;
use crate::settings::RUN_DIR;
use crate::share::{Share, sleep};
use crate::stats_file::Image;
use highwater_mm::Access;
use rustix::thread::futex;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

/// The most pages of a request.
pub const REQUEST_MAX: u64 = 64;

/// How long a process may take for a step: it may have to wait for memory, and for a slow device.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long pages are held for another process. It accesses them in microseconds, but it may be
/// stopped; then it has to ask again.
const HOLD_MAX: Duration = Duration::from_secs(1);
/// Interval between checks whether it still lives.
const LOOK: Duration = Duration::from_millis(100);

/// Pages that another process wants to access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number of the first page of the address space: its address, divided by the page size.
    /// Less than 2^36.
    pub first: u64,
    /// Number of pages, up to [`REQUEST_MAX`].
    pub count: u64,
    /// How they are to be accessed.
    pub access: Access,
}

/// Why a process holds no pages for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It is not of this run, or has ended.
    Absent,
    /// It does not have the first page.
    Refused,
    /// It does not answer.
    Silent,
}

/// A request, as the process that is asked finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The pages.
    pub request: Request,
    /// The place of the entry of the process that asks, or [`OUTSIDER`].
    by: usize,
    /// Tells requests for the same pages apart.
    number: u64,
}

/// In a request's word: its pages are held, as many as the word says then.
const HELD: u64 = 1;
const WRITE: u64 = 1 << 1;
const COUNT_SHIFT: u32 = 2;
const COUNT_BITS: u32 = 7;
const COUNT: u64 = ((1 << COUNT_BITS) - 1) << COUNT_SHIFT;
const BY_SHIFT: u32 = COUNT_SHIFT + COUNT_BITS;
const BY_BITS: u32 = 13;
const FIRST_SHIFT: u32 = BY_SHIFT + BY_BITS;
const FIRST_BITS: u32 = 36;
const NUMBER_SHIFT: u32 = FIRST_SHIFT + FIRST_BITS;
const NUMBER_BITS: u32 = u64::BITS - NUMBER_SHIFT;
/// A place that no entry has: the process that asks is of another run.
const OUTSIDER: usize = ENTRIES;
const _: () = assert!(OUTSIDER < 1 << BY_BITS && REQUEST_MAX < 1 << COUNT_BITS);

impl Posted {
    /// All in a word, which is not 0; `None`: no process has such pages.
    fn to_bits(self) -> Option<u64> {
        let Posted { request: Request { first, count, access }, by, number } = self;
        let is_valid = (1..=REQUEST_MAX).contains(&count) && first < 1 << FIRST_BITS;
        let access = if access == Access::Write { WRITE } else { 0 };
        let places = first << FIRST_SHIFT | (by as u64) << BY_SHIFT;
        let word = number << NUMBER_SHIFT | places | count << COUNT_SHIFT | access;
        (is_valid && by <= OUTSIDER).then_some(word)
    }

    /// Another process may have written any word.
    fn from_bits(bits: u64) -> Option<Posted> {
        let part = |shift: u32, bits_of: u32| bits >> shift & ((1 << bits_of) - 1);
        let (first, count) = (part(FIRST_SHIFT, FIRST_BITS), part(COUNT_SHIFT, COUNT_BITS));
        let access = if bits & WRITE == 0 { Access::Read } else { Access::Write };
        let by = part(BY_SHIFT, BY_BITS) as usize;
        let number = part(NUMBER_SHIFT, NUMBER_BITS);
        let posted = Posted { request: Request { first, count, access }, by, number };
        (posted.to_bits() == Some(bits)).then_some(posted)
    }
}

/// The first pages of a request, which stay in the other process's memory until [`Held::end`].
#[must_use = "they are held until `end`"]
pub struct Held<'a> {
    entry: &'a Entry,
    word: u64,
}

impl<'a> Held<'a> {
    /// The pages of a request, if its process holds them now.
    fn of(entry: &'a Entry, word: u64) -> Option<Held<'a>> {
        let now = entry.request.load(Acquire);
        let is_held = (now ^ word) & !COUNT == HELD;
        is_held.then_some(Held { entry, word: now })
    }

    /// Number of pages.
    pub fn count(&self) -> u64 {
        (self.word & COUNT) >> COUNT_SHIFT
    }

    /// Releases the pages. `false`: the other process had released them already, because the access
    /// took too long.
    pub fn end(self) -> bool {
        self.entry.step(self.word, 0).is_some()
    }
}

impl Entry {
    /// Takes a step, if the word is as expected, and wakes those that wait for one; returns how
    /// many these are.
    fn step(&self, from: u64, to: u64) -> Option<usize> {
        self.request.compare_exchange(from, to, AcqRel, Acquire).ok()?;
        self.requests.fetch_add(1, AcqRel);
        Some(futex::wake(&self.requests, futex::Flags::empty(), i32::MAX as u32).unwrap_or(0))
    }

    /// Tries until `done`, and while `goes_on`: after each step, and at intervals. Returns whether
    /// it is done.
    fn sleep_until(&self, goes_on: impl Fn() -> bool, done: impl Fn() -> bool) -> bool {
        loop {
            let seen = self.requests.load(Acquire);
            if done() {
                return true;
            }
            sleep(&self.requests, seen, LOOK);
            if self.requests.load(Acquire) == seen && !goes_on() {
                return false;
            }
        }
    }
}

/// The process of a thread.
pub fn leader_of(thread: u32) -> Option<u32> {
    let status = procfs::process::Process::new(thread.cast_signed()).ok()?.status().ok()?;
    Some(status.tgid.cast_unsigned())
}

impl Budget {
    /// The place of the living process of this pid, as it sees itself.
    fn place_of(&self, pid: u32) -> Option<usize> {
        let is_its = |index: &usize| {
            let entry = &self.words().entries[*index];
            entry.is_taken() && Image::from_bits(entry.owner.load(Acquire)).pid == pid
        };
        let mut places = (0..self.entries().used).filter(is_its);
        places.find(|index| self.reap(*index) == Reaped::Lives)
    }
}

impl Budget {
    /// The budget of a process of another run of this user.
    pub fn of_process(pid: u32) -> Option<Budget> {
        let environment = procfs::process::Process::new(pid.cast_signed()).ok()?.environ().ok()?;
        let dir = Path::new(environment.get(OsStr::new(RUN_DIR))?);
        // Another user's process may name any directory.
        let owner = std::fs::metadata(dir).ok()?.uid();
        (owner == rustix::process::geteuid().as_raw()).then(|| Budget::open(dir).ok())?
    }

    /// As [`Share::request`], for a process of another run.
    ///
    /// # Errors
    /// As there.
    pub fn request(&self, pid: u32, request: Request) -> Result<Held<'_>, Denied> {
        self.request_by(OUTSIDER, pid, request)
    }

    fn request_by(&self, by: usize, pid: u32, request: Request) -> Result<Held<'_>, Denied> {
        let until = Instant::now() + PATIENCE;
        let place = self.place_of(pid).ok_or(Denied::Absent)?;
        let entry = &self.words().entries[place];
        let number = u64::from(entry.requests.load(Acquire)) & ((1 << NUMBER_BITS) - 1);
        let word = Posted { request, by, number }.to_bits().ok_or(Denied::Refused)?;
        let lives = || self.reap(place) == Reaped::Lives && Instant::now() < until;
        let is_posted = entry.sleep_until(lives, || match entry.step(0, word) {
            // Its balancer starts a thread that answers.
            Some(0) => {
                self.notify();
                true
            }
            woken => woken.is_some(),
        });
        if !is_posted {
            return Err(Denied::Silent);
        }
        let is_taken = entry.sleep_until(lives, || entry.request.load(Acquire) != word);
        // Without an answer the request is taken back.
        if !is_taken && entry.step(word, 0).is_some() {
            return Err(Denied::Silent);
        }
        Held::of(entry, word).ok_or(Denied::Refused)
    }
}

impl Share {
    /// Waits until process `pid` of this run holds pages in memory: all, or those before the first
    /// that it does not have.
    ///
    /// # Errors
    /// It holds none.
    pub fn request(&self, pid: u32, request: Request) -> Result<Held<'_>, Denied> {
        self.budget().request_by(self.index(), pid, request)
    }

    /// The request of another process for pages of this one, if there is one.
    pub fn requested(&self) -> Option<Posted> {
        Posted::from_bits(self.entry().request.load(Acquire))
    }

    /// As [`Share::requested`], after a wait of at most `most` if there is none. Only the thread
    /// that holds pages calls it.
    pub fn wait_requested(&self, most: Duration) -> Option<Posted> {
        let entry = self.entry();
        let seen = entry.requests.load(Acquire);
        let word = entry.request.load(Acquire);
        if word == 0 {
            sleep(&entry.requests, seen, most);
        } else if Posted::from_bits(word).is_none() {
            // Nothing is held now: no process of the run has written this.
            entry.step(word, 0);
        }
        self.requested()
    }

    /// This process does not have the first page of a request.
    pub fn refuse(&self, posted: Posted) {
        if let Some(word) = posted.to_bits() {
            self.entry().step(word, 0);
        }
    }

    /// This process holds the first `count` pages of a request: waits until the other does not
    /// need them any more, or has ended.
    pub fn hold(&self, posted: Posted, count: u64) {
        let (entry, until) = (self.entry(), Instant::now() + HOLD_MAX);
        let Some(word) = posted.to_bits() else { return };
        let held = word & !COUNT | count << COUNT_SHIFT | HELD;
        if entry.step(word, held).is_none() {
            return;
        }
        // Another process may join in the place of one that has ended.
        let (budget, by) = (self.budget(), posted.by);
        let owner = || budget.words().entries.get(by).map(|asker| asker.owner.load(Acquire));
        let asker = owner();
        let asks = || by == OUTSIDER || owner() == asker && budget.reap(by) == Reaped::Lives;
        let lives = || asks() && Instant::now() < until;
        if !entry.sleep_until(lives, || entry.request.load(Acquire) != held) {
            entry.step(held, 0);
        }
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
