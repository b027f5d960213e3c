//! A manager that serves real page faults in this process, and the mappings that it pages.
//!
//! ```text
//! Engine -- Live     Serving (handler threads, or SIGBUS in the faulting thread), Manager
//!        |- Regions  where mappings lie; how much all of them may hold
//!        |- Files    mapped files, in addresses of their own (files.rs)
//!        \- limit    the pages that memory and swap can hold
//! ```
//! A mapping that memory and swap could not hold is refused when it is made, not when it is
//! touched: all mappings together never exceed `limit`. Locking: `budget`, then `regions`. No
//! thread touches paged memory while it holds one of these locks, since a fault reads `regions`.

use crate::advice::Advice;
use crate::error::Error;
use crate::fetch::{self, Fetchers};
use crate::files::{Files, KEPT, OUTER, PAGES, PLACES};
use crate::forked::{Birth, Known};
use crate::owner::Mappings;
use crate::regions::{Regions, SPACE};
use crate::serving::{Addresses, Attempt, Serving};
use highwater_devices::Device;
use highwater_mm::stats::{Counter, Shortage, Snapshot};
use highwater_mm::{Access, Config, Manager, Pin, Range};
use highwater_platform::Mmu;
use highwater_serve::while_pages_are_locked;
use highwater_session::FaultThreads;
use highwater_uffd::api::{Faults, Source};
use highwater_uffd::{Delivery, Placement, Site, Uffd};
use highwater_units::{Bytes, LARGE_PAGES, PAGE_SIZE, SpaceId, Vpn};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// The pages of the address range, as a multiple of those that memory and swap can hold: this
/// leaves room for mappings that grow, or are moved, between others.
const ADDRESSES_PER_CAPACITY: u64 = 2;

/// How long a smaller budget waits for the next page to be evicted. A write to a disk takes less
/// than a tenth of this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a change to a smaller budget sleeps while kswapd frees pages, before it tries again.
const PAUSE: Duration = Duration::from_millis(2);

/// One of this many frames may be pinned, so that faults of other threads find frames to reclaim.
const PINNED_SHARE: u64 = 2;

/// The parts and settings of a new engine.
pub(crate) struct Plan {
    pub(crate) memory: Bytes,
    pub(crate) memory_max: Bytes,
    pub(crate) devices: Vec<Box<dyn Device>>,
    pub(crate) faults: Option<FaultThreads>,
    pub(crate) config: Config,
}

/// The parts that a forked child must not touch: their threads do not exist there. The fields are
/// dropped in this order.
pub(crate) struct Live {
    _known: Known,
    fetchers: Mutex<Option<Arc<Fetchers>>>,
    pub(crate) files: OnceLock<Addresses>,
    _serving: Serving,
    pub(crate) manager: Arc<Manager<Uffd>>,
    owner: Arc<Mappings>,
    /// Held while addresses for files are made.
    pub(crate) attempt: Mutex<Attempt>,
}

/// A manager in this process, its space of anonymous memory, and its files.
pub(crate) struct Engine {
    live: ManuallyDrop<Live>,
    birth: Birth,
    /// The address of the space's first page.
    base: NonNull<u8>,
    regions: Arc<RwLock<Regions>>,
    files: Arc<Files>,
    /// The number of mapped files, each of which reserves KEPT pages of memory.
    mapped: AtomicU64,
    /// Held while the budget changes.
    budget: Mutex<()>,
    /// Pages that all mappings together may have.
    limit: AtomicU64,
    /// Pages that are pinned now.
    pinned: AtomicU32,
    /// The first page of each mapping is a multiple of this.
    align: u64,
    delivery: Delivery,
    faults: Faults,
}

// SAFETY: `base` is the address of memory that all threads may use; the rest is for all threads.
unsafe impl Send for Engine {}
// SAFETY: as above.
unsafe impl Sync for Engine {}

