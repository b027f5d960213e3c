//! Makes threads in direct reclaim wait where further reclaim would not help.
//!
//! ```text
//! may_isolate              more pages of a kind are isolated than an eighth of its inactive list
//!                          (too_many_isolated): waits 20 ms, or until fewer are
//! throttle_direct_reclaim  all nodes together have less than half of min free: waits 100 ms, or
//!                          until kswapd has freed that much or has given up
//! ```
//! kswapd never waits here. A thread that waits here may hold entries, so every wait is bounded.
//! Two departures from the kernel: two batches may always be isolated, for budgets of some hundred
//! frames; and the wait for kswapd lasts a tenth of the kernel's, which is a second, because other
//! threads may wait for those entries.

use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use highwater_platform::{Atomic, Event, Platform};
use highwater_units::{BATCH_PAGES_MAX, Nanos};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};

/// Longest wait for fewer isolated pages.
const ISOLATED_WAIT_MAX: Nanos = Nanos(20_000_000);
/// Longest wait of a direct reclaim for kswapd.
const THROTTLE_WAIT_MAX: Nanos = Nanos(100_000_000);

/// Whether one more batch of a kind may be isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isolation {
    /// It may.
    Allowed,
    /// Too many pages are isolated already.
    TooMany,
}

fn isolation(inactive: u32, isolated: u32) -> Isolation {
    if isolated > (inactive >> 3).max(BATCH_PAGES_MAX as u32) {
        Isolation::TooMany
    } else {
        Isolation::Allowed
    }
}

fn isolation_of<P: Platform>(node: &Node<P>, kind: Kind) -> Isolation {
    let isolated = node.isolated[kind as usize].load(SeqCst);
    isolation(node.lru.len(List::inactive(kind)), isolated)
}

/// Waits once, if too many pages are isolated; returns whether a batch may be isolated then.
pub(super) fn may_isolate<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind) -> Isolation {
    if isolation_of(node, kind) == Isolation::Allowed {
        return Isolation::Allowed;
    }
    m.count(Counter::ThrottleIsolated, 1);
    let ticket = node.isolated_wait.ticket();
    // Before the next check: a thread that returns pages after it sees the waiter.
    node.isolated_waiters.fetch_add(1, SeqCst);
    if isolation_of(node, kind) == Isolation::TooMany {
        node.isolated_wait.wait(ticket, Some(ISOLATED_WAIT_MAX));
    }
    node.isolated_waiters.fetch_sub(1, SeqCst);
    isolation_of(node, kind)
}

/// Counts pages as isolated until it is dropped.
#[must_use]
pub(super) struct IsolatedPages<'a, P: Platform> {
    node: &'a Node<P>,
    kind: Kind,
    pages: u32,
}

impl<P: Platform> IsolatedPages<'_, P> {
    /// Counts `pages` more.
    pub(super) fn add(node: &Node<P>, kind: Kind, pages: u32) -> IsolatedPages<'_, P> {
        node.isolated[kind as usize].fetch_add(pages, AcqRel);
        IsolatedPages { node, kind, pages }
    }
}

impl<P: Platform> Drop for IsolatedPages<'_, P> {
    fn drop(&mut self) {
        let IsolatedPages { node, kind, pages } = *self;
        node.isolated[kind as usize].fetch_sub(pages, SeqCst);
        // Checked not only when these pages made the number too large: the list may have grown,
        // which wakes no thread.
        if node.isolated_waiters.load(SeqCst) > 0 && isolation_of(node, kind) == Isolation::Allowed
        {
            node.isolated_wait.notify_all();
        }
    }
}

/// Whether a direct reclaim may begin (allow_direct_reclaim).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// It may.
    Go,
    /// Memory is so short that kswapd goes first.
    Wait,
}

/// Whether any node's kswapd can free memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kswapd {
    Working,
    /// All have given up, or none runs.
    Failing,
}

/// Decides, from free frames and min watermarks of all nodes together.
fn admission(free: u32, min: u32, kswapd: Kswapd) -> Admission {
    if free <= min / 2 && kswapd == Kswapd::Working { Admission::Wait } else { Admission::Go }
}

