//! kswapd: threads that keep a node's free frames above its watermarks.
//!
//! All threads of a node wait for one alarm and run the same loop over the same lists, as in the
//! multiple-kswapd patch. An allocation that finds the zone below low rings; kswapd works until the
//! zone is at high. A node where it can free nothing is hopeless until the next alarm.

use super::balance::{Reclaimer, shrink};
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use crate::zone::Level;
use highwater_platform::{Atomic, Event, Phase, Platform, Ticket};
use highwater_units::BATCH_PAGES_MAX;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Fruitless rounds after which kswapd leaves it to direct reclaim (MAX_RECLAIM_RETRIES).
const FAILURES_MAX: u32 = 16;

/// Tells a kswapd thread to return.
pub(super) struct StopFlag<P: Platform>(P::Atomic<u8>);

impl<P: Platform> StopFlag<P> {
    /// It goes on.
    pub(super) fn new() -> StopFlag<P> {
        StopFlag(Atomic::new(0))
    }

    /// It returns, once its node's alarm is rung.
    pub(super) fn raise(&self) {
        self.0.store(1, Release);
    }

    fn is_raised(&self) -> bool {
        self.0.load(Acquire) != 0
    }
}

/// The body of a kswapd thread of node `index`; returns after `stop` was raised and the alarm rung.
pub(super) fn run<P: Platform>(m: &Machine<P>, index: usize, stop: &StopFlag<P>) {
    let _phase = m.enter(Phase::Reclaim);
    let node = &m.nodes[index];
    loop {
        let ticket = node.alarm.ticket();
        if stop.is_raised() {
            return;
        }
        if node.zone.allows(Level::Low, 1) {
            node.alarm.wait(ticket, None);
            continue;
        }
        let before = m.platform.thread_cpu_time();
        let outcome = balance(m, node, stop);
        m.count(Counter::PageOutRun, 1);
        m.count(Counter::KswapdNanos, m.platform.thread_cpu_time().since(before).0);
        match outcome {
            Balance::Done => {}
            Balance::GaveUp(ticket) => node.alarm.wait(ticket, None),
        }
    }
}

/// What came of balancing a node.
enum Balance {
    /// The zone is at its high mark, or the thread is to stop.
    Done,
    /// Nothing could be freed. The ticket is from before the last attempt, and before the last look
    /// at the stop flag: who has rung since then is heard.
    GaveUp(Ticket),
}

/// Frees until the zone is at its high mark.
fn balance<P: Platform>(m: &Machine<P>, node: &Node<P>, stop: &StopFlag<P>) -> Balance {
    let mut failures = 0;
    loop {
        let ticket = node.alarm.ticket();
        if node.zone.allows(Level::High, 0) || stop.is_raised() {
            return Balance::Done;
        }
        let missing = node.zone.marks().high.saturating_sub(node.zone.free_frames());
        let target = missing.clamp(1, BATCH_PAGES_MAX as u32);
        match shrink(m, node, Reclaimer::Kswapd, target) {
            0 if failures == FAILURES_MAX => return Balance::GaveUp(ticket),
            0 => {
                m.platform.relax(failures);
                failures += 1;
            }
            _ => failures = 0,
        }
    }
}
