//! Where the spaces lie in the address space, and how their faults are delivered.

use crate::api::{Mapping, Source, Userfaultfd, feature};
use crate::protect::Protections;
use highwater_os::huge;
use highwater_os::sys::{self, Advice};
use highwater_units::{Bytes, PAGE_SIZE, SpaceId, Vpn};
use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Most spaces of a platform (the manager's limit).
const AREAS_MAX: usize = 256;

/// How a fault in a space reaches the manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// As a message to handler threads: works for every access, system calls included.
    #[default]
    Handler,
    /// As SIGBUS in the faulting thread: faster, but a system call that reaches a missing page
    /// fails with EFAULT. For owners that make no such calls.
    InThread,
}

/// Whether fork(2) copies pages of a space to the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Fork copies them. The caller ensures that no page with contents is missing in the child.
    Made,
    /// Fork does not copy them: the child has no mapping there.
    Withdrawn,
}

/// The address of a space.
#[derive(Clone, Debug, Default)]
pub enum Site {
    /// An address of the kernel's choice.
    #[default]
    Anywhere,
    /// At an address, in place of the mappings there.
    At {
        /// Of its first page.
        address: u64,
        /// Its pages, as (first, end) of each part. The mappings between the parts stay as they
        /// are.
        parts: Vec<(Vpn, Vpn)>,
        /// More of its pages, with the contents that a fork has left there. Missing ones are zeros.
        inherited: Vec<(Vpn, Vpn)>,
    },
    /// At an address, where its pages are registered already ([`Uffd::register_ahead`]).
    ///
    /// [`Uffd::register_ahead`]: crate::Uffd::register_ahead
    Registered {
        /// Of its first page.
        address: u64,
        /// The userfaultfd, which is the space's from now on.
        by: RawFd,
    },
}

/// Address and fault delivery of a space.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The address.
    pub site: Site,
    /// How its faults are delivered.
    pub delivery: Delivery,
}

/// A space in memory. A place for files has a different address for each file; while no file is
/// open there, the space has no pages and its address is not used.
struct Area {
    base: AtomicPtr<u8>,
    /// Bytes; 0: the space has no address now.
    len: AtomicUsize,
    /// Whether the memory belongs to this space; otherwise it is a part of another space's memory.
    own: AtomicBool,
    delivery: Delivery,
}

impl Area {
    fn new(delivery: Delivery) -> Area {
        let base = AtomicPtr::new(ptr::null_mut());
        Area { base, len: AtomicUsize::new(0), own: AtomicBool::new(true), delivery }
    }

    fn base(&self) -> *mut u8 {
        self.base.load(Acquire)
    }

    fn len(&self) -> usize {
        self.len.load(Acquire)
    }

    fn is_own(&self) -> bool {
        self.own.load(Acquire)
    }
}

/// The spaces of a platform.
pub(crate) struct Areas {
    source: Source,
    features: u64,
    placements: Mutex<Vec<(SpaceId, Placement)>>,
    areas: Vec<OnceLock<Area>>,
    /// The protections in all spaces, by address.
    protections: Protections,
    messages: OnceLock<Userfaultfd>,
    signals: OnceLock<Userfaultfd>,
}

impl Areas {
    pub(crate) fn new(mapping: Mapping, source: Source) -> Areas {
        let moves = if mapping == Mapping::Move { feature::MOVE } else { 0 };
        Areas {
            source,
            features: feature::PAGEFAULT_FLAG_WP | moves,
            placements: Mutex::new(Vec::new()),
            areas: (0..AREAS_MAX).map(|_| OnceLock::new()).collect(),
            protections: Protections::default(),
            messages: OnceLock::new(),
            signals: OnceLock::new(),
        }
    }

