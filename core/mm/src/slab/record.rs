//! The record of a slab. All state of a slab is here, none in its pages.
//!
//! ```text
//! state: one word             first free object | objects out | frozen
//! links: an index an object   the slab's free list, and the CPU's: made once their order is no
//!                             longer that of the objects
//! used:  a bit or byte each   allocated or not                                 used.rs
//! near:  neighbours on a node's list, under its lock
//! ```
//! The kernel has the links in the objects and the state in `struct slab` ({freelist, counters},
//! changed by cmpxchg16b). Any thread changes the state by compare-and-exchange. Objects are pushed
//! to the list, and the list is taken whole, so there is no ABA problem. A frozen slab belongs to a
//! CPU and is on no node's list: to free an object into it takes one exchange.
//!
//! Conservation: objects = allocated + free in the slab + on the CPU's free list + in sheaves
//! + reserved by callers + waiting for the end of a grace period.

use super::object::CacheId;
use super::used::{Marks, Used};
use crate::error::FreeError;
use highwater_platform::{Atomic, Platform};
use highwater_units::{NodeId, Order, PAGE_SHIFT};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::*};

/// No object.
const NONE: u16 = u16::MAX;

/// No slab.
pub(super) const NO_SLAB: u32 = u32::MAX;

/// A slab has fewer bytes: the largest has 1 MiB.
const OFFSETS: u64 = 1 << 21;

/// Fraction bits of a reciprocal.
const RECIPROCAL_BITS: u32 = 42;

/// The factor that replaces a division of an offset by `size`, which is several times as slow. The
/// error of a quotient is at most offset / 2^42, too small to reach the next integer for sizes up
/// to 2^16.
fn reciprocal(size: u32) -> u64 {
    (1 << RECIPROCAL_BITS) / u64::from(size) + 1
}

/// The state of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The first object of its free list.
    pub(super) head: Option<u16>,
    /// Objects that are not on its free list: allocated, or free elsewhere.
    pub(super) out: u16,
    /// It belongs to a CPU.
    pub(super) frozen: bool,
}

impl State {
    fn bits(self) -> u64 {
        u64::from(self.head.unwrap_or(NONE))
            | u64::from(self.out) << 16
            | u64::from(self.frozen) << 32
    }

    fn of(bits: u64) -> State {
        let head = bits as u16;
        State {
            head: (head != NONE).then_some(head),
            out: (bits >> 16) as u16,
            frozen: bits >> 32 & 1 == 1,
        }
    }
}

/// Linked objects of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) count: u16,
}

/// The transition of a slab when a chain of objects is freed into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    /// It stays where it is.
    Stays(State),
    /// It was full, so on no list: this CPU takes it.
    Freezes(State),
    /// It is on a node's list and now empty: whether to keep it is decided under the node's lock.
    Empties(State),
}

/// The state after a chain is freed (__slab_free).
pub(super) fn freed(before: State, chain: Chain) -> Freed {
    let after = State { head: Some(chain.first), out: before.out - chain.count, ..before };
    match before {
        State { frozen: true, .. } => Freed::Stays(after),
        State { head: None, .. } => Freed::Freezes(State { frozen: true, ..after }),
        _ if after.out == 0 => Freed::Empties(after),
        _ => Freed::Stays(after),
    }
}

/// The result of taking a slab's free list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The first of all its free objects; the slab is frozen.
    Objects(u16),
    /// There were none; the slab belongs to no CPU and is on no list.
    Full,
}

/// The pages of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pages {
    pub(super) first: u64,
    pub(super) order: Order,
}

/// The record of a slab. It is reused for slabs of the same cache and never freed.
pub(super) struct Slab<P: Platform> {
    pub(super) cache: CacheId,
    size: u32,
    /// See [`reciprocal`].
    reciprocal: u64,
    /// `Pages`, packed: the first above the order.
    pages: AtomicU64,
    node: AtomicU32,
    objects: AtomicU16,
    objects_max: u16,
    state: P::Atomic<u64>,
    /// By object: the next one on its free list. The thread that frees an object sets its link and
    /// publishes it with the state. Before the first object is freed out of order, none: two bytes
    /// an object, which a program that only allocates never needs.
    links: OnceLock<Box<[AtomicU16]>>,
    pub(super) used: Used<P>,
    /// By object: the caller that allocated it, if the cache records callers.
    pub(super) callers: Box<[AtomicU32]>,
    /// The neighbours towards the front and the back of a node's list, under its lock.
    pub(super) near: [AtomicU32; 2],
}

