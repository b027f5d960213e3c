//! Random operations against four deques and a place per frame, with one shard and with several;
//! then by several threads, against the rule that a frame is in one place.

use super::{CPU_BATCH, Kind, List, Lru, Mode, Removal};
use crate::frame::{Frames, Place};
use highwater_platform::testing::TestPlatform;
use highwater_platform::testing::{Watchdog, seeds};
use highwater_platform::{Cpu, FrameRange};
use highwater_units::{BATCH_PAGES_MAX, CpuId, FrameBatch, NodeId, Pfn, Prng};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The expected lists.
struct Model {
    first: u32,
    place: Vec<Place>,
    batches: Vec<Vec<(Pfn, List)>>,
    /// By [`List`]; front = newest.
    lists: [VecDeque<Pfn>; 4],
    isolated: Vec<Pfn>,
}

impl Model {
    fn set(&mut self, pfn: Pfn, place: Place) {
        self.place[(pfn.0 - self.first) as usize] = place;
    }

    fn at(&self, pfn: Pfn) -> Place {
        self.place[(pfn.0 - self.first) as usize]
    }

    /// Links pages, except orphans, which it returns.
    fn link(&mut self, pages: Vec<Pfn>, list: List) -> Vec<Pfn> {
        let (orphans, linked): (Vec<Pfn>, Vec<Pfn>) =
            pages.into_iter().partition(|pfn| self.at(*pfn) == Place::Orphan);
        orphans.iter().for_each(|pfn| self.set(*pfn, Place::Off));
        for pfn in linked {
            self.set(pfn, list.place());
            self.lists[list as usize].push_front(pfn);
        }
        orphans
    }

    fn add(&mut self, cpu: usize, pages: &[Pfn], list: List) -> Vec<Pfn> {
        pages.iter().for_each(|pfn| self.set(*pfn, Place::Batch));
        self.batches[cpu].extend(pages.iter().map(|pfn| (*pfn, list)));
        if self.batches[cpu].len() < CPU_BATCH { Vec::new() } else { self.empty(cpu) }
    }

    /// Links the pages in a CPU's batch.
    fn empty(&mut self, cpu: usize) -> Vec<Pfn> {
        let batch = std::mem::take(&mut self.batches[cpu]).into_iter();
        batch.flat_map(|(pfn, list)| self.link(vec![pfn], list)).collect()
    }

    fn drain(&mut self) -> Vec<Pfn> {
        (0..self.batches.len()).flat_map(|cpu| self.empty(cpu)).collect()
    }

    /// The isolated pages are the oldest of one shard, which may be any shard with pages of the
    /// list.
    fn isolated(&mut self, lru: &Lru<TestPlatform>, list: List, max: usize, taken: &[Pfn]) {
        let pages = &mut self.lists[list as usize];
        let Some(first) = taken.first() else {
            return assert!(max == 0 || pages.is_empty(), "pages of {list:?} were not found");
        };
        let shard = lru.shards.shard_of(*first);
        let of_shard = pages.iter().rev().filter(|pfn| lru.shards.shard_of(**pfn) == shard);
        let oldest: Vec<Pfn> = of_shard.take(max.min(BATCH_PAGES_MAX)).copied().collect();
        assert_eq!(taken, oldest);
        pages.retain(|pfn| !taken.contains(pfn));
        taken.iter().for_each(|pfn| self.set(*pfn, Place::Isolated));
        self.isolated.extend(taken);
    }

    fn isolate_one(&mut self, pfn: Pfn) -> Option<List> {
        let list = List::ALL.into_iter().find(|list| list.place() == self.at(pfn))?;
        self.lists[list as usize].retain(|other| *other != pfn);
        self.set(pfn, Place::Isolated);
        self.isolated.push(pfn);
        Some(list)
    }

