//! The order of attempts when too few frames are free above the low watermark
//! (__alloc_pages_slowpath). No other place decides it.
//!
//! ```text
//! frames       borrow from other managers -> above low
//!              -> wake kswapd -> above min; or, if kswapd yields: direct reclaim of a batch
//!              -> if throttled: wait for kswapd -> above min
//!              -> direct reclaim -> drain caches and per-CPU lists -> retry, or OutOfMemory
//! block        above low -> borrow from other managers -> above low
//!              -> wake kswapd and kcompactd -> above min -> asynchronous compaction
//!              -> direct reclaim -> synchronous compaction; up to order 3 in several rounds
//! block_on     above low -> synchronous compaction of one node
//! ```

use super::retry::{OutOfMemory, RETRIES, Retry, fail};
use super::{balloon, freelist};
use crate::compact::{self, Attempt, Mode, Outcome};
use crate::lru::Kind;
use crate::machine::{Machine, Node, StallKind};
#[cfg(feature = "history")]
use crate::reclaim::scans_all_nodes;
use crate::reclaim::{
    Evictor, Reclaimer, Throttled, evictor, settle, shrink, throttle_direct_reclaim, wake_kswapd,
};
use crate::stats::{Counter, Shortage};
use crate::zone::{Level, Mobility};
use highwater_platform::Platform;
use highwater_units::{BATCH_PAGES_MAX, FrameList, Order, Pfn};

/// The largest order with more than one round of reclaim and compaction (PAGE_ALLOC_COSTLY_ORDER).
const COSTLY: u8 = 3;

/// Up to `wanted` frames: free ones above min, or some of those that this thread reclaims. A round
/// frees a batch, so the function returns several frames: with one frame, a readahead window would
/// start over at one page.
pub(super) fn frames<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, OutOfMemory> {
    let (_, node) = m.nodes_from(m.cpu()).next().expect("a CPU is on a node");
    let early = match evictor(m, node) {
        Evictor::Kswapd => wake_kswapd_and_take(m, wanted),
        Evictor::Allocators => evict_and_take(m, wanted),
    };
    if let Some(frames) = early {
        return Ok(frames);
    }
    let frames = reclaiming(m, || {
        let freed_by_kswapd = match throttle_direct_reclaim(m) {
            Throttled::Unthrottled => None,
            Throttled::Waited => freelist::frames(m, wanted, Level::Min),
        };
        match freed_by_kswapd {
            Some(frames) => Ok(frames),
            None => reclaim_with_retries(m, wanted),
        }
    });
    frames.map_err(|shortage| fail(m, shortage))
}

/// Counts `reclaim` as a direct reclaim and as a stall.
fn reclaiming<P: Platform, R>(m: &Machine<P>, reclaim: impl FnOnce() -> R) -> R {
    m.count(Counter::AllocStall, 1);
    let (cpu, start) = (m.cpu(), m.platform.now());
    let stall = m.stall(StallKind::Reclaim, start);
    let result = reclaim();
    drop(stall);
    m.stats.direct_reclaim(cpu, m.platform.now().since(start));
    result
}

/// Evicts a batch in kswapd's place, and takes up to `wanted` of its frames: the others stay free,
/// above low. If no page can be evicted, wakes kswapd.
fn evict_and_take<P: Platform>(m: &Machine<P>, wanted: usize) -> Option<FrameList> {
    if let Some(frames) = borrow_and_take(m, wanted) {
        return Some(frames);
    }
    match reclaiming(m, || reclaim(m) as usize) {
        0 => wake_kswapd_and_take(m, wanted),
        freed => freelist::frames(m, wanted.min(freed), Level::Nothing),
    }
}

/// [`frames`] with one round of direct reclaim, and no throttling.
pub(super) fn frames_noretry<P: Platform>(m: &Machine<P>, wanted: usize) -> Option<FrameList> {
    if let Some(frames) = wake_kswapd_and_take(m, wanted) {
        return Some(frames);
    }
    m.count(Counter::AllocStall, 1);
    match wanted.min(reclaim(m) as usize) {
        0 => freelist::frames(m, 1, Level::Min),
        freed => freelist::frames(m, freed, Level::Nothing),
    }
}

