//! What the entry of an evicted page of a file remembers: when that was, to tell at its next fault
//! how long it would have had to stay.
//!
//! ```text
//! 39: there is one | 38: it was active | 37 .. 30: node | 29 .. 0: age of the node's lists
//! ```
//! The age counts evictions and activations: what came after the eviction took its place. It wraps
//! after 4 TiB of them; a page that comes back just then is taken for a young one.

use highwater_units::NodeId;

const PRESENT: u64 = 1 << 39;
const ACTIVE: u64 = 1 << 38;
const NODE_SHIFT: u32 = 30;
const AGE: u64 = (1 << NODE_SHIFT) - 1;

/// Whether a page was ever found used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    /// It came, and went.
    New,
    /// It was on the active list: part of the working set.
    Active,
}

/// A mark in place of an evicted page, of 40 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow(u64);

impl Shadow {
    /// Of a page that is evicted from a node now.
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

    /// The inverse; `None` if there is none.
    pub fn from_bits(bits: u64) -> Option<Shadow> {
        (bits & PRESENT != 0).then_some(Shadow(bits))
    }

    /// Where the page was.
    pub fn node(self) -> NodeId {
        NodeId((self.0 >> NODE_SHIFT) as u8)
    }

    /// Whether it had been used again.
    pub fn history(self) -> History {
        if self.0 & ACTIVE == 0 { History::New } else { History::Active }
    }

    /// Evictions and activations since, when the node's age is `now`: the refault distance.
    pub fn distance(self, now: u64) -> u64 {
        now.wrapping_sub(self.0) & AGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shadow_keeps_what_it_is_told() {
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