    fn remove(&mut self, pfn: Pfn) -> Removal {
        match self.at(pfn) {
            Place::Batch | Place::Isolated => {
                self.set(pfn, Place::Orphan);
                Removal::Abandoned
            }
            _ => {
                self.lists.iter_mut().for_each(|list| list.retain(|other| *other != pfn));
                self.set(pfn, Place::Off);
                Removal::Taken
            }
        }
    }

    /// Removes some random pages from `isolated`.
    fn some_isolated(&mut self, random: &mut Prng) -> Vec<Pfn> {
        let count = random.below(BATCH_PAGES_MAX as u64 + 1).min(self.isolated.len() as u64);
        let pick = |_| {
            let at = random.below(self.isolated.len() as u64) as usize;
            self.isolated.swap_remove(at)
        };
        (0..count).map(pick).collect()
    }

    /// Exact with one shard; with several, up to the unpublished changes of each.
    fn assert_len(&self, lru: &Lru<TestPlatform>, found: u32, expected: usize) {
        let slack = lru.shards.slack() * List::ALL.len() as u32;
        assert!(found.abs_diff(expected as u32) <= slack, "{found} for {expected}, {slack} off");
    }

    fn check(&self, lru: &Lru<TestPlatform>, frames: &Frames<TestPlatform>) {
        let mut found = Vec::new();
        lru.each(|pfn, place| found.push((pfn, place)));
        let batched = self.batches.iter().flatten().map(|(pfn, _)| (*pfn, Place::Batch));
        // In a shard, in the order of the list.
        let of = |shard: usize, list: List| {
            let pages = self.lists[list as usize].iter();
            let own = pages.filter(move |pfn| lru.shards.shard_of(**pfn) == shard);
            own.map(move |pfn| (*pfn, list.place()))
        };
        let listed = (0..SHARDS_MAX).flat_map(|shard| List::ALL.map(|list| of(shard, list)));
        assert_eq!(found, batched.chain(listed.flatten()).collect::<Vec<_>>());
        for list in List::ALL {
            let pages = &self.lists[list as usize];
            self.assert_len(lru, lru.len(list), pages.len());
            assert_eq!(lru.len(list) == 0, pages.is_empty(), "{list:?}");
        }
        for kind in Kind::ALL {
            let both = [List::active(kind), List::inactive(kind)];
            let len: usize = both.iter().map(|list| self.lists[*list as usize].len()).sum();
            self.assert_len(lru, lru.len_of(kind), len);
        }
        let all: usize = self.lists.iter().map(VecDeque::len).sum();
        self.assert_len(lru, lru.listed(), all);
        for (index, place) in self.place.iter().enumerate() {
            assert_eq!(frames.place(Pfn(self.first + index as u32)).get(), *place);
        }
    }
}

fn any_list(random: &mut Prng) -> List {
    List::ALL[random.below(4) as usize]
}

/// Most shards of a test.
const SHARDS_MAX: usize = 4;

/// Sorted, because the order of shards varies.
fn sorted(pages: &[Pfn]) -> Vec<Pfn> {
    let mut pages = pages.to_vec();
    pages.sort_unstable();
    pages
}

fn lists(
    first: u32,
    count: u32,
    shards: usize,
) -> (TestPlatform, Lru<TestPlatform>, Frames<TestPlatform>) {
    let platform = TestPlatform::new(1, Vec::new());
    let range = FrameRange { node: NodeId(0), first: Pfn(first), frames: count };
    let lru = Lru::new(&platform, range, Some(shards as u32));
    (platform, lru, Frames::new((first + count) as usize))
}

fn fuzz(seed: u64) {
    let mut random = Prng::new(seed);
    let (first, count) = (random.below(50) as u32, 1 + random.below(300) as u32);
    let shards = 1 + random.below(SHARDS_MAX as u64) as usize;
    let (platform, lru, frames) = lists(first, count, shards);
    let mut model = Model {
        first,
        place: vec![Place::Off; count as usize],
        batches: vec![Vec::new(); platform.cpus()],
        lists: [const { VecDeque::new() }; 4],
        isolated: Vec::new(),
    };
    for _ in 0..1000 {
        step(&mut random, &lru, &frames, &mut model);
        model.check(&lru, &frames);
    }
}

