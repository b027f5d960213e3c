//! Random operations against a map of slots; then several threads: a slot has one user and no slot
//! is lost.

use super::{Cached, Swap};
use crate::config::history::SwapHistory;
use crate::config::{Config, Readahead};
use highwater_platform::testing::TestPlatform;
use highwater_platform::testing::{Watchdog, seeds};
use highwater_platform::{Block, Cpu, DeviceInfo, DeviceRole, Latency, Medium};
use highwater_units::{CpuId, NodeId, Order, Pfn, Prng, RUN_PAGES_MAX, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

/// A device of `pages` slots; no contents are read or written.
fn device(pages: u32) -> DeviceInfo {
    DeviceInfo {
        name: "ram".to_owned(),
        pages,
        latency: Latency::Synchronous,
        medium: Medium::SolidState,
        node: None,
        priority: None,
        role: DeviceRole::Swap,
        read_only: false,
    }
}

/// A device of any kind; all CPUs are on node 0.
fn draw_device(random: &mut Prng, pages: u32) -> DeviceInfo {
    DeviceInfo {
        priority: [None, Some(0), Some(1)][random.below(3) as usize],
        node: [None, Some(NodeId(0)), Some(NodeId(1))][random.below(3) as usize],
        medium: [Medium::SolidState, Medium::Rotational][usize::from(random.percent(20))],
        ..device(pages)
    }
}

/// One to four devices, of one cluster or a few; some inherited.
fn platform(random: &mut Prng) -> TestPlatform {
    let count = 1 + random.below(4);
    let sizes = [256, 511, 512, 513, 1500, 3000];
    let draw = |_| {
        let pages = sizes[random.below(sizes.len() as u64) as usize];
        let device = draw_device(random, pages);
        DeviceInfo { read_only: random.percent(20), ..device }
    };
    let devices = (0..count).map(draw).collect();
    TestPlatform::new(1, devices)
}

/// Settings: the default in every third case, else random.
fn config(random: &mut Prng) -> Config {
    let mut config = Config::default();
    if random.below(3) > 0 {
        config.history.swap = SwapHistory::draw(random);
        config.readahead = Readahead::ALL[random.below(4) as usize];
    }
    config
}

/// Takes one frame out of the cache.
fn uncache(platform: &TestPlatform, swap: &Swap<TestPlatform>, slot: Slot, pfn: Pfn) -> Cached {
    let mut outcome = None;
    swap.uncache(platform, slot, &[pfn], |_, cached| outcome = Some(cached));
    outcome.expect("an outcome for each frame")
}

/// The expected slots: count and cached frame of each in use.
struct Model {
    platform: TestPlatform,
    swap: Swap<TestPlatform>,
    settings: SwapHistory,
    slots: BTreeMap<(u8, u32), (u32, Option<Pfn>)>,
    frames: u32,
}

/// Whether `a` gives slots before `b` does.
fn comes_first(a: &DeviceInfo, b: &DeviceInfo, aware: bool) -> bool {
    let near = |device: &DeviceInfo| aware && device.node == Some(NodeId(0));
    match (a.priority, b.priority) {
        (Some(a_priority), Some(b_priority)) if a_priority == b_priority => near(a) && !near(b),
        (a_priority, b_priority) => a_priority > b_priority,
    }
}

fn key(slot: Slot) -> (u8, u32) {
    (slot.device, slot.index)
}

impl Model {
    fn new(random: &mut Prng) -> Model {
        let platform = platform(random);
        let config = config(random);
        let swap = Swap::new(&platform, &config);
        let settings = config.history.swap;
        Model { swap, settings, platform, slots: BTreeMap::new(), frames: 0 }
    }

    fn used(&self, device: u8) -> usize {
        self.slots.range((device, 0)..=(device, u32::MAX)).count()
    }

    fn is_full(&self, device: u8) -> bool {
        let info = &self.platform.devices()[usize::from(device)];
        info.read_only || self.used(device) == info.pages as usize
    }

    fn alloc(&mut self, random: &mut Prng) {
        let cpu = CpuId(random.below(self.platform.cpus() as u64) as u16);
        let wanted = 1 + random.below(RUN_PAGES_MAX as u64) as u32;
        let frames: Vec<Pfn> = (self.frames..self.frames + wanted).map(Pfn).collect();
        self.frames += wanted;
        let infos = self.platform.devices();
        let Some((first, taken)) = self.swap.alloc(cpu, &frames) else {
            let full = (0..infos.len()).all(|device| self.is_full(device as u8));
            return assert!(full, "a slot was free");
        };
        assert!((1..=frames.len()).contains(&taken));
        let (chosen, mine) = (usize::from(first.device), &infos[usize::from(first.device)]);
        for (index, info) in infos.iter().enumerate().filter(|(index, _)| *index != chosen) {
            let given = mine.priority.is_none() && info.priority.is_none() && index < chosen;
            let first = comes_first(info, mine, self.settings.node_aware) || given;
            assert!(!first || self.is_full(index as u8), "device {index} had room");
        }
        assert!(!self.is_full(first.device));
        for (index, pfn) in frames[..taken].iter().enumerate() {
            let slot = Slot { index: first.index + index as u32, ..first };
            let before = self.slots.insert(key(slot), (1, Some(*pfn)));
            assert_eq!(before, None, "{slot:?} was in use");
        }
    }

    /// An aligned run of slots, if one is found: one must be while a whole device is free.
    fn alloc_block(&mut self, random: &mut Prng) {
        let order = Order(random.below(u64::from(Order::LARGE.0) + 1) as u8);
        let pfn = Pfn(self.frames);
        self.frames += order.frames();
        let Some(first) = self.swap.alloc_block(CpuId(0), pfn, order) else {
            let free = (0..self.platform.devices().len() as u8).any(|device| self.is_empty(device));
            return assert!(!free, "a device was free");
        };
        assert_eq!(first.index % order.frames(), 0, "aligned");
        for index in 0..order.frames() {
            let slot = Slot { index: first.index + index, ..first };
            let before = self.slots.insert(key(slot), (1, Some(pfn.offset(index))));
            assert_eq!(before, None, "{slot:?} was in use");
        }
    }

    /// Whether a device of whole clusters has no slot in use or kept by a CPU.
    fn is_empty(&self, device: u8) -> bool {
        let info = &self.platform.devices()[usize::from(device)];
        let whole = info.pages.is_multiple_of(512) && info.gives_slots();
        whole && self.used(device) == 0 && !self.settings.slot_cache
    }

    /// A slot in use, if there is one at or after a random place.
    fn any(&self, random: &mut Prng) -> Option<(Slot, u32, Option<Pfn>)> {
        let device = random.below(self.platform.devices().len() as u64) as u8;
        let index = random.below(3000) as u32;
        let (key, (count, cached)) = self.slots.range((device, index)..).next()?;
        Some((Slot { device: key.0, index: key.1 }, *count, *cached))
    }

    fn set(&mut self, slot: Slot, count: u32, cached: Option<Pfn>) {
        match (count, cached) {
            (0, None) => self.slots.remove(&key(slot)),
            state => self.slots.insert(key(slot), state),
        };
    }

    fn change(&mut self, random: &mut Prng) {
        let Some((slot, count, cached)) = self.any(random) else { return };
        assert_eq!(self.swap.is_cached(slot), cached.is_some());
        match random.below(8) {
            0 => {
                assert_eq!(self.swap.claim(CpuId(0), slot), cached);
                self.set(slot, count, None);
            }
            1..4 => {
                let pfn = cached.filter(|_| random.percent(90)).unwrap_or(Pfn(u32::MAX));
                let expected = if cached == Some(pfn) { Cached::Removed } else { Cached::Claimed };
                assert_eq!(uncache(&self.platform, &self.swap, slot, pfn), expected);
                self.set(slot, count, cached.filter(|_| expected == Cached::Claimed));
            }
            4 if count > 0 => self.duplicate(random, slot, count, cached),
            5 if count > 0 && cached.is_none() => self.read_through(slot),
            _ if count > 0 => {
                self.swap.release(&self.platform, CpuId(0), slot);
                self.set(slot, count - 1, cached);
            }
            _ => {}
        }
    }

    /// A read through the cache is not seen by look-ups and leaves the cache as it was.
    fn read_through(&self, slot: Slot) {
        let own = self.swap.at(slot.device.into());
        let pfn = Pfn(7);
        own.enter(&self.platform, slot.index, &[pfn]);
        assert!(!self.swap.is_cached(slot));
        own.leave(&self.platform, slot.index, 1);
        assert!(!self.swap.is_cached(slot));
    }

    /// Once, or sometimes more often than a byte can count.
    fn duplicate(&mut self, random: &mut Prng, slot: Slot, count: u32, cached: Option<Pfn>) {
        let times = if random.percent(2) { 260 } else { 1 };
        (0..times).for_each(|_| self.swap.duplicate(CpuId(0), slot));
        self.set(slot, count + times, cached);
    }

    /// References to slots of an inherited device are not counted.
    fn touch_inherited(&self, random: &mut Prng) {
        for (device, info) in self.platform.devices().iter().enumerate().filter(|d| d.1.read_only) {
            let index = random.below(u64::from(info.pages)) as u32;
            let slot = Slot { device: device as u8, index };
            self.swap.release(&self.platform, CpuId(0), slot);
            self.swap.duplicate(CpuId(0), slot);
            assert_eq!((self.swap.claim(CpuId(0), slot), self.swap.is_cached(slot)), (None, false));
        }
    }

    fn check(&self) {
        let mut found = BTreeMap::new();
        for device in self.swap.devices() {
            device.each_used(|slot, count, cached| {
                let (_, pfn) = self.slots.get(&key(slot)).copied().unwrap_or_default();
                found.insert(key(slot), (count, pfn.filter(|_| cached)));
            });
        }
        assert_eq!(found, self.slots);
        let infos = self.platform.devices();
        let own = infos.iter().filter(|info| !info.read_only);
        let all = own.map(|info| u64::from(info.pages)).sum();
        assert_eq!(self.swap.usage(), (self.slots.len() as u64, all));
    }

    /// Frees all slots.
    fn empty(&mut self) {
        for (key, (count, cached)) in std::mem::take(&mut self.slots) {
            let slot = Slot { device: key.0, index: key.1 };
            assert_eq!(self.swap.claim(CpuId(0), slot), cached);
            (0..count).for_each(|_| self.swap.release(&self.platform, CpuId(0), slot));
        }
    }
}

/// Phases of more allocations and of more frees: devices run full, and empty.
fn fuzz(seed: u64) {
    let mut random = Prng::new(seed);
    let mut model = Model::new(&mut random);
    for _ in 0..6 {
        let (filling, blocks) = (5 + random.below(90), random.below(2) * 15);
        for _ in 0..500 {
            if !random.percent(filling) {
                (0..8).for_each(|_| model.change(&mut random));
            } else if random.percent(blocks) {
                model.alloc_block(&mut random);
            } else {
                model.alloc(&mut random);
            }
        }
        model.touch_inherited(&mut random);
        model.check();
    }
    model.empty();
    model.check();
}

#[test]
fn a_rotational_device_is_written_upwards_by_all_cpus() {
    seeds(20, |seed| {
        let mut random = Prng::new(seed);
        let disk = DeviceInfo { medium: Medium::Rotational, ..device(5 * 512) };
        let platform = TestPlatform::new(1, vec![disk]);
        // With slot caches each CPU has a batch.
        let mut config = config(&mut random);
        config.history.swap.slot_cache = false;
        let swap = Swap::new(&platform, &config);
        let cpu = |random: &mut Prng| CpuId(random.below(platform.cpus() as u64) as u16);
        for slot in 0..5 * 512 {
            let found = swap.alloc(cpu(&mut random), &[Pfn(0)]);
            assert_eq!(found, Some((Slot { device: 0, index: slot }, 1)));
            assert_eq!(swap.claim(CpuId(0), found.expect("asserted above").0), Some(Pfn(0)));
        }
        // Two clusters are free again: the lower one is next.
        for slot in (2 * 512..4 * 512).rev() {
            swap.release(&platform, CpuId(0), Slot { device: 0, index: slot });
        }
        let (next, _) = swap.alloc(cpu(&mut random), &[Pfn(0)]).expect("two are free");
        assert_eq!(next.index, 2 * 512);
    });
}

/// Regression: a program that used 200 MB wrote to the whole length of a disk of many gigabytes, so
/// the tags of its slots took more and more of the program's memory.
#[test]
fn pages_that_are_written_again_and_again_spread_over_twice_their_slots() {
    const PAGES: usize = 8 * 512;
    let disk = DeviceInfo { latency: Latency::Asynchronous, ..device(100 * 512) };
    let platform = TestPlatform::new(1, vec![disk]);
    let swap = Swap::new(&platform, &Config::default());
    let mut random = Prng::new(1);
    let mut slots = vec![None; PAGES];
    let mut clusters = BTreeSet::new();
    for _ in 0..40 * PAGES {
        let page = random.below(PAGES as u64) as usize;
        if let Some(old) = slots[page].take() {
            swap.release(&platform, CpuId(0), old);
        }
        let (slot, _) = swap.alloc(CpuId(0), &[Pfn(page as u32)]).expect("room");
        assert_eq!(swap.claim(CpuId(0), slot), Some(Pfn(page as u32)));
        clusters.insert(slot.index / 512);
        slots[page] = Some(slot);
    }
    assert!(clusters.len() <= 2 * PAGES / 512 + 1, "{} clusters", clusters.len());
}

#[test]
fn random_operations_match_a_map() {
    seeds(60, fuzz);
}

/// Slots that threads pass around.
struct Users {
    platform: TestPlatform,
    swap: Swap<TestPlatform>,
    taken: Vec<AtomicBool>,
    used: Mutex<Vec<Slot>>,
    watchdog: Watchdog,
}

impl Users {
    fn alloc(&self, random: &mut Prng) {
        let cpu = CpuId(random.below(self.platform.cpus() as u64) as u16);
        let wanted = 1 + random.below(RUN_PAGES_MAX as u64) as u32;
        let frames: Vec<Pfn> = (0..wanted).map(|_| Pfn(random.next_u64() as u32)).collect();
        if random.percent(10) {
            return self.alloc_block(random, cpu);
        }
        let Some((first, taken)) = self.swap.alloc(cpu, &frames) else { return };
        let slots = (0..taken as u32).map(|i| Slot { index: first.index + i, ..first });
        for (slot, pfn) in slots.zip(&frames) {
            assert!(!self.taken[slot.index as usize].swap(true, SeqCst), "{slot:?} is used twice");
            // A fault, or the end of the write: only one of the two gets the frame.
            if random.percent(30) {
                assert_eq!(self.swap.claim(CpuId(0), slot), Some(*pfn));
            } else {
                assert_eq!(uncache(&self.platform, &self.swap, slot, *pfn), Cached::Removed);
            }
            self.used.lock().expect("no panic").push(slot);
        }
    }

    fn alloc_block(&self, random: &mut Prng, cpu: CpuId) {
        let (order, pfn) = (Order(random.below(6) as u8), Pfn(random.next_u64() as u32 >> 8));
        let Some(first) = self.swap.alloc_block(cpu, pfn, order) else { return };
        for index in 0..order.frames() {
            let slot = Slot { index: first.index + index, ..first };
            assert!(!self.taken[slot.index as usize].swap(true, SeqCst), "{slot:?} is used twice");
            let cached = uncache(&self.platform, &self.swap, slot, pfn.offset(index));
            assert_eq!(cached, Cached::Removed);
            self.used.lock().expect("no panic").push(slot);
        }
    }

    fn free(&self, random: &mut Prng) {
        let cpu = CpuId(random.below(self.platform.cpus() as u64) as u16);
        for _ in 0..random.below(20) {
            let mut used = self.used.lock().expect("no panic");
            if used.is_empty() {
                return;
            }
            let at = random.below(used.len() as u64) as usize;
            let slot = used.swap_remove(at);
            drop(used);
            if random.percent(20) {
                self.swap.duplicate(CpuId(0), slot);
                self.swap.release(&self.platform, cpu, slot);
            }
            assert!(self.taken[slot.index as usize].swap(false, SeqCst));
            self.swap.release(&self.platform, cpu, slot);
        }
    }

    fn run(&self, seed: u64) {
        let mut random = Prng::new(seed);
        for _ in 0..20 {
            let filling = 20 + random.below(70);
            for _ in 0..300 {
                self.watchdog.beat();
                if random.percent(filling) {
                    self.alloc(&mut random);
                } else {
                    self.free(&mut random);
                }
            }
        }
    }

    /// Every free slot can be allocated, by any CPU.
    fn check(&self, pages: usize, cpu: CpuId) {
        let mut used = self.used.lock().expect("no panic").len();
        assert_eq!(self.swap.usage(), (used as u64, pages as u64));
        while let Some((_, taken)) = self.swap.alloc(cpu, &[Pfn(0)]) {
            used += taken;
        }
        assert_eq!(used, pages, "slots are lost");
        self.swap.at(0).each_used(|_, count, _| assert_eq!(count, 1));
    }
}

#[test]
fn threads_share_no_slot_and_lose_none() {
    seeds(12, |seed| {
        let mut random = Prng::new(seed);
        let pages = 256 + random.below(3) * random.below(1000);
        let device = draw_device(&mut random, pages as u32);
        let platform = TestPlatform::new(1, vec![device]);
        let users = Users {
            swap: Swap::new(&platform, &config(&mut random)),
            taken: (0..pages).map(|_| AtomicBool::new(false)).collect(),
            used: Mutex::new(Vec::new()),
            watchdog: Watchdog::new(&format!("swap, seed {seed}"), Duration::from_secs(30)),
            platform,
        };
        std::thread::scope(|scope| {
            let users = &users;
            (0..4).for_each(|thread| {
                scope.spawn(move || users.run(seed << 8 | thread));
            });
        });
        let cpu = CpuId(random.below(users.platform.cpus() as u64) as u16);
        users.check(pages as usize, cpu);
    });
}
