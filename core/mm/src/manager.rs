//! The manager as its users see it: start, spaces, faults, ranges, statistics, stop.
//!
//! ```text
//! Manager -- Machine     what all modules work on
//!         |- KswapdPool  kswapd
//!         \- Kthreads    readahead, flusher, kcompactd, khugepaged, where there are any
//! check: settings   start: refusals   pin: guards   migrate   statistics
//! ```
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
use crate::config::{Config, KSWAPD_THREADS_MAX, KswapdThreads};
use crate::error::FaultError;
use crate::fault::{self, Fault, Served, readahead};
use crate::files::{self, NoSpace};
use crate::folio::ORDER_MAX;
use crate::khugepaged::{self, Asked};
use crate::kthread::Kthreads;
use crate::machine::{Machine, StallKind};
use crate::range;
use crate::reclaim::KswapdPool;
use crate::slab::{Frames, Slabs};
use crate::snapshot::{self, Snapshot};
use crate::space::{Access, Backing, Entry, Page, Range, Space};
use crate::swap::ReadaheadRequest;
use crate::verify::verify;
use crate::write_back;
use crate::write_back::flusher;
use crate::zone::{Blocks, Level, Mobility};
use highwater_platform::{FileAccess, Latency, Platform, Recency};
use highwater_units::{Nanos, Order, Pfn, Slot, SpaceId, Vpn};
use std::sync::{Arc, Weak};

/// A memory manager on platform `P`. Dropping it stops its threads; the contents are gone.
pub struct Manager<P: Platform> {
    machine: Arc<Machine<P>>,
    kswapd: Arc<KswapdPool<P>>,
    /// Reads ahead.
    readahead: Option<Kthreads<P>>,
    /// Writes files' changed pages.
    flusher: Option<Kthreads<P>>,
    /// Has blocks ready.
    kcompactd: Option<Kthreads<P>>,
    /// Makes large pages.
    khugepaged: Option<Kthreads<P>>,
}

impl<P: Platform> Manager<P> {
    /// Starts a manager over all frames and devices of the platform.
    ///
    /// # Errors
    /// [`StartError::Config`] and [`StartError::Thread`].
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

    /// Gives every node so many kswapd threads, or leaves that to the manager. Those that are too
    /// many have ended when this returns.
    ///
    /// # Errors
    /// [`StartError::Config`] and [`StartError::Thread`].
    pub fn set_kswapd_threads(&self, threads: KswapdThreads) -> Result<(), StartError> {
        match threads {
            KswapdThreads::Fixed(threads) if !(1..=KSWAPD_THREADS_MAX).contains(&threads) => {
                Err(StartError::Config("kswapd threads per node are 1 to 16"))
            }
            _ => self.kswapd.set(threads).map_err(StartError::Thread),
        }
    }

    /// kswapd threads of each node, by [`highwater_units::NodeId`].
    pub fn kswapd_threads(&self) -> Vec<usize> {
        self.nodes().map(|node| self.kswapd.threads(node)).collect()
    }

    /// CPU time that kswapd threads have used, by node and seat: kswapd1:3 is the fourth of node 1.
    pub fn kswapd_times(&self) -> Vec<Vec<Nanos>> {
        self.nodes().map(|node| self.kswapd.cpu_times(node)).collect()
    }

    fn nodes(&self) -> std::ops::Range<usize> {
        0..self.machine.nodes.len()
    }

    /// All parts but the threads.
    #[cfg(feature = "inspect")]
    pub(crate) fn machine(&self) -> &Machine<P> {
        &self.machine
    }

    /// The world it runs in.
    pub fn platform(&self) -> &P {
        &self.machine.platform
    }

    /// Adds a space of `pages` pages that read as zeros.
    ///
    /// # Errors
    /// [`StartError::Attach`] and [`StartError::Spaces`].
    pub fn add_space(&self, pages: u64) -> Result<SpaceId, StartError> {
        self.add(pages, Order(0), Backing::Anonymous)
    }

