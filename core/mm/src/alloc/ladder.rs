//! What to try when memory is below low, in order. The only place that decides that.

use super::{OutOfMemory, request};
use crate::compact::{self, Had, Mode, Outcome};
use crate::lru::Kind;
use crate::machine::{Machine, Node, StallKind};
use crate::reclaim::{Reclaimer, Throttled, shrink, throttle_direct_reclaim, wake_kswapd};
use crate::stats::{Counter, Shortage};
use crate::zone::{Level, Mobility};
use highwater_platform::{Atomic, Latency, Platform};
use highwater_units::{BATCH_PAGES_MAX, FrameList, Nanos, Order, Pfn};
use std::sync::atomic::Ordering::Relaxed;

/// Rounds of direct reclaim without a frame gained after which swap being full is believed.
const RETRIES: u32 = 16;

/// Blocks of a larger order are not worth more than one round (PAGE_ALLOC_COSTLY_ORDER).
const COSTLY: u8 = 3;

/// How long an allocation keeps trying while others hold all frames, swap not being full: frames
/// can be in flight to a slow device.
const PATIENCE: Nanos = Nanos(10_000_000_000);

/// How long nothing happens at all before frames in flight are no hope any more, where pages of
/// many frames find no run of slots, or writes fail: longer than devices are seen to pause.
const STILL: Nanos = Nanos(2_000_000_000);

/// Up to `wanted` frames, from below the low watermark: those above min, or part of what this
/// thread frees itself. It frees a batch even for one, and a stream whose window got one frame
/// would start over with one page.
pub(super) fn climb<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, OutOfMemory> {
    if let Some(frames) = above_min(m, wanted) {
        return Ok(frames);
    }
    m.count(Counter::AllocStall, 1);
    let (cpu, start) = (m.cpu(), m.platform.now());
    let stall = m.stall(StallKind::Reclaim, start);
    let waited_for = match throttle_direct_reclaim(m) {
        Throttled::Unthrottled => None,
        Throttled::Waited => request(m, wanted, Level::Min),
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
        wake_kswapd(node);
    }
    request(m, wanted, Level::Min)
}

/// What it means not to get a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Less does as well, or there is another way.
    Optional,
    /// A fault fails.
    Must,
}

/// 2^order adjacent frames. Single ones can be had by reclaim alone; blocks up to order 3 are worth
/// some rounds of reclaim and compaction, larger ones one of each.
pub(super) fn run<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    need: Need,
) -> Option<Pfn> {
    if let Some(first) = block(m, order, mobility, Level::Low) {
        return Some(first);
    }
    for (_, node) in m.nodes_from(m.cpu()) {
        wake_kswapd(node);
        if order.0 > 0 {
            compact::ask(node, order);
        }
    }
    if let Some(first) = block(m, order, mobility, Level::Min) {
        return Some(first);
    }
    let _stall = m.stall(StallKind::Reclaim, m.platform.now());
    if let Some(first) = compacted(m, order, mobility, Mode::Async) {
        return Some(first);
    }
    let rounds = if order.0 <= COSTLY { RETRIES } else { 1 };
    (0..rounds).find_map(|round| {
        if round > 0 {
            m.platform.relax(round);
        }
        let reclaimed = reclaimed(m, order, mobility, need);
        reclaimed.or_else(|| compacted(m, order, mobility, Mode::Sync))
    })
}

/// A block on a node for pages that are in memory already: what there is above low, or comes
/// together there. Nobody reclaims for it.
pub(super) fn block_on<P: Platform>(m: &Machine<P>, node: &Node<P>, order: Order) -> Option<Pfn> {
    let free = || block_of(m, node, order, Mobility::Movable, Level::Low);
    if let Some(first) = free() {
        return Some(first);
    }
    let outcome = compact::on_node(m, node, order);
    let first = match outcome {
        Outcome::Captured(first) => Some(first),
        Outcome::Skipped | Outcome::Deferred => None,
        Outcome::Complete | Outcome::Partial | Outcome::Contended => free(),
    };
    let had = if first.is_some() { Had::Block } else { Had::Nothing };
    compact::settle_on(m, node, order, Mode::Sync, outcome, had);
    first
}