impl<P: Platform> Slab<P> {
    /// A record for slabs of up to `objects` objects of `size` bytes, with room for the callers of
    /// the first `callers`.
    pub(super) fn new(
        cache: CacheId,
        size: u32,
        objects: u16,
        callers: u16,
        marks: Marks,
    ) -> Slab<P> {
        Slab {
            cache,
            size,
            reciprocal: reciprocal(size),
            pages: AtomicU64::new(0),
            node: AtomicU32::new(0),
            objects: AtomicU16::new(0),
            objects_max: objects,
            state: Atomic::new(State { head: None, out: 0, frozen: false }.bits()),
            links: OnceLock::new(),
            used: Used::new(marks, objects),
            callers: (0..callers).map(|_| AtomicU32::new(0)).collect(),
            near: [const { AtomicU32::new(NO_SLAB) }; 2],
        }
    }

    /// Starts a slab: frozen, all objects on the free list of the thread that made it, in order.
    /// Returns the first object.
    pub(super) fn begin(&self, pages: Pages, node: NodeId, objects: u16) -> u16 {
        self.pages.store(pages.first << 8 | u64::from(pages.order.0), Relaxed);
        self.node.store(node.0.into(), Relaxed);
        self.objects.store(objects, Relaxed);
        for (index, link) in (0..objects).zip(self.links.get().into_iter().flatten()) {
            link.store(self.next_in_order(index), Relaxed);
        }
        self.state.store(State { head: None, out: objects, frozen: true }.bits(), Release);
        0
    }

    /// Moves all objects of a slab that was just started to its own free list.
    pub(super) fn put_all(&self, head: u16) {
        self.state.store(State { head: Some(head), out: 0, frozen: true }.bits(), Release);
    }

    #[inline]
    pub(super) fn pages(&self) -> Pages {
        let packed = self.pages.load(Relaxed);
        Pages { first: packed >> 8, order: Order(packed as u8) }
    }

    pub(super) fn node(&self) -> usize {
        self.node.load(Relaxed) as usize
    }

    #[inline]
    pub(super) fn objects(&self) -> u16 {
        self.objects.load(Relaxed)
    }

    pub(super) fn state(&self) -> State {
        State::of(self.state.load(Acquire))
    }

    /// Changes the state from `from` to `to`; fails with the current state if that is not `from`.
    pub(super) fn change(&self, from: State, to: State) -> Result<(), State> {
        let changed = self.state.compare_exchange(from.bits(), to.bits(), AcqRel, Acquire);
        changed.map(drop).map_err(State::of)
    }

    /// The link of an object of a slab that was just started.
    fn next_in_order(&self, index: u16) -> u16 {
        if index + 1 < self.objects() { index + 1 } else { NONE }
    }

    /// The object after `index` on its free list.
    pub(super) fn next(&self, index: u16) -> Option<u16> {
        let next = match self.links.get() {
            Some(links) => links[usize::from(index)].load(Relaxed),
            None => self.next_in_order(index),
        };
        (next != NONE).then_some(next)
    }

    /// Links an object, which no other thread has, to the next one on its free list.
    pub(super) fn link(&self, index: u16, next: Option<u16>) {
        let next = next.unwrap_or(NONE);
        if self.links.get().is_none() {
            if next == self.next_in_order(index) {
                return;
            }
            // If another thread sets its own first, they are the same.
            let link = |index| AtomicU16::new(self.next_in_order(index));
            let in_order = (0..self.objects_max).map(link);
            let _ = self.links.set(in_order.collect());
        }
        let links = self.links.get().expect("set above");
        links[usize::from(index)].store(next, Relaxed);
    }

    /// Takes all free objects of a frozen slab; unfreezes it if there are none (get_freelist).
    pub(super) fn take_list(&self) -> Taken {
        let mut before = self.state();
        loop {
            let out = self.objects();
            let frozen = before.head.is_some();
            match self.change(before, State { head: None, out, frozen }) {
                Ok(()) => return before.head.map_or(Taken::Full, Taken::Objects),
                Err(now) => before = now,
            }
        }
    }

