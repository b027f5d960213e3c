//! Random transfers of several threads while pages are moved as fast as possible, over a slow level
//! that fails, against a model of each slot's contents.

use crate::arena::Arena;
use crate::device::Device;
use crate::error::Reason;
use crate::open::open;
use crate::pool::Started;
use crate::quota::Lenders;
use crate::spec::Spec;
use crate::test_frames::Frames;
use crate::tier::shared::Shared;
use crate::tier::table::Place;
use crate::tier::transfer::Request;
use crate::tier::writeback::{Batch, Writeback};
use crate::tiering::Tiering;
use highwater_platform::{DeviceInfo, Direction, Io, IoError};
use highwater_units::{Bytes, FrameList, PAGE_SIZE, Pfn, Prng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const THREADS: u32 = 3;
const STEPS: u32 = 2_000;
/// Frames of a thread: a batch of three transfers.
const FRAMES: u32 = 48;
const FAILED: IoError = IoError::Failed(libc::EIO);

/// A device in memory, some of whose transfers fail.
struct Failing {
    inner: Box<dyn Device>,
    percent: Arc<AtomicU64>,
    drawn: AtomicU64,
}

impl Failing {
    fn strikes(&self) -> bool {
        Prng::new(self.drawn.fetch_add(1, Relaxed)).percent(self.percent.load(Relaxed))
    }
}

impl Device for Failing {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn info_mut(&mut self) -> &mut DeviceInfo {
        self.inner.info_mut()
    }

    unsafe fn read(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.inner.read(arena, batch) };
        for io in batch {
            if self.strikes() {
                for pfn in io.frames.iter() {
                    // SAFETY: a frame of this transfer.
                    unsafe { arena.address(pfn).write_bytes(0xdb, PAGE_SIZE) };
                }
                io.result = Err(FAILED);
            }
        }
    }

    unsafe fn write(&self, arena: Arena, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.inner.write(arena, batch) };
        batch.iter_mut().filter(|_| self.strikes()).for_each(|io| io.result = Err(FAILED));
    }

    /// Carries out every second batch only in `finish`.
    unsafe fn start(
        &self,
        arena: Arena,
        direction: Direction,
        batch: &mut [Io],
    ) -> Option<Started> {
        if self.drawn.fetch_add(1, Relaxed).is_multiple_of(2) {
            return Some(Started { index: 0, direction, left: 0, bounce: None });
        }
        // SAFETY: by contract of this function.
        unsafe { self.read_or_write(arena, direction, batch) };
        None
    }

    unsafe fn finish(&self, arena: Arena, started: Started, batch: &mut [Io]) {
        // SAFETY: by contract of this function.
        unsafe { self.read_or_write(arena, started.direction, batch) };
    }

    fn share_room(&self, next: &mut Lenders<'_>) -> Result<(), Reason> {
        self.inner.share_room(next)
    }

    fn inherit(&self) -> Box<dyn Device> {
        self.inner.inherit()
    }

    fn resident(&self) -> Bytes {
        self.inner.resident()
    }
}

fn memory(spec: &str) -> Box<dyn Device> {
    open(&Spec::parse(spec).unwrap()).unwrap()
}

/// A tier without a worker, and the percentage of failing transfers of its slow level.
fn tier(fast: &str, slow: &str) -> (Arc<Shared>, Arc<AtomicU64>) {
    let percent = Arc::new(AtomicU64::new(0));
    let drawn = AtomicU64::new(0);
    let slow = Failing { inner: memory(slow), percent: percent.clone(), drawn };
    let fast = memory(fast);
    let pages = fast.info().pages + slow.info().pages;
    (Arc::new(Shared::new(pages, fast, Box::new(slow)).unwrap()), percent)
}

/// A page by its seed: of one word, incompressible, or compressible to less than half.
fn word_of(seed: u64, word: usize) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    match seed % 4 {
        0 => seed.wrapping_mul(ODD),
        1 => (seed ^ (word as u64) << 32).wrapping_mul(ODD).rotate_left(29).wrapping_mul(ODD),
        _ => seed.wrapping_mul(ODD) ^ (word / 8) as u64,
    }
}

/// The contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// The page of this seed; 0 means zeros.
    Page(u64),
    /// Undefined: its write failed, or it was dropped.
    Anything,
}

/// A caller with slots and frames of its own.
struct Caller<'a> {
    shared: &'a Shared,
    info: DeviceInfo,
    frames: Frames,
    first: u32,
    model: Vec<Held>,
    random: Prng,
    may_fail: bool,
}

