//! Changes the memory of a manager while it runs: the balloon of each node, and its watermarks.
//!
//! ```text
//! inflate   free frames above low go into the balloon; kswapd frees more for the next call
//! deflate   frames of the balloon become free
//! borrow    an allocation below low asks the platform, which may share memory with others, for
//!           frames of the balloon, before it reclaims
//! settle    reclaim puts frames that it freed into the balloon, in return for the memory that swap
//!           devices took for their pages
//! ```
//! A manager that is to give memory back calls [`inflate`] until it has enough: allocations then
//! see no more than the pressure that they know.

use crate::machine::{Machine, Node};
use crate::reclaim::wake_kswapd;
use crate::zone::Watermarks;
use highwater_platform::Platform;

/// An allocation borrows one frame for so many that the manager has, ...
const BORROW_SHARE: usize = 4;
/// ... at least these, ...
const BORROW_MIN: usize = 256;
/// ... and at most these: 32 MiB.
const BORROW_MAX: usize = 8192;

/// Reclaim settles no smaller debts.
const SETTLE_MIN: u32 = 16;

/// Takes up to `frames` free frames out of use, down to the low watermark of the memory that is to
/// be left, and wakes kswapd. Returns how many.
pub fn inflate<P: Platform>(m: &Machine<P>, frames: u32) -> u32 {
    let mut left = frames;
    for node in &m.nodes {
        node.zone.drain();
        let aim = marks(m, node, node.zone.present().saturating_sub(left));
        left -= node.zone.inflate(left, aim.low);
        update_marks(m, node);
        wake_kswapd(node);
    }
    frames - left
}

/// Makes up to `frames` frames usable again; returns how many.
pub fn deflate<P: Platform>(m: &Machine<P>, frames: u32) -> u32 {
    let mut left = frames;
    for node in &m.nodes {
        left -= node.zone.deflate(left);
        update_marks(m, node);
    }
    frames - left
}

/// Asks the platform for frames of the balloon; whether it granted any.
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
        update_marks(m, node);
    }
    m.platform.pay(owed - left);
    owed - left
}

/// The watermarks of a node with `frames` frames.
fn marks<P: Platform>(m: &Machine<P>, node: &Node<P>, frames: u32) -> Watermarks {
    let others = m.present() as u32 - node.zone.present();
    Watermarks::new(frames, others + frames, m.config.min_free, m.config.watermark_scale)
}

/// Sets the watermarks for the present size. If another thread changes that meanwhile, both agree
/// on the last size.
fn update_marks<P: Platform>(m: &Machine<P>, node: &Node<P>) {
    let mut size = node.zone.present();
    loop {
        node.zone.set_marks(marks(m, node, size));
        match node.zone.present() {
            now if now == size => return,
            now => size = now,
        }
    }
}
