//! The whole manager under random operations of several threads, its contents against a model.
//!
//! ```text
//! space 0        shared: every thread has a word of every page, and knows what it wrote there
//! space 1        volatile: likewise, and any thread drops any range at any time
//! spaces 2..     private, one per thread: ranges are dropped and moved about
//! spaces after   empty, to restore snapshots into
//! ```
//! A value is `count << 8 | thread`, with a count that only rises: what was never written there, or
//! belongs to another page, or to another time, differs.

mod common;

use common::Trouble;
use highwater_devices::Device;
use highwater_mm::{Access, Config, FaultError, Manager, Range};
use highwater_os::Os;
use highwater_platform::conformance::{Watchdog, seeds};
use highwater_platform::{Latency, Memory, WORDS_PER_FRAME};
use highwater_units::{Bytes, Prng, SpaceId, Vpn};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SHARED: SpaceId = SpaceId(0);
const VOLATILE: SpaceId = SpaceId(1);

/// What a run is made of.
struct Plan {
    frames: u64,
    threads: usize,
    kswapd: usize,
    /// Pages of each space.
    pages: u64,
    steps: usize,
    snapshots: bool,
    devices: Vec<Box<dyn Device>>,
    trouble: Arc<Trouble>,
    /// Whether faults may fail.
    fallible: bool,
}

/// A manager and what its users know of it.
struct World {
    manager: Manager<Os>,
    plan: Plan,
    /// By thread and page of the shared space: values before and after a store.
    begun: Vec<Vec<AtomicU64>>,
    done: Vec<Vec<AtomicU64>>,
    /// Spaces to restore snapshots into.
    spare: Mutex<Vec<SpaceId>>,
    failures: AtomicU64,
    watchdog: Watchdog,
}

impl World {
    fn new(name: &str, seed: u64, mut plan: Plan) -> World {
        let devices = std::mem::take(&mut plan.devices);
        let platform = Os::new(Bytes::of_pages(plan.frames), devices).expect("an arena");
        let config = Config { kswapd_threads: plan.kswapd, ..Config::default() };
        let manager = Manager::start(platform, config).expect("threads");
        let add = |_| manager.add_space(plan.pages).expect("a space");
        let spaces: Vec<SpaceId> = (0..2 + 2 * plan.threads).map(add).collect();
        let table = || {
            let pages = |_| (0..plan.pages).map(|_| AtomicU64::new(0)).collect();
            (0..plan.threads).map(pages).collect()
        };
        World {
            begun: table(),
            done: table(),
            spare: Mutex::new(spaces[2 + plan.threads..].to_vec()),
            failures: AtomicU64::new(0),
            watchdog: Watchdog::new(&format!("{name}, seed {seed}"), Duration::from_secs(40)),
            manager,
            plan,
        }
    }

    fn load(&self, space: SpaceId, page: u64, words: [usize; 2]) -> Result<u64, FaultError> {
        let pin = self.manager.pin(space, Vpn(page), Access::Read)?;
        let word = |word| self.manager.platform().load(pin.pfn(), word);
        let value = word(words[0]);
        assert_eq!(value, word(words[1]), "both halves of page {page} of {space:?}");
        Ok(value)
    }

    fn store(
        &self,
        space: SpaceId,
        page: u64,
        words: [usize; 2],
        value: u64,
    ) -> Result<(), FaultError> {
        let pin = self.manager.pin(space, Vpn(page), Access::Write)?;
        words.iter().for_each(|word| self.manager.platform().store(pin.pfn(), *word, value));
        Ok(())
    }

    /// The outcome, if there is one; a plan without troubles has no failures.
    fn allow<T>(&self, outcome: Result<T, FaultError>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(self.plan.fallible, "nothing is wrong, but: {error}");
                self.failures.fetch_add(1, Relaxed);
                None
            }
        }
    }
}

/// A thread's words of a page: one in each half.
fn words(thread: usize) -> [usize; 2] {
    [thread, WORDS_PER_FRAME - 1 - thread]
}

/// A user of the manager, and what it expects to find.
struct User<'a> {
    world: &'a World,
    thread: usize,
    random: Prng,
    count: u64,
    volatile: Vec<u64>,
    private: Vec<u64>,
}

