//! Folios: pages of more than one frame. A page of a space of order k is always 2^k adjacent
//! frames.
//!
//! ```text
//! entry --> first frame: owner, slot, place on the lists, for the whole folio
//!           2^k - 1 others: Tail, without owner
//! slot  --> the first of 2^k adjacent slots
//! ```
//! A folio has one entry, which holds its lock, pins and dirty bit. Only code that goes from a page
//! to its frames knows that a page has several. Unlike a large page ([`crate::large`]) a folio
//! cannot be split, nor accessed without a guard: spaces of folios exist on platforms where every
//! access passes through the entry. Conservation: a tail belongs to the nearest first frame below
//! it. Locking: the folio's entry, then the LRU's locks.

use crate::frame::{Mobility, Place};
use crate::lru::Removal;
use crate::machine::Machine;
use crate::space::{Owner, Space};
use highwater_platform::{Platform, Protection};
use highwater_units::{LARGE_PAGES, Order, Pfn, Slot};
use std::ops::Deref;

/// The largest order of a space's pages: 2 MiB.
pub const ORDER_MAX: Order = Order::LARGE;

/// The frames of a folio, in order.
pub struct Folio {
    frames: [Pfn; LARGE_PAGES],
    order: Order,
}

impl Folio {
    /// The 2^order frames from `first` on.
    pub fn new(first: Pfn, order: Order) -> Folio {
        Folio { frames: std::array::from_fn(|index| Pfn(first.0 + index as u32)), order }
    }

    /// log2 of its number of frames.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The first frame, which has the folio's record.
    pub fn head(&self) -> Pfn {
        self.frames[0]
    }

    /// All frames but the first.
    pub fn tails(&self) -> &[Pfn] {
        &self[1..]
    }
}

impl Deref for Folio {
    type Target = [Pfn];

    fn deref(&self) -> &[Pfn] {
        &self.frames[..self.order.frames() as usize]
    }
}

/// The result of unmapping a folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// All of it is unmapped.
    Done,
    /// The system has pinned part of it: all of it is still mapped.
    Busy,
}

/// Gives allocated frames to a page whose entry the caller holds.
pub fn adopt<P: Platform>(m: &Machine<P>, folio: &Folio, owner: Owner) {
    m.adopt(folio.head(), owner);
    for pfn in folio.tails() {
        let tail = m.frames.place(*pfn).change(Place::Off, Place::Tail);
        debug_assert_eq!(tail, Ok(()), "{pfn:?} was free");
    }
}

/// Makes the tails single frames again, on no list.
pub fn detach<P: Platform>(m: &Machine<P>, folio: &Folio) {
    for pfn in folio.tails() {
        let off = m.frames.place(*pfn).change(Place::Tail, Place::Off);
        debug_assert_eq!(off, Ok(()), "{pfn:?} is part of a folio");
    }
}

/// Frees the frames of a dropped, unmapped folio whose entry the caller holds. A thread that has
/// isolated the first frame frees that one.
pub fn abandon<P: Platform>(m: &Machine<P>, folio: &Folio) {
    let head = folio.head();
    m.frames.set_owner(head, None);
    forget_slots(m, folio);
    detach(m, folio);
    match m.node_of(head).lru.remove(&m.frames, head) {
        Removal::Taken => m.free_run(head, folio.order, Mobility::Movable),
        Removal::Abandoned => m.free_to_zone(folio.tails()),
    }
}

/// Frees the frames of an evicted folio, which this thread has isolated.
pub fn free_isolated<P: Platform>(m: &Machine<P>, folio: &Folio) {
    let head = folio.head();
    m.frames.set_owner(head, None);
    detach(m, folio);
    let off = m.frames.place(head).change(Place::Isolated, Place::Off);
    debug_assert_eq!(off, Ok(()), "{head:?} was evicted by the thread that isolated it");
    m.free_run(head, folio.order, Mobility::Movable);
}

/// Releases the slots that hold a copy of the folio, if any, before the folio changes.
pub fn forget_slots<P: Platform>(m: &Machine<P>, folio: &Folio) {
    if let Some(first) = m.frames.take_slot(folio.head()) {
        release_slots(m, first, folio.order);
    }
}

/// Drops one reference to each slot of a folio.
pub fn release_slots<P: Platform>(m: &Machine<P>, first: Slot, order: Order) {
    let slots = (0..order.frames()).map(|index| Slot { index: first.index + index, ..first });
    slots.for_each(|slot| m.release_slot(slot));
}

/// Maps a folio that belongs to a page whose entry the caller holds.
pub fn map<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    owner: Owner,
    folio: &Folio,
    protection: Protection,
) {
    let progress = m.platform.map(owner.space, space.mapping(owner.vpn), folio, protection);
    // On platforms with folios, mapping is a matter of the entry alone.
    assert_eq!(progress.stop, None, "{owner:?} can be mapped");
}

/// Unmaps a folio, or maps it again if part of it is pinned. `protection` is that of the old
/// mapping.
pub fn unmap<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    owner: Owner,
    folio: &Folio,
    protection: Protection,
) -> Unmapped {
    let first = space.mapping(owner.vpn);
    let progress = m.platform.unmap(owner.space, first, folio);
    if progress.stop.is_none() {
        return Unmapped::Done;
    }
    let again = m.platform.map(owner.space, first, &folio[..progress.done], protection);
    assert_eq!(again.stop, None, "{owner:?} can be mapped again");
    Unmapped::Busy
}

/// Unmaps a folio whose contents are no longer needed, pinned or not.
pub fn drop_mapped<P: Platform>(m: &Machine<P>, space: &Space<P>, owner: Owner, folio: &Folio) {
    let (first, mut at) = (space.mapping(owner.vpn), 0);
    while at < folio.len() {
        let from = first.offset(at as u64);
        let progress = m.platform.unmap(owner.space, from, &folio[at..]);
        at += progress.done;
        if progress.stop.is_some() {
            m.platform.discard(owner.space, first.offset(at as u64), folio[at]);
            at += 1;
        }
    }
}
