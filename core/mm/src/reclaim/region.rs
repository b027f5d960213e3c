//! Ageing where pages are probed by unmapping them: the oldest page is unmapped together with the
//! pages around it.
//!
//! ```text
//! oldest active page -> its block of 2 MiB: entries locked, frames isolated
//!   -> more blocks until the batch is worth a flush -> Mmu::unmap_batch
//!   -> inactive list, unmapped: a page in use faults and is mapped again
//! ```
//! A flush of other CPUs' TLBs costs as much for one page as for a hundred, so pages are taken from
//! the active list by block, not one by one in the order of their faults. A block is unmapped as
//! often as its oldest page would be. Pages of the inactive list that were used again stay mapped.
//!
//! Locking: entries, which are only tried; then the locks of the LRU.

use super::large::{self, Probe};
use super::probing::Probing;
use crate::frame::{History, Owner};
use crate::lru::{Kind, List, Mode, ShardHold};
use crate::machine::{Machine, Node};
use crate::run::orphan;
use crate::space::{Entry, Page, Scattered, Space, block_of};
use crate::stats::Counter;
use crate::swap::Sample;
use highwater_platform::{Platform, Protection, Stop, UNMAP_PAGES_MAX, UnmapPage};
use highwater_units::{BATCH_PAGES_MAX, FrameBatch, LARGE_PAGES, Order, Pfn, SpaceId, Vpn};

/// Pages that make a batch worth its flush.
const PAGES_MIN: usize = 64;

/// The least number of inactive pages that are worth a flush of their own. Fewer pages, if they are
/// less than half of the scanned ones, so that others can be evicted, go round the list once more,
/// still mapped. With swap in memory and no loop, they go to the active list instead, until their
/// block is unmapped.
const INACTIVE_MIN: usize = PAGES_MIN / 4;

const _: () = assert!(2 * INACTIVE_MIN <= BATCH_PAGES_MAX, "others can go");

/// The most blocks that a batch takes pages from.
const BLOCKS_MAX: usize = 16;

/// The most pages that a batch skips because they were in use at each probe so far.
const SPARED_MAX: usize = 8 * UNMAP_PAGES_MAX;

/// The largest part of memory that a batch takes: a small budget needs its pages.
const PART_MAX: usize = 64;

/// A batch: locked entries, and as many isolated pages.
struct Batch<'a, P: Platform> {
    held: Scattered<'a, P>,
    pages: [UnmapPage; UNMAP_PAGES_MAX],
    most: usize,
}

/// Moves the oldest active pages of a kind, with their neighbours, to its inactive list, unmapped.
pub(super) fn age<P: Platform>(m: &Machine<P>, node: &Node<P>, kind: Kind, probing: Probing) {
    let most = (m.present() / PART_MAX).clamp(1, UNMAP_PAGES_MAX);
    let mut batch = Batch::up_to(most);
    let (mut probed, mut rotated) = (FrameBatch::default(), FrameBatch::default());
    let mut spared = if probing == Probing::Sparing { SPARED_MAX } else { 0 };
    for _ in 0..BLOCKS_MAX {
        if batch.held.len() >= PAGES_MIN.min(most) {
            break;
        }
        let Some(oldest) = oldest_to_probe(m, node, kind, &mut spared) else { break };
        match gather(m, node, (kind, probing), oldest, &mut batch) {
            Gathered::Batched => {}
            Gathered::Probed => probed.push(oldest),
            Gathered::Refused => rotated.push(oldest),
        }
    }
    m.count(Counter::PgDeactivate, probed.len() as u64);
    m.count(Counter::PgRotated, rotated.len() as u64);
    m.free(&node.lru.putback(&m.frames, &probed, List::inactive(kind)));
    m.free(&node.lru.putback(&m.frames, &rotated, List::active(kind)));
    unmap(m, node, kind, List::inactive(kind), batch);
}

