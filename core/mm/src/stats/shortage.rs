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
    /// Nodes that kswapd has given up on, or that have no kswapd.
    pub kswapd_failing: u32,
    /// All nodes.
    pub nodes: u32,
    /// Swap slots in use.
    pub slots_used: u64,
    /// All swap slots.
    pub slots: u64,
    /// Slots left that pages may go to: not those of devices without room for them.
    pub room: u64,
    /// Writes that failed meanwhile.
    pub write_errors: u64,
    /// Pages that had been written by then.
    pub written: u64,
}

impl Shortage {
    /// Whether writes failed then, or were refused, and none has succeeded since: `written` pages
    /// have been by now.
    pub(crate) fn persists(&self, written: u64) -> bool {
        let refused = self.slots_used + self.room < self.slots;
        (self.write_errors > 0 || refused) && self.written == written
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { rounds, frames, free, anon, file, isolated, .. } = self;
        let Shortage { kswapd_failing, nodes, slots_used, slots, room, write_errors, .. } = self;
        write!(
            f,
            "{rounds} rounds of reclaim in {} ms gained nothing; of {frames} pages {free} are \
             free, {anon} anonymous and {file} of files listed, {isolated} being looked at; \
             {slots_used} of {slots} swap slots are used, and {room} can be; {write_errors} writes \
             failed; kswapd has given up on {kswapd_failing} of {nodes} nodes",
            self.waited.0 / 1_000_000
        )
    }
}
