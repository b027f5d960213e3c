//! Shadow entries: the entry of an evicted file page keeps the time of the eviction, so that a
//! refault can tell how much longer the page should have stayed.
//!
//! ```text
//! bit 39: present | 38: was active | 37 .. 30: node | 29 .. 0: age of the node's lists
//! ```
//! The age counts evictions and activations of pages of the node: the difference is the number of
//! pages that came into use since (refault distance). It wraps after 4 TiB; a page that returns
//! just then looks recently evicted.

use highwater_units::NodeId;

const PRESENT: u64 = 1 << 39;
const ACTIVE: u64 = 1 << 38;
const NODE_SHIFT: u32 = 30;
const AGE: u64 = (1 << NODE_SHIFT) - 1;

/// Whether a file page has been active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// The page has been on the inactive list only.
    New,
    /// The page has been on the active list: it belongs to the working set.
    Active,
}

/// The 40-bit payload of the entry of an evicted file page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow(u64);

impl Shadow {
    /// The shadow of a page that is evicted from a node at this age.
    pub fn new(node: NodeId, age: u64, history: History) -> Shadow {
        let active = match history {
            History::New => 0,
            History::Active => ACTIVE,
        };
        Shadow(PRESENT | active | u64::from(node.0) << NODE_SHIFT | age & AGE)
    }

    /// Packed; never 0.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`Shadow::to_bits`]; `None` if the bits hold no shadow.
    pub fn from_bits(bits: u64) -> Option<Shadow> {
        (bits & PRESENT != 0).then_some(Shadow(bits))
    }

    /// The node of the evicted page.
    pub fn node(self) -> NodeId {
        NodeId((self.0 >> NODE_SHIFT) as u8)
    }

    /// Whether the evicted page had been active.
    pub fn history(self) -> History {
        if self.0 & ACTIVE == 0 { History::New } else { History::Active }
    }

    /// The refault distance: evictions and activations since, if the node's age is `now`.
    pub fn distance(self, now: u64) -> u64 {
        now.wrapping_sub(self.0) & AGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shadow_round_trips_through_forty_bits() {
        for history in [History::New, History::Active] {
            for (node, age) in [(0, 0), (255, AGE), (3, AGE + 5)] {
                let shadow = Shadow::new(NodeId(node), age, history);
                assert_eq!(Shadow::from_bits(shadow.to_bits()), Some(shadow));
                assert!(shadow.to_bits() < 1 << 40, "the payload of an entry");
                assert_eq!((shadow.node(), shadow.history()), (NodeId(node), history));
                assert_eq!((shadow.distance(age), shadow.distance(age + 7)), (0, 7));
            }
        }
        assert_eq!(Shadow::from_bits(0), None);
    }
}