/// Unmaps the oldest anonymous active page that can be unmapped, and others of its block, and
/// leaves them active; `None` if none of the oldest pages can be unmapped.
pub(super) fn sample<P: Platform>(m: &Machine<P>, node: &Node<P>) -> Option<Sample> {
    let mut batch = Batch::up_to((m.present() / PART_MAX).clamp(1, UNMAP_PAGES_MAX));
    for _ in 0..BLOCKS_MAX {
        let oldest = oldest_to_probe(m, node, Kind::Anon, &mut 0)?;
        match gather(m, node, (Kind::Anon, Probing::Blocks), oldest, &mut batch) {
            Gathered::Batched => break,
            Gathered::Probed | Gathered::Refused => {
                m.free(&node.lru.putback(&m.frames, &[oldest], List::ActiveAnon));
            }
        }
    }
    let pages = batch.pages[..batch.held.len()].iter();
    let sample = pages
        .clone()
        .next()
        .map(|page| Sample::new(page.space, block_of(page.vpn), pages.map(|page| page.vpn)));
    unmap(m, node, Kind::Anon, List::ActiveAnon, batch);
    sample
}

/// How many sampled pages that are still active were used since they were unmapped, and how many
/// were not.
pub(super) fn judge<P: Platform>(m: &Machine<P>, sample: &Sample) -> (usize, usize) {
    let space = m.space(sample.space());
    let entries = sample.pages().filter(|vpn| vpn.0 < space.pages()).map(|vpn| space.entry(vpn));
    let is_active = |entry: &Entry| match entry.page() {
        Page::Resident(pfn) => m.frames.place(pfn).get() == List::ActiveAnon.place(),
        Page::Absent | Page::Swapped(_) | Page::Poisoned => false,
    };
    let left = entries.filter(|entry| entry.is_probed() && is_active(entry));
    left.fold((0, 0), |(used, unused), entry| match entry.is_mapped() {
        true => (used + 1, unused),
        false => (used, unused + 1),
    })
}

/// Isolates the oldest active page that is due for a probe. Up to `spared` pages that are not due
/// go round the list once more; after that the oldest page counts as due, so that reclaim makes
/// progress.
fn oldest_to_probe<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    kind: Kind,
    spared: &mut usize,
) -> Option<Pfn> {
    let list = List::active(kind);
    let mut rotated = FrameBatch::default();
    let due = loop {
        let Some(oldest) = node.lru.isolate(&m.frames, m.cpu(), list, 1).first().copied() else {
            break None;
        };
        if *spared == 0 || !m.frames.probes(oldest).is_spared() {
            break Some(oldest);
        }
        *spared -= 1;
        m.frames.set_probes(oldest, m.frames.probes(oldest).spare());
        rotated.push(oldest);
        if rotated.len() == BATCH_PAGES_MAX {
            put_round(m, node, list, &std::mem::take(&mut rotated));
        }
    };
    put_round(m, node, list, &rotated);
    due
}

/// Whether a page goes round the active list without a probe.
fn is_spared<P: Platform>(m: &Machine<P>, probing: Probing, pfn: Pfn) -> bool {
    probing == Probing::Sparing && m.frames.probes(pfn).is_spared()
}

fn put_round<P: Platform>(m: &Machine<P>, node: &Node<P>, list: List, pages: &FrameBatch) {
    m.count(Counter::PgRotated, pages.len() as u64);
    m.free(&node.lru.putback(&m.frames, pages, list));
}

const NONE: UnmapPage = UnmapPage {
    space: SpaceId(0),
    vpn: Vpn(0),
    pfn: Pfn(0),
    mapped: Protection::ReadWrite,
    result: Ok(()),
};

/// Where the oldest page goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathered {
    /// It is in the batch, with its neighbours.
    Batched,
    /// It goes to the inactive list at once: it is not mapped, or is a large page.
    Probed,
    /// It stays: another thread has locked it, or it has no owner any more.
    Refused,
}

