//! Changes the memory of a manager while it runs: the balloon of each node, and its watermarks.
//!
//! ```text
//! inflate   free frames above low go into the balloon; kswapd frees more for the next call
//! deflate   frames of the balloon become free
//! borrow    an allocation below low asks the platform, which may share memory with others, for
//!           frames of the balloon, before it reclaims
//! ```
//! A manager that has to give memory back calls [`inflate`] until it has enough. Allocations
//! meanwhile see only the usual memory pressure.

use crate::machine::Machine;
use crate::reclaim::wake_kswapd;
use highwater_platform::Platform;

/// An allocation borrows one frame for this many frames of the manager, ...
const BORROW_SHARE: usize = 4;
/// ... at least this many, ...
const BORROW_MIN: usize = 256;
/// ... and at most this many: 32 MiB.
const BORROW_MAX: usize = 8192;

/// Takes up to `frames` free frames out of use, down to the low watermark of the remaining memory,
/// and wakes kswapd. Returns how many.
pub fn inflate<P: Platform>(m: &Machine<P>, frames: u32) -> u32 {
    let mut left = frames;
    for node in &m.nodes {
        node.zone.drain();
        let aim = m.marks(node, node.zone.present().saturating_sub(left));
        left -= node.zone.inflate(left, aim.low);
        m.update_marks(node);
        wake_kswapd(node);
    }
    frames - left
}

/// Makes up to `frames` frames usable again; returns how many.
pub fn deflate<P: Platform>(m: &Machine<P>, frames: u32) -> u32 {
    let mut left = frames;
    for node in &m.nodes {
        left -= node.zone.deflate(left);
        m.update_marks(node);
    }
    frames - left
}

/// Asks the platform for frames of the balloon; returns whether it granted any.
pub(super) fn borrow<P: Platform>(m: &Machine<P>) -> bool {
    let ballooned: u32 = m.nodes.iter().map(|node| node.zone.ballooned()).sum();
    if ballooned == 0 {
        return false;
    }
    let wanted = (m.present() / BORROW_SHARE).clamp(BORROW_MIN, BORROW_MAX);
    let granted = m.platform.borrow(ballooned.min(wanted as u32));
    let used = deflate(m, granted);
    // Another thread may have borrowed the rest of the balloon.
    m.platform.give_back(granted - used);
    used > 0
}
