//! A user of the manager: a thread that performs random operations and checks the contents.

use super::folios::Folios;
use super::marked::Marked;
use super::model::{Drops, Fleeting, Halves, Known, Shared, words};
use super::plan::{Failures, Operation};
use super::program::{Program, Reach};
use super::removals::Removals;
use super::runs::Runs;
use super::world::{SHARED, VOLATILE, World};
use highwater_mm::Access;
use highwater_mm::Range;
use highwater_mm::config::{KSWAPD_THREADS_MAX, KswapdThreads};
use highwater_mm::inspect::{List, Mode};
use highwater_mm::stats::Counter;
use highwater_platform::Platform;
use highwater_units::{LARGE_PAGES, Pfn, Prng, RUN_PAGES_MAX, SpaceId, Vpn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Length of a stream in pages.
const STREAM: u64 = 16;

/// The longest range in pages: more than two runs.
const RANGE_MAX: u64 = 40;

/// The least and the greatest values of a copied word.
type Limits = (Halves<u64>, Halves<u64>);

pub(super) struct User<P: Platform, G> {
    world: Arc<World<P, G>>,
    thread: usize,
    random: Prng,
    /// Draws for changes of kswapd threads. A separate sequence, so that it does not affect others.
    changes: Prng,
    /// Draws for the balloon.
    resizes: Prng,
    removals: Removals,
    /// Draws for truncations.
    cuts: Prng,
    /// The user's runs of frames.
    runs: Runs,
    /// Draws for migrations.
    moves: Prng,
    /// Draws for collapses into large pages.
    collapses: Prng,
    marked: Marked,
    /// The user's view of the folios.
    folios: Option<Folios>,
    count: u64,
    known: Known,
}

impl<P: Platform, G: Program<P>> User<P, G> {
    pub(super) fn new(world: Arc<World<P, G>>, thread: usize, seed: u64) -> User<P, G> {
        let random = Prng::new(seed << 8 | thread as u64);
        let known = Known::new(thread, world.plan.pages);
        let changes = Prng::new(seed ^ 0xc4a2_0000);
        let resizes = Prng::new(seed ^ 0xba11_0000);
        let removals = Removals::new(seed);
        let cuts = Prng::new(seed ^ 0xc075);
        let runs = Runs::new(seed, thread, world.plan.run_frames / world.plan.threads as u64);
        let moves = Prng::new(seed << 8 ^ 0x3160_0000 ^ thread as u64);
        let most = world.frames() as usize / 16 / world.plan.threads;
        let marked = Marked::new(seed, thread, most);
        let folios = world.folios.map(|space| Folios::new(seed, thread, &world.plan, space));
        let collapses = Prng::new(seed << 8 ^ 0x4b68_0000 ^ thread as u64);
        User {
            world,
            thread,
            random,
            changes,
            resizes,
            removals,
            cuts,
            runs,
            moves,
            collapses,
            marked,
            folios,
            count: 0,
            known,
        }
    }

    /// Performs all steps, then stores the expected contents in the world.
    pub(super) fn run(mut self) {
        for _ in 0..self.world.plan.steps {
            (self.world.beat)();
            self.change_kswapd();
            self.resize();
            if self.thread == 0 {
                self.removals.step(&self.world);
            }
            self.truncate_file();
            let (manager, frames) = (&self.world.manager, self.world.frames());
            self.runs.step(manager, self.world.plan.runs, frames);
            self.migrate();
            self.collapse();
            self.marked.step(&self.world.objects, self.world.plan.objects);
            self.use_folios(|folios, world| {
                folios.step(&world.manager, world.plan.folios.often, world.may_fail());
            });
            self.step();
        }
        self.removals.finish(&self.world.manager);
        self.runs.end(&self.world.manager);
        self.marked.end(&self.world.objects);
        self.use_folios(|folios, world| folios.end(&world.manager, world.may_fail()));
        self.world.known().push(self.known);
    }

    fn step(&mut self) {
        let page = self.page();
        let pages = self.world.plan.pages;
        let stream = (page..page + STREAM).map(|page| page % pages);
        match self.world.plan.mix.choose(&mut self.random) {
            Operation::Shared => self.use_shared(page),
            Operation::Private => self.use_private(page),
            Operation::Volatile => self.use_volatile(page),
            Operation::SharedStream => stream.for_each(|page| self.use_shared(page)),
            Operation::PrivateStream => stream.for_each(|page| self.use_private(page)),
            Operation::DropVolatile => self.drop_volatile(),
            Operation::DropPrivate => self.drop_private(),
            Operation::MovePrivate => self.move_private(),
            Operation::HoldTwo => self.hold_two(page),
            Operation::Copy => self.copy(),
            Operation::File => self.use_file(page),
            Operation::FileStream => {
                let stream = (page..page + self.world.plan.file_stream).map(|page| page % pages);
                stream.for_each(|page| self.use_file(page));
            }
            Operation::WriteBack => self.write_back(),
            Operation::DropFile => self.drop_file(page),
            Operation::Observe => self.observe(),
        }
    }

    /// Sometimes: the first user changes the number of kswapd threads.
    fn change_kswapd(&mut self) {
        if self.thread == 0 && self.changes.below(1000) < self.world.plan.changes {
            let threads = match self.changes.below(6) {
                0 => KswapdThreads::Auto,
                threads => KswapdThreads::Fixed(threads as usize),
            };
            let manager = &self.world.manager;
            manager.set_kswapd_threads(threads).expect("there are threads to be had");
            let now = manager.kswapd_threads();
            let fits = |node: &usize| match threads {
                KswapdThreads::Fixed(threads) => *node == threads,
                KswapdThreads::Auto => (1..=KSWAPD_THREADS_MAX).contains(node),
            };
            assert!(now.iter().all(fits), "{now:?} instead of {threads}");
        }
    }

    /// Sometimes: the first user inflates or deflates the balloon, or leaves that to reclaim.
    fn resize(&mut self) {
        let plan = &self.world.plan;
        if self.thread == 0 && self.resizes.below(1000) < plan.resizes {
            let manager = &self.world.manager;
            // Reclaim may be settling the last debt.
            let debt_max = plan.balloon / 8;
            let most = plan.balloon + manager.frames() - u64::from(self.world.frames());
            let most = most.saturating_sub(debt_max) as u32;
            let count = self.resizes.below(1 + plan.balloon) as u32;
            match self.resizes.below(3) {
                0 => assert!(manager.inflate(count.min(most)) <= count),
                1 => assert!(manager.deflate(count) <= count),
                _ => self.world.program.owe(manager, count.min(most).min(debt_max as u32)),
            }
        }
    }

    /// Sometimes: the first user truncates the file by a tenth at most.
    fn truncate_file(&mut self) {
        if self.thread == 0 && self.cuts.below(1000) < self.world.plan.truncations {
            let Some(file) = &self.world.file else { return };
            let end = self.world.manager.end_of(file.space).0;
            let off = 1 + self.cuts.below(1 + end / 10);
            let end = Vpn(end.saturating_sub(off).max(1));
            self.world.call("truncate", file.pages, |m| m.truncate(file.space, end));
            assert_eq!(self.world.manager.end_of(file.space), end);
            file.cut.store(end.0, Relaxed);
        }
    }

    fn use_folios(&mut self, act: impl FnOnce(&mut Folios, &World<P, G>)) {
        if let Some(folios) = &mut self.folios {
            act(folios, &self.world);
        }
    }

    /// Sometimes: migrates the pages of a range of frames.
    fn migrate(&mut self) {
        if self.moves.below(1000) >= self.world.plan.migrations {
            return;
        }
        let machine = self.world.manager.inspect();
        let first = self.moves.below(machine.frames.len() as u64) as u32;
        let range = machine.node_of(Pfn(first)).zone.range();
        let most = u64::from(range.first.0 + range.frames - first).min(RUN_PAGES_MAX as u64);
        let frames = 1 + self.moves.below(most) as usize;
        let mode = if self.moves.percent(50) { Mode::Async } else { Mode::Sync };
        self.world.manager.migrate(Pfn(first), frames, mode);
    }

    /// Sometimes: requests large pages in a space in use.
    fn collapse(&mut self) {
        let (plan, world) = (&self.world.plan, &self.world);
        if self.collapses.below(1000) < plan.collapses {
            let spaces = [SHARED, VOLATILE, self.own_space()];
            let space = spaces[self.collapses.below(spaces.len() as u64) as usize];
            let pages = self.collapses.below(plan.pages + 1);
            let range = Range { first: Vpn(self.collapses.below(pages + 1)), end: Vpn(pages) };
            let large = world.manager.collapse(space, range).large as u64;
            assert!(large * LARGE_PAGES as u64 <= pages, "{large} large pages of {pages}");
        }
    }

    fn own_space(&self) -> SpaceId {
        self.world.own_space(self.thread)
    }

    fn value(&mut self) -> u64 {
        self.count += 1;
        self.count << 8 | self.thread as u64
    }

    fn page(&mut self) -> u64 {
        self.random.below(self.world.plan.pages)
    }

    fn range(&mut self) -> Range {
        let first = self.page();
        let most = (self.world.plan.pages - first).min(RANGE_MAX);
        Range { first: Vpn(first), end: Vpn(first + 1 + self.random.below(most)) }
    }

    fn use_shared(&mut self, page: u64) {
        let world = self.world.clone();
        self.use_common(SHARED, &world.shared, page);
    }

    /// Checks, and perhaps writes, this thread's words of a page that all threads use.
    fn use_common(&mut self, space: SpaceId, known: &Shared, page: u64) {
        let thread = self.thread;
        let found = self.world.load(space, page, thread);
        let expected = known.least(thread, page);
        assert_found(found, expected, || format!("page {page} of {space:?}, thread {thread}"));
        if self.random.percent(40) {
            let value = self.value();
            known.begin(thread, page, value);
            let stored = self.world.store(space, page, thread, value);
            known.end(thread, page, stored);
        }
    }

    fn use_file(&mut self, page: u64) {
        let world = self.world.clone();
        let Some(file) = &world.file else { return };
        let page = file.page(page, self.thread, world.plan.threads);
        self.use_common(file.space, &file.stored, page);
        self.look_beyond_end(page);
    }

    /// An access beyond the end of the file fails; an access within it succeeds.
    fn look_beyond_end(&mut self, page: u64) {
        let world = self.world.clone();
        let Some(file) = world.file.as_ref().filter(|_| world.plan.truncations > 0) else { return };
        // A truncation in progress drops resident pages one after the other.
        let was_there = page < file.cut.load(Relaxed);
        let found = world.load(file.space, page, self.thread);
        let is_there = page < world.manager.end_of(file.space).0;
        match (was_there, is_there, world.plan.failures) {
            (false, ..) => assert_eq!(found, [None; 2], "file page {page} is beyond the end"),
            (_, true, Failures::None) => assert!(found[0].is_some(), "file page {page} is there"),
            _ => {}
        }
    }

    fn write_back(&mut self) {
        let (range, world) = (self.range(), self.world.clone());
        let Some(file) = &world.file else { return };
        let end = Vpn(range.end.0.min(file.pages));
        let range = Range { first: Vpn(range.first.0.min(end.0)), end };
        let pages = end.0 - range.first.0;
        world.attempt("write back", pages.max(1), |m| m.write_back(file.space, range));
    }

    /// Writes a page back, drops it, and reads it from the device.
    fn drop_file(&mut self, page: u64) {
        let (world, thread) = (self.world.clone(), self.thread);
        let Some(file) = &world.file else { return };
        let Some(page) = file.own_page(page, thread, world.plan.threads) else { return };
        let range = Range { first: Vpn(page), end: Vpn(page + 1) };
        if world.attempt("write back", 1, |m| m.write_back(file.space, range)).is_some() {
            world.discard(file.space, range);
        }
        let (found, expected) =
            (world.load(file.space, page, thread), file.stored.least(thread, page));
        assert_found(found, expected, || format!("file page {page} of thread {thread}, dropped"));
    }

    fn use_private(&mut self, page: u64) {
        let (space, thread) = (self.own_space(), self.thread);
        let found = self.world.load(space, page, thread);
        let expected = self.known.private[page as usize];
        assert_found(found, expected, || format!("private page {page}, thread {thread}"));
        if self.random.percent(50) {
            let value = self.value();
            let stored = self.world.store(space, page, thread, value);
            let known = &mut self.known.private[page as usize];
            (0..2).for_each(|half| known[half] = stored[half].unwrap_or(known[half]));
        }
    }

    /// A page that other threads may drop holds the last stored value, or zeros after a drop.
    fn use_volatile(&mut self, page: u64) {
        let found = self.world.load(VOLATILE, page, self.thread);
        let known = &mut self.known.volatile[page as usize];
        let drops: &Drops = &self.world.drops;
        for (word, found) in known.iter_mut().zip(found) {
            found.into_iter().for_each(|found| word.find(found, drops, page));
        }
        if self.random.percent(50) {
            let (since, value) = (self.world.drops.ended(page), self.value());
            let stored = self.world.store(VOLATILE, page, self.thread, value);
            for (word, value) in self.known.volatile[page as usize].iter_mut().zip(stored) {
                *word = value.map_or(*word, |value| Fleeting { value, since });
            }
        }
    }

    fn drop_volatile(&mut self) {
        let range = self.range();
        let pages = range.first.0..range.end.0;
        pages.clone().for_each(|page| self.world.drops.begin(page));
        self.world.discard(VOLATILE, range);
        pages.for_each(|page| self.world.drops.end(page));
    }

    fn drop_private(&mut self) {
        let range = self.range();
        self.world.discard(self.own_space(), range);
        self.known.private[range.first.0 as usize..range.end.0 as usize].fill([0; 2]);
    }

    fn move_private(&mut self) {
        let (from, to) = (self.range(), self.range().first.0);
        let pages = from.end.0 - from.first.0;
        let apart = to + pages <= from.first.0 || from.end.0 <= to;
        if !apart || to + pages > self.world.plan.pages {
            return;
        }
        let space = self.own_space();
        let target = Range { first: Vpn(to), end: Vpn(to + pages) };
        self.world.discard(space, target);
        self.known.private[to as usize..(to + pages) as usize].fill([0; 2]);
        if self.random.percent(30) {
            // Like a late fault that began before the range was moved.
            self.world.load(space, to + self.random.below(pages), self.thread);
        }
        self.world.call("move", pages, |m| m.relocate(space, from, Vpn(to)));
        for index in 0..pages {
            let moved = std::mem::take(&mut self.known.private[(from.first.0 + index) as usize]);
            self.known.private[(to + index) as usize] = moved;
        }
    }

    /// Pins two pages at once, and checks the contents of both.
    fn hold_two(&mut self, page: u64) {
        if self.world.program.reach() == Reach::PageTables {
            return;
        }
        let (world, space, other) = (self.world.clone(), self.own_space(), self.page());
        let pinned = world.attempt("pin", 1, |m| m.pin(space, Vpn(page), Access::Read));
        let Some(pin) = pinned else { return };
        self.use_shared(other);
        let found = words(self.thread).map(|word| world.manager.platform().load(pin.pfn(), word));
        assert_eq!(found, self.known.private[page as usize], "a pinned page stays");
    }

    fn copy(&mut self) {
        let (world, thread) = (self.world.clone(), self.thread);
        let Some(spare) = world.take_spare() else { return };
        if self.random.percent(50) {
            let private = &self.known.private;
            let exact = |page: u64| (private[page as usize], private[page as usize]);
            self.copy_to(spare, self.own_space(), &[thread], |_, page| exact(page));
        } else {
            let threads: Vec<usize> = (0..world.plan.threads).collect();
            let of = |thread: &usize| -> Vec<Halves<u64>> {
                (0..world.plan.pages).map(|page| world.shared.least(*thread, page)).collect()
            };
            let least: Vec<_> = threads.iter().map(of).collect();
            let limits = |thread: usize, page: u64| {
                (least[thread][page as usize], world.shared.most(thread, page))
            };
            self.copy_to(spare, SHARED, &threads, limits);
        }
        world.put_spare(spare);
    }

    /// Copies a space to a spare one, and checks that the threads' words lie within `limits`,
    /// computed after the copy.
    fn copy_to(
        &self,
        spare: SpaceId,
        space: SpaceId,
        threads: &[usize],
        limits: impl Fn(usize, u64) -> Limits,
    ) {
        let (world, pages) = (&self.world, self.world.plan.pages);
        let Some(snapshot) = world.attempt("copy", pages, |m| m.snapshot(space)) else { return };
        let of_page = |page| threads.iter().map(|thread| limits(*thread, page)).collect();
        let limits: Vec<Vec<Limits>> = (0..pages).map(of_page).collect();
        // The restored space now owns the snapshot's references.
        // Nothing of it is in memory.
        let _ = world.call("restore", pages, |m| m.restore_snapshot(spare, &snapshot));
        for (page, of_page) in (0..pages).zip(limits) {
            for (thread, limits) in threads.iter().zip(of_page) {
                assert_within(world.load(spare, page, *thread), limits, page);
            }
            (world.beat)();
        }
        world.discard(spare, world.all());
    }

    /// Checks the manager's statistics while other threads work.
    fn observe(&self) {
        let manager = &self.world.manager;
        for node in &manager.inspect().nodes {
            let (free, range) = (node.zone.free_frames(), node.zone.range());
            assert!(free <= range.frames, "{free} frames of {range:?} are free");
            for list in List::ALL {
                let listed = node.lru.len(list);
                assert!(listed <= range.frames, "{listed} frames of {range:?} are {list:?}");
            }
        }
        let now = manager.statistics();
        // Frames may have gone into the balloon since the peak.
        let (frames, slots) = (self.world.frames().into(), now.get(Counter::SlotsTotal));
        let parts = [
            (Counter::Resident, frames),
            (Counter::ResidentPeak, frames),
            (Counter::SlotsUsed, slots),
            (Counter::Free, frames),
            (Counter::WatermarkHigh, frames),
        ];
        for (part, all) in parts {
            assert!(now.get(part) <= all, "{} {}, of {all}", now.get(part), part.name());
        }
    }
}

/// Checks that the loaded values equal the expected ones.
#[track_caller]
fn assert_found(found: Halves<Option<u64>>, expected: Halves<u64>, what: impl Fn() -> String) {
    for (found, expected) in found.into_iter().zip(expected) {
        let right = found.is_none_or(|found| found == expected);
        assert!(right, "{}: {found:x?}, not {expected:x?}", what());
    }
}

/// Checks that the values of a copy lie within limits.
#[track_caller]
fn assert_within(found: Halves<Option<u64>>, (least, most): Limits, page: u64) {
    for (half, found) in found.into_iter().enumerate() {
        let (least, most) = (least[half], most[half]);
        let right = found.is_none_or(|found| (least..=most).contains(&found));
        assert!(right, "copied page {page}: {found:x?}, not {least:#x} to {most:#x}");
    }
}
