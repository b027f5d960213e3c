//! Free blocks of 2^order frames, split and merged with their buddies.
//!
//! ```text
//! Buddy -- lists of free blocks, by mobility and order      filled: the non-empty ones
//!       \- map    first frames of free blocks; type and counts of each pageblock        map.rs
//! ```
//! A block of order `o` starts at a multiple of 2^o, counted from the range's first frame; its
//! buddy is the block that differs in that one bit. Free frames are in exactly one block, always of
//! the largest order possible, on a list of its pageblock's type. Freed blocks are allocated before
//! untouched ones (front of the list), so that memory that was never used stays unused. Of the
//! untouched blocks of the largest order only the first is on its list, and the next is added when
//! the list is empty: a list of all of them would take 5 bytes for each frame of a budget that may
//! never be used.
//!
//! An allocation whose type has no free block steals one of another type ([`super::mobility`]): the
//! largest, so that the next steal is far off, together with its pageblock if most of that is free
//! or of a compatible type. If the pageblock keeps its type, so does the rest of the block (as in
//! Linux from 6.10 on).

use super::map::Map;
use super::mobility::{PAGEBLOCK, Steal, compatible, fallbacks, steal};
use crate::frame::Mobility;
use highwater_units::{IndexLists, Order, Pfn};
use std::sync::Arc;

/// Number of orders.
pub(super) const ORDERS: usize = Order::MAX.0 as usize + 1;
/// Number of migrate types.
pub(super) const TYPES: usize = Mobility::ALL.len();

/// The non-empty lists, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled(pub u64);

impl Filled {
    /// Number of bits.
    pub const BITS: u32 = (ORDERS * TYPES) as u32;

    /// The smallest order, not below `order`, of which the type has a free block.
    pub fn smallest(self, order: Order, mobility: Mobility) -> Option<Order> {
        let of_type = self.0 >> (mobility as usize * ORDERS) & ((1 << ORDERS) - 1);
        let fits = of_type >> order.0 << order.0;
        (fits != 0).then(|| Order(fits.trailing_zeros() as u8))
    }

    /// Whether any type has a free block of `order` or more.
    pub fn fits(self, order: Order) -> bool {
        Mobility::ALL.into_iter().any(|mobility| self.smallest(order, mobility).is_some())
    }
}

/// The list with the first untouched block.
const UNTOUCHED: usize = Mobility::Movable as usize * ORDERS + Order::MAX.0 as usize;

/// Which blocks an allocation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Blocks of its own migrate type.
    Own,
    /// Blocks of any type.
    Any,
}

/// The buddy allocator of one range of frames. Its part's lock protects it.
pub struct Buddy {
    first: Pfn,
    map: Arc<Map>,
    lists: IndexLists,
    filled: Filled,
    free: u32,
    /// Frames visited since [`Buddy::take_visits`], in addition to those that callers count.
    visits: usize,
}

fn list_of(mobility: Mobility, order: Order) -> usize {
    mobility as usize * ORDERS + usize::from(order.0)
}

impl Buddy {
    /// `frames` free frames from `first` on, in movable pageblocks.
    pub fn new(first: Pfn, frames: u32) -> Buddy {
        let map = Arc::new(Map::new(frames));
        let mut buddy = Buddy {
            first,
            lists: IndexLists::new(ORDERS * TYPES, frames as usize),
            filled: Filled::default(),
            free: frames,
            visits: 0,
            map,
        };
        buddy.touch();
        let mut at = frames & !(Order::MAX.frames() - 1);
        while at < frames {
            let order = Order((frames - at).ilog2() as u8);
            buddy.insert(at, order);
            at += order.frames();
        }
        buddy
    }

    /// Frames in free blocks.
    pub fn free_frames(&self) -> u32 {
        self.free
    }

    /// The non-empty lists.
    pub fn filled(&self) -> Filled {
        self.filled
    }

    /// Number of free blocks.
    pub fn blocks(&self, mobility: Mobility, order: Order) -> u32 {
        let list = list_of(mobility, order);
        self.lists.len(list) + self.untouched(list).count() as u32
    }

    /// The blocks of a list.
    fn iter(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        self.lists.iter(list).chain(self.untouched(list))
    }

    /// The blocks of a list that are not on it yet.
    fn untouched(&self, list: usize) -> impl Iterator<Item = u32> + use<> {
        self.map.untouched().filter(move |_| list == UNTOUCHED)
    }

    /// Puts the first untouched block on its list; whether there was one.
    fn touch(&mut self) -> bool {
        let Some(block) = self.map.touch() else { return false };
        self.lists.push_back(UNTOUCHED, block);
        self.filled.0 |= 1 << UNTOUCHED;
        true
    }

    /// Number of pageblocks of each type.
    pub fn pageblocks(&self) -> [u32; TYPES] {
        let mut counts = [0; TYPES];
        let all = 0..self.map.pageblocks();
        all.for_each(|block| counts[self.map.mobility(block) as usize] += 1);
        counts
    }

