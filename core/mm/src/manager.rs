//! The public interface of the memory manager: start, spaces, faults, ranges, statistics, stop.
//!
//! ```text
//! Manager -- Machine     the state that all modules share
//!         |- KswapdPool  kswapd threads
//!         \- Kthreads    readahead, flusher, kcompactd, khugepaged, if configured
//! check: settings   start: errors   pin: guards   migrate   statistics
//! ```
//! A method does its work in the calling thread. All methods may run concurrently, except where
//! they take `&mut self` or say otherwise. A page has 4 KiB unless its space was added with a
//! larger order. A method panics if its [`SpaceId`] was not returned by this manager.
//!
//! Locking: none of its own.

mod check;
mod migrate;
mod pin;
mod start;
mod statistics;

pub use pin::Pin;
pub use start::StartError;

use crate::alloc;
use crate::compact;
use crate::config::{Config, KSWAPD_THREADS_MAX, KswapdThreads, Tunables};
use crate::error::FaultError;
use crate::fault::{self, Fault, Served, readahead};
use crate::files::{self, NoSpace};
use crate::folio::ORDER_MAX;
use crate::khugepaged::{self, Asked};
use crate::kthread::Kthreads;
use crate::machine::{Machine, StallKind};
use crate::range::{self, Poisoned};
use crate::reclaim::KswapdPool;
use crate::slab::{Frames, Slabs};
use crate::snapshot::{self, Frozen, Snapshot, Unadopted};
use crate::space::{Access, Backing, Entry, Page, Range, Space};
use crate::swap::{Landing, ReadaheadRequest, Taken, Use as SwapPart};
use crate::swapoff::{self, NoRoom, Outcome as SwapoffOutcome, Swapoff};
use crate::verify::verify;
use crate::write_back;
use crate::write_back::flusher;
use crate::zone::{Blocks, Level, Mobility};
use highwater_platform::{FileAccess, Latency, Platform, Recency};
use highwater_units::{Nanos, Order, Pfn, Slot, SpaceId, Vpn};
use std::sync::{Arc, Weak};

/// A memory manager on platform `P`. Dropping it stops its threads, and discards the contents of
/// all spaces, except for pages already written to files.
pub struct Manager<P: Platform> {
    machine: Arc<Machine<P>>,
    kswapd: Arc<KswapdPool<P>>,
    /// Readahead threads.
    readahead: Option<Kthreads<P>>,
    /// Writes dirty pages of files.
    flusher: Option<Kthreads<P>>,
    /// Compacts memory, to keep blocks free.
    kcompactd: Option<Kthreads<P>>,
    /// Collapses pages into large pages.
    khugepaged: Option<Kthreads<P>>,
}

impl<P: Platform> Manager<P> {
    /// Starts a manager for all frames and devices of the platform.
    ///
    /// # Errors
    /// [`StartError::Config`] if a setting is out of range, [`StartError::Thread`] if the platform
    /// cannot start a background thread.
    pub fn start(platform: P, config: Config) -> Result<Manager<P>, StartError> {
        check::check(&config)?;
        let threads = config.kswapd_threads;
        let machine = Arc::new(Machine::new(platform, config));
        let kswapd = KswapdPool::new(machine.clone());
        let (readahead, flusher, kcompactd, khugepaged) = (None, None, None, None);
        let mut manager = Manager { kswapd, readahead, flusher, kcompactd, khugepaged, machine };
        manager.set_kswapd_threads(threads)?;
        manager.readahead = readahead::start(&manager.machine).map_err(StartError::Thread)?;
        manager.flusher = flusher::start(&manager.machine).map_err(StartError::Thread)?;
        manager.kcompactd = compact::start(&manager.machine).map_err(StartError::Thread)?;
        manager.khugepaged = khugepaged::start(&manager.machine).map_err(StartError::Thread)?;
        Ok(manager)
    }