/// What a zone has above `level`, nearest first; counted as in use.
pub(super) fn block<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    level: Level,
) -> Option<Pfn> {
    let mut nodes = m.nodes_from(m.cpu());
    nodes.find_map(|(_, node)| block_of(m, node, order, mobility, level))
}

/// The same of one node.
fn block_of<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    order: Order,
    mobility: Mobility,
    level: Level,
) -> Option<Pfn> {
    let first = node.zone.alloc_block(m.cpu(), order, mobility, level)?;
    m.taken(order.frames() as usize);
    Some(first)
}

/// Frees as many frames as the block has, a node after the other, of those where that can help.
fn reclaimed<P: Platform>(
    m: &Machine<P>,
    order: Order,
    mobility: Mobility,
    need: Need,
) -> Option<Pfn> {
    let helps =
        |node: &&Node<P>| block_reclaim(order, &Standing::of(m, node), need) == Reclaim::Helps;
    let mut nodes = m.nodes_from(m.cpu()).map(|(_, node)| node).filter(helps).peekable();
    nodes.peek()?;
    m.count(Counter::AllocStall, 1);
    nodes.find_map(|node| {
        shrink(m, node, &mut Reclaimer::Direct, order.frames());
        block(m, order, mobility, Level::Min)
    })
}

/// What a node has, for who wants a block of it.
#[derive(Clone, Copy, Debug)]
struct Standing {
    free: u32,
    high: u32,
    /// Pages on lists that there is a place for elsewhere.
    reclaimable: u32,
    compacts: bool,
}

impl Standing {
    fn of<P: Platform>(m: &Machine<P>, node: &Node<P>) -> Standing {
        let anon = if m.swap.is_full() { 0 } else { node.lru.len_of(Kind::Anon) };
        Standing {
            free: node.zone.free_frames(),
            high: node.zone.marks().high,
            reclaimable: anon + node.lru.len_of(Kind::File),
            compacts: m.config.compact,
        }
    }
}

/// Whether to reclaim for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reclaim {
    /// It may.
    Helps,
    /// There is nothing to be had, or memory is not what is missing.
    InVain,
}

/// Decides (compaction_ready, zone_reclaimable_pages): a large block is compaction's task while
/// there is room to compact, whether that succeeds or not. Who must have it tries everything: what
/// others work on is on no list, and comes back.
fn block_reclaim(order: Order, node: &Standing, need: Need) -> Reclaim {
    let room = node.free >= node.high + 2 * order.frames();
    match (need, node) {
        (Need::Must, _) => Reclaim::Helps,
        (_, Standing { reclaimable: 0, .. }) => Reclaim::InVain,
        (_, Standing { compacts: true, .. }) if order.0 > COSTLY && room => Reclaim::InVain,
        _ => Reclaim::Helps,
    }
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

/// Goes up again and again, as long as there is hope: what is missing may be on its way to a
/// device, or in the hands of who moves it.
pub(super) fn patiently<P: Platform>(
    m: &Machine<P>,
    climb: impl Fn() -> Option<Pfn>,
) -> Result<Pfn, OutOfMemory> {
    let mut search = Search::new(m);
    loop {
        if let Some(first) = climb() {
            return Ok(first);
        }
        drain(m);
        search.go_on(m).map_err(|shortage| give_up(m, shortage))?;
    }
}

/// Direct reclaim, until there is a frame or no hope for one.
fn reclaim_until_some<P: Platform>(m: &Machine<P>, wanted: usize) -> Result<FrameList, Shortage> {
    let mut search = Search::new(m);
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
        search.go_on(m)?;
    }
}

/// Rounds of direct reclaim without a frame gained, and what happened meanwhile.
struct Search {
    rounds: u32,
    start: Nanos,
    /// Pages that anybody freed or read, when that was looked at last, and since when it is so.
    moved: u64,
    still_since: Nanos,
    /// Pages that found no run of slots, before.
    runless: u64,
    /// Writes that failed, before.
    write_errors: u64,
    refusing: Refusing,
}

