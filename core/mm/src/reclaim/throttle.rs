//! Holds threads up in direct reclaim, where to go on would help nobody.
//!
//! ```text
//! enter            more pages of a kind are in threads' hands than an eighth of its inactive list
//!                  (too_many_isolated): 20 ms, or until they are fewer
//! wait_for_relief  less than half of min is free on all nodes together: kswapd has its turn
//!                  (throttle_direct_reclaim): 100 ms, or until that much is free, or it gives up
//! ```
//! kswapd is never held up. Who is may hold entries: every wait has an end of its own. Where it
//! departs from the kernel: two batches may always be in hand, for budgets of some hundred frames;
//! the wait for kswapd is a tenth of the kernel's second, since others wait for those entries.

use crate::lru::{Kind, List};
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use highwater_platform::{Atomic, Event, Platform};
use highwater_units::{BATCH_PAGES_MAX, Nanos};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};

/// How long a batch waits for others.
const ROOM_WAIT: Nanos = Nanos(20_000_000);
/// How long a direct reclaim waits for kswapd.
const RELIEF_WAIT: Nanos = Nanos(100_000_000);

/// Whether one more batch of a kind may be isolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crowd {
    /// It may.
    Few,
    /// Too many pages are in threads' hands for that.
    Many,
}

fn crowd(inactive: u32, isolated: u32) -> Crowd {
    match isolated > (inactive >> 3).max(BATCH_PAGES_MAX as u32) {
        true => Crowd::Many,
        false => Crowd::Few,
    }
}

fn crowd_of<P: Platform>(node: &Node<P>, kind: Kind) -> Crowd {
    let isolated = node.isolated[kind as usize].load(SeqCst);
    crowd(node.lru.len(List::inactive(kind)), isolated)
}

/// Waits until a batch may be isolated, once.
pub(super) fn enter<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind) -> Crowd {
    if crowd_of(node, kind) == Crowd::Few {
        return Crowd::Few;
    }
    m.count(Counter::ThrottleIsolated, 1);
    let ticket = node.isolated_wait.ticket();
    // Before the next look: who makes it fewer afterwards sees that somebody waits.
    node.isolated_waiters.fetch_add(1, SeqCst);
    if crowd_of(node, kind) == Crowd::Many {
        node.isolated_wait.wait(ticket, Some(ROOM_WAIT));
    }
    node.isolated_waiters.fetch_sub(1, SeqCst);
    crowd_of(node, kind)
}

/// Pages that a thread has isolated, until it is dropped.
#[must_use]
pub(super) struct Isolated<'a, P: Platform> {
    node: &'a Node<P>,
    kind: Kind,
    pages: u32,
}

impl<P: Platform> Isolated<'_, P> {
    /// The thread has so many more.
    pub(super) fn note(node: &Node<P>, kind: Kind, pages: u32) -> Isolated<'_, P> {
        node.isolated[kind as usize].fetch_add(pages, AcqRel);
        Isolated { node, kind, pages }
    }
}

impl<P: Platform> Drop for Isolated<'_, P> {
    fn drop(&mut self) {
        let Isolated { node, kind, pages } = *self;
        node.isolated[kind as usize].fetch_sub(pages, SeqCst);
        // Not only who makes it few: it also becomes so as the list grows, and nobody tells.
        if node.isolated_waiters.load(SeqCst) > 0 && crowd_of(node, kind) == Crowd::Few {
            node.isolated_wait.notify_all();
        }
    }
}

/// Whether direct reclaim may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// It may.
    Fine,
    /// Memory is so short that kswapd should have its turn.
    Deep,
}

/// Decides, from all nodes together: free frames, the min marks, and whether kswapd can help.
fn depth(free: u32, min: u32, help: bool) -> Depth {
    match free <= min / 2 && help {
        true => Depth::Deep,
        false => Depth::Fine,
    }
}