/// Adds an isolated page and the mapped pages of its block to the batch.
fn gather<'a, P: Platform>(
    m: &'a Machine<P>,
    node: &Node<P>,
    (kind, probing): (Kind, Probing),
    oldest: Pfn,
    batch: &mut Batch<'a, P>,
) -> Gathered {
    let Some(owner) = m.frames.owner(oldest) else { return Gathered::Refused };
    let space = m.space(owner.space);
    let entry = space.entry(owner.vpn);
    if space.order() > Order(0) || entry.page() != Page::Resident(oldest) {
        return Gathered::Refused;
    }
    if entry.is_large() {
        return match large::probe(m, oldest) {
            Probe::Done => Gathered::Probed,
            Probe::Busy => Gathered::Refused,
        };
    }
    if !entry.is_mapped() && !entry.is_locked() {
        return Gathered::Probed;
    }
    match batch.lock(space, owner.vpn, |_| true) {
        Some(pfn) if pfn == oldest => {}
        Some(_) => {
            batch.held.unlock(batch.held.len() - 1);
            return Gathered::Refused;
        }
        None => return Gathered::Refused,
    }
    let due = |entry: Entry| match entry.page() {
        Page::Resident(pfn) => !is_spared(m, probing, pfn),
        Page::Absent | Page::Swapped(_) | Page::Poisoned => false,
    };
    batch.add_neighbours(m, node, List::active(kind), (space, owner.vpn), due);
    Gathered::Batched
}

/// Unmaps isolated inactive pages that are mapped and were not probed since they were read,
/// together with such neighbours, and sends them all round the inactive list of anonymous pages
/// once more. `scanned`: the pages among which they were found.
pub(super) fn probe_inactive<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    pages: &[Pfn],
    scanned: usize,
) {
    let most = (m.present() / PART_MAX).clamp(BATCH_PAGES_MAX, UNMAP_PAGES_MAX);
    let mut batch = Batch::up_to(most);
    let mut left = FrameBatch::default();
    let unprobed = |entry: Entry| !entry.is_probed();
    // Block by block: each is protected by a call of its own, which flushes.
    for pfn in pages {
        let owner = m.frames.owner(*pfn).filter(|_| batch.held.len() < most);
        let ours = |entry: Entry| unprobed(entry) && entry.page() == Page::Resident(*pfn);
        let locked = owner.and_then(|Owner { space, vpn }| {
            let place = (m.space(space), vpn);
            batch.lock(place.0, vpn, ours).map(|_| place)
        });
        match locked {
            Some(place) => batch.add_neighbours(m, node, List::InactiveAnon, place, unprobed),
            None => left.push(*pfn),
        }
    }
    m.free(&node.lru.putback(&m.frames, &left, List::InactiveAnon));
    if batch.held.len() < INACTIVE_MIN.min(scanned / 2).max(1) {
        return batch.give_up(m, node);
    }
    unmap(m, node, Kind::Anon, List::InactiveAnon, batch);
}

impl<'a, P: Platform> Batch<'a, P> {
    /// No pages; room for `most`.
    fn up_to(most: usize) -> Self {
        Batch { held: Scattered::none(), pages: [NONE; UNMAP_PAGES_MAX], most }
    }

    /// Puts all pages, fewer than [`INACTIVE_MIN`], on a list as they are.
    fn give_up(self, m: &Machine<P>, node: &Node<P>) {
        let pages: FrameBatch = self.pages[..self.held.len()].iter().map(|page| page.pfn).collect();
        let waits = m.swap.is_in_memory() && !m.swap.loops.keep_active();
        let list = if waits { List::ActiveAnon } else { List::InactiveAnon };
        m.free(&node.lru.putback(&m.frames, &pages, list));
    }

