//! Random allocations and frees of several CPUs, compared with a set of the frames in use.

use super::{Level, ListRule, Mobility, Watermarks, Zone, ZoneConfig};
use highwater_platform::testing::TestPlatform;
use highwater_platform::{FrameRange, Lock};
use highwater_units::{CpuId, FrameList, NodeId, Order, Pfn, Prng};
use std::collections::BTreeSet;

/// Counts the changes of the buddy allocators, and the frames of these changes.
struct Watch<'a> {
    zone: &'a Zone<TestPlatform>,
    moves: u32,
    moved: u32,
}

impl<'a> Watch<'a> {
    fn new(zone: &'a Zone<TestPlatform>) -> Watch<'a> {
        Watch { zone, moves: 0, moved: 0 }
    }

    fn during<R>(&mut self, act: impl FnOnce(&Zone<TestPlatform>) -> R) -> R {
        let before = self.zone.free_frames();
        let result = act(self.zone);
        let moved = self.zone.free_frames().abs_diff(before);
        self.moves += u32::from(moved > 0);
        self.moved += moved;
        result
    }
}

fn zone_of(platform: &TestPlatform, first: u32, frames: u32, parts: u32) -> Zone<TestPlatform> {
    let range = FrameRange { node: NodeId(0), first: Pfn(first), frames };
    let config = ZoneConfig { parts: Some(parts), lists: ListRule::Adaptive };
    Zone::new(platform, range, Watermarks::new(frames, frames, None, Some(10)), config)
}

fn platform() -> TestPlatform {
    TestPlatform::new(1, Vec::new())
}

/// Every frame is in one place, and no list exceeds its limit.
fn check(zone: &Zone<TestPlatform>, used: &BTreeSet<Pfn>) {
    let mut free = BTreeSet::new();
    zone.each_free(|pfn| assert!(free.insert(pfn), "{pfn:?} is free twice"));
    assert!(free.is_disjoint(used));
    assert_eq!(free.len() + used.len(), zone.range().frames as usize);
    assert!(zone.peak() as usize >= used.len());
    for list in &zone.cpus {
        assert!(list.lock().len() <= zone.limits().high);
    }
}

fn take(
    zone: &Zone<TestPlatform>,
    cpu: CpuId,
    random: &mut Prng,
    used: &mut BTreeSet<Pfn>,
) -> FrameList {
    let level = [Level::Nothing, Level::Min, Level::Low][random.below(3) as usize];
    let wanted = 1 + random.below(16) as usize;
    let spare = zone.free_frames().saturating_sub(zone.marks().at(level)) as usize;
    let listed = zone.cpus[usize::from(cpu.0)].lock().frames().len();
    let taken = zone.alloc(cpu, wanted, level);
    assert!(taken.len() <= wanted);
    assert_eq!(taken.is_empty(), spare == 0 && listed == 0, "some frames were available");
    assert!(taken.len() == wanted || listed < wanted && spare < wanted || level != Level::Low);
    // Frames from the buddy allocator leave the zone at or above the level.
    assert!(zone.free_frames() >= zone.marks().at(level) || spare == 0);
    assert!(taken.iter().all(|pfn| used.insert(*pfn)), "in use already");
    taken
}

type Block = (Pfn, Order, Mobility);

fn take_block(
    zone: &Zone<TestPlatform>,
    cpu: CpuId,
    random: &mut Prng,
    used: &mut BTreeSet<Pfn>,
) -> Option<Block> {
    let level = [Level::Nothing, Level::Min, Level::Low][random.below(3) as usize];
    let (order, mobility) =
        (Order(random.below(11) as u8), Mobility::ALL[random.below(3) as usize]);
    let could = zone.allows_block(level, order);
    let listed = zone.cpus[usize::from(cpu.0)].lock().len();
    let Some(first) = zone.alloc_block(cpu, order, mobility, level) else {
        assert!(!could, "a block was free");
        return None;
    };
    let after = zone.cpus[usize::from(cpu.0)].lock().len();
    assert!(could || listed == after + order.frames() as usize, "nothing allowed it");
    assert_eq!((first.0 - zone.range().first.0) % order.frames(), 0);
    (0..order.frames()).for_each(|index| assert!(used.insert(first.offset(index)), "in use"));
    Some((first, order, mobility))
}

/// Inflates or deflates the balloon, and sets the watermarks that belong to the new size.
fn resize(zone: &Zone<TestPlatform>, random: &mut Prng) {
    let (free, ballooned) = (zone.free_frames(), zone.ballooned());
    let [count, mark] = [zone.range().frames, 20].map(|most| random.below(most.into()) as u32);
    if random.percent(50) {
        let taken = zone.inflate(count, mark);
        assert_eq!(taken, count.min(free.saturating_sub(mark)));
        assert_eq!((zone.free_frames(), zone.ballooned()), (free - taken, ballooned + taken));
    } else {
        assert_eq!(zone.deflate(count), count.min(ballooned));
        assert_eq!(zone.free_frames() + zone.ballooned(), free + ballooned);
    }
    zone.set_marks(Watermarks::new(zone.present(), zone.present(), None, Some(10)));
    zone.drain();
}

fn fuzz(seed: u64, steps: usize) {
    let mut random = Prng::new(seed);
    let platform = platform();
    let frames = [40 + random.below(200), 1 << 13][random.below(2) as usize] as u32;
    // A generator of its own, so that older seeds keep their meaning.
    let parts = [1, 2, 3, 7, 64][Prng::new(seed ^ 0x20e5).below(5) as usize];
    let zone = zone_of(&platform, random.below(100) as u32, frames, parts);
    let cpus = zone.cpus.len() as u64;
    let (mut used, mut held) = (BTreeSet::new(), Vec::new());
    let (mut blocks, mut apart): (Vec<Block>, _) = (Vec::new(), Prng::new(seed ^ 0xb10c));
    let with_blocks = apart.percent(75);
    let mut balloon = Prng::new(seed ^ 0xba11);
    let with_balloon = balloon.percent(50);
    for step in 0..steps {
        if with_blocks {
            let cpu = CpuId(apart.below(cpus) as u16);
            match apart.below(4) {
                0 => blocks.extend(take_block(&zone, cpu, &mut apart, &mut used)),
                1 if !blocks.is_empty() => {
                    let at = apart.below(blocks.len() as u64) as usize;
                    let (first, order, mobility) = blocks.swap_remove(at);
                    let own = (0..order.frames()).map(|index| first.offset(index));
                    own.for_each(|pfn| assert!(used.remove(&pfn)));
                    zone.free_block(cpu, first, order, mobility);
                }
                _ => {}
            }
        }
        let cpu = CpuId(random.below(cpus) as u16);
        match random.below(100) {
            0..50 => held.push(take(&zone, cpu, &mut random, &mut used)),
            50..98 if !held.is_empty() => {
                let freed = held.swap_remove(random.below(held.len() as u64) as usize);
                freed.iter().for_each(|pfn| assert!(used.remove(pfn)));
                match random.below(4) {
                    0 => zone.free_to_zone(&freed),
                    1 => freed.iter().for_each(|pfn| zone.free(cpu, &[*pfn])),
                    _ => zone.free(cpu, &freed),
                }
            }
            _ => {
                zone.drain();
                assert_eq!(zone.free_frames() as usize + used.len(), zone.present() as usize);
            }
        }
        if with_balloon && balloon.percent(10) {
            resize(&zone, &mut balloon);
        }
        if step % 16 == 0 {
            check(&zone, &used);
        }
    }
    check(&zone, &used);
    let blocks_left = zone.blocks();
    assert_eq!(blocks_left.frames(), zone.free_frames() + zone.ballooned());
}

#[test]
fn random_operations_match_a_set_of_frames() {
    highwater_platform::testing::seeds(100, |seed| fuzz(seed, 400));
}

#[test]
fn a_cpu_that_frees_and_allocates_uses_its_list_alone() {
    let platform = platform();
    let zone = zone_of(&platform, 0, 1 << 16, 1);
    let mut watch = Watch::new(&zone);
    let mut used: Vec<FrameList> = Vec::new();
    loop {
        let taken = watch.during(|zone| zone.alloc(CpuId(0), 16, Level::Min));
        if taken.len() < 16 {
            zone.free(CpuId(0), &taken);
            break;
        }
        used.push(taken);
    }
    assert!(watch.moved / watch.moves > 16, "batches grow: {} in {}", watch.moved, watch.moves);
    let moves = watch.moves;
    for round in 0..1000 {
        let [one, other] = [round * 2, round * 2 + 1].map(|i| used[i % used.len()]);
        let freed: Vec<Pfn> = one.iter().chain(other.iter()).copied().collect();
        watch.during(|zone| zone.free(CpuId(0), &freed));
        for index in [round * 2 + 1, round * 2] {
            let at = index % used.len();
            used[at] = watch.during(|zone| zone.alloc(CpuId(0), 16, Level::Nothing));
            assert_eq!(used[at].len(), 16);
        }
    }
    assert_eq!(watch.moves, moves, "32,000 frames freed and taken");
}

#[test]
fn a_cpu_that_only_frees_moves_half_a_list_at_a_time() {
    let platform = platform();
    let zone = zone_of(&platform, 0, 1 << 16, 1);
    let taken: Vec<_> = (0..2000).map(|_| zone.alloc(CpuId(0), 16, Level::Nothing)).collect();
    let mut watch = Watch::new(&zone);
    taken.iter().for_each(|frames| watch.during(|zone| zone.free(CpuId(0), frames)));
    assert!(watch.moves > 0 && watch.moved / watch.moves >= zone.limits().high as u32 / 2);
    let kept = zone.cpus[0].lock().frames().len();
    assert!(kept <= zone.limits().high, "{kept}");
}
