//! Evicts folios, the pages of more than one frame: each whole, with one write to adjacent slots.
//!
//! ```text
//! split_batch: the first frames of folios, out of a batch
//! evict: each -> entry held -> Activate: put back
//!                           |- Drop:  its slots hold the same bytes: frames free
//!                           \- Write: unmapped, slots taken, stays held
//!        ... all writes of the batch together ...
//!        write_completion.rs: frames free; or resident, clean or dirty
//! ```
//! The entries of folios being written are held, as those of files' pages are (`in_place.rs`): a
//! fault waits, and finds all of the folio or none. Reclaim waits for nothing else while it holds
//! them.

use super::destinations::Destinations;
use super::fate::{Fate, decide};
use crate::folio::{self, Folio, Unmapped};
use crate::lru::Kind;
use crate::machine::Machine;
use crate::phase;
use crate::space::{Entry, Held, Page, Pinned};
use crate::stats::Counter;
use crate::write_completion::{Outcome, complete_folio};
use highwater_platform::{Io, Platform, Protection};
use highwater_units::{BATCH_PAGES_MAX, FrameBatch, FrameList, Order, Pfn, Slot};

/// Divides a batch: pages of one frame each, and the first frames of folios.
pub(super) fn split_batch<P: Platform>(
    m: &Machine<P>,
    batch: FrameBatch,
) -> (FrameBatch, FrameBatch) {
    let [mut single, mut folios] = [FrameBatch::default(); 2];
    if !m.has_folios() {
        return (batch, folios);
    }
    for pfn in batch.iter() {
        let owner = m.frames.owner(*pfn);
        if owner.is_some_and(|owner| m.space(owner.space).order() > Order(0)) {
            folios.push(*pfn);
        } else {
            single.push(*pfn);
        }
    }
    (single, folios)
}

/// Frames written for a batch after which no further folio of it is written: reclaim has a target
/// of a few frames.
const WRITTEN_MAX: u32 = 128;

/// The result of a batch's folios.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evicted {
    /// Frames freed.
    pub(super) freed: u32,
    /// Frames written, or whose write failed.
    pub(super) written: u32,
}

/// Writes to make, and their folios.
struct Writes<'a, P: Platform> {
    folios: [Option<Held<'a, P>>; BATCH_PAGES_MAX],
    ios: [Io; BATCH_PAGES_MAX],
    devices: [u8; BATCH_PAGES_MAX],
    len: usize,
}

/// Evicts what it can of the folios whose first frames are `heads`, isolated from an inactive list.
pub(super) fn evict<P: Platform>(
    m: &Machine<P>,
    heads: &FrameBatch,
    to: &mut Destinations,
) -> Evicted {
    let mut done = Evicted::default();
    if heads.is_empty() {
        return done;
    }
    let mut writes = Writes {
        folios: [const { None }; BATCH_PAGES_MAX],
        ios: [Io::new(0, FrameList::default()); BATCH_PAGES_MAX],
        devices: [0; BATCH_PAGES_MAX],
        len: 0,
    };
    for head in heads.iter() {
        if done.written >= WRITTEN_MAX {
            to.probed.push(*head);
            continue;
        }
        match lock(m, *head) {
            Some(held) => sort_folio(m, held, *head, &mut writes, to, &mut done),
            None => to.activated.push(*head),
        }
    }
    write_out(m, &mut writes, to, &mut done);
    done
}

/// Holds the folio that begins with `head`, unless it is locked or pinned.
fn lock<P: Platform>(m: &Machine<P>, head: Pfn) -> Option<Held<'_, P>> {
    let owner = m.frames.owner(head)?;
    let held = Held::lock(m.space(owner.space), owner.vpn, Pinned::Refuse)?;
    (held.page() == Page::Resident(head)).then_some(held)
}

/// Decides a folio's fate, and sends it to its destination unless it is to be written.
fn sort_folio<'a, P: Platform>(
    m: &Machine<P>,
    held: Held<'a, P>,
    head: Pfn,
    writes: &mut Writes<'a, P>,
    to: &mut Destinations,
    done: &mut Evicted,
) {
    let (space, was) = (held.space(), held.entries()[0]);
    let folio = Folio::new(head, space.order());
    let fate = decide(Kind::Anon, was, m.frames.slot(head).is_some(), m.platform.recency());
    if matches!(fate, Fate::Activate | Fate::Probe) {
        return to.activated.push(head);
    }
    if was.is_mapped() {
        let protection = if was.is_dirty() { Protection::ReadWrite } else { Protection::ReadOnly };
        if folio::unmap(m, space, held.owner(0), &folio, protection) == Unmapped::Busy {
            return to.kept.push(head);
        }
    }
    if fate == Fate::Drop {
        m.count(Counter::PgDropClean, folio.len() as u64);
        let slot = m.frames.take_slot(head).expect("only pages with slots are dropped");
        folio::free_isolated(m, &folio);
        done.freed += folio.len() as u32;
        return held.release(|_, _| Entry::swapped(slot));
    }
    let _phase = m.enter(phase::SWAP_OUT);
    let Some(slot) = m.swap.alloc_block(m.cpu(), head, space.order()) else {
        m.count(Counter::FolioSwpOutFallback, 1);
        to.kept.push(head);
        return held.release(|_, was| was.unmapped());
    };
    done.written += folio.len() as u32;
    writes.ios[writes.len] = Io::block(slot.index, head, space.order());
    writes.devices[writes.len] = slot.device;
    writes.folios[writes.len] = Some(held);
    writes.len += 1;
}

/// Makes the writes, those to one device together, completes them and unlocks the folios.
fn write_out<P: Platform>(
    m: &Machine<P>,
    writes: &mut Writes<'_, P>,
    to: &mut Destinations,
    done: &mut Evicted,
) {
    let _phase = m.enter(phase::SWAP_OUT);
    let mut at = 0;
    while at < writes.len {
        let device = writes.devices[at];
        let same = writes.devices[at..writes.len].iter().take_while(|other| **other == device);
        let end = at + same.count();
        m.swap.write(&m.platform, &m.stats, device, &mut writes.ios[at..end]);
        for index in at..end {
            let held = writes.folios[index].take().expect("held until it is written");
            let io = &writes.ios[index];
            let head = io.frames.at(0);
            match complete_folio(m, held, io, Slot { device, index: io.slot }) {
                Outcome::Freed => done.freed += io.frames.len() as u32,
                stays => to.push_written(head, stays),
            }
        }
        at = end;
    }
}
