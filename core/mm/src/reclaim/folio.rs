//! Pages of more than one frame on their way out: each whole, with one write to adjacent slots.
//!
//! ```text
//! take: heads of such pages, out of a batch
//! evict: each head -> entry held -> Activate: put back
//!                                |- Drop:  its slots hold the same bytes: frames free
//!                                \- Write: unmapped, slots taken, stays held
//!        ... all writes of the batch together ...
//!        frames free; or resident and clean, if it is awaited; or dirty, if that failed
//! ```
//! The entries of what is written are held meanwhile, as of files' pages (`in_place`): who wants
//! such a page waits, and finds all of it or none. Reclaim waits for nothing else while it holds
//! them.

use super::evict::Piles;
use super::scan::{Fate, decide};
use crate::folio::{self, Folio, Taken};
use crate::frame::{Mobility, Place};
use crate::lru::Kind;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Entry, Held, Page, Pinned};
use crate::stats::Counter;
use crate::swap::Cached;
use highwater_platform::{Io, Platform, Protection};
use highwater_units::{BATCH_PAGES_MAX, FrameBatch, FrameList, Order, Pfn, Slot};

/// The pages of a batch that have a frame each, and the first frames of others.
pub(super) fn take<P: Platform>(m: &Machine<P>, batch: FrameBatch) -> (FrameBatch, FrameBatch) {
    let [mut single, mut folios] = [FrameBatch::default(); 2];
    if !m.has_folios() {
        return (batch, folios);
    }
    for pfn in batch.iter() {
        let owner = m.frames.owner(*pfn);
        match owner.is_some_and(|owner| m.space(owner.space).order() > Order(0)) {
            true => folios.push(*pfn),
            false => single.push(*pfn),
        }
    }
    (single, folios)
}

/// Frames of a batch that are written at a time, and then those of one page more: reclaim was asked
/// for a few.
const WRITTEN_MAX: u32 = 128;

/// What came of pages of more than one frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gone {
    /// Frames freed.
    pub(super) freed: u32,
    /// Frames that were to be written.
    pub(super) written: u32,
}

/// Writes to make, and the pages that they are of.
struct Writes<'a, P: Platform> {
    pages: [Option<Held<'a, P>>; BATCH_PAGES_MAX],
    ios: [Io; BATCH_PAGES_MAX],
    devices: [u8; BATCH_PAGES_MAX],
    len: usize,
}

/// Evicts what it can of the pages that begin with `heads`, isolated from an inactive list. What
/// stays goes to `piles`.
pub(super) fn evict<P: Platform>(m: &Machine<P>, heads: &FrameBatch, piles: &mut Piles) -> Gone {
    let mut gone = Gone::default();
    if heads.is_empty() {
        return gone;
    }
    let mut writes = Writes {
        pages: [const { None }; BATCH_PAGES_MAX],
        ios: [Io::new(0, FrameList::default()); BATCH_PAGES_MAX],
        devices: [0; BATCH_PAGES_MAX],
        len: 0,
    };
    for head in heads.iter() {
        if gone.written >= WRITTEN_MAX {
            piles.asked.push(*head);
            continue;
        }
        match lock(m, *head) {
            Some(held) => sort_out(m, held, *head, &mut writes, piles, &mut gone),
            None => piles.activated.push(*head),
        }
    }
    write_out(m, &mut writes, piles, &mut gone);
    gone
}

/// Holds the page that begins with a frame, if nobody uses it.
fn lock<P: Platform>(m: &Machine<P>, head: Pfn) -> Option<Held<'_, P>> {
    let owner = m.frames.owner(head)?;
    let held = Held::lock(m.space(owner.space), owner.vpn, Pinned::Refuse)?;
    (held.page() == Page::Resident(head)).then_some(held)
}

