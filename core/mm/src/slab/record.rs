//! What is known of a slab, outside of its pages: so nobody touches a page to find out.
//!
//! ```text
//! state: one word      first free object | objects out | frozen
//! links: an index each: the free objects, from the first on; a CPU's own, likewise
//! used:  a bit or byte each: handed out, and not given back                    used.rs
//! near:  neighbours on a node's list, under its lock
//! ```
//! The kernel has the links in the objects and the state in `struct page` ({freelist, counters},
//! changed by cmpxchg16b). A state is changed by compare-and-exchange, by anybody; lists are only
//! pushed to and taken whole, so no exchange mistakes an old head for a new one. A frozen slab is a
//! CPU's, on no node's list: whoever frees into it is done with that one exchange.
//!
//! Conservation: objects = marks in `used` + free in the slab + in the CPU's own list + in sheaves
//! + at hand of callers + waiting for the end of a grace period.

use super::used::{Marks, Used};
use super::{CacheId, FreeError};
use highwater_platform::{Atomic, Platform};
use highwater_units::{NodeId, Order, PAGE_SHIFT};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::*};

/// No object.
const NONE: u16 = u16::MAX;

/// No slab.
pub(super) const NO_SLAB: u32 = u32::MAX;

/// Bytes of a slab are fewer: the largest order is that of 1 MiB.
const OFFSETS: u64 = 1 << 21;

/// Bits behind the point of a reciprocal.
const RECIPROCAL_BITS: u32 = 42;

/// What to multiply an offset with, in place of dividing it by `size`, which is several times as
/// slow. It is too large by at most one in 2^42, so a quotient by at most offset / 2^42, which for
/// sizes of up to 2^16 never reaches the next.
fn reciprocal(size: u32) -> u64 {
    (1 << RECIPROCAL_BITS) / u64::from(size) + 1
}

/// What changes of a slab when objects come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The first of its free objects.
    pub(super) head: Option<u16>,
    /// Objects that are not on its list: handed out, or a CPU's own.
    pub(super) out: u16,
    /// A CPU has it.
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

/// Objects of a slab, linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) count: u16,
}

/// What freeing a chain makes of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    /// It stays where it is.
    Stays(State),
    /// It was full, so on no list: it becomes this CPU's.
    Freezes(State),
    /// It is on a node's list and empty: the node decides, under its lock.
    Empties(State),
}

/// Decides what freeing makes of a state (__slab_free).
pub(super) fn freed(before: State, chain: Chain) -> Freed {
    let after = State { head: Some(chain.first), out: before.out - chain.count, ..before };
    match before {
        State { frozen: true, .. } => Freed::Stays(after),
        State { head: None, .. } => Freed::Freezes(State { frozen: true, ..after }),
        _ if after.out == 0 => Freed::Empties(after),
        _ => Freed::Stays(after),
    }
}

/// What a slab gives who takes its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// All its free objects, from this one on; it is frozen.
    Objects(u16),
    /// It has none: it is nobody's any more.
    Full,
}

/// Where a slab is: set before it has objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pages {
    pub(super) first: u64,
    pub(super) order: Order,
}

/// The record of a slab. It is used again for slabs of the same cache, and never freed.
pub(super) struct Slab<P: Platform> {
    pub(super) cache: CacheId,
    size: u32,
    /// See [`reciprocal`].
    reciprocal: u64,
    /// `Pages`, packed: the first above the order.
    pages: AtomicU64,
    node: AtomicU32,
    objects: AtomicU16,
    state: P::Atomic<u64>,
    /// What an object's free list needs beside the state; whoever frees an object sets its link,
    /// and hands it over with the state.
    links: Box<[AtomicU16]>,
    pub(super) used: Used<P>,
    /// Who asked for an object, where that is noted.
    pub(super) callers: Box<[AtomicU32]>,
    /// Towards front and back of a node's list, under its lock.
    pub(super) near: [AtomicU32; 2],
}

impl<P: Platform> Slab<P> {
    /// A record for slabs of up to `objects` objects of `size` bytes, of which so many have a place
    /// for their callers.
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
            state: Atomic::new(State { head: None, out: 0, frozen: false }.bits()),
            links: (0..objects).map(|_| AtomicU16::new(NONE)).collect(),
            used: Used::new(marks, objects),
            callers: (0..callers).map(|_| AtomicU32::new(0)).collect(),
            near: [const { AtomicU32::new(NO_SLAB) }; 2],
        }
    }

    /// Begins a slab: frozen, all objects in the list of who made it, in order. Returns the first.
    pub(super) fn begin(&self, pages: Pages, node: NodeId, objects: u16) -> u16 {
        self.pages.store(pages.first << 8 | u64::from(pages.order.0), Relaxed);
        self.node.store(node.0.into(), Relaxed);
        self.objects.store(objects, Relaxed);
        for index in 0..objects {
            let next = if index + 1 < objects { index + 1 } else { NONE };
            self.links[usize::from(index)].store(next, Relaxed);
        }
        self.state.store(State { head: None, out: objects, frozen: true }.bits(), Release);
        0
    }

    /// Moves the objects of a slab that just began from who made it to its own list.
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

    /// Changes the state, unless it is not `from` any more; says what it is then.
    pub(super) fn change(&self, from: State, to: State) -> Result<(), State> {
        let changed = self.state.compare_exchange(from.bits(), to.bits(), AcqRel, Acquire);
        changed.map(drop).map_err(State::of)
    }

    /// The object after `index` in its list.
    pub(super) fn next(&self, index: u16) -> Option<u16> {
        let next = self.links[usize::from(index)].load(Relaxed);
        (next != NONE).then_some(next)
    }

    pub(super) fn link(&self, index: u16, next: Option<u16>) {
        self.links[usize::from(index)].store(next.unwrap_or(NONE), Relaxed);
    }

    /// Takes all free objects of a frozen slab; where there are none, lets go of it
    /// (get_freelist).
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
                Ok(()) => return before.head.expect("slabs of a node's list have free objects"),
                Err(now) => before = now,
            }
        }
    }

    /// Makes it a CPU's.
    pub(super) fn freeze(&self) {
        let mut before = self.state();
        while let Err(now) = self.change(before, State { frozen: true, ..before }) {
            before = now;
        }
    }

    /// Makes it no CPU's any more; returns the state then.
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

    /// The number of the object at a byte of the source, if one begins there.
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

    /// The byte of the source at which an object begins.
    #[inline]
    pub(super) fn address_of(&self, index: u16) -> u64 {
        (self.pages().first << PAGE_SHIFT) + u64::from(index) * u64::from(self.size)
    }

    /// Notes that an object is handed out.
    ///
    /// # Panics
    /// If it is already.
    pub(super) fn hand_out(&self, index: u16) {
        self.used.set(index);
    }

    /// Notes that it came back.
    pub(super) fn hand_back(&self, index: u16) -> Result<(), FreeError> {
        self.used.clear(index)
    }

    /// Whether an object is handed out.
    pub(super) fn is_used(&self, index: u16) -> bool {
        self.used.is_set(index)
    }

    /// Calls `found` with every object that is handed out.
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
    fn a_product_with_the_reciprocal_is_the_quotient() {
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
    fn what_freeing_makes_of_a_slab() {
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