fn step(
    random: &mut Prng,
    lru: &Lru<TestPlatform>,
    frames: &Frames<TestPlatform>,
    model: &mut Model,
) {
    let any = Pfn(model.first + random.below(model.place.len() as u64) as u32);
    let list = any_list(random);
    match random.below(11) {
        0..3 => {
            let all = (model.first..model.first + model.place.len() as u32).map(Pfn);
            let off = all.filter(|pfn| model.at(*pfn) == Place::Off && random.percent(30));
            let pages: Vec<Pfn> = off.take(16).collect();
            let cpu = random.below(model.batches.len() as u64) as usize;
            let orphans = lru.add(frames, CpuId(cpu as u16), &pages, list);
            assert_eq!(sorted(&orphans), sorted(&model.add(cpu, &pages, list)));
        }
        3..5 => {
            let max = random.below(40) as usize;
            let cpu = CpuId(random.below(model.batches.len() as u64) as u16);
            let taken = lru.isolate(frames, cpu, list, max);
            model.isolated(lru, list, max, &taken);
        }
        5..7 => {
            let pages = model.some_isolated(random);
            let orphans = lru.putback(frames, &pages, list);
            assert_eq!(sorted(&orphans), sorted(&model.link(pages, list)));
        }
        7..9 if model.at(any) != Place::Orphan => {
            assert_eq!(lru.remove(frames, any), model.remove(any));
        }
        9 if random.percent(30) => {
            let mut orphans: Vec<Pfn> = Vec::new();
            lru.drain(frames, |some| orphans.extend(some));
            assert_eq!(sorted(&orphans), sorted(&model.drain()));
        }
        10 => {
            let mode = if random.percent(50) { Mode::Async } else { Mode::Sync };
            assert_eq!(lru.isolate_frame(frames, any, mode), model.isolate_one(any));
        }
        _ => evict_one(frames, model),
    }
}

fn evict_one(frames: &Frames<TestPlatform>, model: &mut Model) {
    let isolated = |pfn: &Pfn| model.at(*pfn) == Place::Isolated;
    if let Some(at) = model.isolated.iter().position(isolated) {
        let pfn = model.isolated.swap_remove(at);
        assert_eq!(frames.place(pfn).change(Place::Isolated, Place::Off), Ok(()));
        model.set(pfn, Place::Off);
    }
}

#[test]
fn random_operations_match_deques() {
    seeds(100, fuzz);
}

/// Frames in use and free, as the manager's entries and zone hold them.
struct Users {
    platform: TestPlatform,
    lru: Lru<TestPlatform>,
    frames: Frames<TestPlatform>,
    /// By frame: whether a page has it. Stands for the page's entry.
    used: Vec<Mutex<bool>>,
    free: Mutex<Vec<Pfn>>,
    is_free: Vec<AtomicBool>,
    freed: AtomicU32,
    watchdog: Watchdog,
}

impl Users {
    fn new(count: u32, seed: u64) -> Users {
        let (platform, lru, frames) = lists(0, count, 1 + seed as usize % SHARDS_MAX);
        Users {
            platform,
            lru,
            frames,
            used: (0..count).map(|_| Mutex::new(false)).collect(),
            free: Mutex::new((0..count).map(Pfn).collect()),
            is_free: (0..count).map(|_| AtomicBool::new(true)).collect(),
            freed: AtomicU32::new(0),
            watchdog: Watchdog::new(&format!("lru, seed {seed}"), Duration::from_secs(30)),
        }
    }

    fn free(&self, pages: &[Pfn]) {
        for pfn in pages {
            assert!(!self.is_free[pfn.index()].swap(true, SeqCst), "{pfn:?} came out twice");
            assert_eq!(self.frames.place(*pfn).get(), Place::Off);
            self.freed.fetch_add(1, Relaxed);
        }
        self.free.lock().expect("no panic").extend(pages);
    }