/// Borrows frames if other managers use none of them; else wakes kswapd, and takes up to `wanted`
/// frames above min.
pub(super) fn wake_kswapd_and_take<P: Platform>(
    m: &Machine<P>,
    wanted: usize,
) -> Option<FrameList> {
    borrow_and_take(m, wanted).or_else(|| {
        m.nodes_from(m.cpu()).for_each(|(_, node)| wake_kswapd(node));
        freelist::frames(m, wanted, Level::Min)
    })
}

/// Up to `wanted` frames above low, if other managers use none of them.
fn borrow_and_take<P: Platform>(m: &Machine<P>, wanted: usize) -> Option<FrameList> {
    if balloon::borrow(m) { freelist::frames(m, wanted, Level::Low) } else { None }
}

/// Rounds of direct reclaim, until a frame is free or the retries end.
fn reclaim_with_retries<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, Shortage> {
    let mut retry = Retry::new(m);
    loop {
        m.swap.retry_failing();
        // A thread may take below min as many frames as it has freed.
        let (most, level) = match reclaim(m) as usize {
            0 => (1, Level::Min),
            freed => (wanted.min(freed), Level::Nothing),
        };
        if let Some(frames) = freelist::frames(m, most, level) {
            return Ok(frames);
        }
        drain(m);
        if let Some(frames) = freelist::frames(m, 1, Level::Nothing) {
            return Ok(frames);
        }
        retry.next_round(m)?;
    }
}

/// Gives up frames for other memory that the platform is about to take, so that the platform takes
/// no more than reclaim frees. Returns when all debts are paid, or a round frees nothing.
pub(super) fn pay_debts<P: Platform>(m: &Machine<P>) {
    let is_paid = |owed: u32| owed < BATCH_PAGES_MAX as u32;
    if is_paid(m.platform.owed()) {
        return;
    }
    reclaiming(m, || {
        settle(m);
        let mut owed = m.platform.owed();
        for _ in 0..RETRIES {
            if is_paid(owed) {
                break;
            }
            // A round that makes no progress neither frees a frame nor lowers the debt.
            let freed = reclaim(m);
            let before = std::mem::replace(&mut owed, m.platform.owed());
            if freed == 0 && owed >= before {
                break;
            }
        }
    });
}

/// A round of direct reclaim: nearest node first, until one frees something. Returns frames.
fn reclaim<P: Platform>(m: &Machine<P>) -> u32 {
    let target = BATCH_PAGES_MAX as u32;
    let shrink = |node| shrink(m, node, &mut Reclaimer::Direct, target);
    let mut freed = m.nodes_from(m.cpu()).map(|(_, node)| shrink(node));
    #[cfg(feature = "history")]
    if scans_all_nodes(m) {
        return freed.sum();
    }
    freed.find(|freed| *freed > 0).unwrap_or(0)
}

/// Returns to the zones the frames that object caches, LRU batches and per-CPU lists hold.
fn drain<P: Platform>(m: &Machine<P>) {
    m.shrink_caches();
    for node in &m.nodes {
        node.lru.drain(&m.frames, |orphans| m.free(orphans));
        node.zone.drain();
    }
}

/// Whether the caller can do without a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// It has a fallback.
    Optional,
    /// A fault fails without the block.
    Required,
}

/// A block of 2^order adjacent frames. Blocks up to order 3 get several rounds of direct reclaim
/// and compaction, larger ones a single round.
pub(super) fn block<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    need: Need,
) -> Option<Pfn> {
    let free = || freelist::block(m, order, mobility, Level::Low);
    if let Some(first) = free().or_else(|| balloon::borrow(m).then(free).flatten()) {
        return Some(first);
    }
    for (_, node) in m.nodes_from(m.cpu()) {
        wake_kswapd(node);
        if order.0 > 0 {
            compact::wake_kcompactd(node, order);
        }
    }
    if let Some(first) = freelist::block(m, order, mobility, Level::Min) {
        return Some(first);
    }
    let _stall = m.stall(StallKind::Reclaim, m.platform.now());
    if let Some(first) = compact_for_block(m, order, mobility, Mode::Async) {
        return Some(first);
    }
    let rounds = if order.0 <= COSTLY { RETRIES } else { 1 };
    (0..rounds).find_map(|round| {
        if round > 0 {
            m.platform.relax(round);
        }
        let reclaimed = reclaim_for_block(m, order, mobility, need);
        reclaimed.or_else(|| compact_for_block(m, order, mobility, Mode::Sync))
    })
}

