//! The state of memory at an allocation that failed after all retries.

use highwater_units::Nanos;
use std::fmt;

/// The state of memory at a failed allocation. Counts are sums over all nodes, in pages, read one
/// after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Rounds of direct reclaim that freed nothing.
    pub rounds: u32,
    /// The time that these took.
    pub waited: Nanos,
    /// All frames.
    pub frames: u32,
    /// Free frames.
    pub free: u32,
    /// Anonymous pages on LRU lists.
    pub anon: u32,
    /// Pages of files on LRU lists.
    pub file: u32,
    /// Isolated pages.
    pub isolated: u32,
    /// Nodes that kswapd has given up on, or that have no kswapd.
    pub kswapd_failing: u32,
    /// All nodes.
    pub nodes: u32,
    /// Swap slots in use.
    pub slots_used: u64,
    /// All swap slots.
    pub slots: u64,
    /// Free slots, without those of devices that have no room.
    pub room: u64,
    /// Writes that failed during these rounds.
    pub write_errors: u64,
    /// Pages written so far, since the manager started.
    pub written: u64,
}

impl Shortage {
    /// Whether writes failed or were refused at that time, and none has succeeded since. `written`:
    /// pages written by now.
    pub(crate) fn persists(&self, written: u64) -> bool {
        let refused = self.slots_used + self.room < self.slots;
        (self.write_errors > 0 || refused) && self.written == written
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { rounds, frames, free, anon, file, isolated, .. } = self;
        let Shortage { kswapd_failing, nodes, slots_used, slots, room, write_errors, .. } = self;
        write!(f, "{rounds} rounds of reclaim in {} ms gained nothing", self.waited.0 / 1_000_000)?;
        // There is no more to say of swap that is all in use.
        if *slots > 0 && slots_used == slots && *write_errors == 0 {
            return Ok(());
        }
        write!(
            f,
            "; of {frames} pages {free} are free, {anon} anonymous and {file} of files listed, \
             {isolated} being looked at; {slots_used} of {slots} swap slots are used, and {room} \
             can be; {write_errors} writes failed; kswapd has given up on {kswapd_failing} of \
             {nodes} nodes"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_told_unless_all_swap_is_in_use() {
        let full = Shortage { rounds: 16, slots_used: 9, slots: 9, ..Shortage::default() };
        assert_eq!(full.to_string(), "16 rounds of reclaim in 0 ms gained nothing");
        let part = Shortage { slots: 10, room: 1, ..full };
        let none = Shortage { slots_used: 0, slots: 0, ..full };
        for other in [part, none, Shortage { write_errors: 2, ..full }] {
            assert!(other.to_string().contains("kswapd has given up on 0 of 0 nodes"), "{other}");
        }
    }
}
