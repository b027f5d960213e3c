//! The platform: what it consists of, and how it is made.

use crate::api::{Calls, Faults, Mapping, Source, Userfaultfd};
use crate::area::{Areas, Delivery, Offer, Placement};
use crate::descriptor::Descriptor;
use crate::drops::Drops;
use crate::residency::Residency;
use crate::stage::Stage;
use crate::transit::Transit;
use highwater_devices::Device;
use highwater_os::{Devices, IdleTimes, LockTable, Topology, sys};
use highwater_platform::Lender;
use highwater_units::{Bytes, PAGE_SIZE, SpaceId, Vpn};
use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

/// The platform of real page faults.
pub struct Uffd {
    pub(crate) topology: Topology,
    pub(crate) idle: Option<(IdleTimes, Descriptor)>,
    pub(crate) locks: LockTable,
    pub(crate) stage: Stage,
    pub(crate) drops: Drops,
    pub(crate) residency: Residency,
    /// Whether the kernel has UFFDIO_POISON.
    poisons: bool,
    /// With MOVE: the area to which pages that may be pinned are moved.
    transit: Option<Transit>,
    /// Whether the program may pin pages for I/O.
    pins: AtomicBool,
    /// Whether pages may be held for system calls, whose writes to protected pages would fail.
    holds: AtomicBool,
    /// Whether stores to pages that other processes map are counted (`parting.rs`).
    pub(crate) guards: AtomicBool,
    /// How many of these pages were kept in the program (`KEPT_MAX`).
    pub(crate) kept: AtomicUsize,
    pub(crate) areas: Areas,
    pub(crate) devices: Devices,
    /// /proc/self/mem, to read pages whatever their protection. `None` if the system denies the
    /// file, as in a process that has dropped privileges.
    pub(crate) own_memory: Option<Descriptor>,
    /// The lender of frames, if the manager borrows any.
    pub(crate) lender: OnceLock<Arc<dyn Lender>>,
}

impl Uffd {
    /// Finds out how this kernel lets this process map pages.
    ///
    /// # Errors
    /// userfaultfd is not permitted (EPERM), missing (ENOSYS), or without write protection
    /// (EINVAL).
    pub fn probe() -> io::Result<Mapping> {
        Source::find(Faults::All).probe()
    }

    /// A platform with a budget of `memory`, swapping to `devices`.
    ///
    /// # Errors
    /// As for [`Uffd::probe`]; or there is no address space for the stage.
    pub fn new(memory: Bytes, devices: Vec<Box<dyn Device>>, mapping: Mapping) -> io::Result<Uffd> {
        let devices = devices.into_iter().map(Some).collect();
        Uffd::with_places(memory, devices, 0, mapping, Source::find(Faults::All))
    }

    /// A platform with places for files that are opened later (`Manager::open_file`), and for swap
    /// devices that are added later (`Manager::swapon`): one `None` for each such swap device.
    /// Devices and places together are at most 255. The platform's userfaultfds come from `source`.
    ///
    /// # Errors
    /// As for [`Uffd::new`].
    pub fn with_places(
        memory: Bytes,
        devices: Vec<Option<Box<dyn Device>>>,
        places: usize,
        mapping: Mapping,
        source: Source,
    ) -> io::Result<Uffd> {
        let topology = Topology::of_host();
        let poisons = source.can_poison(mapping);
        let transit = (mapping == Mapping::Move).then(|| Transit::new(&source)).transpose()?;
        Ok(Uffd {
            locks: LockTable::new(topology.clone()),
            stage: Stage::new(memory.pages() as u32, topology.count())?,
            drops: Drops::new(mapping)?,
            residency: Residency::new(),
            poisons,
            transit,
            pins: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            guards: AtomicBool::new(false),
            kept: AtomicUsize::new(0),
            topology,
            idle: IdleTimes::open().ok().map(|(idle, stat)| (idle, Descriptor::new(stat.into()))),
            areas: Areas::new(mapping, source),
            devices: Devices::new(devices, places)?,
            own_memory: Uffd::own_memory(),
            lender: OnceLock::new(),
        })
    }

    /// Lets the manager borrow frames. Called once, before the manager starts.
    pub fn borrow_from(&self, lender: Arc<dyn Lender>) {
        let is_first = self.lender.set(lender).is_ok();
        assert!(is_first, "frames are borrowed from one lender");
    }

    fn own_memory() -> Option<Descriptor> {
        let memory = File::open("/proc/self/mem").ok()?;
        Some(Descriptor::new(OwnedFd::from(memory)))
    }

