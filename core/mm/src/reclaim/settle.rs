//! Gives up frames for other memory that the platform takes, in swap devices, so that frames and
//! devices together stay within one limit.
//!
//! Locking: none of its own.

use crate::machine::Machine;
use highwater_platform::Platform;

/// Smaller debts are not settled.
const SETTLE_MIN: u32 = 16;

/// Takes frames out of use for other memory that the platform has taken, down to half the min
/// watermark, before allocations can use them. Returns how many. Reclaim calls it for each batch,
/// so it drains no list and wakes nobody.
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