impl<'a> Caller<'a> {
    fn new(shared: &'a Shared, first: u32, slots: u32, seed: u64) -> Caller<'a> {
        let info = DeviceInfo { pages: shared.table.slots(), ..shared.slow.device.info() };
        let frames = Frames::new(FRAMES, word_of);
        let (model, random) = (vec![Held::Page(0); slots as usize], Prng::new(seed));
        Caller { shared, info, frames, first, model, random, may_fail: true }
    }

    /// Up to three runs of slots that do not overlap.
    fn batch(&mut self) -> Vec<Io> {
        let third = self.model.len() as u64 / 3;
        let runs = 1 + self.random.below(3);
        let run = |index: u64| {
            let at = index * third + self.random.below(third - 16);
            let pages = 1 + self.random.below(16) as u32;
            let frame = index as u32 * 16;
            Io::new(self.first + at as u32, (frame..frame + pages).map(Pfn).collect())
        };
        (0..runs).map(run).collect()
    }

    fn step(&mut self) {
        let mut batch = self.batch();
        match self.random.below(10) {
            0..5 => self.write(&mut batch),
            5..8 => self.read(&mut batch),
            _ => batch.iter().for_each(|io| self.discard(io.slot, io.frames.len() as u32)),
        }
    }

    fn at(&mut self, slot: u32) -> &mut Held {
        &mut self.model[(slot - self.first) as usize]
    }

    fn request(&self, direction: Direction) -> Request<'_> {
        Request { info: &self.info, direction, arena: self.frames.arena() }
    }

    /// Makes a batch, at once or in two steps.
    fn make(&mut self, direction: Direction, batch: &mut [Io]) {
        let two_steps = self.random.percent(50);
        let (shared, request) = (self.shared, self.request(direction));
        if !two_steps {
            // SAFETY: frames of this caller.
            return unsafe { shared.read_or_write(request, batch) };
        }
        let mut parts = shared.flights.take_for_later().expect("a place for each of few threads");
        // SAFETY: as above.
        unsafe { shared.start(request, batch, &mut parts) };
        if parts.started.is_some() {
            std::thread::yield_now();
            // SAFETY: as above, of the batch that was started.
            unsafe { shared.finish(request, batch, &mut parts) };
        }
    }

    fn write(&mut self, batch: &mut [Io]) {
        let mut seeds = Vec::new();
        for pfn in batch.iter().flat_map(|io| io.frames.iter()) {
            seeds.push(self.random.next_u64());
            self.frames.fill(pfn, seeds[seeds.len() - 1]);
        }
        self.make(Direction::Write, batch);
        let mut seeds = seeds.into_iter();
        for io in batch {
            assert!(matches!(io.result, Ok(()) | Err(IoError::Full)) || self.may_fail);
            for slot in io.slot..io.slot + io.frames.len() as u32 {
                let seed = seeds.next().unwrap();
                *self.at(slot) = io.result.map_or(Held::Anything, |()| Held::Page(seed));
            }
        }
    }

    fn read(&mut self, batch: &mut [Io]) {
        batch.iter().flat_map(|io| io.frames.iter()).for_each(|pfn| self.frames.fill(pfn, 99));
        self.make(Direction::Read, batch);
        for io in &*batch {
            let slots = io.slot..io.slot + io.frames.len() as u32;
            match io.result {
                Ok(()) => self.check(slots.zip(io.frames.iter())),
                Err(_) => assert!(self.may_fail && { slots }.any(|slot| self.is_slow(slot))),
            }
        }
    }

    fn check(&mut self, pages: impl Iterator<Item = (u32, Pfn)>) {
        for (slot, pfn) in pages {
            match *self.at(slot) {
                Held::Page(seed) => {
                    assert!(self.frames.holds(pfn, seed), "slot {slot}, seed {seed}")
                }
                Held::Anything => {}
            }
        }
    }

    fn is_slow(&self, slot: u32) -> bool {
        let place = self.shared.table.pin(slot, self.shared.now());
        if matches!(place, Place::Fast(_)) {
            self.shared.table.unpin(slot);
        }
        matches!(place, Place::Slow(_))
    }

    fn discard(&mut self, slot: u32, pages: u32) {
        for slot in slot..slot + pages {
            self.shared.drop_slot(slot);
            *self.at(slot) = Held::Anything;
        }
    }

    /// Writes every slot in a transfer of its own.
    fn write_all(&mut self) {
        for slot in self.first..self.first + self.model.len() as u32 {
            self.write(&mut [Io::new(slot, FrameList::one(Pfn(0)))]);
        }
    }

