//! Random allocations and frees against a set of free frames.

use super::Buddy;
use highwater_units::{Order, Pfn, Prng};
use std::collections::BTreeSet;

/// The structure is a partition of the free frames into maximal blocks.
fn check(buddy: &Buddy, free: &BTreeSet<u32>, first: u32, frames: u32) {
    let mut seen = BTreeSet::new();
    let mut blocks = BTreeSet::new();
    buddy.each_block(|pfn, order| {
        blocks.insert((pfn.0 - first, order.0));
        (0..order.frames()).for_each(|i| assert!(seen.insert(pfn.0 + i), "a frame in two blocks"));
    });
    assert_eq!(&seen, free);
    assert_eq!(buddy.free_frames() as usize, free.len());
    for (block, order) in &blocks {
        let other = block ^ (1 << order);
        let merges = *order < Order::MAX.0 && other + (1 << order) <= frames;
        assert!(!(merges && blocks.contains(&(other, *order))), "buddies left unmerged");
    }
}

fn fuzz(seed: u64, steps: usize) {
    let mut random = Prng::new(seed);
    let (first, frames) = (random.below(100) as u32, 1 + random.below(3000) as u32);
    let mut buddy = Buddy::new(Pfn(first), frames);
    let mut free: BTreeSet<u32> = (first..first + frames).collect();
    let mut held: Vec<(Pfn, Order)> = Vec::new();
    let orders = 1 + random.below(11);
    for step in 0..steps {
        if random.percent(50) {
            let order = Order(random.below(orders) as u8);
            match buddy.alloc(order) {
                Some(pfn) => {
                    assert_eq!((pfn.0 - first) % order.frames(), 0, "blocks are aligned");
                    (0..order.frames()).for_each(|i| assert!(free.remove(&(pfn.0 + i))));
                    held.push((pfn, order));
                }
                None => buddy.each_block(|_, free| assert!(free < order, "a block was free")),
            }
        } else if !held.is_empty() {
            let (pfn, order) = held.swap_remove(random.below(held.len() as u64) as usize);
            match random.percent(30) {
                true => (0..order.frames()).for_each(|i| buddy.free(pfn.offset(i), Order(0))),
                false => buddy.free(pfn, order),
            }
            free.extend(pfn.0..pfn.0 + order.frames());
        }
        if step % 16 == 0 {
            check(&buddy, &free, first, frames);
        }
    }
    held.drain(..).for_each(|(pfn, order)| buddy.free(pfn, order));
    free.extend(first..first + frames);
    check(&buddy, &free, first, frames);
}

#[test]
fn random_operations_match_a_set_of_frames() {
    crate::fuzz::seeds(200, |seed| fuzz(seed, 500));
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_is_caught() {
    let mut buddy = Buddy::new(Pfn(0), 8);
    let pfn = buddy.alloc(Order(0)).expect("8 are free");
    buddy.free(pfn, Order(0));
    buddy.free(pfn, Order(0));
}