    /// Sets the number of kswapd threads of every node, or lets the manager choose it. Waits until
    /// surplus threads have ended.
    ///
    /// # Errors
    /// [`StartError::Config`] if the number is not 1 to 16, [`StartError::Thread`] if the platform
    /// cannot start a thread.
    pub fn set_kswapd_threads(&self, threads: KswapdThreads) -> Result<(), StartError> {
        match threads {
            KswapdThreads::Fixed(threads) if !(1..=KSWAPD_THREADS_MAX).contains(&threads) => {
                Err(StartError::Config("kswapd threads per node are 1 to 16"))
            }
            _ => self.kswapd.set(threads).map_err(StartError::Thread),
        }
    }

    /// Returns the settings that may change.
    pub fn tunables(&self) -> Tunables {
        self.machine.tunables.get()
    }

    /// Changes these settings, for all faults and all reclaim from now on.
    ///
    /// # Errors
    /// [`StartError::Config`] if a setting is out of range; then no setting changes.
    pub fn tune(&self, tunables: Tunables) -> Result<(), StartError> {
        check::check_tunables(tunables)?;
        self.machine.tunables.set(tunables);
        Ok(())
    }

    /// Compacts memory: moves pages together to make as many free blocks of 2 MiB as free memory
    /// allows (compact_memory). Returns how many it made: none without [`Config::compact`].
    pub fn compact(&self) -> u32 {
        compact::all(&self.machine)
    }

    /// Returns the number of kswapd threads of each node, by [`highwater_units::NodeId`].
    pub fn kswapd_threads(&self) -> Vec<usize> {
        self.nodes().map(|node| self.kswapd.threads(node)).collect()
    }

    /// Returns the CPU time of kswapd threads, by node and by the thread's number on its node:
    /// `[1][3]` is kswapd1:3. The time of a thread that replaces another one is added to the time
    /// of the earlier thread.
    pub fn kswapd_times(&self) -> Vec<Vec<Nanos>> {
        self.nodes().map(|node| self.kswapd.cpu_times(node)).collect()
    }

    fn nodes(&self) -> std::ops::Range<usize> {
        0..self.machine.nodes.len()
    }

    /// Returns the state that all modules share.
    #[cfg(feature = "inspect")]
    pub(crate) fn machine(&self) -> &Machine<P> {
        &self.machine
    }

    /// Returns the platform.
    pub fn platform(&self) -> &P {
        &self.machine.platform
    }

    /// Adds an anonymous space of `pages` pages, which read as zeros. Spaces are never removed.
    ///
    /// # Errors
    /// [`StartError::Spaces`] if there are 256 spaces, [`StartError::Attach`] if the platform
    /// refuses the address range.
    pub fn add_space(&self, pages: u64) -> Result<SpaceId, StartError> {
        self.add(pages, Order(0), Backing::Anonymous)
    }

    /// Adds an anonymous space of `pages` pages of 2^order adjacent frames each, 4 KiB to 2 MiB. A
    /// [`Pin`] holds all frames of a page; one transfer swaps a page in or out. All methods count
    /// such a space in its pages. [`Manager::snapshot`], [`Manager::relocate`] and
    /// [`Manager::discard_swapped`] do not support orders above 0.
    ///
    /// # Errors
    /// [`StartError::Config`] if the order is above 9, or above 0 on a platform without guards;
    /// [`StartError::Spaces`] and [`StartError::Attach`] as for [`Manager::add_space`].
    pub fn add_space_of(&self, pages: u64, order: Order) -> Result<SpaceId, StartError> {
        if order > ORDER_MAX {
            return Err(StartError::Config("pages of a space are of order 0 to 9"));
        }
        if order > Order(0) && self.platform().recency() == Recency::Unmapping {
            return Err(StartError::Config("pages of more than 4 KiB are for guards"));
        }
        self.add(pages, order, Backing::Anonymous)
    }