/// Repeats an allocation of a block until it succeeds or the retries end: missing frames may be in
/// flight to a device, or isolated by a thread that moves their pages.
pub(super) fn retry_block<P: Platform>(
    m: &Machine<P>,
    allocate: impl Fn() -> Option<Pfn>,
) -> Result<Pfn, OutOfMemory> {
    let mut retry = Retry::new(m);
    loop {
        if let Some(first) = allocate() {
            return Ok(first);
        }
        drain(m);
        retry.next_round(m).map_err(|shortage| fail(m, shortage))?;
    }
}

/// A block of one node for pages that are in memory already: free above low, or compacted.
pub(super) fn block_on<P: Platform>(m: &Machine<P>, node: &Node<P>, order: Order) -> Option<Pfn> {
    let free = || freelist::block_on(m, node, order, Mobility::Movable, Level::Low);
    if let Some(first) = free() {
        return Some(first);
    }
    let outcome = compact::on_node(m, node, order);
    let first = after_compaction(outcome, free);
    compact::record_on(m, node, order, (Mode::Sync, outcome), attempt(first));
    first
}

fn compact_for_block<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    mode: Mode,
) -> Option<Pfn> {
    let outcome = compact::direct(m, order, mobility, mode);
    let first = after_compaction(outcome, || freelist::block(m, order, mobility, Level::Min));
    compact::record(m, order, mode, outcome, attempt(first));
    first
}

fn after_compaction(outcome: Outcome, free: impl Fn() -> Option<Pfn>) -> Option<Pfn> {
    match outcome {
        Outcome::Captured(first) => Some(first),
        Outcome::Skipped | Outcome::Deferred => None,
        Outcome::Complete | Outcome::Partial | Outcome::Contended => free(),
    }
}

fn attempt(block: Option<Pfn>) -> Attempt {
    if block.is_some() { Attempt::Succeeded } else { Attempt::Failed }
}

/// Reclaims as many frames as the block has from one node after another, where that helps.
fn reclaim_for_block<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    need: Need,
) -> Option<Pfn> {
    let helps = |node: &&Node<P>| reclaim_helps(order, &NodeState::of(m, node), need);
    let mut nodes = m.nodes_from(m.cpu()).map(|(_, node)| node).filter(helps).peekable();
    nodes.peek()?;
    m.count(Counter::AllocStall, 1);
    nodes.find_map(|node| {
        shrink(m, node, &mut Reclaimer::Direct, order.frames());
        freelist::block(m, order, mobility, Level::Min)
    })
}

/// The inputs of [`reclaim_helps`] for a node.
#[derive(Clone, Copy, Debug)]
struct NodeState {
    free: u32,
    /// The high watermark.
    high: u32,
    /// Pages on LRU lists that can be evicted: the anonymous ones only if swap is not full.
    reclaimable: u32,
    compacts: bool,
}

impl NodeState {
    fn of<P: Platform>(m: &Machine<P>, node: &Node<P>) -> NodeState {
        let anon = if m.swap.is_full() { 0 } else { node.lru.len_of(Kind::Anon) };
        NodeState {
            free: node.zone.free_frames(),
            high: node.zone.marks().high,
            reclaimable: anon + node.lru.len_of(Kind::File),
            compacts: m.config.compact,
        }
    }
}

/// Whether direct reclaim can help to get a block (compaction_ready, zone_reclaimable_pages). A
/// large block is left to compaction if enough frames are free for it. For a required block,
/// reclaim is always tried: isolated pages are on no list, and may come back.
fn reclaim_helps(order: Order, node: &NodeState, need: Need) -> bool {
    let has_room = node.free >= node.high + 2 * order.frames();
    let can_compact = node.compacts && order.0 > COSTLY && has_room;
    need == Need::Required || (node.reclaimable > 0 && !can_compact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_for_a_block_is_skipped_where_it_cannot_help() {
        let few = NodeState { free: 900, high: 400, reclaimable: 1, compacts: true };
        let room = NodeState { free: 1424, ..few };
        let table = [
            (9, few, true),
            (9, room, false),
            (9, NodeState { free: 1423, ..room }, true),
            (9, NodeState { compacts: false, ..room }, true),
            (3, room, true),
            (9, NodeState { reclaimable: 0, ..few }, false),
            (3, NodeState { reclaimable: 0, ..few }, false),
        ];
        for (order, node, expected) in table {
            let [optional, required] = [Need::Optional, Need::Required]
                .map(|need| reclaim_helps(Order(order), &node, need));
            assert_eq!((optional, required), (expected, true), "{order} {node:?}");
        }
    }
}