impl<'a> User<'a> {
    fn new(world: &'a World, thread: usize, seed: u64) -> User<'a> {
        let zeros = || vec![0; world.plan.pages as usize];
        let random = Prng::new(seed << 8 | thread as u64);
        User { world, thread, random, count: 0, volatile: zeros(), private: zeros() }
    }

    fn own_space(&self) -> SpaceId {
        SpaceId(2 + self.thread as u16)
    }

    fn value(&mut self) -> u64 {
        self.count += 1;
        self.count << 8 | self.thread as u64
    }

    fn page(&mut self) -> u64 {
        self.random.below(self.world.plan.pages)
    }

    /// A range of up to 40 pages: more than two runs.
    fn range(&mut self) -> Range {
        let first = self.page();
        let most = (self.world.plan.pages - first).min(40);
        Range { first: Vpn(first), end: Vpn(first + 1 + self.random.below(most)) }
    }

    fn step(&mut self) {
        self.world.watchdog.beat();
        let page = self.page();
        match self.random.below(100) {
            0..30 => self.use_shared(page),
            30..50 => self.use_private(page),
            50..70 => self.use_volatile(page),
            70..75 => (0..16).for_each(|i| self.use_shared((page + i) % self.world.plan.pages)),
            75..80 => (0..16).for_each(|i| self.use_private((page + i) % self.world.plan.pages)),
            80..83 => self.drop_volatile(),
            83..86 => self.drop_private(),
            86..92 => self.move_private(),
            92..98 => self.hold_two(page),
            _ if self.world.plan.snapshots => self.copy_private_or_shared(),
            _ => {}
        }
    }

    fn use_shared(&mut self, page: u64) {
        let (world, thread) = (self.world, self.thread);
        let done = &world.done[thread][page as usize];
        if let Some(found) = world.allow(world.load(SHARED, page, words(thread))) {
            assert_eq!(found, done.load(Relaxed), "shared page {page}, thread {thread}");
        }
        if self.random.percent(40) {
            let value = self.value();
            let before = world.begun[thread][page as usize].swap(value, SeqCst);
            match world.allow(world.store(SHARED, page, words(thread), value)) {
                Some(()) => done.store(value, SeqCst),
                None => world.begun[thread][page as usize].store(before, SeqCst),
            }
        }
    }

    fn use_private(&mut self, page: u64) {
        let (world, space, thread) = (self.world, self.own_space(), self.thread);
        let expected = &mut self.private[page as usize];
        if let Some(found) = world.allow(world.load(space, page, words(thread))) {
            assert_eq!(found, *expected, "private page {page}, thread {thread}");
        }
        if self.random.percent(50) {
            let value = self.value();
            if world.allow(world.store(space, page, words(thread), value)).is_some() {
                self.private[page as usize] = value;
            }
        }
    }

    /// A page that others may drop holds what was written last, or zeros from some time on.
    fn use_volatile(&mut self, page: u64) {
        let (world, thread) = (self.world, self.thread);
        let expected = &mut self.volatile[page as usize];
        if let Some(found) = world.allow(world.load(VOLATILE, page, words(thread))) {
            assert!(found == *expected || found == 0, "volatile page {page}: {found:#x}");
            *expected = found;
        }
        if self.random.percent(50) {
            let value = self.value();
            if world.allow(world.store(VOLATILE, page, words(thread), value)).is_some() {
                self.volatile[page as usize] = value;
            }
        }
    }

    fn drop_volatile(&mut self) {
        let range = self.range();
        self.world.manager.discard(VOLATILE, range);
    }

    fn drop_private(&mut self) {
        let range = self.range();
        self.world.manager.discard(self.own_space(), range);
        self.private[range.first.0 as usize..range.end.0 as usize].fill(0);
    }

    fn move_private(&mut self) {
        let (from, to) = (self.range(), self.range().first.0);
        let pages = from.end.0 - from.first.0;
        let apart = to + pages <= from.first.0 || from.end.0 <= to;
        if !apart || to + pages > self.world.plan.pages {
            return;
        }
        let (manager, space) = (&self.world.manager, self.own_space());
        manager.discard(space, Range { first: Vpn(to), end: Vpn(to + pages) });
        manager.relocate(space, from, Vpn(to));
        for index in 0..pages {
            let moved = std::mem::take(&mut self.private[(from.first.0 + index) as usize]);
            self.private[(to + index) as usize] = moved;
        }
    }

    /// Two pages pinned at once, contents seen through both.
    fn hold_two(&mut self, page: u64) {
        let (world, space, other) = (self.world, self.own_space(), self.page());
        let Some(pin) = world.allow(world.manager.pin(space, Vpn(page), Access::Read)) else {
            return;
        };
        self.use_shared(other);
        let found = world.manager.platform().load(pin.pfn(), words(self.thread)[0]);
        assert_eq!(found, self.private[page as usize], "a pinned page stays");
    }

    fn copy_private_or_shared(&mut self) {
        match self.random.percent(50) {
            true => {
                let expected = self.private.clone();
                let thread = self.thread;
                self.copy(self.own_space(), |page| vec![(thread, expected[page], expected[page])]);
            }
            false => {
                let at = |table: &[Vec<AtomicU64>]| -> Vec<Vec<u64>> {
                    let pages = |row: &Vec<AtomicU64>| row.iter().map(|v| v.load(SeqCst)).collect();
                    table.iter().map(pages).collect()
                };
                let least = at(&self.world.done);
                let world = self.world;
                let limits = |page: usize| {
                    let of = |thread: usize| {
                        let most = world.begun[thread][page].load(SeqCst);
                        (thread, least[thread][page], most.max(least[thread][page]))
                    };
                    (0..world.plan.threads).map(of).collect()
                };
                self.copy(SHARED, limits);
            }
        }
    }

    /// Copies a space, and checks the copy: per page, the threads' values lie within limits.
    fn copy(&self, space: SpaceId, limits: impl Fn(usize) -> Vec<(usize, u64, u64)>) {
        let (world, manager) = (self.world, &self.world.manager);
        let Some(spare) = world.spare.lock().expect("no panic").pop() else { return };
        if let Some(snapshot) = world.allow(manager.snapshot(space)) {
            let limits: Vec<_> = (0..world.plan.pages as usize).map(&limits).collect();
            // The references are the restored space's from here on.
            manager.restore_snapshot(spare, &snapshot);
            for (page, of_page) in limits.iter().enumerate() {
                for (thread, least, most) in of_page {
                    let found = world.load(spare, page as u64, words(*thread));
                    let Some(found) = world.allow(found) else { continue };
                    let right = (*least..=*most).contains(&found);
                    assert!(right, "copied page {page}: {found:#x}, not {least:#x} to {most:#x}");
                }
                world.watchdog.beat();
            }
            let all = Range { first: Vpn(0), end: Vpn(world.plan.pages) };
            manager.discard(spare, all);
        }
        world.spare.lock().expect("no panic").push(spare);
    }

    /// Every page once more, when all is quiet and nothing fails.
    fn check_all(&mut self) {
        let (world, thread) = (self.world, self.thread);
        for page in 0..world.plan.pages {
            let load = |space| world.load(space, page, words(thread)).expect("no troubles now");
            let shared = world.done[thread][page as usize].load(SeqCst);
            assert_eq!(load(SHARED), shared, "shared page {page}");
            assert_eq!(load(self.own_space()), self.private[page as usize], "private page {page}");
            let (found, expected) = (load(VOLATILE), self.volatile[page as usize]);
            assert!(found == expected || found == 0, "volatile page {page}");
            world.watchdog.beat();
        }
    }
}

/// Runs a plan; returns how many operations failed.
fn run(name: &str, seed: u64, plan: Plan) -> u64 {
    let mut world = World::new(name, seed, plan);
    let (steps, threads) = (world.plan.steps, world.plan.threads);
    let shared = &world;
    let users: Vec<_> = std::thread::scope(|scope| {
        let user = |thread| {
            let body = move || {
                let mut user = User::new(shared, thread, seed);
                (0..steps).for_each(|_| user.step());
                (user.volatile, user.private)
            };
            scope.spawn(body)
        };
        let started: Vec<_> = (0..threads).map(user).collect();
        started.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    world.manager.stop_kswapd();
    world.manager.verify(&[]);
    world.plan.trouble.end();
    for (thread, (volatile, private)) in users.into_iter().enumerate() {
        User { volatile, private, ..User::new(&world, thread, seed) }.check_all();
    }
    world.manager.verify(&[]);
    empty(&world);
    world.failures.load(Relaxed)
}

/// Without contents nothing is in use.
fn empty(world: &World) {
    let all = Range { first: Vpn(0), end: Vpn(world.plan.pages) };
    (0..2 + 2 * world.plan.threads).for_each(|s| world.manager.discard(SpaceId(s as u16), all));
    world.manager.verify(&[]);
    let machine = world.manager.machine();
    // Dropped pages that were on their way to a list.
    machine.nodes.iter().for_each(|n| n.lru.drain(&machine.frames, |pages| machine.free(pages)));
    assert_eq!((machine.resident(), machine.swap.usage().0), (0, 0), "all was given back");
}

/// A plan drawn from a seed: 64 frames in half of the cases.
fn plan(seed: u64, threads: usize, steps: usize) -> Plan {
    let mut random = Prng::new(seed ^ 0xd1ce);
    let frames = match random.percent(50) {
        true => 64,
        false => 40 + random.below(2000),
    };
    let trouble = Arc::new(Trouble::default());
    trouble.delays.store(random.below(4) * random.below(8), Relaxed);
    let pages = 20 + random.below(frames * 2);
    // All spaces and as many copies: never full.
    let slots = (3 * pages * (2 + 2 * threads as u64)).max(256);
    let latency = match random.percent(60) {
        true => Latency::Asynchronous,
        false => Latency::Synchronous,
    };
    let mut devices = vec![common::memory(slots, latency, &trouble)];
    // A small one before it, sometimes: full all the time, in use by all CPUs.
    if random.percent(50) {
        devices.insert(0, common::memory(256 + random.below(600), latency, &trouble));
    }
    let kswapd = 1 + random.below(4) as usize;
    let (snapshots, fallible) = (true, false);
    Plan { frames, threads, kswapd, pages, steps, snapshots, devices, trouble, fallible }
}

#[test]
fn one_thread_finds_what_it_wrote() {
    seeds(12, |seed| {
        run("one thread", seed, plan(seed, 1, 8000));
    });
}

#[test]
fn two_threads_find_what_they_wrote() {
    seeds(10, |seed| {
        run("two threads", seed, plan(seed, 2, 6000));
    });
}

#[test]
fn eight_threads_find_what_they_wrote() {
    seeds(10, |seed| {
        run("eight threads", seed, plan(seed, 8, 1500));
    });
}

#[test]
fn contents_survive_on_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    seeds(2, |seed| {
        let trouble = Arc::new(Trouble::default());
        let devices = vec![common::file(1 << 14, dir.path(), &trouble)];
        run("on a file", seed, Plan { devices, frames: 64, pages: 200, ..plan(seed, 4, 800) });
    });
}

/// Transfers fail now and then: contents are right all the same, and errors are said.
#[test]
fn failing_devices_lose_nothing() {
    let failures = AtomicU64::new(0);
    seeds(10, |seed| {
        let drawn = plan(seed, 1 + seed as usize % 4, 2500);
        drawn.trouble.reads.store(seed % 3 * 4, Relaxed);
        drawn.trouble.writes.store(seed % 4 * 15, Relaxed);
        let failed = run("failing device", seed, Plan { fallible: true, ..drawn });
        failures.fetch_add(failed, Relaxed);
    });
    assert!(failures.into_inner() > 0, "no error was said");
}

/// Devices too small for what is used: the error is said, and freed slots serve again.
#[test]
fn a_full_device_is_an_error() {
    let failures = AtomicU64::new(0);
    seeds(4, |seed| {
        let drawn = plan(seed, 1 + seed as usize % 3, 400);
        let devices = vec![common::memory(256, Latency::Asynchronous, &drawn.trouble)];
        let snapshots = false;
        let plan = Plan { devices, snapshots, fallible: true, frames: 64, pages: 100, ..drawn };
        let failed = run_full(seed, plan);
        failures.fetch_add(failed, Relaxed);
    });
    assert!(failures.into_inner() > 0, "no device was full");
}

/// As [`run`], but the pages do not all fit at the end: only what each thread can read is checked.
fn run_full(seed: u64, plan: Plan) -> u64 {
    let mut world = World::new("full device", seed, plan);
    std::thread::scope(|scope| {
        for thread in 0..world.plan.threads {
            let world = &world;
            scope.spawn(move || {
                let mut user = User::new(world, thread, seed);
                (0..world.plan.steps).for_each(|_| user.step());
            });
        }
    });
    world.manager.stop_kswapd();
    world.manager.verify(&[]);
    empty(&world);
    world.failures.load(Relaxed)
}