    /// The type of a frame's pageblock.
    #[cfg(test)]
    pub fn mobility(&self, pfn: Pfn) -> Mobility {
        self.map.mobility((pfn.0 - self.first.0) / PAGEBLOCK)
    }

    /// Frames visited since the last call, to find out what a pageblock holds.
    pub fn take_visits(&mut self) -> usize {
        std::mem::take(&mut self.visits)
    }

    /// Allocates a block of `order`, if necessary by splitting a larger one; returns its first
    /// frame.
    pub fn alloc(&mut self, order: Order, mobility: Mobility, reach: Reach) -> Option<Pfn> {
        let block = match (self.filled.smallest(order, mobility), reach) {
            (Some(from), _) => self.pop(from, mobility),
            (None, Reach::Own) => return None,
            (None, Reach::Any) => self.steal(order, mobility)?,
        };
        let from = self.map.head(block).expect("a free block");
        self.map.set_head(block, None);
        for smaller in (order.0..from.0).rev().map(Order) {
            self.insert(block + smaller.frames(), smaller);
        }
        self.free -= order.frames();
        self.map.note_unmovable(block, order, mobility, u16::wrapping_add);
        Some(self.first.offset(block))
    }

    /// The state of frames and pageblocks, which can be read without the lock.
    pub(super) fn map(&self) -> Arc<Map> {
        self.map.clone()
    }

    /// Changes the type of an allocated block that was taken as movable, and of the pageblocks that
    /// it covers.
    pub(super) fn convert(&mut self, pfn: Pfn, order: Order, mobility: Mobility) {
        let block = pfn.0 - self.first.0;
        self.map.note_unmovable(block, order, mobility, u16::wrapping_add);
        if order >= Order::LARGE {
            self.set_types(block, order, mobility);
        }
    }

    /// Calls `found` with the places of free movable blocks, order after order, until it returns
    /// `false`; returns the number of calls.
    pub(super) fn each_of(
        &self,
        orders: impl Iterator<Item = u8>,
        mut found: impl FnMut(u32) -> bool,
    ) -> usize {
        let lists = orders.map(|order| self.iter(list_of(Mobility::Movable, Order(order))));
        let mut count = 0;
        lists.flatten().all(|block| {
            count += 1;
            found(block)
        });
        count
    }

    /// Allocates this free block as movable.
    pub(super) fn take(&mut self, pfn: Pfn, order: Order) {
        let block = pfn.0 - self.first.0;
        assert_eq!(self.map.head(block), Some(order), "a free block starts with {pfn:?}");
        self.remove(block, order);
        self.free -= order.frames();
    }

    /// Allocates up to `frames` movable frames, in blocks that cover `together` (at most `frames`)
    /// while there are such blocks; calls `taken` with the first frame and the length of each.
    /// Returns the number of blocks.
    pub fn alloc_many(
        &mut self,
        frames: usize,
        together: usize,
        mut taken: impl FnMut(Pfn, u32),
    ) -> usize {
        let (mut left, mut blocks) = (frames as u32, 0);
        let mut order = Order::covering(together as u32);
        while left > 0 {
            order.0 = order.0.min(left.ilog2() as u8);
            match self.alloc(order, Mobility::Movable, Reach::Any) {
                Some(first) => {
                    taken(first, order.frames());
                    left -= order.frames();
                    blocks += 1;
                }
                None if order.0 > 0 => order.0 -= 1,
                None => break,
            }
        }
        blocks
    }

    /// Frees `frames` adjacent frames in the largest blocks they make; returns the number of
    /// blocks.
    pub fn free_many(&mut self, first: Pfn, frames: u32) -> usize {
        let (mut at, end) = (first.0 - self.first.0, first.0 - self.first.0 + frames);
        let mut blocks = 0;
        while at < end {
            let order = (end - at).ilog2().min(at.trailing_zeros()).min(Order::MAX.0.into()) as u8;
            self.free(self.first.offset(at), Order(order), Mobility::Movable);
            at += 1 << order;
            blocks += 1;
        }
        blocks
    }

    /// Frees a block that was allocated for `mobility`, whole or as part of a larger one.
    pub fn free(&mut self, pfn: Pfn, order: Order, mobility: Mobility) {
        let mut block = pfn.0 - self.first.0;
        let mut merged = order;
        assert!(self.map.head(block).is_none(), "frame {pfn:?} is freed twice");
        self.map.note_unmovable(block, order, mobility, u16::wrapping_sub);
        while merged < Order::MAX {
            let buddy = block ^ merged.frames();
            if self.map.head(buddy) != Some(merged) {
                break;
            }
            self.remove(buddy, merged);
            if merged >= Order::LARGE {
                // Both are entirely free: the merged block gets one type.
                let own = self.map.mobility(block / PAGEBLOCK);
                self.set_types(buddy, merged, own);
            }
            block &= !merged.frames();
            merged.0 += 1;
        }
        self.insert(block, merged);
        self.free += order.frames();
    }