    /// Adds a space of `pages` pages of 2^order frames each (4 KiB to 2 MiB), adjacent in memory:
    /// what a [`Pin`] of one holds. A page comes and goes whole, with one transfer. All calls count
    /// pages of this size. Order 0 is [`Manager::add_space`]'s. Such a space is neither copied
    /// ([`Manager::snapshot`]) nor rearranged ([`Manager::relocate`]).
    ///
    /// # Errors
    /// [`StartError::Config`] for another order, or where pages are reached without guards;
    /// [`StartError::Attach`] and [`StartError::Spaces`].
    pub fn add_space_of(&self, pages: u64, order: Order) -> Result<SpaceId, StartError> {
        if order > ORDER_MAX {
            return Err(StartError::Config("pages of a space are of order 0 to 9"));
        }
        if order > Order(0) && self.platform().recency() == Recency::Unmapping {
            return Err(StartError::Config("pages of more than 4 KiB are for guards"));
        }
        self.add(pages, order, Backing::Anonymous)
    }

    /// Adds a space whose pages have their places on a device of role File: page `n` is slot `n`.
    /// It is read when it is first used. Changed pages are written by the flusher, by reclaim and
    /// by [`Manager::write_back`]; who changes too many waits (docs/reclaim.md).
    /// The device is the space's alone.
    ///
    /// # Errors
    /// [`StartError::File`], [`StartError::Attach`] and [`StartError::Spaces`].
    pub fn add_file_space(&self, pages: u64, device: u8) -> Result<SpaceId, StartError> {
        if !self.machine.fits_file(device, pages) || !self.machine.claim_file(device) {
            return Err(StartError::File(device));
        }
        self.add(pages, Order(0), Backing::File { device })
    }

    /// Gives a file a space, as long as it is open. It needs one of the places that the platform
    /// was made with; the pages are used as those of [`Manager::add_file_space`].
    ///
    /// # Errors
    /// [`StartError::Places`] and [`StartError::Attach`].
    pub fn open_file(&self, file: P::File) -> Result<SpaceId, StartError> {
        files::open(&self.machine, file).map(Space::id).map_err(|refused| match refused {
            NoSpace::Places => StartError::Places,
            NoSpace::Refused(error) => StartError::refused(error),
        })
    }

    /// Writes the changes of a file that was opened, and gives its space and place up. Nobody uses
    /// the space any more, or does so before it is given to another file.
    ///
    /// # Errors
    /// As of [`Manager::write_back`]. Then the file stays open: closing can be tried again, after a
    /// [`Manager::discard`] without what could not be written.
    ///
    /// # Panics
    /// If the space is not that of a file that was opened.
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

    /// All pages of a space.
    pub fn whole(&self, space: SpaceId) -> Range {
        Range::whole(self.space(space))
    }

    /// The pages of a range that have contents, or are being given some by another thread.
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

    /// Whether swapping can wait for a device.
    pub fn swaps_slowly(&self) -> bool {
        self.machine.swap.any_asynchronous()
    }

    /// Serves a fault and counts how long that took.
    ///
    /// # Errors
    /// The page stays as it was; see [`FaultError`].
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
            self.is_on_device(space, fault.vpn).then(|| self.machine.stall(StallKind::Io, start));
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

    /// Refuses pages that a space never had: there are no entries for them.
    fn expect_inside(&self, space: SpaceId, vpn: Vpn) -> Result<(), FaultError> {
        if vpn.0 < self.space(space).pages() { Ok(()) } else { Err(FaultError::BeyondEnd) }
    }

    /// Refuses to change pages that can never be written.
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

    /// Whether a page's contents are on a device.
    fn is_on_device(&self, space: SpaceId, vpn: Vpn) -> bool {
        let space = self.space(space);
        match (space.entry(vpn).page(), space.backing()) {
            (Page::Swapped(_), _) | (Page::Absent, Backing::File { .. }) => true,
            (Page::Absent, Backing::Anonymous) | (Page::Resident(_), _) => false,
        }
    }

