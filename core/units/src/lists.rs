//! Doubly linked lists by index: no pointers, no allocation after construction, easy to dump.
//!
//! ```text
//! ends[list] = (front, back)      links[item] = (next toward the front, next toward the back)
//! ```
//! An item is in at most one list, and the caller knows in which. The owner's lock protects them.

/// No item: an end of an empty list, or a missing neighbour.
const NONE: u32 = u32::MAX;

/// `lists` lists over items `0..items`. All operations but [`IndexLists::iter`] are O(1).
#[derive(Clone, Debug)]
pub struct IndexLists {
    ends: Vec<(u32, u32)>,
    links: Vec<(u32, u32)>,
    lens: Vec<u32>,
}

impl IndexLists {
    /// Empty lists.
    pub fn new(lists: usize, items: usize) -> IndexLists {
        assert!(items < NONE as usize, "one index is reserved");
        IndexLists {
            ends: vec![(NONE, NONE); lists],
            // Zeros cost nothing until they are written: the links of an item in no list are not
            // read.
            links: vec![(0, 0); items],
            lens: vec![0; lists],
        }
    }

    /// Number of items in a list.
    pub fn len(&self, list: usize) -> u32 {
        self.lens[list]
    }

    /// Whether a list has no items.
    pub fn is_empty(&self, list: usize) -> bool {
        self.lens[list] == 0
    }

    /// Adds an item that is in no list at the front of `list`.
    pub fn push_front(&mut self, list: usize, item: u32) {
        let old = self.ends[list].0;
        self.links[item as usize] = (NONE, old);
        match old {
            NONE => self.ends[list].1 = item,
            old => self.links[old as usize].0 = item,
        }
        self.ends[list].0 = item;
        self.lens[list] += 1;
    }

    /// Adds an item that is in no list at the back of `list`.
    pub fn push_back(&mut self, list: usize, item: u32) {
        let old = self.ends[list].1;
        self.links[item as usize] = (old, NONE);
        match old {
            NONE => self.ends[list].0 = item,
            old => self.links[old as usize].1 = item,
        }
        self.ends[list].1 = item;
        self.lens[list] += 1;
    }

    /// Removes an item from `list`, which it is in.
    pub fn remove(&mut self, list: usize, item: u32) {
        let (front, back) = self.links[item as usize];
        match front {
            NONE => self.ends[list].0 = back,
            front => self.links[front as usize].1 = back,
        }
        match back {
            NONE => self.ends[list].1 = front,
            back => self.links[back as usize].0 = front,
        }
        self.lens[list] -= 1;
    }

    /// Removes the item at the front.
    pub fn pop_front(&mut self, list: usize) -> Option<u32> {
        let item = self.ends[list].0;
        (item != NONE).then(|| self.remove(list, item))?;
        Some(item)
    }

    /// Removes the item at the back.
    pub fn pop_back(&mut self, list: usize) -> Option<u32> {
        let item = self.ends[list].1;
        (item != NONE).then(|| self.remove(list, item))?;
        Some(item)
    }

    /// The items from front to back.
    pub fn iter(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        let first = Some(self.ends[list].0).filter(|item| *item != NONE);
        std::iter::successors(first, |item| {
            Some(self.links[*item as usize].1).filter(|item| *item != NONE)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use std::collections::VecDeque;

    fn check(lists: &IndexLists, model: &[VecDeque<u32>]) {
        for (list, expected) in model.iter().enumerate() {
            assert!(lists.iter(list).eq(expected.iter().copied()));
            assert_eq!(lists.len(list) as usize, expected.len());
        }
    }

    #[test]
    fn random_operations_match_deques() {
        let mut random = Prng::new(1);
        let mut lists = IndexLists::new(3, 40);
        let mut model = vec![VecDeque::new(); 3];
        for _ in 0..20_000 {
            let (list, item) = (random.below(3) as usize, random.below(40) as u32);
            let home = model.iter().position(|l| l.contains(&item));
            match (random.below(4), home) {
                (0, None) => (lists.push_front(list, item), model[list].push_front(item)).0,
                (1, None) => (lists.push_back(list, item), model[list].push_back(item)).0,
                (2, Some(home)) => {
                    lists.remove(home, item);
                    model[home].retain(|other| *other != item);
                }
                (2, None) => assert_eq!(lists.pop_front(list), model[list].pop_front()),
                (3, _) => assert_eq!(lists.pop_back(list), model[list].pop_back()),
                _ => {}
            }
            check(&lists, &model);
        }
    }
}