    /// Reads every slot in a transfer of its own.
    fn read_all(&mut self) {
        for slot in self.first..self.first + self.model.len() as u32 {
            self.read(&mut [Io::new(slot, FrameList::one(Pfn(0)))]);
        }
    }
}

/// Moves pages of any age until told to stop, while the fast level's memory limit changes.
fn move_pages(shared: &Arc<Shared>, seed: u64, stop: &AtomicBool) {
    let (mut random, mut slot) = (Prng::new(seed), 0);
    let mut writeback = Writeback::new(shared.clone()).unwrap();
    while !stop.load(Relaxed) {
        let most = 1 + random.below(100);
        shared.fast.limit(Bytes::of_pages(random.below(512)));
        slot = match writeback.batch(slot, 0, most) {
            Batch::Moved(_, next) if next < shared.table.ever_fast().end => next,
            Batch::Moved(..) | Batch::Refused => random.below(shared.table.slots().into()) as u32,
        };
    }
}

/// Fills both levels, and moves pages with and without failures: the threads that follow may not
/// be scheduled so that all of that happens.
fn fill(shared: &Arc<Shared>, percent: &AtomicU64, callers: &mut [Caller<'_>]) {
    let mut writeback = Writeback::new(shared.clone()).unwrap();
    callers[0].write_all();
    assert!(matches!(writeback.batch(0, 0, 32), Batch::Moved(32, _)));
    percent.store(100, Relaxed);
    assert_eq!(writeback.batch(64, 0, 32), Batch::Refused);
    percent.store(0, Relaxed);
    callers[1..].iter_mut().for_each(Caller::write_all);
    callers.iter_mut().for_each(Caller::read_all);
}

fn run(fast: &str, slow: &str, seed: u64) {
    println!("{fast}, {slow}, seed {seed}");
    let (shared, percent) = tier(fast, slow);
    let slots = shared.table.slots() / THREADS;
    let caller =
        |thread| Caller::new(&shared, thread * slots, slots, seed * 10 + u64::from(thread));
    let mut callers: Vec<_> = (0..THREADS).map(caller).collect();
    fill(&shared, &percent, &mut callers);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| move_pages(&shared, seed, &stop));
        let callers = callers.into_iter().map(|mut caller| {
            let percent = &percent;
            scope.spawn(move || {
                for step in 0..STEPS {
                    percent.store(if step / 500 % 2 == 0 { 0 } else { 20 }, Relaxed);
                    caller.step();
                }
                caller
            })
        });
        let callers: Vec<_> = callers.collect();
        let callers: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap()).collect();
        percent.store(0, Relaxed);
        for mut caller in callers {
            caller.may_fail = false;
            caller.read_all();
            caller.discard(caller.first, slots);
            caller.model.fill(Held::Page(0));
            caller.read_all();
        }
        stop.store(true, Relaxed);
    });
    let left = shared.tiering();
    assert_eq!((left.fast_pages, left.slow_pages), (0, 0), "every block is free again");
    let held = shared.fast.device.compression().map_or(0, |held| held.pages);
    assert_eq!(held, 0, "nothing is left behind");
    for count in [left.written_back, left.writeback_failures, left.slow_reads, left.slow_writes] {
        assert!(count > 0, "{left:?}");
    }
}

#[test]
fn callers_and_moves_match_a_model() {
    for seed in 0..4 {
        for fast in ["ram:1M", "zram:1M:lz4"] {
            run(fast, "ram:2M", seed);
        }
    }
}

/// A tier of 256 and 512 pages with random pages in slots 0 to 199, written in that order.
fn written() -> (Arc<Shared>, Arc<AtomicU64>) {
    let (shared, percent) = tier("ram:1M", "ram:2M");
    let mut caller = Caller::new(&shared, 0, 768, 1);
    for slot in 0..200 {
        caller.write(&mut [Io::new(slot, FrameList::one(Pfn(0)))]);
    }
    (shared, percent)
}

fn slow_slots(shared: &Shared) -> Vec<u32> {
    let caller = Caller::new(shared, 0, 768, 1);
    (0..768).filter(|slot| caller.is_slow(*slot)).collect()
}

#[test]
fn the_oldest_pages_move_first() {
    let (shared, _) = written();
    let mut caller = Caller::new(&shared, 0, 768, 1);
    caller.model.fill(Held::Anything);
    for slot in 0..30 {
        caller.read(&mut [Io::new(slot, FrameList::one(Pfn(0)))]);
    }
    let age = shared.age_of(64);
    let mut writeback = Writeback::new(shared.clone()).unwrap();
    let moved = writeback.batch(0, age, 64);
    assert!(matches!(moved, Batch::Moved(64, _)), "{moved:?}");
    assert_eq!(slow_slots(&shared), (30..94).collect::<Vec<_>>());
}

