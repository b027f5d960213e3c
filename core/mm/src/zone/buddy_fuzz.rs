//! Random allocations and frees, compared with a set of free frames and naive counts of each
//! pageblock's contents.

use super::buddy::{Buddy, Reach};
use super::mobility::PAGEBLOCK;
use crate::frame::Mobility;
use highwater_units::{Order, Pfn, Prng};
use std::collections::BTreeSet;

/// The expected state.
struct Model {
    first: u32,
    frames: u32,
    free: BTreeSet<u32>,
    held: Vec<(Pfn, Order, Mobility)>,
}

impl Model {
    fn pageblock(&self, pfn: Pfn) -> u32 {
        (pfn.0 - self.first) / PAGEBLOCK
    }

    fn in_pageblock(&self, pageblock: u32) -> std::ops::Range<u32> {
        let first = self.first + pageblock * PAGEBLOCK;
        first..(first + PAGEBLOCK).min(self.first + self.frames)
    }

    /// Allocated frames of a pageblock, by mobility.
    fn used(&self, pageblock: u32) -> [u32; 3] {
        let (all, mut used) = (self.in_pageblock(pageblock), [0; 3]);
        for (pfn, order, mobility) in &self.held {
            let (start, end) = (pfn.0.max(all.start), (pfn.0 + order.frames()).min(all.end));
            used[*mobility as usize] += end.saturating_sub(start);
        }
        used
    }

    /// Whether most of a pageblock is free or compatible with `wanted`.
    fn is_mostly_compatible(&self, pageblock: u32, wanted: Mobility, was: Mobility) -> bool {
        let all = self.in_pageblock(pageblock);
        let [movable, unmovable, reclaimable] = self.used(pageblock);
        let compatible = match (wanted, was) {
            (Mobility::Movable, _) => movable,
            (_, Mobility::Movable) => unmovable + reclaimable,
            _ => 0,
        };
        self.free.range(all.clone()).count() as u32 + compatible >= all.len() as u32 / 2
    }
}

/// The free blocks partition the free frames, and no two of them could merge.
fn check(buddy: &Buddy, model: &Model) {
    let mut seen = BTreeSet::new();
    let mut blocks = BTreeSet::new();
    buddy.each_block(|pfn, order| {
        blocks.insert((pfn.0 - model.first, order.0));
        (0..order.frames()).for_each(|i| assert!(seen.insert(pfn.0 + i), "a frame in two blocks"));
    });
    assert_eq!(seen, model.free);
    assert_eq!(buddy.free_frames() as usize, model.free.len());
    for (block, order) in &blocks {
        let other = block ^ (1 << order);
        let merges = *order < Order::MAX.0 && other + (1 << order) <= model.frames;
        assert!(!(merges && blocks.contains(&(other, *order))), "buddies left unmerged");
    }
    for pageblock in 0..model.frames.div_ceil(PAGEBLOCK) {
        let free = model.free.range(model.in_pageblock(pageblock)).count();
        assert_eq!(buddy.map().free(pageblock) as usize, free, "free frames of {pageblock}");
        let [_, unmovable, reclaimable] = model.used(pageblock);
        assert_eq!(buddy.map().unmovable(pageblock), unmovable + reclaimable, "of {pageblock}");
    }
    let orders = (0..=Order::MAX.0).map(Order);
    let count = |order: Order| Mobility::ALL.map(|m| buddy.blocks(m, order)).iter().sum::<u32>();
    assert_eq!(orders.map(count).sum::<u32>() as usize, blocks.len());
    assert_eq!(buddy.pageblocks().iter().sum::<u32>(), model.frames.div_ceil(PAGEBLOCK));
}

/// The free blocks that an allocation could take: of its own type, and of others.
fn choices(buddy: &Buddy, order: Order, mobility: Mobility) -> [Vec<(Pfn, Order)>; 2] {
    let [mut own, mut others] = [Vec::new(), Vec::new()];
    buddy.each_block(|pfn, free| {
        let list = if buddy.mobility(pfn) == mobility { &mut own } else { &mut others };
        if free >= order {
            list.push((pfn, free));
        }
    });
    [own, others]
}

