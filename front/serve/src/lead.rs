//! Which threads of a server read messages. Leaders read and serve; followers wait until one is
//! needed. A leader that has to wait for a device hands over first.
//!
//! ```text
//!        follower ──become_leader──> leader ──hand_over──> serves one message
//!            ^                          │                         │
//!            └─────────follow───────────┴─────────follow──────────┘
//! ```
//! Locking: one monitor, under which nothing is called. Conservation: leaders, followers and those
//! that serve after they handed over are all threads.

use std::ops::DerefMut;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A mutex around the counts, and a condition variable. Another type in models only.
pub(crate) trait Monitor {
    /// The held mutex.
    type Guard<'a>: DerefMut<Target = Counts>
    where
        Self: 'a;

    /// A free one.
    fn new(counts: Counts) -> Self;

    /// Takes the mutex.
    fn lock(&self) -> Self::Guard<'_>;

    /// Waits for a notification, without the mutex meanwhile.
    fn wait<'a>(&'a self, guard: Self::Guard<'a>) -> Self::Guard<'a>;

    /// Wakes a thread that waits.
    fn notify_one(&self);

    /// Wakes all threads that wait.
    fn notify_all(&self);
}

/// The threads of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    leading: usize,
    /// Followers, those that were not yet started included.
    waiting: usize,
    /// All threads.
    threads: usize,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Serving,
    /// No thread becomes a leader.
    Stopping,
}

/// The next step of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It leads.
    Lead,
    /// It ends.
    End,
}

/// The role of a thread while it serves a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It reads, and serves what it has read.
    Leads,
    /// It serves what it has read; others read.
    HandedOver,
}

/// The result of handing over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// Other threads read.
    Done,
    /// This many threads are to be started, and then read.
    Start(usize),
    /// The server is stopping: this thread is still needed to read the message that stops it.
    Refused,
}

/// Decides which threads read.
pub(crate) struct Lead<M = StdMonitor> {
    counts: M,
    /// How many threads should read at a time.
    wanted: usize,
    /// The most threads.
    most: usize,
}

impl<M: Monitor> Lead<M> {
    /// For a server without threads.
    pub(crate) fn new(wanted: usize, most: usize) -> Lead<M> {
        Lead { counts: M::new(Counts::default()), wanted, most }
    }

    /// The followers that the caller is to start, so that as many threads lead as should.
    pub(crate) fn recruit(&self) -> usize {
        self.recruited(&mut self.counts.lock())
    }

    /// Counts threads before they run, so that no others are started in their place.
    fn recruited(&self, counts: &mut Counts) -> usize {
        let missing = self.wanted.saturating_sub(counts.leading + counts.waiting);
        let recruits = missing.min(self.most - counts.threads);
        counts.waiting += recruits;
        counts.threads += recruits;
        recruits
    }

    /// The system refused recruits.
    pub(crate) fn dismiss(&self, recruits: usize) {
        let mut counts = self.counts.lock();
        counts.waiting -= recruits;
        counts.threads -= recruits;
    }

    /// A follower waits until it is needed.
    pub(crate) fn become_leader(&self) -> Next {
        let mut counts = self.counts.lock();
        while counts.leading >= self.wanted && counts.phase == Phase::Serving {
            counts = self.counts.wait(counts);
        }
        counts.waiting -= 1;
        if counts.phase == Phase::Stopping {
            counts.threads -= 1;
            return Next::End;
        }
        counts.leading += 1;
        Next::Lead
    }

    /// A leader lets others read in its place. If it was the last one, a follower leads next, or
    /// a thread that the caller starts.
    pub(crate) fn hand_over(&self) -> Handover {
        let mut counts = self.counts.lock();
        if counts.phase == Phase::Stopping {
            return Handover::Refused;
        }
        counts.leading -= 1;
        if counts.leading > 0 {
            return Handover::Done;
        }
        if counts.waiting == 0 {
            return Handover::Start(self.recruited(&mut counts));
        }
        self.counts.notify_one();
        Handover::Done
    }

    /// A thread becomes a follower.
    pub(crate) fn follow(&self, turn: Turn) {
        let mut counts = self.counts.lock();
        counts.waiting += 1;
        if turn == Turn::Leads {
            counts.leading -= 1;
            // For `stop`.
            self.counts.notify_all();
        }
    }

    /// Ends all threads. `stop_leader` sends a message after which a leader follows, and returns
    /// when one has read it.
    pub(crate) fn stop(&self, stop_leader: impl Fn()) {
        let mut counts = self.counts.lock();
        counts.phase = Phase::Stopping;
        self.counts.notify_all();
        while counts.leading > 0 {
            let leading = counts.leading;
            drop(counts);
            stop_leader();
            counts = self.counts.lock();
            while counts.leading >= leading {
                counts = self.counts.wait(counts);
            }
        }
    }
}

/// The standard library's.
pub(crate) struct StdMonitor {
    counts: Mutex<Counts>,
    changed: Condvar,
}

impl Monitor for StdMonitor {
    type Guard<'a> = MutexGuard<'a, Counts>;

    fn new(counts: Counts) -> StdMonitor {
        StdMonitor { counts: Mutex::new(counts), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, guard: MutexGuard<'a, Counts>) -> MutexGuard<'a, Counts> {
        self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_one(&self) {
        self.changed.notify_one();
    }

    fn notify_all(&self) {
        self.changed.notify_all();
    }
}
