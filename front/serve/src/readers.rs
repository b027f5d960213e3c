//! Whether one thread of the program faults or many, and where those who serve them sit.
//!
//! Decided anew every 64 messages, by how often the faulting thread was another than before.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Messages between decisions.
const WINDOW: u32 = 64;

/// Changes of thread in a window up to which it counts as one thread's.
const CHANGES_MAX: u32 = 2;

/// On larger machines a reader per CPU would wake too many for every fault.
const READERS_MAX: usize = 4;

/// How many threads fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// One, mostly.
    One,
    /// Several, in turn.
    Many,
}

/// Counts of the present window, and the last decision. Relaxed and unlocked: a lost count only
/// makes a decision later.
pub(crate) struct Crowd {
    cpus: usize,
    last: AtomicU32,
    seen: AtomicU32,
    changes: AtomicU32,
    many: AtomicU32,
}

impl Crowd {
    pub(crate) fn new(cpus: usize) -> Crowd {
        let [last, seen, changes, many] = [const { AtomicU32::new(0) }; 4];
        Crowd { cpus, last, seen, changes, many }
    }

    /// As last decided; one at first.
    pub(crate) fn size(&self) -> Size {
        match self.many.load(Relaxed) {
            0 => Size::One,
            _ => Size::Many,
        }
    }

    /// How many threads should read messages.
    pub(crate) fn readers(&self) -> usize {
        match self.size() {
            Size::One if self.cpus <= READERS_MAX => self.cpus,
            Size::One | Size::Many => 1,
        }
    }

    /// Notes a fault of a thread; whether that changed the decision.
    pub(crate) fn note(&self, thread: u32) -> bool {
        if self.last.swap(thread, Relaxed) != thread {
            self.changes.fetch_add(1, Relaxed);
        }
        if self.seen.fetch_add(1, Relaxed) + 1 < WINDOW {
            return false;
        }
        self.seen.store(0, Relaxed);
        let many = u32::from(self.changes.swap(0, Relaxed) > CHANGES_MAX);
        self.many.swap(many, Relaxed) != many
    }
}

/// The CPUs that the threads of a server may use: those of the thread that starts it. A thread that
/// serves may be on one of them only when it starts another.
#[derive(Clone, Copy)]
pub(crate) struct Seats(CpuSet);

impl Seats {
    /// Those of this thread.
    pub(crate) fn of_this_thread() -> Seats {
        Seats(sched_getaffinity(None).unwrap_or_default())
    }

    /// The `index`th of the CPUs, if there is one for it.
    fn home(&self, index: usize) -> Option<usize> {
        let home = (0..CpuSet::MAX_CPU).filter(|cpu| self.0.is_set(*cpu)).nth(index);
        home.filter(|_| index < READERS_MAX)
    }
}

/// Where a thread that serves runs.
pub(crate) struct Seat {
    seats: Seats,
    /// Its CPU, if there is one for it.
    home: Option<usize>,
    /// Where it sits: nowhere yet, or for how many.
    taken: Option<Size>,
}

impl Seat {
    /// The seat of the `index`th thread.
    pub(crate) fn new(seats: Seats, index: usize) -> Seat {
        Seat { seats, home: seats.home(index), taken: None }
    }

    /// Sits down on its CPU for one thread, and anywhere for many. A system call when that changes;
    /// if it is refused the thread serves where it is.
    pub(crate) fn take(&mut self, size: Size) {
        if self.taken == Some(size) {
            return;
        }
        let mut set = self.seats.0;
        if let (Size::One, Some(home)) = (size, self.home) {
            set = CpuSet::new();
            set.set(home);
        }
        let _ = sched_setaffinity(None, &set);
        self.taken = Some(size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(crowd: &Crowd, threads: impl Fn(u32) -> u32) -> (Size, usize) {
        (0..4 * WINDOW).for_each(|fault| {
            crowd.note(threads(fault));
        });
        (crowd.size(), crowd.readers())
    }

    #[test]
    fn one_thread_is_served_on_every_cpu_and_many_by_one() {
        let crowd = Crowd::new(2);
        assert_eq!(crowd.readers(), 2);
        assert_eq!(noted(&crowd, |fault| fault % 3), (Size::Many, 1));
        assert_eq!(noted(&crowd, |_| 7), (Size::One, 2));
        assert_eq!(noted(&crowd, |fault| fault / 40), (Size::One, 2));
        assert_eq!(noted(&Crowd::new(64), |_| 7), (Size::One, 1));
    }

    fn cpus() -> usize {
        Seats::of_this_thread().0.count() as usize
    }

    /// A thread begins where the one is that starts it.
    #[test]
    fn a_thread_that_is_started_from_a_seat_can_leave_it() {
        let all = cpus();
        let ended = std::thread::spawn(move || {
            let seats = Seats::of_this_thread();
            Seat::new(seats, 0).take(Size::One);
            assert_eq!(cpus(), 1);
            let second = std::thread::spawn(move || {
                let mut seat = Seat::new(seats, 1);
                seat.take(Size::Many);
                assert_eq!(cpus(), all);
                seat.take(Size::One);
                assert_eq!(cpus(), 1);
            });
            second.join()
        });
        assert!(matches!(ended.join(), Ok(Ok(()))));
    }
}