    /// Whether a fault on a page may have to wait for a device: for one that holds the page, or for
    /// memory to be written out. A guess, for the choice of a thread that serves it.
    pub fn may_wait(&self, space: SpaceId, vpn: Vpn) -> bool {
        let machine = &self.machine;
        let slow = |slot| machine.swap.latency(slot) == Latency::Asynchronous;
        let scarce = || machine.nodes.iter().all(|node| !node.zone.allows(Level::Min, 1));
        let space = self.space(space);
        match (space.entry(vpn).page(), space.backing()) {
            (Page::Swapped(slot), _) => slow(slot),
            (Page::Absent, Backing::File { device }) => slow(Slot { device, index: 0 }),
            (Page::Absent, Backing::Anonymous) => machine.swap.any_asynchronous() && scarce(),
            (Page::Resident(_), _) => false,
        }
    }

    /// Starts readahead of pages that will be used soon: a thread of the manager reads those that
    /// are on a slow device, and maps them. A hint: it never waits, nor fails, and is
    /// forgotten where there are too many (posix_madvise's WILLNEED), or with `prefetch=off`.
    pub fn prefetch(&self, space: SpaceId, pages: Range) {
        let single = self.space(space).order() == Order(0);
        let on = self.machine.config.prefetch && self.readahead.is_some() && single;
        if pages.first < pages.end && on {
            let Range { first, end } = pages;
            let request = ReadaheadRequest { space, first, end, marker: None };
            self.machine.request_readahead(request);
        }
    }

    /// Makes the untouched pages of an anonymous range present, as far as memory is plenty.
    pub fn populate(&self, space: SpaceId, range: Range) {
        fault::populate(&self.machine, self.space(space), range);
    }

    /// Drops the contents of a range: it reads as zeros. A file's reads as the device has it: what
    /// was not written back is lost.
    pub fn discard(&self, space: SpaceId, range: Range) {
        range::discard(&self.machine, self.space(space), range);
    }

    /// Drops the contents of those pages of a range that are on a device; what is in memory stays.
    /// For a range whose contents nobody needs, and which is to be used again. Returns how many.
    ///
    /// # Panics
    /// If the space is a file's, or its pages are of more than one frame.
    pub fn discard_swapped(&self, space: SpaceId, range: Range) -> u64 {
        range::discard_swapped(&self.machine, self.space(space), range)
    }

    /// Writes the changed pages of a range of a file's space to their places: what the range held
    /// when this began is on the device when it returns. Waits for pins to go. Without it, changes
    /// that reclaim did not write are lost with the manager.
    ///
    /// # Errors
    /// The first one; the rest of the range is written all the same. What could not be written
    /// stays in memory, changed, and can be tried again.
    ///
    /// # Panics
    /// If the space is no file's.
    pub fn write_back(&self, space: SpaceId, range: Range) -> Result<(), FaultError> {
        write_back::write_back(&self.machine, self.space(space), range)
    }

    /// Ends a file's space at `end`, for good: what is beyond is dropped, written or not, and an
    /// access there fails ([`FaultError::BeyondEnd`]). Waits for pins of pages beyond. The device
    /// keeps what it has; a space that ended before stays as it is.
    ///
    /// # Panics
    /// If the space is no file's.
    pub fn truncate(&self, space: SpaceId, end: Vpn) {
        let space = self.space(space);
        assert_ne!(space.backing(), Backing::Anonymous, "the space is no file's");
        let range = Range { first: end, end: space.cut(end) };
        range::discard(&self.machine, space, range);
    }

    /// The first page that a file's space no longer has.
    pub fn end_of(&self, space: SpaceId) -> Vpn {
        self.space(space).end()
    }

    /// Makes large pages of the aligned blocks of 512 pages that lie in a range and have contents,
    /// used or not, if there are blocks of frames for them (MADV_COLLAPSE): absent pages get
    /// memory, swapped ones are read. Goes on behind a block that cannot be.
    pub fn collapse(&self, space: SpaceId, range: Range) -> Asked {
        khugepaged::collapse_range(&self.machine, self.space(space), range)
    }