/// Decides how faults are delivered, and whether those of system calls are served. Only handler
/// threads can serve the faults of system calls; where these are not permitted, it is faster to
/// serve a fault in the faulting thread.
pub(crate) fn decide(wish: Option<FaultThreads>, permitted: Faults) -> (Delivery, Faults) {
    match (wish, permitted) {
        (Some(FaultThreads::InThread), _) | (None, Faults::UserMode) => {
            (Delivery::InThread, Faults::UserMode)
        }
        (Some(FaultThreads::Handlers), _) | (None, Faults::All) => (Delivery::Handler, permitted),
    }
}

/// Which faults this process may serve: those of system calls, too, or only those of user mode.
fn permitted() -> Faults {
    match Source::find(Faults::All).probe() {
        Ok(_) => Faults::All,
        Err(_) => Faults::UserMode,
    }
}

impl Engine {
    pub(crate) fn start(plan: Plan) -> Result<Engine, Error> {
        let Plan { memory, memory_max, devices, faults, config } = plan;
        let slots: u64 = devices.iter().map(|device| u64::from(device.info().pages)).sum();
        let pages = (memory_max.pages() + slots) * ADDRESSES_PER_CAPACITY;
        let align = if config.large_pages { LARGE_PAGES as u64 } else { 1 };
        let (delivery, faults) = decide(faults, permitted());
        let source = Source::find(faults);
        let mapping = source.probe().map_err(Error::Userfaultfd)?;
        let devices = devices.into_iter().map(Some).collect();
        let platform = Uffd::with_places(memory_max, devices, PLACES, mapping, source);
        let platform = platform.map_err(Error::Userfaultfd)?;
        platform.place(SPACE, Placement { site: Site::Anywhere, delivery });
        let manager = Arc::new(Manager::start(platform, config)?);
        manager.inflate((memory_max.pages() - memory.pages()) as u32);
        // The last page is the server's own.
        manager.add_space(pages + 1)?;
        let base = manager.platform().address(SPACE, Vpn(0));
        let regions = Arc::new(RwLock::new(Regions::new(pages)));
        let files = Arc::new(Files::new());
        let owner = Arc::new(Mappings::new(regions.clone(), files.clone(), manager.clone()));
        let _serving = Serving::start(delivery, &manager, &owner).map_err(Error::System)?;
        let _known = Known::new(base.addr(), pages as usize * PAGE_SIZE);
        let (made, attempt) = (OnceLock::new(), Mutex::new(Attempt::None));
        let fetchers = Mutex::default();
        let live = Live { _known, fetchers, files: made, _serving, manager, owner, attempt };
        let engine = Engine {
            live: ManuallyDrop::new(live),
            birth: Birth::now(),
            base: NonNull::new(base).expect("spaces do not lie at 0"),
            regions,
            files,
            mapped: AtomicU64::new(0),
            budget: Mutex::new(()),
            limit: AtomicU64::new(0),
            pinned: AtomicU32::new(0),
            align,
            delivery,
            faults,
        };
        engine.measure();
        Ok(engine)
    }