    fn add(&self, random: &mut Prng) {
        let mut free = self.free.lock().expect("no panic");
        let rest = free.len().saturating_sub(random.below(17) as usize);
        let pages = free.split_off(rest);
        drop(free);
        let mut entries: Vec<MutexGuard<'_, bool>> =
            pages.iter().map(|pfn| self.used[pfn.index()].lock().expect("no panic")).collect();
        for (pfn, used) in pages.iter().zip(&mut entries) {
            assert!(self.is_free[pfn.index()].swap(false, SeqCst), "{pfn:?} is given out twice");
            assert!(!std::mem::replace(&mut **used, true));
        }
        let cpu = CpuId(random.below(self.platform.cpus() as u64) as u16);
        let orphans = self.lru.add(&self.frames, cpu, &pages, any_list(random));
        drop(entries);
        self.free(&orphans);
    }

    fn drop_page(&self, pfn: Pfn) {
        let Ok(mut used) = self.used[pfn.index()].try_lock() else { return };
        if std::mem::replace(&mut *used, false) {
            match self.lru.remove(&self.frames, pfn) {
                Removal::Taken => self.free(&[pfn]),
                Removal::Abandoned => {}
            }
        }
    }

    fn reclaim(&self, random: &mut Prng) {
        let batch = self.lru.isolate(&self.frames, CpuId(0), any_list(random), BATCH_PAGES_MAX);
        let (mut evicted, mut kept) = (FrameBatch::default(), FrameBatch::default());
        for pfn in batch.iter() {
            match self.used[pfn.index()].try_lock() {
                Ok(mut used) if *used && random.percent(50) => {
                    *used = false;
                    let off = self.frames.place(*pfn).change(Place::Isolated, Place::Off);
                    assert_eq!(off, Ok(()), "{pfn:?} was isolated by this thread");
                    evicted.push(*pfn);
                }
                _ => kept.push(*pfn),
            }
        }
        self.free(&evicted);
        self.free(&self.lru.putback(&self.frames, &kept, any_list(random)));
    }

    fn reclaim_frame(&self, pfn: Pfn, mode: Mode) {
        if let Some(list) = self.lru.isolate_frame(&self.frames, pfn, mode) {
            self.free(&self.lru.putback(&self.frames, &[pfn], list));
        }
    }

    fn run(&self, seed: u64) {
        let mut random = Prng::new(seed);
        for _ in 0..4000 {
            self.watchdog.beat();
            let any = Pfn(random.below(self.used.len() as u64) as u32);
            match random.below(23) {
                0..6 => self.add(&mut random),
                6..13 => self.drop_page(any),
                19..21 => self.reclaim_frame(any, Mode::Async),
                21 => self.reclaim_frame(any, Mode::Sync),
                13..19 => self.reclaim(&mut random),
                _ => self.lru.drain(&self.frames, |orphans| self.free(orphans)),
            }
        }
    }

    /// At rest every frame is free or on a list.
    fn check(&self) {
        self.lru.drain(&self.frames, |orphans| self.free(orphans));
        let mut found = vec![0; self.used.len()];
        self.free.lock().expect("no panic").iter().for_each(|pfn| found[pfn.index()] += 1);
        self.lru.each(|pfn, place| {
            assert_eq!(self.frames.place(pfn).get(), place);
            assert!(*self.used[pfn.index()].lock().expect("no panic"), "{pfn:?} has a page");
            found[pfn.index()] += 1;
        });
        assert!(found.iter().all(|times| *times == 1), "every frame is in one place");
    }
}

#[test]
fn threads_find_every_frame_in_one_place() {
    seeds(8, |seed| {
        let mut random = Prng::new(seed);
        let users = Users::new(1 + random.below(200) as u32, seed);
        std::thread::scope(|scope| {
            let users = &users;
            (0..4).for_each(|thread| {
                scope.spawn(move || users.run(seed << 8 | thread));
            });
        });
        users.check();
        assert!(users.freed.load(Relaxed) > 0);
    });
}