/// Whether devices that refuse pages though they have slots are tried all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusing {
    /// They were not yet.
    Untried,
    /// They are, until this round.
    TriedUntil(u32),
    /// They were from the first round on, since an allocation before has waited for them in vain.
    TriedAtOnce,
}

/// What a search stands on.
#[derive(Clone, Copy, Debug)]
struct Progress {
    rounds: u32,
    slots_left: u64,
    waited: Nanos,
    /// For how long nobody freed or read a page.
    still: Nanos,
    /// Pages that found no run of slots meanwhile.
    runless: u64,
    writes: Writes,
}

/// What writes come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    /// None failed meanwhile.
    Work,
    /// Some did.
    Fail,
    /// So did those of an allocation that failed before, and none has succeeded since.
    KeepFailing,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outlook {
    /// Somebody may free a frame.
    Open,
    /// Nobody will.
    Hopeless,
}

/// Decides, from slots that pages may go to: those of a device without room are none. That some are
/// left is no hope where all that could go is pages of many frames, for
/// which no run of slots is left, or where writes fail. They are given time once; from then on the
/// rounds of each allocation are tries enough to see that they work again.
fn outlook(p: &Progress) -> Outlook {
    let spent = p.slots_left == 0 || p.waited > PATIENCE;
    let still = p.still > STILL && (p.runless > 0 || p.writes == Writes::Fail);
    match p.rounds >= RETRIES && (spent || still || p.writes == Writes::KeepFailing) {
        true => Outlook::Hopeless,
        false => Outlook::Open,
    }
}

impl Search {
    fn new<P: Platform>(m: &Machine<P>) -> Search {
        let now = m.platform.now();
        let runless = m.stats.get(Counter::FolioSwpOutFallback);
        let write_errors = m.stats.get(Counter::SwapWriteErrors);
        Search {
            rounds: 0,
            start: now,
            moved: moved(m),
            still_since: now,
            runless,
            write_errors,
            refusing: Refusing::Untried,
        }
    }

    fn shortage<P: Platform>(&self, m: &Machine<P>) -> Shortage {
        let write_errors = self.failed_writes(m);
        shortage(m, self.rounds, m.platform.now().since(self.start), write_errors)
    }

    fn failed_writes<P: Platform>(&self, m: &Machine<P>) -> u64 {
        m.stats.get(Counter::SwapWriteErrors).saturating_sub(self.write_errors)
    }

    fn writes<P: Platform>(&self, m: &Machine<P>) -> Writes {
        match self.failed_writes(m) {
            0 => Writes::Work,
            _ if m.stats.writes_failed(written(m)) => Writes::KeepFailing,
            _ => Writes::Fail,
        }
    }

    /// After one round more: lets others work, or says why there is no hope.
    fn go_on<P: Platform>(&mut self, m: &Machine<P>) -> Result<(), Shortage> {
        if self.outlook(m) == Outlook::Hopeless && self.last_tries(m) == Outlook::Hopeless {
            return Err(self.shortage(m));
        }
        m.platform.relax(self.rounds);
        Ok(())
    }

    /// Where devices refuse pages though they have slots, some rounds more: pages may compress
    /// differently. On a file system others may make room, which is worth a pause.
    fn last_tries<P: Platform>(&mut self, m: &Machine<P>) -> Outlook {
        match self.refusing {
            Refusing::TriedUntil(round) if self.rounds < round => return Outlook::Open,
            Refusing::TriedAtOnce => return Outlook::Hopeless,
            Refusing::Untried | Refusing::TriedUntil(_) => (),
        }
        let first = self.refusing == Refusing::Untried;
        let pause = m.platform.now().since(self.start) < STILL;
        match m.swap.try_refusing() {
            Some(latency) if first || (pause && latency == Latency::Asynchronous) => {
                self.refusing = Refusing::TriedUntil(self.rounds + RETRIES);
                Outlook::Open
            }
            Some(_) | None => Outlook::Hopeless,
        }
    }

