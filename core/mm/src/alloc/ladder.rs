//! What to try when memory is below low, in order. The only place that decides that.

use super::{OutOfMemory, request};
use crate::compact::{self, Had, Mode, Outcome};
use crate::lru::Kind;
use crate::machine::{Machine, Node, Stalling};
use crate::reclaim::{Reclaimer, Throttled, shrink, wait_for_relief};
use crate::stats::{Counter, Shortage};
use crate::zone::{Level, Mobility};
use highwater_platform::{Atomic, Event, Platform};
use highwater_units::{BATCH_PAGES_MAX, FrameList, Nanos, Order, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// Rounds of direct reclaim without a frame gained after which swap being full is believed.
const RETRIES: u32 = 16;

/// Blocks of a larger order are not worth more than one round (PAGE_ALLOC_COSTLY_ORDER).
const COSTLY: u8 = 3;

/// How long an allocation keeps trying while others hold all frames, swap not being full: frames
/// can be in flight to a slow device.
const PATIENCE: Nanos = Nanos(10_000_000_000);

/// Up to `wanted` frames, from below the low watermark: those above min, or part of what this
/// thread frees itself. It frees a batch even for one, and a stream whose window got one frame
/// would start over with one page.
pub(super) fn climb<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, OutOfMemory> {
    if let Some(frames) = above_min(m, wanted) {
        return Ok(frames);
    }
    m.count(Counter::AllocStall, 1);
    let (cpu, start) = (m.cpu(), m.platform.now());
    let stall = m.stall(Stalling::Reclaims, start);
    let waited_for = match wait_for_relief(m) {
        Throttled::No => None,
        Throttled::Yes => request(m, wanted, Level::Min),
    };
    let frames = match waited_for {
        Some(frames) => Ok(frames),
        None => reclaim_until_some(m, wanted),
    };
    drop(stall);
    m.stats.direct_reclaim(cpu, m.platform.now().since(start));
    frames.map_err(|shortage| give_up(m, shortage))
}

/// The end of the ladder: says what was seen on it.
fn give_up<P: Platform>(m: &Machine<P>, shortage: Shortage) -> OutOfMemory {
    m.count(Counter::AllocOom, 1);
    m.stats.note_shortage(shortage);
    OutOfMemory
}

/// The same without patience.
pub(super) fn first_rungs<P: Platform>(m: &Machine<P>, wanted: usize) -> Option<FrameList> {
    if let Some(frames) = above_min(m, wanted) {
        return Some(frames);
    }
    m.count(Counter::AllocStall, 1);
    let wanted = wanted.min(reclaim(m) as usize);
    request(m, wanted.max(1), if wanted > 0 { Level::Nothing } else { Level::Min })
}

/// Wakes kswapd; up to `wanted` frames of those above min.
pub(super) fn above_min<P: Platform>(m: &Machine<P>, wanted: usize) -> Option<FrameList> {
    for (_, node) in m.nodes_from(m.cpu()) {
        node.alarm.notify_all();
    }
    request(m, wanted, Level::Min)
}

/// 2^order adjacent frames. Single ones can be had by reclaim alone; blocks up to order 3 are worth
/// some rounds of reclaim and compaction, larger ones one of each.
pub(super) fn run<P: Platform>(m: &Machine<P>, order: Order, mobility: Mobility) -> Option<Pfn> {
    if let Some(first) = block(m, order, mobility, Level::Low) {
        return Some(first);
    }
    for (_, node) in m.nodes_from(m.cpu()) {
        node.alarm.notify_all();
        if order.0 > 0 {
            compact::ask(node, order);
        }
    }
    if let Some(first) = block(m, order, mobility, Level::Min) {
        return Some(first);
    }
    let _stall = m.stall(Stalling::Reclaims, m.platform.now());
    if let Some(first) = compacted(m, order, mobility, Mode::Async) {
        return Some(first);
    }
    let rounds = if order.0 <= COSTLY { RETRIES } else { 1 };
    (0..rounds).find_map(|round| {
        if round > 0 {
            m.platform.relax(round);
        }
        reclaimed(m, order, mobility).or_else(|| compacted(m, order, mobility, Mode::Sync))
    })
}

/// What a zone has above `level`, nearest first; counted as in use.
pub(super) fn block<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    level: Level,
) -> Option<Pfn> {
    let cpu = m.cpu();
    let mut nodes = m.nodes_from(cpu);
    let first = nodes.find_map(|(_, node)| node.zone.alloc_block(cpu, order, mobility, level))?;
    m.taken(order.frames() as usize);
    Some(first)
}

