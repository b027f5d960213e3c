//! Free blocks of 2^order frames, split and merged with their buddies.
//!
//! A block of order `o` starts at a multiple of 2^o, counted from the range's first frame; its
//! buddy is the block that differs in that one bit. Free frames are in exactly one block, always of
//! the largest order possible. Freed blocks are handed out before untouched ones (front of the
//! list), so that memory that was never used stays unused.

use highwater_units::{IndexLists, Order, Pfn};

/// Not the head of a free block.
const NOT_FREE: u8 = u8::MAX;

/// The buddy allocator of one range of frames. Its part's lock protects it.
pub struct Buddy {
    first: Pfn,
    lists: IndexLists,
    /// The order of the free block that starts at a frame.
    head: Vec<u8>,
    free: u32,
}

impl Buddy {
    /// All of `frames` frames from `first`, free.
    pub fn new(first: Pfn, frames: u32) -> Buddy {
        let lists = IndexLists::new(usize::from(Order::MAX.0) + 1, frames as usize);
        let head = vec![NOT_FREE; frames as usize];
        let mut buddy = Buddy { first, lists, head, free: frames };
        let mut at = 0;
        while at < frames {
            let fits = (frames - at).ilog2().min(u32::from(Order::MAX.0));
            let order = fits.min(at.trailing_zeros()) as u8;
            buddy.insert_back(at, order);
            at += 1 << order;
        }
        buddy
    }

    /// Frames in free blocks.
    pub fn free_frames(&self) -> u32 {
        self.free
    }

    /// The first frame of a block of `order`, splitting a larger one if need be.
    pub fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let from = (order.0..=Order::MAX.0).find(|o| !self.lists.is_empty(usize::from(*o)))?;
        let block = self.lists.pop_front(usize::from(from))?;
        self.head[block as usize] = NOT_FREE;
        for smaller in (order.0..from).rev() {
            self.insert_front(block + (1 << smaller), smaller);
        }
        self.free -= order.frames();
        Some(self.first.offset(block))
    }

    /// Takes up to `frames` frames, as many as there are, in blocks that cover `together` (at most
    /// `frames`) while there are such; says of each block where it begins and its frames. Returns
    /// how many blocks.
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
            match self.alloc(order) {
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

    /// Frees `frames` adjacent frames, in the largest blocks they make. Returns how many.
    pub fn free_many(&mut self, first: Pfn, frames: u32) -> usize {
        let (mut at, end) = (first.0 - self.first.0, first.0 - self.first.0 + frames);
        let mut blocks = 0;
        while at < end {
            let order = (end - at).ilog2().min(at.trailing_zeros()).min(Order::MAX.0.into()) as u8;
            self.free(self.first.offset(at), Order(order));
            at += 1 << order;
            blocks += 1;
        }
        blocks
    }

    /// Frees a block that was allocated, whole or as part of a larger one.
    pub fn free(&mut self, pfn: Pfn, order: Order) {
        let mut block = pfn.0 - self.first.0;
        let mut merged = order.0;
        assert!(self.head[block as usize] == NOT_FREE, "frame {pfn:?} is freed twice");
        while merged < Order::MAX.0 {
            let buddy = block ^ (1 << merged);
            if self.head.get(buddy as usize) != Some(&merged) {
                break;
            }
            self.lists.remove(usize::from(merged), buddy);
            self.head[buddy as usize] = NOT_FREE;
            block &= !(1 << merged);
            merged += 1;
        }
        self.insert_front(block, merged);
        self.free += order.frames();
    }

    /// Calls `found` with every free block.
    pub fn each_block(&self, mut found: impl FnMut(Pfn, Order)) {
        for order in 0..=Order::MAX.0 {
            for block in self.lists.iter(usize::from(order)) {
                assert_eq!(self.head[block as usize], order, "block {block} is on the wrong list");
                found(self.first.offset(block), Order(order));
            }
        }
    }

    fn insert_front(&mut self, block: u32, order: u8) {
        self.head[block as usize] = order;
        self.lists.push_front(usize::from(order), block);
    }

    fn insert_back(&mut self, block: u32, order: u8) {
        self.head[block as usize] = order;
        self.lists.push_back(usize::from(order), block);
    }
}
