//! Gives up frames for memory that the platform takes besides, in swap devices, so that both stay
//! within a limit on all memory.
//!
//! Locking: none of its own.

use crate::machine::Machine;
use highwater_platform::Platform;

/// No smaller debts are settled.
const SETTLE_MIN: u32 = 16;

/// Takes frames out of use for memory that the platform has taken besides, down to half the min
/// watermark: allocations are not to use them first. Returns how many. Reclaim calls it for each
/// batch, so it drains no list and wakes nobody.
pub fn settle<P: Platform>(m: &Machine<P>) -> u32 {
    let owed = m.platform.owed();
    if owed < SETTLE_MIN {
        return 0;
    }
    let mut left = owed;
    for node in &m.nodes {
        left -= node.zone.inflate(left, node.zone.marks().min / 2);
        m.update_marks(node);
    }
    m.platform.pay(owed - left);
    owed - left
}