    /// Where userfaultfds come from.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    pub(crate) fn place(&self, space: SpaceId, placement: Placement) {
        let mut placements = self.placements.lock().unwrap_or_else(PoisonError::into_inner);
        placements.push((space, placement));
    }

    fn placement(&self, space: SpaceId) -> Placement {
        let placements = self.placements.lock().unwrap_or_else(PoisonError::into_inner);
        let last = placements.iter().rev().find(|(of, _)| *of == space);
        last.map_or_else(Placement::default, |(_, placement)| placement.clone())
    }

    /// Maps and registers the memory of a space: one mapping, and one registration of each part. A
    /// forked child does not inherit it, so that an unserved child faults instead of reading zeros.
    pub(crate) fn attach(&self, space: SpaceId, pages: u64) -> io::Result<()> {
        let Placement { site, delivery } = self.placement(space);
        let area = self.areas[usize::from(space.0)].get_or_init(|| Area::new(delivery));
        debug_assert_eq!(area.len(), 0, "{space:?} is attached twice");
        self.place_own(area, pages, site)
    }

    fn place_own(&self, area: &Area, pages: u64, site: Site) -> io::Result<()> {
        let len = pages as usize * PAGE_SIZE;
        if let Site::Registered { by, .. } = &site {
            // SAFETY: open, and the space's own, as the owner of the site says.
            let made = Userfaultfd::of(unsafe { OwnedFd::from_raw_fd(*by) });
            let is_first = self.cell(area.delivery).set(made).is_ok();
            assert!(is_first, "pages are registered before all others");
        }
        let uffd = self.descriptor(area.delivery)?;
        let base = match site {
            Site::Registered { address, .. } => ptr::with_exposed_provenance_mut(address as usize),
            Site::At { address, parts, inherited } => {
                let base: *mut u8 = ptr::with_exposed_provenance_mut(address as usize);
                parts.iter().try_for_each(|(first, end)| claim(uffd, base, *first, *end))?;
                inherited.iter().try_for_each(|(first, end)| keep(uffd, base, *first, *end))?;
                base
            }
            Site::Anywhere => {
                let base = map_aligned(len)?;
                prepare(uffd, base, len).inspect_err(|_| {
                    // SAFETY: the mapping just made.
                    unsafe { sys::unmap(base, len) }
                })?;
                base
            }
        };
        area.own.store(true, Release);
        area.base.store(base, Release);
        area.len.store(len, Release);
        Ok(())
    }

    /// Gives a file's space memory of its own, or a part of another space at `address`.
    pub(crate) fn open(&self, space: SpaceId, pages: u64, address: Option<u64>) -> io::Result<()> {
        let delivery = address.and_then(|address| self.delivery_at(address)).unwrap_or_default();
        let area = self.areas[usize::from(space.0)].get_or_init(|| Area::new(delivery));
        debug_assert_eq!(area.len(), 0, "{space:?} is open");
        let Some(address) = address else { return self.place_own(area, pages, Site::Anywhere) };
        area.own.store(false, Release);
        area.base.store(ptr::with_exposed_provenance_mut(address as usize), Release);
        area.len.store(pages as usize * PAGE_SIZE, Release);
        Ok(())
    }

    /// Takes the memory of a file's space away.
    pub(crate) fn close(&self, space: SpaceId) {
        let area = self.area(space);
        let (base, len) = (area.base(), area.len.swap(0, AcqRel));
        if !area.is_own() {
            return;
        }
        let from = base.addr() as u64;
        let ordinary = libc::PROT_READ | libc::PROT_WRITE;
        let unmap = || -> Result<(), Infallible> {
            // SAFETY: memory of this space, which no thread uses any more.
            unsafe { sys::unmap(base, len) };
            Ok(())
        };
        let Ok(()) = self.protections.change(from, from + len as u64, ordinary, unmap);
    }

    /// The protections that the program set.
    pub(crate) fn protections(&self) -> &Protections {
        &self.protections
    }

    /// Maps pages of the space again, empty, after something else was mapped over them.
    pub(crate) fn regain(&self, space: SpaceId, first: Vpn, end: Vpn) -> io::Result<()> {
        claim(self.uffd(space), self.area(space).base(), first, end)
    }

    /// Sets whether future forks copy pages of the space to their children.
    pub(crate) fn offer(
        &self,
        space: SpaceId,
        first: Vpn,
        end: Vpn,
        offer: Offer,
    ) -> io::Result<()> {
        let (address, len) = span(self.area(space).base(), first, end);
        let advice = match offer {
            Offer::Made => Advice::LinuxDoFork,
            Offer::Withdrawn => Advice::LinuxDontFork,
        };
        // SAFETY: this advice changes no contents.
        unsafe { sys::advise(address, len, advice) }
    }

    /// In a forked child, before it has a platform of its own: registers pages of a space as that
    /// platform will, `parts` without contents and `inherited` pages with theirs.
    pub(crate) fn register_ahead(
        &self,
        space: SpaceId,
        parts: &[(Vpn, Vpn)],
        inherited: &[(Vpn, Vpn)],
    ) -> io::Result<Userfaultfd> {
        let area = self.area(space);
        let uffd = self.open_descriptor(area.delivery)?;
        parts.iter().try_for_each(|(first, end)| claim(&uffd, area.base(), *first, *end))?;
        // Inherited pages keep the protections that the program set.
        inherited.iter().try_for_each(|(first, end)| {
            let (address, len) = span(area.base(), *first, *end);
            prepare(&uffd, address, len)
        })?;
        Ok(uffd)
    }

    fn cell(&self, delivery: Delivery) -> &OnceLock<Userfaultfd> {
        match delivery {
            Delivery::Handler => &self.messages,
            Delivery::InThread => &self.signals,
        }
    }

    fn open_descriptor(&self, delivery: Delivery) -> io::Result<Userfaultfd> {
        self.source.open(match delivery {
            Delivery::Handler => self.features,
            Delivery::InThread => self.features | feature::SIGBUS,
        })
    }

    fn descriptor(&self, delivery: Delivery) -> io::Result<&Userfaultfd> {
        let cell = self.cell(delivery);
        if let Some(made) = cell.get() {
            return Ok(made);
        }
        let made = self.open_descriptor(delivery)?;
        Ok(cell.get_or_init(|| made))
    }

    fn area(&self, space: SpaceId) -> &Area {
        self.areas[usize::from(space.0)].get().expect("the space is attached")
    }

    /// The descriptors that faults come through.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = &Userfaultfd> {
        [&self.messages, &self.signals].into_iter().filter_map(OnceLock::get)
    }

    /// How the faults of a space are delivered.
    pub(crate) fn delivery(&self, space: SpaceId) -> Delivery {
        self.area(space).delivery
    }

    /// The descriptor that the faults of a space come through.
    pub(crate) fn uffd(&self, space: SpaceId) -> &Userfaultfd {
        let cell = self.cell(self.area(space).delivery);
        cell.get().expect("opened when the space was attached")
    }

    pub(crate) fn address(&self, space: SpaceId, vpn: Vpn) -> *mut u8 {
        let area = self.area(space);
        assert!((vpn.0 as usize) < area.len() / PAGE_SIZE, "{vpn:?} is inside its space");
        // SAFETY: inside the mapping, as just checked.
        unsafe { area.base().add(vpn.0 as usize * PAGE_SIZE) }
    }

    /// How much of a space is in huge pages now.
    pub(crate) fn huge_bytes(&self, space: SpaceId) -> io::Result<Bytes> {
        let area = self.area(space);
        let start = area.base().addr();
        huge::backed(&(start..start + area.len()))
    }

    pub(crate) fn addresses(&self, space: SpaceId) -> Range<u64> {
        let area = self.area(space);
        let base = area.base() as u64;
        base..base + area.len() as u64
    }

    pub(crate) fn page_at(&self, space: SpaceId, address: u64) -> Option<Vpn> {
        let addresses = self.addresses(space);
        let page = |address: u64| Vpn((address - addresses.start) / PAGE_SIZE as u64);
        addresses.contains(&address).then(|| page(address))
    }

    /// The space at an address, and its page there. If spaces are nested, the outer one.
    pub(crate) fn locate(&self, address: u64) -> Option<(SpaceId, Vpn)> {
        let made = self.areas.iter().enumerate().filter_map(|(id, area)| Some((id, area.get()?)));
        let mut own = made.filter(|(_, area)| area.is_own());
        own.find_map(|(id, _)| {
            let space = SpaceId(id as u16);
            Some((space, self.page_at(space, address)?))
        })
    }

    fn delivery_at(&self, address: u64) -> Option<Delivery> {
        self.locate(address).map(|(space, _)| self.delivery(space))
    }
}