/// Decides, and does what can be done at once.
fn sort_out<'a, P: Platform>(
    m: &Machine<P>,
    held: Held<'a, P>,
    head: Pfn,
    writes: &mut Writes<'a, P>,
    piles: &mut Piles,
    gone: &mut Gone,
) {
    let (space, was) = (held.space(), held.entries()[0]);
    let folio = Folio::new(head, space.order());
    let fate = decide(Kind::Anon, was, m.frames.slot(head).is_some(), m.platform.recency());
    if matches!(fate, Fate::Activate | Fate::Ask) {
        return piles.activated.push(head);
    }
    if was.is_mapped() {
        let protection = if was.is_dirty() { Protection::ReadWrite } else { Protection::ReadOnly };
        if folio::unmap(m, space, held.owner(0), &folio, protection) == Taken::Busy {
            return piles.kept.push(head);
        }
    }
    if fate == Fate::Drop {
        m.count(Counter::PgDropClean, folio.len() as u64);
        let slot = m.frames.take_slot(head).expect("only pages with slots are dropped");
        gone.freed += free(m, &folio);
        return held.release(|_, _| Entry::swapped(slot));
    }
    let _phase = m.enter(phase::SWAP_OUT);
    let Some(slot) = m.swap.alloc_block(m.cpu(), head, space.order()) else {
        m.count(Counter::FolioSwpOutFallback, 1);
        piles.kept.push(head);
        return held.release(|_, was| was.unmapped());
    };
    gone.written += folio.len() as u32;
    writes.ios[writes.len] = Io::block(slot.index, head, space.order());
    writes.devices[writes.len] = slot.device;
    writes.pages[writes.len] = Some(held);
    writes.len += 1;
}

/// Makes the writes, all to one device at a time, and lets go of the pages.
fn write_out<P: Platform>(
    m: &Machine<P>,
    writes: &mut Writes<'_, P>,
    piles: &mut Piles,
    gone: &mut Gone,
) {
    let _phase = m.enter(phase::SWAP_OUT);
    let mut at = 0;
    while at < writes.len {
        let device = writes.devices[at];
        let same = writes.devices[at..writes.len].iter().take_while(|other| **other == device);
        let end = at + same.count();
        m.swap.write(&m.platform, &m.stats, device, &mut writes.ios[at..end]);
        for index in at..end {
            let held = writes.pages[index].take().expect("held until it is written");
            let first = Slot { device, index: writes.ios[index].slot };
            gone.freed += settle(m, held, &writes.ios[index], first, piles);
        }
        at = end;
    }
}

/// After its write: a page is gone, or stays.
fn settle<P: Platform>(
    m: &Machine<P>,
    held: Held<'_, P>,
    io: &Io,
    first: Slot,
    piles: &mut Piles,
) -> u32 {
    let folio = Folio::new(io.frames.at(0), held.space().order());
    for (at, frames) in io.frames.lists() {
        let slot = Slot { index: first.index + at as u32, ..first };
        m.swap.uncache(&m.platform, slot, &frames, |_, cached| {
            debug_assert_eq!(cached, Cached::Removed, "nobody else knows {slot:?}");
        });
    }
    match (io.result, held.is_awaited(0)) {
        (Ok(()), false) => {
            let freed = free(m, &folio);
            held.release(|_, _| Entry::swapped(first));
            freed
        }
        (Ok(()), true) => {
            m.frames.set_slot(folio.head(), Some(first));
            piles.activated.push(folio.head());
            held.release(|_, _| Entry::resident(folio.head()));
            0
        }
        (Err(_), _) => {
            folio::release_slots(m, first, folio.order());
            piles.kept.push(folio.head());
            held.release(|_, _| Entry::resident(folio.head()).dirty());
            0
        }
    }
}

/// Frees the frames of an evicted page.
fn free<P: Platform>(m: &Machine<P>, folio: &Folio) -> u32 {
    m.frames.set_owner(folio.head(), None);
    folio::detach(m, folio);
    let off = m.frames.place(folio.head()).change(Place::Isolated, Place::Off);
    debug_assert_eq!(off, Ok(()), "{:?} was evicted by the thread that isolated it", folio.head());
    m.free_run(folio.head(), folio.order(), Mobility::Movable);
    folio.len() as u32
}
