//! Grouping of allocations by mobility.
//!
//! A frame that cannot move prevents every large block that it could be part of. So each pageblock
//! of 2 MiB has a migrate type. Allocations use pageblocks of their own type while these have free
//! frames, and then those of others, in the kernel's order (MIGRATE_*, mm/page_alloc.c).

use crate::frame::Mobility;
use highwater_units::{LARGE_PAGES, Order};

/// Frames of a pageblock.
pub const PAGEBLOCK: u32 = LARGE_PAGES as u32;

/// The types whose blocks an allocation steals if its own type has none, in this order.
pub(super) fn fallbacks(mobility: Mobility) -> [Mobility; 2] {
    match mobility {
        Mobility::Movable => [Mobility::Reclaimable, Mobility::Unmovable],
        Mobility::Unmovable => [Mobility::Reclaimable, Mobility::Movable],
        Mobility::Reclaimable => [Mobility::Unmovable, Mobility::Movable],
    }
}

/// How to steal a free block of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steal {
    /// It covers whole pageblocks, which change their type.
    Whole,
    /// Its pageblock changes its type if most of it is free or compatible; otherwise only the block
    /// is used.
    Compatible,
    /// The smallest sufficient block is used instead: a movable allocation does no lasting harm in
    /// a pageblock of another type.
    Smallest,
}

/// Decides (can_steal_fallback): `block` is the order of the largest free block of another type.
pub(super) fn steal(block: Order, wanted: Mobility) -> Steal {
    const LARGE: u8 = Order::LARGE.0;
    const HALF: u8 = LARGE / 2;
    match (block.0, wanted) {
        (LARGE.., _) => Steal::Whole,
        (HALF.., _) | (_, Mobility::Unmovable | Mobility::Reclaimable) => Steal::Compatible,
        (_, Mobility::Movable) => Steal::Smallest,
    }
}

/// Used frames of a pageblock that are compatible with its new type: of its `movable` and
/// `unmovable` ones. Between the two types that cannot move, the counts do not tell.
pub(super) fn compatible(wanted: Mobility, was: Mobility, movable: u32, unmovable: u32) -> u32 {
    match (wanted, was) {
        (Mobility::Movable, _) => movable,
        (_, Mobility::Movable) => unmovable,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mobility::{Movable, Reclaimable, Unmovable};

    #[test]
    fn stealing_follows_the_kernel() {
        let table = [
            (10, Movable, Steal::Whole),
            (9, Unmovable, Steal::Whole),
            (8, Movable, Steal::Compatible),
            (4, Movable, Steal::Compatible),
            (3, Movable, Steal::Smallest),
            (0, Unmovable, Steal::Compatible),
            (3, Reclaimable, Steal::Compatible),
        ];
        for (order, wanted, expected) in table {
            assert_eq!(steal(Order(order), wanted), expected, "{order} for {wanted:?}");
        }
    }

    #[test]
    fn movable_and_unmovable_frames_are_not_compatible() {
        assert_eq!(compatible(Movable, Unmovable, 10, 3), 10);
        assert_eq!(compatible(Unmovable, Movable, 10, 3), 3);
        assert_eq!(compatible(Unmovable, Reclaimable, 10, 3), 0);
    }
}