fn depth_of<P: Platform>(m: &Machine<P>) -> Depth {
    let free = m.nodes.iter().map(|node| node.zone.free_frames()).sum();
    let min = m.nodes.iter().map(|node| node.zone.marks().min).sum();
    depth(free, min, m.nodes.iter().any(|node| node.kswapd_failing.load(Acquire) == 0))
}

/// What a thread in need did before its direct reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttled {
    /// It begins at once.
    No,
    /// It waited: there may be frames by now.
    Yes,
}

/// Waits until kswapd has brought free frames above half of min, as far as it can. Its alarms have
/// been rung.
pub fn wait_for_relief<P: Platform>(m: &Machine<P>) -> Throttled {
    let (start, mut throttled) = (m.platform.now(), Throttled::No);
    loop {
        let ticket = m.throttle_wait.ticket();
        let left = RELIEF_WAIT.since(m.platform.now().since(start));
        if depth_of(m) == Depth::Fine || left == Nanos(0) {
            return throttled;
        }
        if throttled == Throttled::No {
            m.count(Counter::ThrottleDirect, 1);
        }
        throttled = Throttled::Yes;
        m.throttle_wait.wait(ticket, Some(left));
    }
}

/// kswapd has freed something: threads that wait for it go on, if that is enough.
pub(super) fn relieve<P: Platform>(m: &Machine<P>, node: &Node<P>) {
    if node.kswapd_failing.load(Acquire) != 0 {
        node.kswapd_failing.store(0, Release);
    }
    if depth_of(m) == Depth::Fine {
        m.throttle_wait.notify_all();
    }
}

/// kswapd can do nothing for a node: nobody waits for it.
pub(super) fn give_up<P: Platform>(m: &Machine<P>, node: &Node<P>) {
    node.kswapd_failing.store(1, Release);
    m.throttle_wait.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use highwater_os::Os;
    use highwater_units::{Bytes, Pfn};

    /// A task was found asleep for 20 ms, with nothing isolated: the inactive list had grown, so
    /// that to the last thread with pages in hand they had been few already, and it said nothing.
    #[test]
    fn who_waits_is_told_though_it_was_the_list_that_grew() {
        let platform = Os::new(Bytes::of_pages(512), Vec::new()).expect("an arena");
        let m = Machine::new(platform, Config::default());
        let node = &m.nodes[0];
        let isolated = Isolated::note(node, Kind::Anon, 40);
        assert_eq!(crowd_of(node, Kind::Anon), Crowd::Many);
        let ticket = node.isolated_wait.ticket();
        node.isolated_waiters.fetch_add(1, SeqCst);
        let grown: Vec<Pfn> = (0..400).map(Pfn).collect();
        for pages in grown.chunks(16) {
            node.lru.add(&m.frames, m.cpu(), pages, List::InactiveAnon);
        }
        node.lru.drain(&m.frames, |_| ());
        assert_eq!(crowd_of(node, Kind::Anon), Crowd::Few);
        assert_eq!(node.isolated_wait.ticket(), ticket);
        drop(isolated);
        assert_ne!(node.isolated_wait.ticket(), ticket);
    }

    #[test]
    fn an_eighth_of_the_inactive_list_may_be_in_hand_or_a_batch_and_the_next() {
        let table = [(0, 32, Crowd::Few), (0, 33, Crowd::Many), (255, 33, Crowd::Many)];
        let large = [(8000, 1000, Crowd::Few), (8000, 1001, Crowd::Many)];
        for (inactive, isolated, expected) in table.into_iter().chain(large) {
            assert_eq!(crowd(inactive, isolated), expected, "{isolated} of {inactive}");
        }
    }

    #[test]
    fn kswapd_has_its_turn_below_half_of_min_if_it_can_help() {
        let table = [(50, 100, true, Depth::Deep), (51, 100, true, Depth::Fine)];
        let hopeless = [(0, 100, false, Depth::Fine), (0, 1, true, Depth::Deep)];
        for (free, min, help, expected) in table.into_iter().chain(hopeless) {
            assert_eq!(depth(free, min, help), expected, "{free} free, min {min}, {help}");
        }
    }
}
