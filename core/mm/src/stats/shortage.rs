//! What an allocation saw that failed after everything was tried.

use highwater_units::Nanos;
use std::fmt;

/// How memory stood when there was none to be had. Pages of all nodes, each count for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Rounds of direct reclaim that gained nothing.
    pub rounds: u32,
    /// How long they took.
    pub waited: Nanos,
    /// All frames.
    pub frames: u32,
    /// Frames free.
    pub free: u32,
    /// Anonymous pages on lists.
    pub anon: u32,
    /// Pages of files on lists.
    pub file: u32,
    /// Pages in threads' hands.
    pub isolated: u32,
    /// Nodes that kswapd has given up, or has no thread for.
    pub hopeless: u32,
    /// All nodes.
    pub nodes: u32,
    /// Swap slots in use.
    pub slots_used: u64,
    /// All swap slots.
    pub slots: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { rounds, frames, free, anon, file, isolated, .. } = self;
        let Shortage { hopeless, nodes, slots_used, slots, .. } = self;
        write!(
            f,
            "{rounds} rounds of reclaim in {} ms gained nothing; of {frames} pages {free} are \
             free, {anon} anonymous and {file} of files listed, {isolated} being looked at; \
             {slots_used} of {slots} swap slots are used; kswapd can do nothing on {hopeless} of \
             {nodes} nodes",
            self.waited.0 / 1_000_000
        )
    }
}