/// A new mapping, aligned to huge pages if one fits in it.
fn map_aligned(len: usize) -> io::Result<*mut u8> {
    if len < huge::SIZE {
        return sys::map_anonymous(len);
    }
    let mapped = sys::map_anonymous(len + huge::SIZE)?;
    let base = mapped.map_addr(|at| at.next_multiple_of(huge::SIZE));
    let before = base.addr() - mapped.addr();
    // SAFETY: the ends of the mapping just made, around the part that is kept.
    unsafe {
        if before > 0 {
            sys::unmap(mapped, before);
        }
        if before < huge::SIZE {
            sys::unmap(base.add(len), huge::SIZE - before);
        }
    }
    Ok(base)
}

/// Maps and registers pages of a space at `base`, in place of mappings that their owner gave up.
/// They are inaccessible until they are registered. A debugger may read the pages meanwhile, so
/// they are dropped afterwards: the kernel's zero page must not be mapped in a space.
fn claim(uffd: &Userfaultfd, base: *mut u8, first: Vpn, end: Vpn) -> io::Result<()> {
    let (address, len) = span(base, first, end);
    // SAFETY: pages reserved for the space.
    let mapped = unsafe { sys::map_closed(address, len)? };
    prepare(uffd, mapped, len)?;
    // SAFETY: as above.
    unsafe {
        sys::advise(mapped, len, Advice::LinuxDontNeed)?;
        sys::protect(mapped, len, libc::PROT_READ | libc::PROT_WRITE)
    }
}

