//! Page and frame numbers, and the sizes of pages and blocks.

/// Bytes in a page and in a frame: 4 KiB, the base page of all supported machines.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// Pages of a large block: 2 MiB, one translation of the hardware (HPAGE_PMD_NR).
pub const LARGE_PAGES: usize = 512;

/// Page frame number: the index of a frame in the arena, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(pub u32);

impl Pfn {
    /// The index into a table with one record per frame.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The frame `frames` after this one.
    pub fn offset(self, frames: u32) -> Pfn {
        Pfn(self.0 + frames)
    }
}

/// Virtual page number: the index of a page in its space, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vpn(pub u64);

impl Vpn {
    /// The page `pages` after this one.
    pub fn offset(self, pages: u64) -> Vpn {
        Vpn(self.0 + pages)
    }

    /// The page beside this one; `None` before page 0.
    pub fn beside(self, direction: Direction) -> Option<Vpn> {
        match direction {
            Direction::Up => self.0.checked_add(1).map(Vpn),
            Direction::Down => self.0.checked_sub(1).map(Vpn),
        }
    }
}

/// The way a sequence of pages goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To higher addresses.
    Up,
    /// To lower addresses.
    Down,
}

/// log2 of the number of frames in a block, 0 to [`Order::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(pub u8);

impl Order {
    /// The largest block of the buddy allocator: 1024 frames, 4 MiB.
    pub const MAX: Order = Order(10);

    /// A large block: [`LARGE_PAGES`] frames.
    pub const LARGE: Order = Order(LARGE_PAGES.trailing_zeros() as u8);

    /// Frames in a block of this order.
    pub const fn frames(self) -> u32 {
        1 << self.0
    }

    /// The smallest order whose block holds `frames` (at least 1) frames.
    pub fn covering(frames: u32) -> Order {
        Order(frames.next_power_of_two().trailing_zeros() as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covering_rounds_up_to_a_power_of_two() {
        for (frames, order) in [(1, 0), (2, 1), (3, 2), (16, 4), (17, 5)] {
            assert_eq!(Order::covering(frames), Order(order));
        }
    }
}