    /// The manager.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn manager(&self) -> Result<&Manager<Uffd>, Error> {
        self.live().map(|live| &*live.manager)
    }

    /// The parts that a forked child must not touch.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn live(&self) -> Result<&Live, Error> {
        if self.is_inherited() { Err(Error::Forked) } else { Ok(&self.live) }
    }

    /// Whether this process is a forked child of the one that made the engine.
    pub(crate) fn is_inherited(&self) -> bool {
        self.birth.is_of_ancestor()
    }

    /// The threads that serve faults.
    pub(crate) fn fault_threads(&self) -> FaultThreads {
        match self.delivery {
            Delivery::Handler => FaultThreads::Handlers,
            Delivery::InThread => FaultThreads::InThread,
        }
    }

    /// How faults are delivered.
    pub(crate) fn delivery(&self) -> Delivery {
        self.delivery
    }

    /// The first page of each mapping is a multiple of this.
    pub(crate) fn align(&self) -> u64 {
        self.align
    }

    /// The mapped files.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Which faults are served.
    pub(crate) fn faults(&self) -> Faults {
        self.faults
    }

    /// The address of a page.
    pub(crate) fn address(&self, vpn: Vpn) -> NonNull<u8> {
        // SAFETY: a page of the range, whose addresses are those of one mapping.
        unsafe { self.base.add(vpn.0 as usize * PAGE_SIZE) }
    }

    /// Adds a mapping, which reads as zeros.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Addresses`], [`Error::Forked`].
    pub(crate) fn add(&self, pages: u64) -> Result<Range, Error> {
        let manager = self.manager()?;
        let mut regions = self.regions();
        self.admit(manager, self.reserved(&regions), pages)?;
        let wanted = Bytes::of_pages(pages);
        regions.add(pages, self.align).ok_or(Error::Addresses { wanted })
    }

    /// Removes a mapping with its contents.
    pub(crate) fn remove(&self, range: Range) {
        // In a forked child nothing is left of the mapping.
        if self.manager().is_ok() {
            self.discard(range);
            self.regions().remove(range);
        }
    }

    /// Makes a mapping longer or shorter; returns its new range. Nothing is copied.
    ///
    /// # Errors
    /// Those of [`Engine::add`]; the mapping is unchanged.
    pub(crate) fn resize(&self, range: Range, pages: u64) -> Result<Range, Error> {
        let manager = self.manager()?;
        let resized = Range { first: range.first, end: range.first.offset(pages) };
        if resized.end < range.end {
            self.discard(Range { first: resized.end, end: range.end });
            self.regions().cut(range, resized.end);
            return Ok(resized);
        }
        let more = resized.end.0 - range.end.0;
        let mut regions = self.regions();
        self.admit(manager, self.reserved(&regions), more)?;
        if regions.extend(range, resized.end) {
            return Ok(resized);
        }
        // Both ranges are reserved for a moment; only one of them has contents.
        let wanted = Bytes::of_pages(pages);
        let moved = regions.add(pages, self.align).ok_or(Error::Addresses { wanted })?;
        if let Some(before) = regions.find(range.first) {
            regions.advise(moved, before.advice);
        }
        drop(regions);
        manager.relocate(SPACE, range, moved.first);
        self.regions().remove(range);
        Ok(moved)
    }

    /// The pages that are reserved by mappings, and those that are kept for files.
    fn reserved(&self, regions: &Regions) -> u64 {
        regions.reserved() + self.mapped.load(Relaxed) * KEPT
    }

    /// Keeps memory for one more file.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub(crate) fn keep_for_file(&self) -> Result<(), Error> {
        let regions = self.regions();
        self.admit(self.manager()?, self.reserved(&regions), KEPT)?;
        self.mapped.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Gives back the memory of [`Engine::keep_for_file`]: a file is no longer mapped.
    pub(crate) fn end_keeping(&self) {
        self.mapped.fetch_sub(1, Relaxed);
    }

    /// Serves the faults on files, whose addresses begin at `base`. Handler threads already serve
    /// all spaces.
    pub(crate) fn serve_files(&self, base: NonNull<u8>) -> std::io::Result<Addresses> {
        let Live { manager, owner, .. } = &*self.live;
        let _known = Known::new(base.addr().get(), PAGES as usize * PAGE_SIZE);
        let _serving = match self.delivery {
            Delivery::Handler => None,
            Delivery::InThread => Some(Serving::in_thread(manager, OUTER, owner)?),
        };
        Ok(Addresses { base, _known, _serving })
    }

    /// Refuses pages that memory and swap cannot hold.
    fn admit(&self, manager: &Manager<Uffd>, reserved: u64, pages: u64) -> Result<(), Error> {
        let unused = self.limit.load(Relaxed).saturating_sub(reserved);
        // Examines the devices only if they may change the result.
        if pages <= unused.min(manager.capacity_left()) && manager.shortage().is_none() {
            return Ok(());
        }
        let left = unused.saturating_sub(refused(manager));
        if pages <= left {
            return Ok(());
        }
        Err(Error::Full { wanted: Bytes::of_pages(pages), left: Bytes::of_pages(left) })
    }

    /// Says how a mapping is going to be used; `space` is the space of its contents.
    pub(crate) fn advise(&self, space: SpaceId, range: Range, advice: Advice) {
        match space {
            SPACE => self.regions().advise(range, advice),
            _ => self.files.regions().advise(range, advice),
        }
    }

    /// Reads ahead those pages that are on a slow device.
    pub(crate) fn prefetch(&self, space: SpaceId, range: Range) {
        if let Ok(manager) = self.manager() {
            manager.prefetch(space, range);
        }
    }

    /// Drops the contents of pages, which then read as zeros.
    pub(crate) fn discard(&self, range: Range) {
        if let Ok(manager) = self.manager() {
            while_pages_are_locked(|| manager.discard(SPACE, range));
        }
    }

    /// The threads that fetch, started at the first call.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::Forked`].
    pub(crate) fn fetchers(&self) -> Result<Arc<Fetchers>, Error> {
        let mut fetchers = self.live()?.fetchers.lock().unwrap_or_else(PoisonError::into_inner);
        if fetchers.is_none() {
            *fetchers = Some(Arc::new(Fetchers::start().map_err(Error::System)?));
        }
        Ok(fetchers.as_ref().expect("started above").clone())
    }

    /// Pins a page: an access to it does not fault until the pin is dropped.
    ///
    /// # Errors
    /// [`Error::Pinned`], [`Error::Forked`], or the reason that the page cannot be brought in.
    pub(crate) fn pin(
        &self,
        space: SpaceId,
        vpn: Vpn,
        access: Access,
    ) -> Result<Pinned<'_>, Error> {
        let manager = self.manager()?;
        let most = (manager.frames() / PINNED_SHARE) as u32;
        let counted = Counted::new(&self.pinned, most)?;
        let pin = manager.pin(space, vpn, access)?;
        let address = manager.platform().address(space, vpn);
        let address = NonNull::new(address).expect("spaces do not lie at 0");
        Ok(Pinned { _pin: pin, _counted: counted, address })
    }

    /// Lets system calls write to a page that is pinned for writing.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn open_to_calls(&self, space: SpaceId, vpn: Vpn) -> Result<(), Error> {
        let platform = self.manager()?.platform();
        platform.expect_holds();
        platform.allow_write(space, vpn, 1);
        Ok(())
    }

    /// All counters.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn statistics(&self) -> Result<Snapshot, Error> {
        Ok(self.manager()?.statistics())
    }

    /// The current budget.
    pub(crate) fn budget(&self) -> Result<Bytes, Error> {
        Ok(Bytes::of_pages(self.manager()?.frames()))
    }

    /// Changes the budget; waits until the pages above it have been evicted.
    ///
    /// # Errors
    /// [`Error::Setting`]: above the maximum. [`Error::Full`]: memory and swap could no longer hold
    /// all mappings. [`Error::Budget`]: pages cannot be evicted.
    pub(crate) fn set_budget(&self, budget: Bytes) -> Result<(), Error> {
        let manager = self.manager()?;
        let _turn = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, aim) = (manager.frames(), budget.pages());
        if aim >= now {
            let granted = u64::from(manager.deflate((aim - now) as u32));
            self.measure();
            return match granted == aim - now {
                true => Ok(()),
                false => {
                    let most = Bytes::of_pages(manager.frames());
                    Err(Error::Setting(format!("{budget} is more than memory_max, {most}")))
                }
            };
        }
        self.shrink(manager, now - aim)
    }

    fn shrink(&self, manager: &Manager<Uffd>, excess: u64) -> Result<(), Error> {
        {
            // Under this lock, no mapping is added that would no longer fit afterwards.
            let regions = self.regions();
            let unused = self.limit.load(Relaxed).saturating_sub(self.reserved(&regions));
            if unused < excess {
                let [wanted, left] = [excess, unused].map(Bytes::of_pages);
                return Err(Error::Full { wanted, left });
            }
            self.limit.fetch_sub(excess, Relaxed);
        }
        let aim = manager.frames() - excess;
        let mut progress = Instant::now();
        while manager.frames() > aim && progress.elapsed() < PATIENCE {
            match manager.inflate((manager.frames() - aim) as u32) {
                0 => std::thread::sleep(PAUSE),
                _ => progress = Instant::now(),
            }
        }
        self.measure();
        let reached = Bytes::of_pages(manager.frames());
        if manager.frames() > aim { Err(Error::Budget { reached }) } else { Ok(()) }
    }

    /// Determines the pages that memory and swap can hold: all slots, and the frames that reclaim
    /// does not keep free.
    fn measure(&self) {
        let now = self.live.manager.statistics();
        let frames = now.get(Counter::Frames).saturating_sub(now.get(Counter::WatermarkHigh));
        self.limit.store(frames + now.get(Counter::SlotsTotal), Relaxed);
    }

    /// The memory that further mappings may have.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn left(&self) -> Result<Bytes, Error> {
        let manager = self.manager()?;
        let unused = self.limit.load(Relaxed).saturating_sub(self.reserved(&self.regions()));
        Ok(Bytes::of_pages(unused.saturating_sub(refused(manager))))
    }

    fn regions(&self) -> RwLockWriteGuard<'_, Regions> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fetch::Source for Engine {
    fn bring_in(&self, space: SpaceId, vpn: Vpn) -> Result<(), Error> {
        self.pin(space, vpn, Access::Read).map(drop)
    }
}