fn admission_of<P: Platform>(m: &Machine<P>) -> Admission {
    let free = m.nodes.iter().map(|node| node.zone.free_frames()).sum();
    let min = m.nodes.iter().map(|node| node.zone.marks().min).sum();
    let working = m.nodes.iter().any(|node| node.kswapd_failing.load(Acquire) == 0);
    admission(free, min, if working { Kswapd::Working } else { Kswapd::Failing })
}

/// How a thread was throttled before its direct reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttled {
    /// It starts at once.
    Unthrottled,
    /// It waited: frames may be free by now.
    Waited,
}

/// Waits until kswapd, which the caller has woken, has brought free frames above half of min, or
/// has given up.
pub fn throttle_direct_reclaim<P: Platform>(m: &Machine<P>) -> Throttled {
    let (start, mut throttled) = (m.platform.now(), Throttled::Unthrottled);
    loop {
        let ticket = m.throttle_wait.ticket();
        let left = THROTTLE_WAIT_MAX.since(m.platform.now().since(start));
        if admission_of(m) == Admission::Go || left == Nanos(0) {
            return throttled;
        }
        if throttled == Throttled::Unthrottled {
            m.count(Counter::ThrottleDirect, 1);
        }
        throttled = Throttled::Waited;
        m.throttle_wait.wait(ticket, Some(left));
    }
}

/// kswapd has freed frames: wakes throttled threads if they are enough.
pub(super) fn kswapd_progressed<P: Platform>(m: &Machine<P>, node: &Node<P>) {
    if node.kswapd_failing.load(Acquire) != 0 {
        node.kswapd_failing.store(0, Release);
    }
    if admission_of(m) == Admission::Go {
        m.throttle_wait.notify_all();
    }
}

/// kswapd has given up on a node: no thread waits for it.
pub(super) fn kswapd_gave_up<P: Platform>(m: &Machine<P>, node: &Node<P>) {
    node.kswapd_failing.store(1, Release);
    m.throttle_wait.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use highwater_platform::testing::TestPlatform;
    use highwater_units::Pfn;

    /// Regression: a task slept for 20 ms although nothing was isolated. The inactive list had
    /// grown, so the last thread with isolated pages found that these had not been too many, and
    /// woke nobody.
    #[test]
    fn waiters_wake_after_the_inactive_list_has_grown() {
        let platform = TestPlatform::new(512, Vec::new());
        let m = Machine::new(platform, Config::default());
        let node = &m.nodes[0];
        let isolated = IsolatedPages::add(node, Kind::Anon, 40);
        assert_eq!(isolation_of(node, Kind::Anon), Isolation::TooMany);
        let ticket = node.isolated_wait.ticket();
        node.isolated_waiters.fetch_add(1, SeqCst);
        let grown: Vec<Pfn> = (0..400).map(Pfn).collect();
        for pages in grown.chunks(16) {
            node.lru.add(&m.frames, m.cpu(), pages, List::InactiveAnon);
        }
        node.lru.drain(&m.frames, |_| ());
        assert_eq!(isolation_of(node, Kind::Anon), Isolation::Allowed);
        assert_eq!(node.isolated_wait.ticket(), ticket);
        drop(isolated);
        assert_ne!(node.isolated_wait.ticket(), ticket);
    }

    #[test]
    fn an_eighth_of_the_inactive_list_may_be_isolated_or_two_batches() {
        let table = [
            (0, 32, Isolation::Allowed),
            (0, 33, Isolation::TooMany),
            (255, 33, Isolation::TooMany),
        ];
        let large = [(8000, 1000, Isolation::Allowed), (8000, 1001, Isolation::TooMany)];
        for (inactive, isolated, expected) in table.into_iter().chain(large) {
            assert_eq!(isolation(inactive, isolated), expected, "{isolated} of {inactive}");
        }
    }

    #[test]
    fn kswapd_goes_first_below_half_of_min_while_it_works() {
        let table = [
            (50, 100, Kswapd::Working, Admission::Wait),
            (51, 100, Kswapd::Working, Admission::Go),
            (0, 100, Kswapd::Failing, Admission::Go),
            (0, 1, Kswapd::Working, Admission::Wait),
        ];
        for (free, min, kswapd, expected) in table {
            assert_eq!(
                admission(free, min, kswapd),
                expected,
                "{free} free, min {min}, {kswapd:?}"
            );
        }
    }
}
