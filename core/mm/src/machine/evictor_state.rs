//! Which threads evict a node's pages, and the inputs of that decision. `reclaim/evictor.rs`
//! decides.

use highwater_platform::{Atomic, Platform};
use std::sync::atomic::AtomicU64;

/// The state of a node. One thread ends a period: the one whose compare-and-swap of `due` succeeds.
pub struct EvictorState<P: Platform> {
    /// 0: kswapd; 1: threads that allocate.
    pub now: P::Atomic<u8>,
    /// Time of the next decision.
    pub due: P::Atomic<u64>,
    /// Time of the last sample, ...
    pub at: AtomicU64,
    /// ... and the idle time of the node's CPUs then.
    pub idle: AtomicU64,
}

impl<P: Platform> EvictorState<P> {
    pub(super) fn new() -> EvictorState<P> {
        EvictorState {
            now: Atomic::new(0),
            due: Atomic::new(0),
            at: AtomicU64::new(0),
            idle: AtomicU64::new(0),
        }
    }
}