fn take(buddy: &mut Buddy, model: &mut Model, order: Order, mobility: Mobility, reach: Reach) {
    let [own, others] = choices(buddy, order, mobility);
    let kinds: Vec<Mobility> = (0..model.frames.div_ceil(PAGEBLOCK))
        .map(|pageblock| buddy.mobility(Pfn(model.first + pageblock * PAGEBLOCK)))
        .collect();
    let Some(pfn) = buddy.alloc(order, mobility, reach) else {
        assert!(own.is_empty() && (reach == Reach::Own || others.is_empty()), "a block was free");
        return;
    };
    assert_eq!((pfn.0 - model.first) % order.frames(), 0, "blocks are aligned");
    let pageblock = model.pageblock(pfn);
    let (was, is) = (kinds[pageblock as usize], buddy.mobility(pfn));
    let from = |blocks: &[(Pfn, Order)]| {
        let holds = |(at, free): &&(Pfn, Order)| (at.0..at.0 + free.frames()).contains(&pfn.0);
        blocks.iter().find(holds).map(|(_, free)| *free)
    };
    match own.iter().map(|(_, free)| *free).min() {
        Some(smallest) => {
            assert_eq!(
                (from(&own), was, is),
                (Some(smallest), mobility, mobility),
                "the smallest block of its own type"
            );
        }
        None => {
            assert_eq!(reach, Reach::Any);
            let (least, most) = (others.iter().map(|(_, free)| *free))
                .fold((Order::MAX, Order(0)), |(least, most), free| {
                    (least.min(free), most.max(free))
                });
            let may_convert = most >= Order(4) || mobility != Mobility::Movable;
            let converts = most >= Order::LARGE
                || may_convert && model.is_mostly_compatible(pageblock, mobility, was);
            assert_eq!(is, if converts { mobility } else { was }, "{most:?} of {was:?}");
            assert_eq!(from(&others), Some(if may_convert { most } else { least }));
        }
    }
    (0..order.frames()).for_each(|i| assert!(model.free.remove(&(pfn.0 + i))));
    model.held.push((pfn, order, mobility));
}

/// Takes a free block that compaction chose.
fn take_chosen(buddy: &mut Buddy, model: &mut Model, random: &mut Prng) {
    let mut blocks = Vec::new();
    buddy.each_block(|pfn, order| blocks.push((pfn, order)));
    if !blocks.is_empty() {
        let (pfn, order) = blocks[random.below(blocks.len() as u64) as usize];
        buddy.take(pfn, order);
        (0..order.frames()).for_each(|i| assert!(model.free.remove(&(pfn.0 + i))));
        model.held.push((pfn, order, Mobility::Movable));
    }
}

fn fuzz(seed: u64, steps: usize) {
    let mut random = Prng::new(seed);
    let (first, frames) = (random.below(100) as u32, 1 + random.below(6000) as u32);
    let mut buddy = Buddy::new(Pfn(first), frames);
    let free = (first..first + frames).collect();
    let mut model = Model { first, frames, free, held: Vec::new() };
    let orders = 1 + random.below(11);
    let kinds = 1 + random.below(3);
    for step in 0..steps {
        if random.percent(5) {
            take_chosen(&mut buddy, &mut model, &mut random);
        } else if random.percent(50) {
            let order = Order(random.below(orders) as u8);
            let mobility = Mobility::ALL[random.below(kinds) as usize];
            let reach = if random.percent(10) { Reach::Own } else { Reach::Any };
            take(&mut buddy, &mut model, order, mobility, reach);
        } else if !model.held.is_empty() {
            let at = random.below(model.held.len() as u64) as usize;
            let (pfn, order, mobility) = model.held.swap_remove(at);
            if random.percent(30) {
                (0..order.frames()).for_each(|i| buddy.free(pfn.offset(i), Order(0), mobility));
            } else {
                buddy.free(pfn, order, mobility);
            }
            model.free.extend(pfn.0..pfn.0 + order.frames());
        }
        if step % 16 == 0 {
            check(&buddy, &model);
        }
    }
    model.held.drain(..).for_each(|(pfn, order, mobility)| buddy.free(pfn, order, mobility));
    model.free.extend(first..first + frames);
    check(&buddy, &model);
}

#[test]
fn random_operations_match_a_set_of_frames() {
    highwater_platform::testing::seeds(200, |seed| fuzz(seed, 500));
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_is_caught() {
    let mut buddy = Buddy::new(Pfn(0), 8);
    let pfn = buddy.alloc(Order(0), Mobility::Movable, Reach::Any).expect("8 are free");
    buddy.free(pfn, Order(0), Mobility::Movable);
    buddy.free(pfn, Order(0), Mobility::Movable);
}

#[test]
fn unmovable_frames_are_grouped_in_few_pageblocks() {
    let mut buddy = Buddy::new(Pfn(0), 16 * PAGEBLOCK);
    for _ in 0..3 * PAGEBLOCK {
        for mobility in [Mobility::Movable, Mobility::Movable, Mobility::Unmovable] {
            assert!(buddy.alloc(Order(0), mobility, Reach::Any).is_some());
        }
    }
    // The largest blocks are two pageblocks: 1536 frames take two of these.
    assert_eq!(buddy.pageblocks(), [12, 4, 0]);
}
