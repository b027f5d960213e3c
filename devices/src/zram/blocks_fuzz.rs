//! Takes and frees random objects, against a set of the taken ones.

use crate::zram::blocks::{Blocks, Found, Freed};
use crate::zram::class::{CLASSES, Class};
use highwater_units::Prng;
use std::collections::{BTreeMap, BTreeSet};

const BLOCKS: u32 = 40;

/// The taken objects by block, and the blocks with memory.
struct Model {
    blocks: Blocks,
    taken: BTreeMap<u32, (Class, BTreeSet<u16>)>,
    backed: BTreeSet<u32>,
}

impl Model {
    fn take(&mut self, class: Class) {
        let block = match self.blocks.find(class) {
            Some(Found::Ready(block)) => {
                assert!(self.backed.contains(&block), "block {block} has no memory");
                block
            }
            Some(Found::Bare(block)) => {
                assert!(self.backed.insert(block), "block {block} has memory already");
                block
            }
            None => return self.assert_full(class),
        };
        let index = self.blocks.take(block, class);
        let (of, taken) = self.taken.entry(block).or_insert((class, BTreeSet::new()));
        assert!(*of == class && index < class.objects() && taken.insert(index), "taken twice");
    }

    /// No object is refused while there is an empty block, or room in a block of the class.
    fn assert_full(&self, class: Class) {
        assert_eq!(self.taken.len(), BLOCKS as usize);
        let room = |(of, taken): &(Class, BTreeSet<u16>)| {
            *of == class && taken.len() < usize::from(class.objects())
        };
        assert!(!self.taken.values().any(room));
    }

    fn free(&mut self, random: &mut Prng) {
        let at = random.below(self.taken.len().max(1) as u64) as usize;
        let Some((&block, (class, taken))) = self.taken.iter_mut().nth(at) else { return };
        let at = random.below(taken.len() as u64) as usize;
        let index = *taken.iter().nth(at).unwrap();
        taken.remove(&index);
        let empty = taken.is_empty();
        match self.blocks.free(block, *class, index) {
            Freed::Kept => {}
            Freed::Stripped => assert!(empty && self.backed.remove(&block)),
        }
        if empty {
            self.taken.remove(&block);
        }
    }

    fn check(&self) {
        let objects = self.taken.values().map(|(_, taken)| taken.len()).sum();
        assert_eq!(self.blocks.verify(), (objects, self.backed.len()));
    }
}

#[test]
fn random_objects_match_a_set() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Prng::new(seed);
        let blocks = Blocks::new(BLOCKS).unwrap();
        let mut model = Model { blocks, taken: BTreeMap::new(), backed: BTreeSet::new() };
        let classes = 1 + random.below(CLASSES as u64);
        for phase in 0..6 {
            let taking = if phase % 2 == 0 { 70 } else { 30 };
            for _ in 0..1_000 {
                if random.percent(taking) {
                    model.take(Class((CLASSES as u64 - 1 - random.below(classes)) as u8));
                } else {
                    model.free(&mut random);
                }
            }
            model.check();
        }
        while !model.taken.is_empty() {
            model.free(&mut random);
        }
        model.check();
        assert!(model.backed.len() <= 8, "empty blocks give their memory back");
    }
}

#[test]
#[should_panic(expected = "freed twice")]
fn an_object_is_freed_once() {
    let mut blocks = Blocks::new(1).unwrap();
    assert_eq!(blocks.find(Class(3)), Some(Found::Bare(0)));
    let index = blocks.take(0, Class(3));
    blocks.free(0, Class(3), index);
    blocks.free(0, Class(3), index);
}