#[test]
fn a_fast_level_of_which_less_may_be_resident_is_written_back() {
    let (shared, _) = written();
    assert!(!shared.is_high(), "200 of 256 pages");
    shared.fast.limit(Bytes::of_pages(100));
    let pages = shared.plan().map(|plan| plan.pages);
    assert!(
        shared.fast.is_at_limit() && pages == Some(120),
        "80 % of what may be resident stay: {pages:?}"
    );
    let mut caller = Caller::new(&shared, 0, 768, 1);
    caller.write(&mut [Io::new(600, FrameList::one(Pfn(0)))]);
    assert_eq!(slow_slots(&shared), [600], "pages go past a full level");
    shared.fast.limit(Bytes(u64::MAX));
    assert!(!shared.is_high() && shared.plan().is_none());
}

/// Regression: once memory was scarce, these pages went to the disk like all other pages.
#[test]
fn pages_that_one_word_fills_stay_in_a_full_level() {
    let (shared, _) = tier("zram:1M", "ram:2M");
    shared.fast.limit(Bytes(0));
    let mut caller = Caller::new(&shared, 0, 768, 1);
    let mut batch = [Io::new(0, (0..16).map(Pfn).collect())];
    caller.write(&mut batch);
    let is_filled = |held: &Held| matches!(held, Held::Page(seed) if seed % 4 == 0);
    let others = (0..16).filter(|slot| !is_filled(&caller.model[*slot as usize]));
    let others: Vec<_> = others.collect();
    assert!(others.len() < 16 && slow_slots(&shared) == others, "{others:?}");
    caller.read(&mut batch);
}

#[test]
fn a_page_whose_write_back_fails_stays() {
    let (shared, percent) = written();
    percent.store(100, Relaxed);
    let mut writeback = Writeback::new(shared.clone()).unwrap();
    assert_eq!(writeback.batch(0, 0, 32), Batch::Refused);
    assert!(slow_slots(&shared).is_empty());
    let Tiering { fast_pages, slow_pages, writeback_failures, .. } = shared.tiering();
    assert_eq!((fast_pages, slow_pages, writeback_failures), (200, 0, 32));
    percent.store(0, Relaxed);
    assert_eq!(writeback.batch(0, 0, 32), Batch::Moved(32, 32));
}

#[test]
fn a_failing_read_affects_only_its_slot() {
    let (shared, percent) = written();
    let mut writeback = Writeback::new(shared.clone()).unwrap();
    assert_eq!(writeback.batch(0, 0, 10), Batch::Moved(10, 10));
    percent.store(100, Relaxed);
    let caller = Caller::new(&shared, 0, 768, 1);
    let read = |slot| {
        let mut one = [Io::new(slot, FrameList::one(Pfn(0)))];
        // SAFETY: frames of this caller.
        unsafe { shared.read_or_write(caller.request(Direction::Read), &mut one) };
        one[0].result
    };
    for slot in 0..20 {
        assert_eq!(read(slot), if slot < 10 { Err(FAILED) } else { Ok(()) }, "slot {slot}");
    }
    assert_eq!(read(500), Ok(()), "never written");
}

#[test]
fn pages_fill_both_levels_and_further_ones_are_refused() {
    let (shared, _) = tier("ram:1M", "ram:2M");
    let mut caller = Caller::new(&shared, 0, 768, 7);
    let mut put = |slot| {
        let mut one = [Io::new(slot, FrameList::one(Pfn(0)))];
        caller.write(&mut one);
        one[0].result
    };
    assert!((0..768).all(|slot| put(slot) == Ok(())));
    let Tiering { fast_pages, slow_pages, slow_writes, .. } = shared.tiering();
    assert_eq!((fast_pages, slow_pages, slow_writes), (256, 512, 512));
    // Incompressible pages take more memory than their slots assume.
    let (shared, _) = tier("zram:1M:lz4", "ram:2M");
    let caller = Caller::new(&shared, 0, 1280, 7);
    let random = |slot: u32| {
        caller.frames.fill(Pfn(0), 4 * u64::from(slot) + 1);
        let mut one = [Io::new(slot, FrameList::one(Pfn(0)))];
        // SAFETY: frames of this caller.
        unsafe { shared.read_or_write(caller.request(Direction::Write), &mut one) };
        one[0].result
    };
    assert!((0..768).all(|slot| random(slot) == Ok(())));
    assert_eq!(random(800), Err(IoError::Full));
    shared.drop_slot(700);
    assert_eq!(random(800), Ok(()));
}