    /// Freezes a slab of a node's list, whose lock is held, and takes its free objects
    /// (acquire_slab).
    pub(super) fn take_from_node(&self) -> u16 {
        let mut before = self.state();
        loop {
            let after = State { head: None, out: self.objects(), frozen: true };
            match self.change(before, after) {
                Ok(()) => return before.head.expect("a slab on a node's list has free objects"),
                Err(now) => before = now,
            }
        }
    }

    /// Gives the slab to a CPU.
    pub(super) fn freeze(&self) {
        let mut before = self.state();
        while let Err(now) = self.change(before, State { frozen: true, ..before }) {
            before = now;
        }
    }

    /// Takes the slab from its CPU; returns the new state.
    pub(super) fn unfreeze(&self) -> State {
        let mut before = self.state();
        loop {
            let after = State { frozen: false, ..before };
            match self.change(before, after) {
                Ok(()) => return after,
                Err(now) => before = now,
            }
        }
    }

    /// The index of the object that begins at an address of the source.
    #[inline]
    pub(super) fn index_of(&self, address: u64) -> Option<u16> {
        let offset = address.wrapping_sub(self.pages().first << PAGE_SHIFT);
        if offset >= OFFSETS {
            return None;
        }
        let index = (offset * self.reciprocal) >> RECIPROCAL_BITS;
        let begins = index * u64::from(self.size) == offset;
        (begins && index < u64::from(self.objects())).then_some(index as u16)
    }

    /// The address of the source at which an object begins.
    #[inline]
    pub(super) fn address_of(&self, index: u16) -> u64 {
        (self.pages().first << PAGE_SHIFT) + u64::from(index) * u64::from(self.size)
    }

    /// Marks an object allocated.
    ///
    /// # Panics
    /// If it is allocated already.
    pub(super) fn mark_used(&self, index: u16) {
        self.used.set(index);
    }

    /// Marks an object free.
    pub(super) fn mark_free(&self, index: u16) -> Result<(), FreeError> {
        self.used.clear(index)
    }

    /// Whether an object is allocated.
    pub(super) fn is_used(&self, index: u16) -> bool {
        self.used.is_set(index)
    }

    /// Calls `found` with every allocated object.
    pub(super) fn each_used(&self, found: impl FnMut(u16)) {
        self.used.each(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_its_bits() {
        for head in [None, Some(0), Some(32_766)] {
            for (out, frozen) in [(0, false), (32_767, true), (5, true)] {
                let state = State { head, out, frozen };
                assert_eq!(State::of(state.bits()), state);
            }
        }
    }

    #[test]
    fn reciprocals_divide_exactly() {
        for size in (8..=64 << 10).step_by(8).chain(1..300).chain(65_500..=65_536) {
            let quotient = |offset: u64| (offset * reciprocal(size)) >> RECIPROCAL_BITS;
            let size = u64::from(size);
            for first in (0..OFFSETS).step_by(size.max(997) as usize) {
                let first = first / size * size;
                assert_eq!(quotient(first), first / size, "{first} / {size}");
                let last = first + size - 1;
                assert_eq!(quotient(last), last / size, "{last} / {size}");
            }
        }
    }

    #[test]
    fn states_after_a_free() {
        let chain = Chain { first: 3, last: 4, count: 2 };
        let state = |head, out, frozen| State { head, out, frozen };
        let table = [
            (state(Some(7), 2, true), Freed::Stays(state(Some(3), 0, true))),
            (state(None, 8, true), Freed::Stays(state(Some(3), 6, true))),
            (state(None, 8, false), Freed::Freezes(state(Some(3), 6, true))),
            (state(None, 2, false), Freed::Freezes(state(Some(3), 0, true))),
            (state(Some(7), 5, false), Freed::Stays(state(Some(3), 3, false))),
            (state(Some(7), 2, false), Freed::Empties(state(Some(3), 0, false))),
        ];
        for (before, expected) in table {
            assert_eq!(freed(before, chain), expected, "{before:?}");
        }
    }
}