    /// Adds a mapped page whose entry can be locked; returns its frame.
    fn lock(
        &mut self,
        space: &'a Space<P>,
        vpn: Vpn,
        wanted: impl Fn(Entry) -> bool,
    ) -> Option<Pfn> {
        let small = |entry: Entry| entry.is_mapped() && !entry.is_large();
        let was = self.held.lock(space, vpn, |entry| small(entry) && wanted(entry))?;
        let Page::Resident(pfn) = was.page() else {
            unreachable!("only resident pages are mapped")
        };
        let mapped = if was.is_dirty() { Protection::ReadWrite } else { Protection::ReadOnly };
        let page = UnmapPage { space: space.id(), vpn, pfn, mapped, result: Ok(()) };
        self.pages[self.held.len() - 1] = page;
        Some(pfn)
    }

    /// Adds the pages of a list that are in the block of a page, those after it first.
    fn add_neighbours(
        &mut self,
        m: &Machine<P>,
        node: &Node<P>,
        list: List,
        (space, vpn): (&'a Space<P>, Vpn),
        wanted: impl Fn(Entry) -> bool,
    ) {
        let first = self.held.len();
        let block = block_of(vpn);
        let end = Vpn((block.0 + LARGE_PAGES as u64).min(space.pages()));
        for vpn in (vpn.0 + 1..end.0).chain(block.0..vpn.0).map(Vpn) {
            if self.held.len() >= self.most {
                break;
            }
            self.lock(space, vpn, &wanted);
        }
        self.isolate(m, node, list, first);
    }

    /// Isolates the pages from `first` on that are on a list; drops the others.
    fn isolate(&mut self, m: &Machine<P>, node: &Node<P>, list: List, first: usize) {
        let mut hold: Option<ShardHold<'_, P>> = None;
        let mut index = first;
        while index < self.held.len() {
            let pfn = self.pages[index].pfn;
            let own = node.zone.range().contains(pfn);
            if own && !hold.as_ref().is_some_and(|hold| hold.covers(pfn)) {
                drop(hold.take());
                hold = node.lru.hold_shard(pfn, Mode::Sync);
            }
            let listed = m.frames.place(pfn).get() == list.place();
            let hold = hold.as_mut().filter(|_| own && listed);
            if hold.and_then(|hold| hold.isolate(&m.frames, pfn)).is_some() {
                index += 1;
            } else {
                self.held.unlock(index);
                self.pages[index] = self.pages[self.held.len()];
            }
        }
    }
}

/// Unmaps the pages of a batch, and puts them on a list, or back if they cannot be unmapped.
fn unmap<P: Platform>(
    m: &Machine<P>,
    node: &Node<P>,
    kind: Kind,
    list: List,
    mut batch: Batch<'_, P>,
) {
    let pages = &mut batch.pages[..batch.held.len()];
    m.platform.unmap_batch(pages);
    for page in pages.iter() {
        if kind == Kind::File {
            m.frames.set_history(page.pfn, History::Active);
        }
        if page.result == Err(Stop::Vanished) {
            orphan(m, page.pfn);
        }
    }
    batch.held.release(|index, was| match pages[index].result {
        Ok(()) => was.unmapped().used().referenced().probed(),
        Err(Stop::Vanished) => Entry::ABSENT,
        Err(Stop::Busy | Stop::Occupied | Stop::Failed(_)) => was,
    });
    for chunk in pages.chunks(BATCH_PAGES_MAX) {
        let (mut probed, mut rotated) = (FrameBatch::default(), FrameBatch::default());
        for page in chunk {
            let to = if page.result.is_ok() { &mut probed } else { &mut rotated };
            to.push(page.pfn);
        }
        if list == List::inactive(kind) {
            m.count(Counter::PgDeactivate, probed.len() as u64);
        }
        m.count(Counter::PgRotated, rotated.len() as u64);
        m.free(&node.lru.putback(&m.frames, &probed, list));
        m.free(&node.lru.putback(&m.frames, &rotated, List::active(kind)));
    }
}