    /// After one round more.
    fn outlook<P: Platform>(&mut self, m: &Machine<P>) -> Outlook {
        self.rounds += 1;
        if self.rounds == 1 && m.stats.writes_failed(written(m)) {
            m.swap.try_refusing();
            self.refusing = Refusing::TriedAtOnce;
        }
        if self.rounds < RETRIES {
            return Outlook::Open;
        }
        let (now, moved) = (m.platform.now(), moved(m));
        if moved != self.moved {
            (self.moved, self.still_since) = (moved, now);
        }
        outlook(&Progress {
            rounds: self.rounds,
            slots_left: m.swap.room(),
            waited: now.since(self.start),
            still: now.since(self.still_since),
            runless: m.stats.get(Counter::FolioSwpOutFallback).saturating_sub(self.runless),
            writes: self.writes(m),
        })
    }
}

/// Pages that were freed or read by anybody, so far.
fn moved<P: Platform>(m: &Machine<P>) -> u64 {
    let freed = [Counter::PgStealKswapd, Counter::PgStealDirect, Counter::PgDiscard];
    let counted = freed.into_iter().chain([Counter::PswpIn, Counter::PgFileIn]);
    counted.map(|counter| m.stats.get(counter)).sum()
}

/// Pages that were written, so far.
fn written<P: Platform>(m: &Machine<P>) -> u64 {
    m.stats.get(Counter::PswpOut) + m.stats.get(Counter::PgFileOut)
}

fn shortage<P: Platform>(
    m: &Machine<P>,
    rounds: u32,
    waited: Nanos,
    write_errors: u64,
) -> Shortage {
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
        kswapd_failing: sum(&|node| node.kswapd_failing.load(Relaxed).into()),
        nodes: m.nodes.len() as u32,
        slots_used,
        slots,
        room: m.swap.room(),
        write_errors,
        written: written(m),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ends_where_nothing_can_be_won() {
        use Outlook::{Hopeless, Open};
        let open = Progress {
            rounds: 99,
            slots_left: 5,
            waited: Nanos(3_000_000_000),
            still: Nanos(3_000_000_000),
            runless: 0,
            writes: Writes::Work,
        };
        let table = [
            (open, Open),
            (Progress { slots_left: 0, ..open }, Hopeless),
            (Progress { waited: Nanos(10_000_000_001), ..open }, Hopeless),
            (Progress { runless: 1, ..open }, Hopeless),
            (Progress { runless: 1, still: STILL, ..open }, Open),
            (Progress { slots_left: 0, rounds: 15, ..open }, Open),
            (Progress { writes: Writes::Fail, ..open }, Hopeless),
            (Progress { writes: Writes::Fail, still: STILL, ..open }, Open),
            (Progress { writes: Writes::KeepFailing, still: Nanos(0), ..open }, Hopeless),
            (Progress { writes: Writes::KeepFailing, rounds: 15, ..open }, Open),
        ];
        for (progress, expected) in table {
            assert_eq!(outlook(&progress), expected, "{progress:?}");
        }
    }

    #[test]
    fn what_cannot_help_a_block_is_not_reclaimed() {
        use Reclaim::{Helps, InVain};
        let few = Standing { free: 900, high: 400, reclaimable: 1, compacts: true };
        let room = Standing { free: 1424, ..few };
        let table = [
            (9, few, Helps),
            (9, room, InVain),
            (9, Standing { free: 1423, ..room }, Helps),
            (9, Standing { compacts: false, ..room }, Helps),
            (3, room, Helps),
            (9, Standing { reclaimable: 0, ..few }, InVain),
            (3, Standing { reclaimable: 0, ..few }, InVain),
        ];
        for (order, node, expected) in table {
            let [optional, must] =
                [Need::Optional, Need::Must].map(|need| block_reclaim(Order(order), &node, need));
            assert_eq!((optional, must), (expected, Helps), "{order} {node:?}");
        }
    }
}
