//! Which allocations belong together.
//!
//! A frame that nobody can move spoils every large block that it could be part of. So each
//! pageblock of 2 MiB has a type, allocations go to pageblocks of their own type while these have
//! free frames, and only then to others, in the kernel's order (MIGRATE_*, mm/page_alloc.c).

use crate::frame::Mobility;
use highwater_units::{LARGE_PAGES, Order};

/// Frames of a pageblock.
pub const PAGEBLOCK: u32 = LARGE_PAGES as u32;

/// Whose frames an allocation takes when there are none of its own.
pub(super) fn fallbacks(mobility: Mobility) -> [Mobility; 2] {
    match mobility {
        Mobility::Movable => [Mobility::Reclaimable, Mobility::Unmovable],
        Mobility::Unmovable => [Mobility::Reclaimable, Mobility::Movable],
        Mobility::Reclaimable => [Mobility::Unmovable, Mobility::Movable],
    }
}

/// What to do with a free block of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steal {
    /// Its pageblocks are free throughout: they change their type.
    Whole,
    /// Its pageblock changes its type if most of it is free or alike; else the block alone is used.
    Vote,
    /// Rather the smallest block that does: who moves its pages spoils nothing.
    Smallest,
}

/// Decides (can_steal_fallback): `block` is the order of the largest free block of another type.
pub(super) fn steal(block: Order, wanted: Mobility) -> Steal {
    const LARGE: u8 = Order::LARGE.0;
    const HALF: u8 = LARGE / 2;
    match (block.0, wanted) {
        (LARGE.., _) => Steal::Whole,
        (HALF.., _) | (_, Mobility::Unmovable | Mobility::Reclaimable) => Steal::Vote,
        (_, Mobility::Movable) => Steal::Smallest,
    }
}

/// Used frames of a pageblock that are like the new type, as far as that is known: its `movable`
/// ones and others.
pub(super) fn alike(wanted: Mobility, was: Mobility, movable: u32, others: u32) -> u32 {
    match (wanted, was) {
        (Mobility::Movable, _) => movable,
        (_, Mobility::Movable) => others,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mobility::{Movable, Reclaimable, Unmovable};

    #[test]
    fn what_is_stolen_follows_the_kernel() {
        let table = [
            (10, Movable, Steal::Whole),
            (9, Unmovable, Steal::Whole),
            (8, Movable, Steal::Vote),
            (4, Movable, Steal::Vote),
            (3, Movable, Steal::Smallest),
            (0, Unmovable, Steal::Vote),
            (3, Reclaimable, Steal::Vote),
        ];
        for (order, wanted, expected) in table {
            assert_eq!(steal(Order(order), wanted), expected, "{order} for {wanted:?}");
        }
    }

    #[test]
    fn pages_that_can_go_are_not_alike_to_those_that_cannot() {
        assert_eq!(alike(Movable, Unmovable, 10, 3), 10);
        assert_eq!(alike(Unmovable, Movable, 10, 3), 3);
        assert_eq!(alike(Unmovable, Reclaimable, 10, 3), 0);
    }
}