    /// Calls `found` with every free block, and checks its invariants.
    pub fn each_block(&self, mut found: impl FnMut(Pfn, Order)) {
        for mobility in Mobility::ALL {
            for order in (0..=Order::MAX.0).map(Order) {
                let list = list_of(mobility, order);
                let filled = self.filled.0 >> list & 1 == 1;
                assert_eq!(filled, !self.lists.is_empty(list), "{mobility:?} {order:?}");
                for block in self.iter(list) {
                    assert_eq!(self.map.head(block), Some(order), "block {block}, wrong list");
                    let mut own = self.map.pageblocks_of(block, order);
                    assert!(own.all(|own| self.map.mobility(own) == mobility), "block {block}");
                    found(self.first.offset(block), order);
                }
            }
        }
    }

    /// Takes a block for `mobility` off another type's list. The map still has it as free.
    fn steal(&mut self, order: Order, mobility: Mobility) -> Option<u32> {
        let filled = self.filled;
        let other = |from: Order| {
            let mut others = fallbacks(mobility).into_iter();
            others.find(|other| filled.0 >> list_of(*other, from) & 1 == 1)
        };
        let orders = (order.0..=Order::MAX.0).map(Order);
        let (from, was) = orders.clone().rev().find_map(|from| Some((from, other(from)?)))?;
        match steal(from, mobility) {
            Steal::Whole => Some(self.take_over(from, was, mobility)),
            Steal::Compatible if self.mostly_compatible(from, was, mobility) => {
                Some(self.take_over(from, was, mobility))
            }
            Steal::Compatible => Some(self.pop(from, was)),
            Steal::Smallest => {
                let (from, was) = orders.clone().find_map(|from| Some((from, other(from)?)))?;
                Some(self.pop(from, was))
            }
        }
    }

    /// Whether at least half of the pageblock of a list's first block is free, or used by a type
    /// that is compatible with `wanted`.
    fn mostly_compatible(&mut self, order: Order, was: Mobility, wanted: Mobility) -> bool {
        let Some(block) = self.lists.iter(list_of(was, order)).next() else { return false };
        let pageblock = block / PAGEBLOCK;
        let frames = self.map.frames_of(pageblock);
        let (all, mut free) = (frames.len() as u32, 0);
        self.each_head(pageblock, |_, order| free += order.frames());
        self.visits += all as usize;
        let unmovable = self.map.unmovable(pageblock);
        free + compatible(wanted, was, all - free - unmovable, unmovable) >= all / 2
    }

    /// Changes the pageblocks of a list's first block, and all their free blocks, to `mobility`;
    /// returns the block, off its list.
    fn take_over(&mut self, order: Order, was: Mobility, mobility: Mobility) -> u32 {
        let block = self.pop(order, was);
        if order < Order::LARGE {
            let mut frames = self.map.frames_of(block / PAGEBLOCK);
            while let Some(at) = frames.next() {
                let Some(order) = self.map.head(at) else { continue };
                frames.start = at + order.frames();
                if at != block {
                    self.lists.remove(list_of(was, order), at);
                    self.note_gone(list_of(was, order));
                    self.filled.0 |= 1 << list_of(mobility, order);
                    self.lists.push_front(list_of(mobility, order), at);
                    self.visits += 1;
                }
            }
        }
        self.set_types(block, order, mobility);
        block
    }

    /// Calls `found` with the free blocks of a pageblock, in ascending order.
    fn each_head(&self, pageblock: u32, mut found: impl FnMut(u32, Order)) {
        let mut frames = self.map.frames_of(pageblock);
        while let Some(at) = frames.next() {
            if let Some(order) = self.map.head(at) {
                found(at, order);
                frames.start = at + order.frames();
            }
        }
    }

    fn set_types(&mut self, block: u32, order: Order, mobility: Mobility) {
        let own = self.map.pageblocks_of(block, order);
        own.for_each(|pageblock| self.map.set_mobility(pageblock, mobility));
    }

    /// Takes the first block off a list. The map still has it as free.
    fn pop(&mut self, order: Order, mobility: Mobility) -> u32 {
        let list = list_of(mobility, order);
        let block = self.lists.pop_front(list).expect("the list is filled");
        self.map.note_free(block, order, u16::wrapping_sub);
        self.note_gone(list);
        block
    }

    fn insert(&mut self, block: u32, order: Order) {
        self.map.set_head(block, Some(order));
        self.map.note_free(block, order, u16::wrapping_add);
        let list = list_of(self.map.mobility(block / PAGEBLOCK), order);
        self.filled.0 |= 1 << list;
        self.lists.push_front(list, block);
    }

    fn remove(&mut self, block: u32, order: Order) {
        while self.map.is_untouched(block) {
            self.touch();
        }
        let list = list_of(self.map.mobility(block / PAGEBLOCK), order);
        self.lists.remove(list, block);
        self.map.set_head(block, None);
        self.map.note_free(block, order, u16::wrapping_sub);
        self.note_gone(list);
    }

    fn note_gone(&mut self, list: usize) {
        if self.lists.is_empty(list) && !(list == UNTOUCHED && self.touch()) {
            self.filled.0 &= !(1 << list);
        }
    }
}