    /// Adds a space for the file on a device of role File: page `n` is slot `n`. The first access
    /// reads a page. The flusher, reclaim and [`Manager::write_back`] write dirty pages; a thread
    /// that dirties too many is throttled (docs/reclaim.md). A device can have one space.
    ///
    /// # Errors
    /// [`StartError::File`] if the device is not for files, has fewer than `pages` pages or has a
    /// space; [`StartError::Spaces`] and [`StartError::Attach`] as for [`Manager::add_space`].
    pub fn add_file_space(&self, pages: u64, device: u8) -> Result<SpaceId, StartError> {
        if !self.machine.fits_file(device, pages) || !self.machine.claim_file(device) {
            return Err(StartError::File(device));
        }
        self.add(pages, Order(0), Backing::File { device })
    }

    /// Opens a file: attaches it to a free device of role Place and gives it a space, until
    /// [`Manager::close_file`]. Its pages behave as those of [`Manager::add_file_space`].
    ///
    /// # Errors
    /// [`StartError::Places`] if no such device is free or there are 256 spaces,
    /// [`StartError::Attach`] if the platform refuses.
    pub fn open_file(&self, file: P::File) -> Result<SpaceId, StartError> {
        files::open(&self.machine, file).map(Space::id).map_err(|refused| match refused {
            NoSpace::Places => StartError::Places,
            NoSpace::Refused(error) => StartError::refused(error),
        })
    }

    /// Writes the dirty pages of an opened file, closes it and releases its space and device. The
    /// caller makes sure that no thread uses the space during this call or later, until
    /// [`Manager::open_file`] returns the same id for another file.
    ///
    /// # Errors
    /// Those of [`Manager::write_back`]. The file then stays open. The caller may try again; a
    /// [`Manager::discard`] first drops the pages that could not be written.
    ///
    /// # Panics
    /// If the space is not that of an open file from [`Manager::open_file`].
    pub fn close_file(&self, space: SpaceId) -> Result<(), FaultError> {
        files::close(&self.machine, self.space(space))
    }

    fn add(&self, pages: u64, order: Order, backing: Backing) -> Result<SpaceId, StartError> {
        let space = self.machine.add_space(pages, order, backing).ok_or(StartError::Spaces)?;
        let attached = self.machine.platform.attach(space.id(), pages << order.0);
        attached.map_err(StartError::refused)?;
        Ok(space.id())
    }

    fn space(&self, space: SpaceId) -> &Space<P> {
        self.machine.space(space)
    }

    /// Returns the range of all pages of a space.
    pub fn whole(&self, space: SpaceId) -> Range {
        Range::whole(self.space(space))
    }

