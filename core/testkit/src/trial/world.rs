//! The manager under test and the state that its users share. Accesses are counted, timed and
//! checked for errors.

use super::marked::Objects;
use super::model::{Drops, Halves, Known, Shared, words};
use super::outcome::{Beat, Outcome};
use super::plan::{Failures, FolioPlan, Plan, THREADS_MAX};
use super::program::{Program, Reach};
use highwater_mm::Access;
use highwater_mm::Manager;
use highwater_mm::Range;
use highwater_mm::error::FaultError;
use highwater_platform::{DeviceInfo, DeviceRole, Platform, Recency};
use highwater_units::{Nanos, SpaceId, Vpn};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// The shared space: every thread owns words of each page.
pub(super) const SHARED: SpaceId = SpaceId(0);
/// The volatile space: every thread owns words of each page, and any thread drops pages.
pub(super) const VOLATILE: SpaceId = SpaceId(1);

/// The space of the file.
pub(super) struct TheFile {
    pub(super) space: SpaceId,
    pub(super) device: u8,
    pub(super) pages: u64,
    /// Pages from this number on are surely truncated.
    pub(super) cut: AtomicU64,
    /// The stored values.
    pub(super) stored: Shared,
}

impl TheFile {
    /// Adds a space over the first file device with at least two pages, if there is one. The
    /// device holds zeros.
    fn add<P: Platform>(manager: &Manager<P>, plan: &Plan) -> Option<TheFile> {
        let devices = manager.platform().devices();
        let fits = |info: &DeviceInfo| info.role == DeviceRole::File && info.pages > 1;
        let device = devices.iter().position(fits)?;
        let pages = plan.pages.min(u64::from(devices[device].pages));
        let device = device as u8;
        let space = manager.add_file_space(pages, device).expect("a space for a file");
        let stored = Shared::new(plan.threads, pages);
        Some(TheFile { space, device, pages, cut: AtomicU64::new(pages), stored })
    }

    /// A page that the thread may use: one of the first half, or one that it owns.
    pub(super) fn page(&self, page: u64, thread: usize, threads: usize) -> u64 {
        let (page, half) = (page % self.pages, self.pages / 2);
        if page < half { page } else { self.own_page(page, thread, threads).unwrap_or(page % half) }
    }

    /// The nearest page that the thread owns; `None` at the end of the file.
    pub(super) fn own_page(&self, page: u64, thread: usize, threads: usize) -> Option<u64> {
        let half = self.pages / 2;
        let group = (page % self.pages).saturating_sub(half) / threads as u64;
        let own = half + group * threads as u64 + thread as u64;
        (own < self.pages).then_some(own)
    }

    /// The whole file.
    pub(super) fn all(&self) -> Range {
        Range { first: Vpn(0), end: Vpn(self.pages) }
    }
}

/// Adds the folios' space, if the plan has folios and the program can reach them.
fn add_folios<P: Platform, G: Program<P>>(
    manager: &Manager<P>,
    program: &G,
    plan: &Plan,
) -> Option<SpaceId> {
    let FolioPlan { order, pages, .. } = plan.folios;
    let wanted = pages > 0 && program.reach() == Reach::Guards;
    let guarded = manager.platform().recency() == Recency::AccessedBit;
    (wanted && guarded).then(|| manager.add_space_of(pages, order).expect("a space of folios"))
}

/// The state that all users share.
pub(super) struct World<P: Platform, G> {
    /// Dropped before the manager.
    pub(super) objects: Objects<P>,
    pub(super) manager: Manager<P>,
    pub(super) program: G,
    pub(super) plan: Plan,
    pub(super) shared: Shared,
    pub(super) drops: Drops,
    pub(super) file: Option<TheFile>,
    /// The folios' space.
    pub(super) folios: Option<SpaceId>,
    pub(super) beat: Beat,
    spare: Mutex<Vec<SpaceId>>,
    known: Mutex<Vec<Known>>,
    operations: AtomicU64,
    failures: AtomicU64,
    longest: AtomicU64,
}

impl<P: Platform, G: Program<P>> World<P, G> {
    /// A new manager with empty spaces.
    pub(super) fn new(platform: P, program: G, plan: &Plan, beat: Beat) -> World<P, G> {
        assert!((1..=THREADS_MAX).contains(&plan.threads), "1 to {THREADS_MAX} users");
        let manager = Manager::start(platform, plan.config.clone()).expect("threads");
        let add = |_| manager.add_space(plan.pages).expect("a space");
        let spaces: Vec<SpaceId> = (0..plan.spaces()).map(add).collect();
        World {
            objects: Objects::new(&manager),
            shared: Shared::new(plan.threads, plan.pages),
            drops: Drops::new(plan.pages),
            file: TheFile::add(&manager, plan),
            folios: add_folios(&manager, &program, plan),
            spare: Mutex::new(spaces[2 + plan.threads..].to_vec()),
            known: Mutex::default(),
            operations: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            plan: plan.clone(),
            manager,
            program,
            beat,
        }
    }

