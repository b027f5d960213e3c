//! On whose behalf pages are reclaimed.

use super::write_queue::WriteQueue;
use crate::machine::{Machine, Node};
use crate::stats::Counter;
use highwater_platform::Platform;

/// The thread that reclaims.
pub enum Reclaimer<'a, P: Platform> {
    /// A kswapd thread, with its writes in flight.
    Kswapd(&'a mut WriteQueue<P>),
    /// A thread in direct reclaim: it needs a frame, and waits for what it writes.
    Direct,
}

impl<P: Platform> Reclaimer<'_, P> {
    /// Waits until none of its writes is in flight.
    pub(super) fn complete_all(&mut self, m: &Machine<P>, node: &Node<P>) {
        match self {
            Reclaimer::Kswapd(queue) => queue.complete_all(m, node),
            Reclaimer::Direct => {}
        }
    }

    /// The counters of pages scanned and of pages freed.
    pub(super) fn counters(&self) -> (Counter, Counter) {
        match self {
            Reclaimer::Kswapd(_) => (Counter::PgScanKswapd, Counter::PgStealKswapd),
            Reclaimer::Direct => (Counter::PgScanDirect, Counter::PgStealDirect),
        }
    }
}