    /// Iterates over the pages of a range that have contents, in memory or on a device. Includes
    /// pages whose entry another thread has locked.
    pub fn used_pages(&self, space: SpaceId, range: Range) -> impl Iterator<Item = Vpn> + '_ {
        let space = self.space(space);
        let mut at = range.first;
        std::iter::from_fn(move || {
            while let Some(vpn) = space.next_made(at, range.end) {
                at = vpn.offset(1);
                if space.entry(vpn) != Entry::ABSENT {
                    return Some(vpn);
                }
            }
            None
        })
    }

    /// Whether a swap device is asynchronous, so that swapping may wait.
    pub fn swaps_slowly(&self) -> bool {
        self.machine.swap.any_asynchronous()
    }

    /// Serves a fault: makes the page present for the given access, and records the latency. May
    /// reclaim memory and wait for devices, for other threads and, when it writes to a file, for
    /// the flusher.
    ///
    /// # Errors
    /// See [`FaultError`]; the page stays as it was.
    pub fn fault(&self, space: SpaceId, fault: Fault) -> Result<Served, FaultError> {
        self.expect_inside(space, fault.vpn)?;
        let start = self.platform().now();
        let backing = self.space(space).backing();
        let changes_file = fault.access == Access::Write && backing != Backing::Anonymous;
        if changes_file {
            self.may_change(space)?;
            flusher::balance(&self.machine);
        }
        let stall =
            self.may_fail(space, fault.vpn).then(|| self.machine.stall(StallKind::Io, start));
        let served = fault::resolve(&self.machine, self.space(space), fault)?;
        drop(stall);
        if changes_file {
            flusher::page_dirtied(&self.machine);
        }
        let took = self.platform().now().since(start);
        let (stats, cpu) = (&self.machine.stats, self.machine.cpu());
        match served {
            Served::Again => {}
            Served::Minor => stats.minor_fault(cpu, took),
            Served::Major => stats.major_fault(cpu, took),
        }
        Ok(served)
    }

    /// Refuses pages beyond the capacity of a space, which have no entries.
    fn expect_inside(&self, space: SpaceId, vpn: Vpn) -> Result<(), FaultError> {
        if vpn.0 < self.space(space).pages() { Ok(()) } else { Err(FaultError::BeyondEnd) }
    }

    /// Refuses to change pages of a file that is read-only.
    fn may_change(&self, space: SpaceId) -> Result<(), FaultError> {
        let Backing::File { device } = self.space(space).backing() else { return Ok(()) };
        let info = self.machine.swap.info(device);
        let whole = info.is_some_and(|info| info.read_only);
        if whole || self.space(space).access() == FileAccess::Read {
            Err(FaultError::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// Whether an access to a page may fail: it has to be read from a device, or is lost. A hint.
    pub fn may_fail(&self, space: SpaceId, vpn: Vpn) -> bool {
        let space = self.space(space);
        match (space.entry(vpn).page(), space.backing()) {
            (Page::Swapped(_) | Page::Poisoned, _) | (Page::Absent, Backing::File { .. }) => true,
            (Page::Absent, Backing::Anonymous) | (Page::Resident(_), _) => false,
        }
    }

    /// Whether a fault on a page may wait for an asynchronous device, for a read or for reclaim. A
    /// hint that takes no lock: a caller uses it to choose the thread that serves the fault.
    pub fn may_wait(&self, space: SpaceId, vpn: Vpn) -> bool {
        let machine = &self.machine;
        let slow = |slot| machine.swap.latency(slot) == Latency::Asynchronous;
        let scarce = || machine.nodes.iter().all(|node| !node.zone.allows(Level::Min, 1));
        let space = self.space(space);
        match (space.entry(vpn).page(), space.backing()) {
            (Page::Swapped(slot), _) => slow(slot),
            (Page::Absent, Backing::File { device }) => slow(Slot { device, index: 0 }),
            (Page::Absent, Backing::Anonymous) => machine.swap.any_asynchronous() && scarce(),
            (Page::Resident(_) | Page::Poisoned, _) => false,
        }
    }

    /// Requests readahead of pages that will be used soon (MADV_WILLNEED): a readahead thread reads
    /// those that are on an asynchronous device, and maps them. The request is a hint: the call
    /// does not wait or fail. The manager drops the request if too many are queued, if pages have
    /// more than one frame, or with `prefetch=off`.
    pub fn prefetch(&self, space: SpaceId, pages: Range) {
        let single = self.space(space).order() == Order(0);
        let on = self.machine.config.prefetch && self.readahead.is_some() && single;
        if pages.first < pages.end && on {
            let Range { first, end } = pages;
            let request = ReadaheadRequest { space, first, end, landing: Landing::Asked };
            self.machine.request_readahead(request);
        }
    }

    /// Makes absent pages of a range present, zeroed, while free memory is above the high
    /// watermark. Does nothing for files and for pages of more than one frame.
    pub fn populate(&self, space: SpaceId, range: Range) {
        fault::populate(&self.machine, self.space(space), range);
    }

    /// Drops the contents of a range, and frees its frames and slots (MADV_DONTNEED). The range
    /// then reads as zeros; a range of a file reads as its device does, without changes that were
    /// not written back. Waits while other threads have entries locked.
    pub fn discard(&self, space: SpaceId, range: Range) {
        range::discard(&self.machine, self.space(space), range);
    }

    /// Drops the contents of the swapped pages of a range; pages in memory stay. For a range that
    /// the program will overwrite: its frames are kept, and no page is swapped in only to be
    /// overwritten. Returns the number of dropped pages.
    ///
    /// # Panics
    /// If the space belongs to a file, or its pages are of more than one frame.
    pub fn discard_swapped(&self, space: SpaceId, range: Range) -> u64 {
        range::discard_swapped(&self.machine, self.space(space), range)
    }

    /// Makes every later access to a page fail with [`FaultError::Poisoned`], or without the
    /// manager where the platform can arrange that, until the page is discarded. For a page for
    /// which [`Manager::fault`] returned [`FaultError::Read`] or [`FaultError::Poisoned`]. Its slot
    /// is freed; [`Manager::relocate`] and snapshots pass the state on. Calls `report` before any
    /// thread learns of the loss; not again if the page was moved. Waits for locked entries.
    ///
    /// # Panics
    /// If the space belongs to a file, or its pages are of more than one frame.
    pub fn poison(&self, space: SpaceId, vpn: Vpn, report: impl FnOnce()) -> Poisoned {
        range::poison(&self.machine, self.space(space), vpn, report)
    }

    /// Writes the dirty pages of a range of a file to its device, and makes them durable (msync).
    /// All changes made before the call are on the device when it returns. Waits until pins of
    /// dirty pages are dropped. Changes that were not written are lost when the manager is dropped.
    ///
    /// # Errors
    /// The first error. The other pages are written nevertheless; pages that could not be written
    /// stay dirty, and a later call tries them again.
    ///
    /// # Panics
    /// If the space is anonymous.
    pub fn write_back(&self, space: SpaceId, range: Range) -> Result<(), FaultError> {
        write_back::write_back(&self.machine, self.space(space), range)
    }

    /// Truncates a file's space to `end` pages. Drops the pages beyond, dirty or not, after waiting
    /// until their pins are dropped; an access to them then fails with [`FaultError::BeyondEnd`].
    /// The device keeps its contents. A space never grows: a call with a larger `end` has no
    /// effect.
    ///
    /// # Panics
    /// If the space is anonymous.
    pub fn truncate(&self, space: SpaceId, end: Vpn) {
        let space = self.space(space);
        assert_ne!(space.backing(), Backing::Anonymous, "only a file's space can be truncated");
        let range = Range { first: end, end: space.cut(end) };
        range::discard(&self.machine, space, range);
    }

    /// Returns the end of a file's space: the first page beyond it.
    pub fn end_of(&self, space: SpaceId) -> Vpn {
        self.space(space).end()
    }

    /// Collapses the aligned blocks of 512 pages inside a range into large pages, if they have
    /// contents, hot or cold (MADV_COLLAPSE). Absent pages become zeros, and swapped pages are
    /// read. A block that cannot be collapsed does not stop the call; [`Asked`] has the number of
    /// large pages and the last failure.
    pub fn collapse(&self, space: SpaceId, range: Range) -> Asked {
        khugepaged::collapse_range(&self.machine, self.space(space), range)
    }

    /// Moves the contents of a range to the pages from `to` on, without copying (mremap). The
    /// target pages are absent and do not overlap the range; the range is absent afterwards.
    ///
    /// # Panics
    /// If the space belongs to a file, or its pages are of more than one frame.
    pub fn relocate(&self, space: SpaceId, range: Range, to: Vpn) {
        range::relocate(&self.machine, self.space(space), range, to);
    }

    /// Writes the pages of an anonymous space to slots, and takes a reference to each slot, so that
    /// a forked child can read them. The pages in memory stay. [`Manager::release_snapshot`] drops
    /// the references.
    ///
    /// # Errors
    /// Memory or swap is full, or a write fails. The space keeps its contents.
    ///
    /// # Panics
    /// If the space belongs to a file, or its pages are of more than one frame.
    pub fn snapshot(&self, space: SpaceId) -> Result<Snapshot, FaultError> {
        snapshot::take(&self.machine, self.space(space))
    }

    /// Takes a [`Manager::snapshot`] for a fork that shares those pages of `parts` that are in
    /// memory. The caller lets the kernel copy the stretches of the result. No page of a stretch is
    /// brought in, evicted or dropped until [`Manager::thaw`]. The caller calls it soon, and does
    /// not touch the space before.
    ///
    /// # Errors
    /// As of [`Manager::snapshot`].
    pub fn share(&self, space: SpaceId, parts: &[Range]) -> Result<(Snapshot, Frozen), FaultError> {
        snapshot::share(&self.machine, self.space(space), parts)
    }

    /// Unlocks the stretches that [`Manager::share`] has frozen.
    pub fn thaw(&self, space: SpaceId, frozen: Frozen) {
        snapshot::thaw(self.space(space), frozen);
    }

    /// Unmaps the pages of a space, so that a page is no longer shared with another process once it
    /// is used again. Pages that devices use stay mapped.
    pub fn unshare(&self, space: SpaceId) {
        snapshot::unshare(&self.machine, self.space(space));
    }

    /// Moves the contents of a space off the first `devices` devices: reads the pages stored there,
    /// and marks them dirty, so that reclaim writes them to other devices. A forked child calls
    /// this for the devices that it inherited. No page returns to these devices.
    ///
    /// # Errors
    /// Memory and swap are full, or a read fails. The space keeps its contents.
    pub fn leave_devices(&self, space: SpaceId, devices: u8) -> Result<(), FaultError> {
        swapoff::leave(&self.machine, self.space(space), |device| device < devices)
    }

    /// Adds a swap device (swapon): one that was vacant when the manager started
    /// ([`highwater_platform::DeviceInfo::is_vacant`]) and has its properties now, or one that was
    /// removed. Readahead threads serve the device only if they already run for another one. Only
    /// one thread at a time may add or remove a device.
    ///
    /// # Errors
    /// The device is in use, or has no pages.
    pub fn swapon(&self, device: u8) -> Result<(), Taken> {
        let Machine { platform, config, swap, .. } = &*self.machine;
        swap.add(platform, config, device)
    }

    /// Begins to remove a swap device that is in use: from now on it accepts no pages.
    /// [`Manager::swapoff_step`] moves its pages elsewhere.
    ///
    /// # Errors
    /// Memory and other devices have no room for its pages. The device goes on accepting pages.
    pub fn swapoff(&self, device: u8) -> Result<Swapoff, NoRoom> {
        swapoff::begin(&self.machine, device)
    }

    /// Moves some pages off a device that is being removed, and returns how to go on. Faults and
    /// reclaim work meanwhile. Waits for devices, for memory, and while other threads have entries
    /// locked.
    pub fn swapoff_step(&self, swapoff: &mut Swapoff) -> SwapoffOutcome {
        swapoff::step(&self.machine, swapoff)
    }

    /// Cancels an unfinished removal of a device: the device accepts pages again.
    pub fn cancel_swapoff(&self, device: u8) {
        self.machine.swap.stay(device);
    }

    /// The state of a device in swapping.
    pub fn swap_part(&self, device: u8) -> SwapPart {
        self.machine.swap.use_of(device)
    }

    /// Drops a snapshot's references to slots. The caller makes sure that no process reads them.
    pub fn release_snapshot(&self, snapshot: &Snapshot) {
        snapshot::release(&self.machine, snapshot);
    }

    /// Fills an empty space of a forked child with the pages of a snapshot: swapped pages on the
    /// inherited devices, and pages that the fork has shared, to which [`Manager::adopt`] gives
    /// frames.
    pub fn restore_snapshot(&self, space: SpaceId, snapshot: &Snapshot) -> Unadopted {
        snapshot::restore(&self.machine, self.space(space), snapshot)
    }

    /// Gives frames to pages that a fork has shared. Until this call, other methods wait for these
    /// pages.
    ///
    /// # Errors
    /// [`FaultError::OutOfMemory`]: memory and swap cannot hold them.
    pub fn adopt(&self, space: SpaceId, pages: Unadopted) -> Result<(), FaultError> {
        Ok(snapshot::adopt(&self.machine, self.space(space), pages)?)
    }

    /// Allocates 2^order adjacent populated frames that belong to no space, and returns the first
    /// (alloc_pages). They are not reclaimed; the caller frees them by [`Manager::free_run`]. May
    /// compact and reclaim memory (docs/compaction.md). `None`: no block could be made.
    pub fn alloc_run(&self, order: Order, mobility: Mobility) -> Option<Pfn> {
        let first = alloc::run(&self.machine, order, mobility)?;
        self.machine.frames.set_run(first, order, mobility);
        Some(first)
    }

    /// Frees the frames that [`Manager::alloc_run`] allocated, by the first of them.
    ///
    /// # Panics
    /// If `first` is not the first frame of such an allocation.
    pub fn free_run(&self, first: Pfn) {
        let (order, mobility) = self.machine.frames.end_run(first);
        self.machine.free_run(first, order, mobility);
    }

    /// Creates a slab allocator on the frames of this manager; it has no caches yet. When memory is
    /// short it frees unused slabs. Dropping it does not free its frames.
    ///
    /// # Panics
    /// At the 17th call.
    pub fn slabs(&self) -> Arc<Slabs<Frames<P>>> {
        let source = Frames::new(self.machine.clone());
        let slabs = Arc::new(Slabs::new(source, &self.machine.config));
        let weak: Weak<Slabs<Frames<P>>> = Arc::downgrade(&slabs);
        self.machine.add_shrinker(weak);
        slabs
    }

    /// Returns the free blocks of each node by order and mobility (/proc/buddyinfo,
    /// /proc/pagetypeinfo).
    pub fn blocks(&self) -> Vec<Blocks> {
        self.machine.nodes.iter().map(|node| node.zone.blocks()).collect()
    }

    /// Checks the consistency of all frames, slots and entries. `snapshots` are all that were not
    /// released. The caller makes sure that no other thread uses the manager and that its threads
    /// are idle or stopped. Takes time in proportion to frames, slots and pages.
    ///
    /// # Panics
    /// At the first inconsistency.
    pub fn verify(&self, snapshots: &[Snapshot]) {
        verify(&self.machine, snapshots);
    }

    /// Writes the dirty pages of all files to their devices (sync).
    ///
    /// # Errors
    /// The first error; see [`Manager::write_back`]. All other pages are written nevertheless.
    pub fn sync(&self) -> Result<(), FaultError> {
        let is_file = |space: &&Space<P>| space.backing() != Backing::Anonymous;
        let write = |space| write_back::write_back(&self.machine, space, Range::whole(space));
        self.machine.spaces().filter(is_file).map(write).fold(Ok(()), Result::and)
    }

    /// Stops all background threads, and waits until they have ended: kswapd, kcompactd,
    /// khugepaged, flusher and readahead. Faults still work, with direct reclaim.
    pub fn stop_kswapd(&mut self) {
        self.kswapd.stop();
        let others =
            [&mut self.flusher, &mut self.khugepaged, &mut self.kcompactd, &mut self.readahead];
        others.into_iter().for_each(|threads| drop(threads.take()));
    }
}

impl<P: Platform> Drop for Manager<P> {
    fn drop(&mut self) {
        self.stop_kswapd();
    }
}