/// Frees as many frames as the block has, a node after the other.
fn reclaimed<P: Platform>(m: &Machine<P>, order: Order, mobility: Mobility) -> Option<Pfn> {
    m.count(Counter::AllocStall, 1);
    m.nodes_from(m.cpu()).find_map(|(_, node)| {
        shrink(m, node, &mut Reclaimer::Direct, order.frames());
        block(m, order, mobility, Level::Min)
    })
}

fn compacted<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    mode: Mode,
) -> Option<Pfn> {
    let outcome = compact::direct(m, order, mobility, mode);
    let first = match outcome {
        Outcome::Captured(first) => Some(first),
        Outcome::Skipped | Outcome::Deferred => None,
        Outcome::Complete | Outcome::Partial | Outcome::Contended => {
            block(m, order, mobility, Level::Min)
        }
    };
    let had = if first.is_some() { Had::Block } else { Had::Nothing };
    compact::settle(m, order, mode, outcome, had);
    first
}

/// Goes up again, as often as is hoped for.
pub(super) fn patiently<P: Platform>(
    m: &Machine<P>,
    order: Order,
    climb: impl Fn() -> Option<Pfn>,
) -> Result<Pfn, OutOfMemory> {
    let times = if order.0 <= COSTLY { 2 } else { RETRIES };
    for attempt in 0..times {
        if let Some(first) = climb() {
            return Ok(first);
        }
        drain(m);
        m.platform.relax(attempt);
    }
    m.count(Counter::AllocOom, 1);
    Err(OutOfMemory)
}

/// Direct reclaim, until there is a frame or no hope for one.
fn reclaim_until_some<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, Shortage> {
    let start = m.platform.now();
    let mut fruitless = 0;
    loop {
        let freed = reclaim(m);
        // Those who free memory may use the last of it: what they free is theirs.
        let (most, level) = match freed as usize {
            0 => (1, Level::Min),
            freed => (wanted.min(freed), Level::Nothing),
        };
        if let Some(frames) = request(m, most, level) {
            return Ok(frames);
        }
        drain(m);
        if let Some(frames) = request(m, 1, Level::Nothing) {
            return Ok(frames);
        }
        fruitless += 1;
        let (used, all) = m.swap.usage();
        let waited = m.platform.now().since(start);
        if fruitless >= RETRIES && (used >= all || waited > PATIENCE) {
            return Err(shortage(m, fruitless, waited));
        }
        m.platform.relax(fruitless);
    }
}

fn shortage<P: Platform>(m: &Machine<P>, rounds: u32, waited: Nanos) -> Shortage {
    let sum = |of: &dyn Fn(&Node<P>) -> u32| m.nodes.iter().map(of).sum();
    let listed = |kind| sum(&|node| node.lru.len_of(kind));
    let (slots_used, slots) = m.swap.usage();
    Shortage {
        rounds,
        waited,
        frames: m.frames.len() as u32,
        free: sum(&|node| node.zone.free_frames()),
        anon: listed(Kind::Anon),
        file: listed(Kind::File),
        isolated: sum(&|node| node.isolated.iter().map(|kind| kind.load(Relaxed)).sum()),
        hopeless: sum(&|node| node.hopeless.load(Relaxed).into()),
        nodes: m.nodes.len() as u32,
        slots_used,
        slots,
    }
}

/// One round over the nodes, nearest first, until one gains something.
fn reclaim<P: Platform>(m: &Machine<P>) -> u32 {
    let target = BATCH_PAGES_MAX as u32;
    let shrink = |node| shrink(m, node, &mut Reclaimer::Direct, target);
    let mut gains = m.nodes_from(m.cpu()).map(|(_, node)| shrink(node));
    gains.find(|freed| *freed > 0).unwrap_or(0)
}

/// Makes what lies in per-CPU lists and batches, and in caches of objects, available to all.
fn drain<P: Platform>(m: &Machine<P>) {
    m.shrink_caches();
    for node in &m.nodes {
        node.lru.drain(&m.frames, |orphans| m.free(orphans));
        node.zone.drain();
    }
}