    /// The descriptors with which faults are served.
    fn shared(&self) -> impl Iterator<Item = &Descriptor> {
        let uffds = self.areas.descriptors().chain(self.transit.iter().map(Transit::uffd));
        let stat = self.idle.as_ref().map(|(_, stat)| stat);
        let [drops, residency] = [self.drops.descriptor(), self.residency.descriptor()];
        let others = [drops, residency, self.own_memory.as_ref(), stat].into_iter().flatten();
        uffds.map(Userfaultfd::descriptor).chain(others)
    }

    /// The numbers of the descriptors with which faults are served, in the process that made this
    /// platform. All spaces must be attached.
    pub fn descriptors(&self) -> Vec<RawFd> {
        self.shared().map(Descriptor::own).collect()
    }

    /// Lets threads of another process that shares this memory serve faults: `copies` are its
    /// copies of [`Uffd::descriptors`], in their order. They must stay open.
    pub fn set_copies(&self, copies: &[RawFd]) {
        self.shared().zip(copies).for_each(|(descriptor, copy)| descriptor.set_copy(*copy));
    }

    /// How the faults of a space are delivered.
    pub fn delivery(&self, space: SpaceId) -> Delivery {
        self.areas.delivery(space)
    }

    /// Sets address and fault delivery of a space that is added later.
    pub fn place(&self, space: SpaceId, placement: Placement) {
        self.areas.place(space, placement);
    }

    /// Whether `Mmu::poison` works in spaces with [`Delivery::Handler`]: the kernel raises SIGBUS
    /// at poisoned pages. In other spaces it always works.
    pub fn can_poison(&self) -> bool {
        self.poisons
    }

    /// The address of a page of an attached space.
    pub fn address(&self, space: SpaceId, vpn: Vpn) -> *mut u8 {
        self.areas.address(space, vpn)
    }

    /// How much of a space is in huge pages now.
    ///
    /// # Errors
    /// There is no /proc.
    pub fn huge_bytes(&self, space: SpaceId) -> io::Result<Bytes> {
        self.areas.huge_bytes(space)
    }

    /// The page of an address in a space.
    pub fn page_at(&self, space: SpaceId, address: u64) -> Option<Vpn> {
        self.areas.page_at(space, address)
    }

    /// The space at an address, and its page there. If spaces are nested, the outer one.
    pub fn locate(&self, address: u64) -> Option<(SpaceId, Vpn)> {
        self.areas.locate(address)
    }