/// Registers pages of a space that a fork has left with their contents. Their protection may have
/// changed after the fork recorded it, so it is reset to read and write.
fn keep(uffd: &Userfaultfd, base: *mut u8, first: Vpn, end: Vpn) -> io::Result<()> {
    let (address, len) = span(base, first, end);
    prepare(uffd, address, len)?;
    // SAFETY: pages of the space.
    unsafe { sys::protect(address, len, libc::PROT_READ | libc::PROT_WRITE) }
}

/// Address and length of pages.
fn span(base: *mut u8, first: Vpn, end: Vpn) -> (*mut u8, usize) {
    (base.wrapping_add(first.0 as usize * PAGE_SIZE), (end.0 - first.0) as usize * PAGE_SIZE)
}

/// Prepares a mapping: not inherited at fork, faults reported, and in small pages until the manager
/// asks for huge ones.
fn prepare(uffd: &Userfaultfd, base: *mut u8, len: usize) -> io::Result<()> {
    // Kernels without huge pages refuse the first advice, and do not need it.
    // SAFETY: a mapping of the space, which no thread of the program uses yet.
    unsafe {
        // Splitting a huge page to move one page out is slow: the kernel must not make huge pages
        // on its own.
        if !huge::are_on_request() {
            let _ = sys::advise(base, len, Advice::LinuxNoHugepage);
        }
        sys::advise(base, len, Advice::LinuxDontFork)?;
    }
    uffd.register(base as u64, len)
}

impl Drop for Areas {
    fn drop(&mut self) {
        for area in self.areas.iter().filter_map(OnceLock::get) {
            if area.is_own() && area.len() > 0 {
                // SAFETY: the platform ends, and nothing uses the space any more.
                unsafe { sys::unmap(area.base(), area.len()) };
            }
        }
    }
}
