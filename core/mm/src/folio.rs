//! Pages of more than one frame: a page of a space of order k is 2^k adjacent frames, and never
//! less (the kernel's folio).
//!
//! ```text
//! entry --> first frame: owner, slot, place on the lists      stands for all
//!           2^k - 1 others: Tail, nobody's
//! slot  --> the first of 2^k adjacent ones
//! ```
//! The page has one entry, which is its lock, its pins and its dirty bit, so what is said of pages
//! holds for it: only who goes from a page to its frames must know of the others. Unlike a large
//! page ([`crate::large`]) it has no parts that could be split off, or accessed without a guard:
//! such spaces are for platforms whose accesses pass through the entry.
//! Conservation: a tail belongs to the nearest first frame below it.
//! Locking: the page's entry; then the LRU's as everywhere.

use crate::frame::{Mobility, Place};
use crate::lru::Removal;
use crate::machine::Machine;
use crate::space::{Owner, Space};
use highwater_platform::{Platform, Protection};
use highwater_units::{LARGE_PAGES, Order, Pfn, Slot};
use std::ops::Deref;

/// The largest order of a space's pages: 2 MiB.
pub const ORDER_MAX: Order = Order::LARGE;

/// The frames of a page, in order.
pub struct Folio {
    frames: [Pfn; LARGE_PAGES],
    order: Order,
}

impl Folio {
    /// That begins with `first`.
    pub fn new(first: Pfn, order: Order) -> Folio {
        Folio { frames: std::array::from_fn(|index| Pfn(first.0 + index as u32)), order }
    }

    /// Of how many frames it is.
    pub fn order(&self) -> Order {
        self.order
    }

    /// The first frame, which stands for all.
    pub fn head(&self) -> Pfn {
        self.frames[0]
    }

    /// The frames but the first.
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

/// Whether a folio was taken from the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All of it.
    Whole,
    /// Part of it is pinned by the system: all of it is mapped again.
    Busy,
}

/// Gives taken frames to a page whose entry the caller holds.
pub fn adopt<P: Platform>(m: &Machine<P>, folio: &Folio, owner: Owner) {
    m.adopt(folio.head(), owner);
    for pfn in folio.tails() {
        let tail = m.frames.place(*pfn).change(Place::Off, Place::Tail);
        debug_assert_eq!(tail, Ok(()), "{pfn:?} was free");
    }
}

/// Tails are nobody's, and no longer such.
pub fn detach<P: Platform>(m: &Machine<P>, folio: &Folio) {
    for pfn in folio.tails() {
        let off = m.frames.place(*pfn).change(Place::Tail, Place::Off);
        debug_assert_eq!(off, Ok(()), "{pfn:?} is part of a page of many frames");
    }
}

/// Frees the frames of a dropped page whose entry the caller holds, or leaves the first one to who
/// has it in hand. It is unmapped.
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

/// Frees the slots that equal a folio, if there are such: it is about to differ from them.
pub fn forget_slots<P: Platform>(m: &Machine<P>, folio: &Folio) {
    if let Some(first) = m.frames.take_slot(folio.head()) {
        release_slots(m, first, folio.order);
    }
}

/// One reference less to the slots of a folio.
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
    // Nothing but the entry stands between a guard and its page.
    assert_eq!(progress.stop, None, "{owner:?} can be mapped");
}

/// Takes a mapped folio from the program. `protection`: as it was mapped.
pub fn unmap<P: Platform>(
    m: &Machine<P>,
    space: &Space<P>,
    owner: Owner,
    folio: &Folio,
    protection: Protection,
) -> Taken {
    let first = space.mapping(owner.vpn);
    let progress = m.platform.unmap(owner.space, first, folio);
    if progress.stop.is_none() {
        return Taken::Whole;
    }
    let again = m.platform.map(owner.space, first, &folio[..progress.done], protection);
    assert_eq!(again.stop, None, "{owner:?} can be mapped again");
    Taken::Busy
}

/// Takes a mapped folio whose contents are wanted no more from the program, busy or not.
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