    /// Maps pages of the space again, empty and writable, after something else was mapped over
    /// them.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn regain(&self, space: SpaceId, first: Vpn, end: Vpn) -> io::Result<()> {
        let from = self.address(space, first) as u64;
        let to = from + (end.0 - first.0) * PAGE_SIZE as u64;
        let protections = self.areas.protections();
        let ordinary = libc::PROT_READ | libc::PROT_WRITE;
        protections.change(from, to, ordinary, || self.areas.regain(space, first, end))
    }

    /// Sets whether future forks copy pages of a space to their children. By default they do not.
    ///
    /// # Errors
    /// The system's refusal: the number of mappings is at its limit.
    pub fn offer(&self, space: SpaceId, first: Vpn, end: Vpn, offer: Offer) -> io::Result<()> {
        self.areas.offer(space, first, end, offer)
    }

    /// In a forked child: maps and registers pages of a space as the child's own platform will
    /// ([`Site::Registered`]), `parts` without contents and `inherited` pages with the contents
    /// that the fork has left there, guarded if this space is guarded. Faults are delivered as in
    /// this space. Returns the userfaultfd.
    ///
    /// # Errors
    /// The system's refusal.
    ///
    /// [`Site::Registered`]: crate::Site::Registered
    pub fn register_ahead(
        &self,
        space: SpaceId,
        parts: &[(Vpn, Vpn)],
        inherited: &[(Vpn, Vpn)],
    ) -> io::Result<OwnedFd> {
        let uffd = self.areas.register_ahead(space, parts, inherited)?;
        if self.is_guarded() {
            self.protect_all(&uffd, space, inherited)?;
        }
        Ok(uffd.into_owned())
    }

    /// The descriptor that delivers the faults of a space.
    pub fn uffd(&self, space: SpaceId) -> &Userfaultfd {
        self.areas.uffd(space)
    }

    /// Changes the program's access to the pages from `first` to before `end`, as mprotect(2).
    ///
    /// # Errors
    /// The system's refusal: the number of mappings is at its limit.
    pub fn protect(&self, space: SpaceId, first: Vpn, end: Vpn, bits: i32) -> io::Result<()> {
        let start = self.address(space, first);
        let len = (end.0 - first.0) as usize * PAGE_SIZE;
        let from = start as u64;
        self.areas.protections().set(from, from + len as u64, bits, |from, to, bits| {
            let part = start.with_addr(from as usize);
            // SAFETY: pages of the space; the program requests this, or had it so before.
            unsafe { sys::protect(part, (to - from) as usize, bits) }
        })
    }

    /// How often the program's access to any page changed by [`Uffd::protect`] or
    /// [`Uffd::regain`].
    pub fn protection_changes(&self) -> u64 {
        self.areas.protections().changes()
    }

    /// The parts of a range with a protection other than read and write, with their PROT_ bits.
    pub fn protected(&self, space: SpaceId, first: Vpn, end: Vpn) -> Vec<(Vpn, Vpn, i32)> {
        let base = self.address(space, Vpn(0)) as u64;
        let address = |vpn: Vpn| base + vpn.0 * PAGE_SIZE as u64;
        let page = |address: u64| Vpn((address - base) / PAGE_SIZE as u64);
        let parts = self.areas.protections().within(address(first), address(end));
        parts.into_iter().map(|(from, to, bits)| (page(from), page(to), bits)).collect()
    }

    /// The PROT_ bits of a page, if they are not read and write.
    pub fn access_at(&self, space: SpaceId, vpn: Vpn) -> Option<i32> {
        self.protected(space, vpn, vpn.offset(1)).first().map(|(_, _, bits)| *bits)
    }

    /// Makes pages readable and writable again, if they are not.
    ///
    /// # Errors
    /// As for [`Uffd::protect`].
    pub fn unprotect(&self, space: SpaceId, first: Vpn, end: Vpn) -> io::Result<()> {
        let from = self.address(space, first) as u64;
        let to = from + (end.0 - first.0) * PAGE_SIZE as u64;
        if !self.areas.protections().any(from, to) {
            return Ok(());
        }
        self.protect(space, first, end, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Where this platform's userfaultfds come from.
    pub fn source(&self) -> &Source {
        self.areas.source()
    }

    /// From now on the program may pin pages for I/O: pages that a device writes to must not be
    /// copied. The caller makes the system call that can pin pages only after this returns.
    pub fn expect_pins(&self) {
        self.set_between_batches(&self.pins);
    }

    /// From now on pages may be held for system calls: no page is protected because pages around it
    /// are evicted. A page that was protected before is writable again after `allow_write`.
    pub fn expect_holds(&self) {
        self.set_between_batches(&self.holds);
    }

    /// Sets a flag while no batch is under way; later batches see it. A thread that finds it set
    /// does not have to wait.
    fn set_between_batches(&self, flag: &AtomicBool) {
        if !flag.load(SeqCst) {
            let excluded = self.areas.protections().exclude();
            flag.store(true, SeqCst);
            drop(excluded);
        }
    }

    /// Whether pages may be held for system calls.
    pub(crate) fn holds_are_expected(&self) -> bool {
        self.holds.load(SeqCst)
    }

    /// Whether the program may pin pages and the kernel can tell which.
    pub(crate) fn pins_are_expected(&self) -> bool {
        self.can_move() && self.pins.load(SeqCst)
    }

    /// Whether the kernel has UFFDIO_MOVE, and it is to be used.
    pub(crate) fn can_move(&self) -> bool {
        self.transit.is_some()
    }

    /// The area through which pages that may be pinned are moved out, even if no page may be
    /// pinned.
    #[cfg(test)]
    pub(crate) fn transit_of_all(&self) -> Option<&Transit> {
        self.transit.as_ref()
    }

    /// The area through which pages that may be pinned are moved out, if any may be pinned.
    pub(crate) fn transit_of_pins(&self) -> Option<&Transit> {
        self.transit.as_ref().filter(|_| self.pins.load(SeqCst))
    }

    /// Whether scattered pages are dropped by process_madvise, and none by madvise.
    pub fn drops_in_batches(&self) -> bool {
        self.drops.are_batched()
    }

    /// The userfaultfd and madvise calls made so far.
    pub fn calls(&self) -> Calls {
        let mut calls = Calls { drops: self.drops.calls(), ..Calls::default() };
        self.areas.descriptors().for_each(|uffd| calls.add(uffd));
        self.transit.iter().for_each(|transit| calls.add(transit.uffd()));
        calls
    }

    /// The most memory that was in use at once for frames, in the program and on the stage.
    pub fn frames_peak(&self) -> Bytes {
        self.stage.peak()
    }

    /// Pages with memory, in the program and on the stage: at most a few more than the frames in
    /// use.
    pub fn pages_in_use(&self) -> u64 {
        self.stage.in_use()
    }

    /// The manager has `frames` frames now, of those that there are: the stage keeps as little
    /// memory for later as if there were no more.
    pub fn fit_stage(&self, frames: u64) {
        self.stage.fit(frames, &self.drops);
    }

    /// Address and length of the stage.
    pub fn stage_range(&self) -> (u64, usize) {
        self.stage.range()
    }

    /// The swap devices.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }
}
