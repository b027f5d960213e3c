//! Allocates frames: the fast path takes free ones above the low watermark, the slow path makes
//! some free.
//!
//! ```text
//! freelist   what a per-CPU list or the buddy allocator has, above a watermark
//! slowpath   wake kswapd, down to min, compaction, direct reclaim: the order of attempts
//! balloon    frames that another manager uses for now
//! retry      how often direct reclaim is repeated, and when memory counts as used up
//!
//!                     below low     below min                            if that fails
//! frames              wakes kswapd  direct reclaim, until retry ends it  OutOfMemory
//!                     or a batch    (while kswapd yields: reclaim/evictor.rs)
//! frames_noretry      wakes kswapd  one round of direct reclaim          None
//! frames_noreclaim    wakes kswapd  nothing                              None
//! run                 wakes both    compaction, direct reclaim           None
//! folio               wakes both    run, until retry ends it             OutOfMemory
//! ```
//! `run` and `folio` allocate 2^order adjacent frames; "both" are kswapd and, above order 0,
//! kcompactd. Allocated frames have memory (they are populated, except by `bare_frames`), are on no
//! list, and belong to no page. The caller may hold entries, and no other lock.

mod balloon;
mod freelist;
mod retry;
mod slowpath;

pub use balloon::{deflate, inflate};
pub use retry::OutOfMemory;

use crate::machine::{Machine, Node};
use crate::phase;
use crate::zone::{Level, Mobility};
use highwater_platform::Platform;
use highwater_units::{FrameList, IoFrames, Order, Pfn};
use slowpath::Need;

/// Allocates between 1 and `wanted` (at most 16) frames, adjacent where possible. It reclaims for
/// one frame only; it returns more if they are free above min, or were freed along with that frame.
///
/// # Errors
/// [`OutOfMemory`] if the slow path finds no frame.
pub fn frames<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, OutOfMemory> {
    populated(m, take(m, wanted)?).ok_or(OutOfMemory)
}

/// [`frames`], but not populated, for pages that have their memory already.
///
/// # Errors
/// As of [`frames`].
pub fn bare_frames<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, OutOfMemory> {
    let taken = take(m, wanted)?;
    m.taken(taken.len());
    Ok(taken)
}

fn take<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, OutOfMemory> {
    let _phase = m.enter(phase::ALLOC);
    match freelist::frames(m, wanted, Level::Low) {
        Some(frames) => Ok(frames),
        None => slowpath::frames(m, wanted),
    }
}

/// Gives up frames that the platform is owed, by direct reclaim. The caller holds no entries.
pub fn pay_debts<P: Platform>(m: &Machine<P>) {
    let _phase = m.enter(phase::ALLOC);
    slowpath::pay_debts(m);
}

/// [`frames`] for callers with a fallback: at most one round of direct reclaim (__GFP_NORETRY).
pub fn frames_noretry<P: Platform>(m: &Machine<P>, wanted: usize) -> Option<FrameList> {
    let _phase = m.enter(phase::ALLOC);
    let taken = match freelist::frames(m, wanted, Level::Low) {
        Some(frames) => frames,
        None => slowpath::frames_noretry(m, wanted)?,
    };
    populated(m, taken)
}

/// [`frames`] for speculative allocations: free frames above min only, without direct reclaim.
pub fn frames_noreclaim<P: Platform>(m: &Machine<P>, wanted: usize) -> Option<FrameList> {
    let _phase = m.enter(phase::ALLOC);
    let taken = freelist::frames(m, wanted, Level::Low)
        .or_else(|| slowpath::wake_kswapd_and_take(m, wanted))?;
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

/// Allocates 2^order adjacent frames, with compaction and a few rounds of direct reclaim; returns
/// the first. For callers that can use single pages instead.
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
    let first = slowpath::block(m, order, mobility, need)?;
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

/// Allocates 2^order adjacent frames for movable pages, if a block is free above min.
pub fn run_noreclaim<P: Platform>(m: &Machine<P>, order: Order) -> Option<Pfn> {
    let _phase = m.enter(phase::ALLOC);
    let first = freelist::block(m, order, Mobility::Movable, Level::Min)?;
    populated_run(m, first, order, Mobility::Movable)
}

/// Allocates the 2^order adjacent frames of a page that cannot use fewer: retries while other
/// threads free or move pages.
///
/// # Errors
/// [`OutOfMemory`] if no block can be made.
pub fn folio<P: Platform>(m: &Machine<P>, order: Order) -> Result<Pfn, OutOfMemory> {
    slowpath::retry_block(m, || run_for(m, order, Mobility::Movable, Need::Required))
}

/// Allocates the block of a large page; returns its first frame.
pub fn block<P: Platform>(m: &Machine<P>) -> Option<Pfn> {
    run(m, Order::LARGE, Mobility::Movable)
}

/// Allocates the block of a large page on the node of the pages that move there: free above low, or
/// compacted, without reclaim.
pub fn block_on<P: Platform>(m: &Machine<P>, node: &Node<P>) -> Option<Pfn> {
    let _phase = m.enter(phase::ALLOC);
    let first = slowpath::block_on(m, node, Order::LARGE)?;
    populated_run(m, first, Order::LARGE, Mobility::Movable)
}
