//! Gets frames: the fast path, and the ladder below it.
//!
//! ```text
//! frames(n) -- request: per-CPU list or buddy, above low ------> frames
//!           \- ladder:  ring kswapd, try down to min
//!                       direct reclaim, retry
//!                       drain per-CPU lists and batches
//!                       OutOfMemory
//! run(order) -- above low; ring kswapd, above min; compact without waiting
//!            \- rounds, one for large orders: direct reclaim of as many, compact -> 2^order frames
//! block_on(node) -- above low; compact what is there ----------> 512 frames
//! ```
//! Frames come populated, on no list, nobody's. The caller may hold entries, and no other lock.

mod ladder;

use crate::machine::{Machine, Node};
use crate::phase;
use crate::zone::{Level, Mobility};
use highwater_platform::Platform;
use highwater_units::{FrameList, IoFrames, Order, Pfn};
use ladder::Need;

/// No frame can be had: memory is in use and nothing can be swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// Between 1 and `wanted` (at most 16) frames, adjacent where possible. More than one only of those
/// above min, or freed for the first one anyway: nobody reclaims for a guess.
///
/// # Errors
/// [`OutOfMemory`] after the whole ladder failed for one frame.
pub fn frames<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, OutOfMemory> {
    let _phase = m.enter(phase::ALLOC);
    let taken = match request(m, wanted, Level::Low) {
        Some(frames) => frames,
        None => ladder::climb(m, wanted)?,
    };
    populated(m, taken).ok_or(OutOfMemory)
}

/// The same, for who can do without: there is one round of direct reclaim at most.
pub fn at_hand<P: Platform>(m: &Machine<P>, wanted: usize) -> Option<FrameList> {
    let _phase = m.enter(phase::ALLOC);
    let taken = match request(m, wanted, Level::Low) {
        Some(frames) => frames,
        None => ladder::first_rungs(m, wanted)?,
    };
    populated(m, taken)
}

/// Frames above min, if there are any: nobody reclaims for them but kswapd. For who only guesses
/// that they are needed (the kernel's __GFP_NORETRY, without its one round of reclaim).
pub fn spare<P: Platform>(m: &Machine<P>, wanted: usize) -> Option<FrameList> {
    let _phase = m.enter(phase::ALLOC);
    let taken = request(m, wanted, Level::Low).or_else(|| ladder::above_min(m, wanted))?;
    populated(m, taken)
}

fn populated<P: Platform>(m: &Machine<P>, taken: FrameList) -> Option<FrameList> {
    m.taken(taken.len());
    if m.platform.populate(&taken).is_err() {
        m.free(&taken);
        return None;
    }
    Some(taken)
}

/// The first of 2^order adjacent frames, reclaimed and compacted for. There is little patience for
/// what single pages can do as well.
pub fn run<P: Platform>(m: &Machine<P>, order: Order, mobility: Mobility) -> Option<Pfn> {
    run_for(m, order, mobility, Need::Optional)
}

fn run_for<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    need: Need,
) -> Option<Pfn> {
    let _phase = m.enter(phase::ALLOC);
    let first = ladder::run(m, order, mobility, need)?;
    populated_run(m, first, order, mobility)
}

fn populated_run<P: Platform>(
    m: &Machine<P>,
    first: Pfn,
    order: Order,
    mobility: Mobility,
) -> Option<Pfn> {
    let run = IoFrames::Block(first, order);
    if run.lists().any(|(_, frames)| m.platform.populate(&frames).is_err()) {
        m.free_run(first, order, mobility);
        return None;
    }
    Some(first)
}

/// The same of those above min, if there is one: nobody reclaims for it.
pub fn spare_run<P: Platform>(m: &Machine<P>, order: Order) -> Option<Pfn> {
    let _phase = m.enter(phase::ALLOC);
    let first = ladder::block(m, order, Mobility::Movable, Level::Min)?;
    populated_run(m, first, order, Mobility::Movable)
}

/// The same for a page that cannot do with less: tries again and again, while others free memory
/// and it comes together.
///
/// # Errors
/// [`OutOfMemory`] if no such run was to be had for long enough.
pub fn folio<P: Platform>(m: &Machine<P>, order: Order) -> Result<Pfn, OutOfMemory> {
    ladder::patiently(m, || run_for(m, order, Mobility::Movable, Need::Must))
}

/// The first frame of a large page's block.
pub fn block<P: Platform>(m: &Machine<P>) -> Option<Pfn> {
    run(m, Order::LARGE, Mobility::Movable)
}

/// The same on the node of pages that are to move there, of what it can do without: above low, or
/// compacted.
pub fn block_on<P: Platform>(m: &Machine<P>, node: &Node<P>) -> Option<Pfn> {
    let _phase = m.enter(phase::ALLOC);
    let first = ladder::block_on(m, node, Order::LARGE)?;
    populated_run(m, first, Order::LARGE, Mobility::Movable)
}

/// What the zones have above `level`, nearest node first.
fn request<P: Platform>(m: &Machine<P>, wanted: usize, level: Level) -> Option<FrameList> {
    let cpu = m.cpu();
    let mut taken = m.nodes_from(cpu).map(|(_, node)| node.zone.alloc(cpu, wanted, level));
    taken.find(|frames| !frames.is_empty())
}