    /// Moves the contents of a range to the absent pages from `to` on, without copying.
    ///
    /// # Panics
    /// If the space is a file's: its pages have their places.
    pub fn relocate(&self, space: SpaceId, range: Range, to: Vpn) {
        range::relocate(&self.machine, self.space(space), range, to);
    }

    /// Saves a space for a forked child; see [`crate::snapshot`].
    ///
    /// # Errors
    /// Swap is full or fails; the space is unharmed.
    ///
    /// # Panics
    /// If the space is a file's: its pages have their places.
    pub fn snapshot(&self, space: SpaceId) -> Result<Snapshot, FaultError> {
        snapshot::take(&self.machine, self.space(space))
    }

    /// Makes the first `devices` devices needless for a space: what is kept there is read and
    /// counts as changed, so that its next slot is on another device. A forked child that inherits
    /// these devices from ever more ancestors does so now and then.
    ///
    /// # Errors
    /// Memory and swap are full, or a page cannot be read; the space is unharmed.
    pub fn leave_devices(&self, space: SpaceId, devices: u8) -> Result<(), FaultError> {
        let access = Access::Write;
        for within in snapshot::kept_on(&self.machine, self.space(space), devices) {
            for vpn in (within.first.0..within.end.0).map(Vpn) {
                self.fault(space, Fault { vpn, access, within })?;
            }
        }
        Ok(())
    }

    /// Gives a snapshot's slots back, when nobody reads them any more.
    pub fn release_snapshot(&self, snapshot: &Snapshot) {
        snapshot::release(&self.machine, snapshot);
    }

    /// Fills an empty space with a snapshot, in the child.
    pub fn restore_snapshot(&self, space: SpaceId, snapshot: &Snapshot) {
        snapshot::restore(&self.machine, self.space(space), snapshot);
    }

    /// 2^order adjacent frames outside all spaces, populated, until [`Manager::free_run`]: the
    /// first of them (alloc_pages). Nothing is evicted from them. Tries what docs/compaction.md
    /// says, but `None` is an answer to be ready for.
    pub fn alloc_run(&self, order: Order, mobility: Mobility) -> Option<Pfn> {
        let first = alloc::run(&self.machine, order, mobility)?;
        self.machine.frames.set_run(first, order, mobility);
        Some(first)
    }

    /// Gives the frames back that [`Manager::alloc_run`] gave.
    ///
    /// # Panics
    /// If no run begins with `first`.
    pub fn free_run(&self, first: Pfn) {
        let (order, mobility) = self.machine.frames.end_run(first);
        self.machine.free_run(first, order, mobility);
    }

    /// Caches of objects in this manager's frames, none yet. When memory is short they give back
    /// what is not in use; to drop them gives nothing back.
    ///
    /// # Panics
    /// If this was called 16 times.
    pub fn slabs(&self) -> Arc<Slabs<Frames<P>>> {
        let source = Frames::new(self.machine.clone());
        let slabs = Arc::new(Slabs::new(source, &self.machine.config));
        let weak: Weak<Slabs<Frames<P>>> = Arc::downgrade(&slabs);
        self.machine.add_shrinker(weak);
        slabs
    }

    /// How free memory lies, by node: /proc/buddyinfo, /proc/pagetypeinfo.
    pub fn blocks(&self) -> Vec<Blocks> {
        self.machine.nodes.iter().map(|node| node.zone.blocks()).collect()
    }

    /// Checks everything, while no fault or kswapd is at work; panics at a contradiction.
    pub fn verify(&self, snapshots: &[Snapshot]) {
        verify(&self.machine, snapshots);
    }

    /// Makes the devices equal to all files' spaces.
    ///
    /// # Errors
    /// As of [`Manager::write_back`]; the rest is written all the same.
    pub fn sync(&self) -> Result<(), FaultError> {
        let is_file = |space: &&Space<P>| space.backing() != Backing::Anonymous;
        let write = |space| write_back::write_back(&self.machine, space, Range::whole(space));
        self.machine.spaces().filter(is_file).map(write).fold(Ok(()), Result::and)
    }

    /// Stops all threads: kswapd, kcompactd, khugepaged, the flusher and readahead;
    /// faults still work, by direct reclaim.
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