/// Free slots that accept no pages: their file system is full, or writes fail.
fn refused(manager: &Manager<Uffd>) -> u64 {
    // The counters are not read at one time: a page evicted in between would look like a refused
    // slot. So the lower of two counts is used.
    refused_as_counted(manager).min(refused_as_counted(manager))
}

fn refused_as_counted(manager: &Manager<Uffd>) -> u64 {
    let now = manager.statistics();
    let slots = now.get(Counter::SlotsTotal).saturating_sub(now.get(Counter::SlotsUsed));
    let fails = |seen: Shortage| seen.write_errors > 0 && seen.written == now.get(Counter::PswpOut);
    if manager.shortage().is_some_and(fails) {
        return slots;
    }
    let frames = now.get(Counter::Frames).saturating_sub(now.get(Counter::Resident));
    slots.saturating_sub(manager.capacity_left().saturating_sub(frames))
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // SAFETY: dropped once, here. No mapping is left, since each keeps the engine.
            unsafe { ManuallyDrop::drop(&mut self.live) };
        }
    }
}

/// A pinned page.
pub(crate) struct Pinned<'a> {
    _pin: Pin<'a, Uffd>,
    _counted: Counted<'a>,
    pub(crate) address: NonNull<u8>,
}

/// One of the pages that may be pinned.
struct Counted<'a>(&'a AtomicU32);

impl Counted<'_> {
    fn new(pinned: &AtomicU32, most: u32) -> Result<Counted<'_>, Error> {
        let counted = Counted(pinned);
        match pinned.fetch_add(1, Relaxed) < most {
            true => Ok(counted),
            false => Err(Error::Pinned { most }),
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_serve_where_system_calls_can_be_served() {
        use FaultThreads::{Handlers, InThread};
        for (wish, permitted, expected) in [
            (None, Faults::All, (Delivery::Handler, Faults::All)),
            (None, Faults::UserMode, (Delivery::InThread, Faults::UserMode)),
            (Some(InThread), Faults::All, (Delivery::InThread, Faults::UserMode)),
            (Some(Handlers), Faults::UserMode, (Delivery::Handler, Faults::UserMode)),
            (Some(Handlers), Faults::All, (Delivery::Handler, Faults::All)),
        ] {
            assert_eq!(decide(wish, permitted), expected, "{wish:?} {permitted:?}");
        }
    }
}
