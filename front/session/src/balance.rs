//! How a process keeps to its share, on any platform.

use crate::budget::Activity;
use crate::share::Share;
use highwater_mm::Manager;
use highwater_mm::stats::Counter;
use highwater_platform::{Lender, Platform};
use highwater_units::{Bytes, Nanos};
use std::sync::Arc;

/// The share as the platform sees it.
pub struct Borrowed(
    /// The share.
    pub Arc<Share>,
);

impl Lender for Borrowed {
    fn borrow(&self, frames: u32) -> u32 {
        self.0.borrow(frames.into()) as u32
    }

    fn give_back(&self, frames: u32) {
        self.0.give_back(frames.into());
    }

    fn room(&self) -> u32 {
        self.0.room().try_into().unwrap_or(u32::MAX)
    }

    fn owed(&self, devices: Bytes, parted: u64) -> u32 {
        self.0.owed(devices.pages(), parted) as u32
    }

    fn pay(&self, frames: u32) {
        self.0.pay(frames.into());
    }
}

/// Pages that faults brought in, and when they were counted.
pub struct Misses {
    count: u64,
    at: Nanos,
    /// Per second, averaged over some intervals.
    rate: u64,
}

impl Misses {
    /// Begins to count.
    pub fn new<P: Platform>(manager: &Manager<P>) -> Misses {
        Misses { count: count(manager), at: manager.platform().now(), rate: 0 }
    }

    /// The present rate, per second.
    pub fn update<P: Platform>(&mut self, manager: &Manager<P>) -> u64 {
        let (count, at) = (count(manager), manager.platform().now());
        let elapsed = (at.since(self.at).0 / 1000).max(1);
        let rate = (count - self.count) * 1_000_000 / elapsed;
        *self = Misses { count, at, rate: self.rate.midpoint(rate) };
        self.rate
    }
}

fn count<P: Platform>(manager: &Manager<P>) -> u64 {
    manager.counted(Counter::PgMajFault) + manager.counted(Counter::PgZero)
}

/// Measures how long a process runs, and how long it stalls for lack of memory.
pub struct Times {
    stalled: Nanos,
    ran: Nanos,
    at: Nanos,
    /// Shares in which it stalled, and ran, in 0.01 %.
    lately: [u64; 2],
}

impl Times {
    /// Begins to measure. `ran`: CPU time of the program so far.
    pub fn new<P: Platform>(manager: &Manager<P>, ran: Nanos) -> Times {
        let (stalled, at) = (manager.stalled(), manager.platform().now());
        Times { stalled, ran, at, lately: [0; 2] }
    }

    /// The recent shares of the time. Threads stall and run at the same time, and a stall may be
    /// CPU time: if stalls or CPU time exceed the time that has passed, these are shares of the
    /// longest of the three.
    pub fn update<P: Platform>(&mut self, manager: &Manager<P>, ran: Nanos) -> Activity {
        let now = Times::new(manager, ran);
        let stalled = now.stalled.since(self.stalled).0;
        let ran = now.ran.since(self.ran).0;
        let whole = now.at.since(self.at).0.max(stalled).max(ran).max(1);
        let average = |before: u64, part: u64| (3 * before + part * 10_000 / whole) / 4;
        let lately = [average(self.lately[0], stalled), average(self.lately[1], ran)];
        *self = Times { lately, ..now };
        Activity { stalled: lately[0] / 100, runs: lately[1] / 100 }
    }
}

/// What a process has beyond its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Nothing.
    None,
    /// It gave back the free pages; kswapd frees more.
    Left,
}

/// Gives back the pages in excess of `pages`, as far as they are free.
pub fn give_excess<P: Platform>(manager: &Manager<P>, share: &Share, pages: u64) -> Excess {
    // Not the pages of the share: a thread that borrows adds to these before it may keep them.
    let excess = manager.frames().saturating_sub(pages);
    if excess == 0 {
        return Excess::None;
    }
    let given = manager.inflate(excess.try_into().unwrap_or(u32::MAX));
    share.give_back(given.into());
    Excess::Left
}