    /// Frames of the platform.
    pub(super) fn frames(&self) -> u32 {
        self.manager.inspect().frames.len() as u32
    }

    /// Whether accesses may fail.
    pub(super) fn may_fail(&self) -> bool {
        self.plan.failures == Failures::Allowed
    }

    /// The private space of a user.
    pub(super) fn own_space(&self, thread: usize) -> SpaceId {
        SpaceId(2 + thread as u16)
    }

    /// Takes an unused space, to be returned by [`World::put_spare`].
    pub(super) fn take_spare(&self) -> Option<SpaceId> {
        self.spare.lock().expect("no panic").pop()
    }

    pub(super) fn put_spare(&self, spare: SpaceId) {
        self.spare.lock().expect("no panic").push(spare);
    }

    /// The records of the users that have ended.
    pub(super) fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().expect("no panic")
    }

    /// All pages of a space.
    pub(super) fn all(&self) -> Range {
        Range { first: Vpn(0), end: Vpn(self.plan.pages) }
    }

    pub(super) fn outcome(&self) -> Outcome {
        Outcome {
            operations: self.operations.load(Relaxed),
            failures: self.failures.load(Relaxed),
            longest: Nanos(self.longest.load(Relaxed)),
            statistics: self.manager.statistics(),
        }
    }

    /// Times a call to the manager that covers `pages` pages, and checks its result.
    pub(super) fn call<'a, T>(
        &'a self,
        what: &str,
        pages: u64,
        call: impl FnOnce(&'a Manager<P>) -> T,
    ) -> T {
        let start = self.manager.platform().now();
        let result = call(&self.manager);
        let took = self.manager.platform().now().since(start);
        // Without room a call gives up after 10 s, and a stream makes many.
        (self.beat)();
        self.operations.fetch_add(1, Relaxed);
        if pages == 1 {
            self.longest.fetch_max(took.0, Relaxed);
        }
        if let Some(max) = self.plan.latency_max {
            assert!(took.0 <= max.0 * pages, "to {what} {pages} pages took {took:?}");
        }
        result
    }

    /// Like [`World::call`], for a call that may fail. Returns its result; `None` for an expected
    /// error.
    pub(super) fn attempt<'a, T>(
        &'a self,
        what: &str,
        pages: u64,
        call: impl FnOnce(&'a Manager<P>) -> Result<T, FaultError>,
    ) -> Option<T> {
        let failed = |error| {
            if error == FaultError::BeyondEnd {
                let cut =
                    self.file.as_ref().is_some_and(|f| self.manager.end_of(f.space).0 < f.pages);
                assert!(cut, "no file was truncated, but to {what}: {error}");
                return;
            }
            let allowed = self.plan.failures == Failures::Allowed;
            assert!(allowed, "nothing is wrong, but to {what}: {error}");
            self.failures.fetch_add(1, Relaxed);
        };
        self.call(what, pages, call).map_err(failed).ok()
    }

    /// Loads a thread's two words of a page; with guards, under one guard.
    pub(super) fn load(&self, space: SpaceId, page: u64, thread: usize) -> Halves<Option<u64>> {
        let (vpn, words) = (Vpn(page), words(thread));
        if self.program.reach() == Reach::PageTables {
            let load =
                |word| self.attempt("load from", 1, |m| self.program.load(m, space, vpn, word));
            return words.map(load);
        }
        let Some(pin) = self.attempt("pin", 1, |m| m.pin(space, vpn, Access::Read)) else {
            return [None; 2];
        };
        let found = words.map(|word| self.manager.platform().load(pin.pfn(), word));
        assert_eq!(found[0], found[1], "both halves of page {page} of {space:?}");
        found.map(Some)
    }

    /// Stores a thread's two words of a page. Returns the stored values; `None` for a failed store.
    pub(super) fn store(
        &self,
        space: SpaceId,
        page: u64,
        thread: usize,
        value: u64,
    ) -> Halves<Option<u64>> {
        let (vpn, words) = (Vpn(page), words(thread));
        if self.program.reach() == Reach::PageTables {
            let store = |word| {
                let stored =
                    self.attempt("store to", 1, |m| self.program.store(m, space, vpn, word, value));
                stored.map(|()| value)
            };
            return words.map(store);
        }
        let Some(pin) = self.attempt("pin", 1, |m| m.pin(space, vpn, Access::Write)) else {
            return [None; 2];
        };
        words.iter().for_each(|word| self.manager.platform().store(pin.pfn(), *word, value));
        [Some(value); 2]
    }

    /// Drops a range.
    pub(super) fn discard(&self, space: SpaceId, range: Range) {
        self.call("drop", range.end.0 - range.first.0, |m| m.discard(space, range));
    }
}
