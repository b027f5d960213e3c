//! Where the spaces lie in the address space, and how their faults are delivered.

use crate::Mapping;
use crate::api::{Userfaultfd, feature};
use crate::protect::Protections;
use highwater_os::sys;
use highwater_units::{PAGE_SIZE, SpaceId, Vpn};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Most spaces of a platform (the manager's limit).
const AREAS_MAX: usize = 256;

/// How a fault in a space reaches the manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// As a message to handler threads: right for every access, system calls included.
    #[default]
    Handler,
    /// As SIGBUS in the thread that faults: faster, but a system call into a missing page fails
    /// with EFAULT. For owners that make none.
    InThread,
}

/// What a space wants to be like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placement {
    /// Its address; anywhere if `None`.
    pub address: Option<u64>,
    /// How its faults are delivered.
    pub delivery: Delivery,
}

/// A space in memory.
pub(crate) struct Area {
    base: *mut u8,
    len: usize,
    delivery: Delivery,
    pub(crate) protections: Protections,
}

// SAFETY: `base` is an address, not a reference; what lies there is reached through the manager.
unsafe impl Send for Area {}
// SAFETY: as for Send; the other fields are Sync.
unsafe impl Sync for Area {}

/// The spaces of a platform.
pub(crate) struct Areas {
    features: u64,
    wishes: Mutex<Vec<(SpaceId, Placement)>>,
    areas: Vec<OnceLock<Area>>,
    messages: OnceLock<Userfaultfd>,
    signals: OnceLock<Userfaultfd>,
}

impl Areas {
    pub(crate) fn new(mapping: Mapping) -> Areas {
        let moves = if mapping == Mapping::Move { feature::MOVE } else { 0 };
        Areas {
            features: feature::PAGEFAULT_FLAG_WP | feature::THREAD_ID | moves,
            wishes: Mutex::new(Vec::new()),
            areas: (0..AREAS_MAX).map(|_| OnceLock::new()).collect(),
            messages: OnceLock::new(),
            signals: OnceLock::new(),
        }
    }

    pub(crate) fn place(&self, space: SpaceId, placement: Placement) {
        let mut wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
        wishes.push((space, placement));
    }

    fn wish(&self, space: SpaceId) -> Placement {
        let wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
        wishes.iter().rev().find(|(of, _)| *of == space).map_or_else(Placement::default, |w| w.1)
    }

    /// Reserves and registers the memory of a space. One mapping, one registration, whatever the
    /// size; it is not inherited at fork: a child that nobody serves faults instead of reading
    /// zeros.
    pub(crate) fn attach(&self, space: SpaceId, pages: u64) -> io::Result<()> {
        let placement = self.wish(space);
        let len = pages as usize * PAGE_SIZE;
        let at = placement.address.map(|address| address as *mut u8);
        // SAFETY: a new mapping; a fixed address is one the owner of the platform set aside.
        let base = unsafe { sys::map_anonymous(at, len)? };
        prepare(self.descriptor(placement.delivery)?, base, len)?;
        let protections = Protections::default();
        let area = Area { base, len, delivery: placement.delivery, protections };
        let fresh = self.areas[usize::from(space.0)].set(area).is_ok();
        debug_assert!(fresh, "{space:?} is attached twice");
        Ok(())
    }

    /// Makes pages that something else was mapped over the space's again, empty.
    pub(crate) fn regain(&self, space: SpaceId, first: Vpn, end: Vpn) -> io::Result<()> {
        let (address, len) = (self.address(space, first), (end.0 - first.0) as usize * PAGE_SIZE);
        // SAFETY: pages of the space; the program has given up what it had mapped there.
        let base = unsafe { sys::map_anonymous(Some(address), len)? };
        prepare(self.uffd(space), base, len)
    }

    fn descriptor(&self, delivery: Delivery) -> io::Result<&Userfaultfd> {
        let (cell, features) = match delivery {
            Delivery::Handler => (&self.messages, self.features),
            Delivery::InThread => (&self.signals, self.features | feature::SIGBUS),
        };
        if let Some(made) = cell.get() {
            return Ok(made);
        }
        let made = Userfaultfd::open(features)?;
        Ok(cell.get_or_init(|| made))
    }

    pub(crate) fn area(&self, space: SpaceId) -> &Area {
        self.areas[usize::from(space.0)].get().expect("the space is attached")
    }

    /// The descriptor that the faults of a space come through.
    pub(crate) fn uffd(&self, space: SpaceId) -> &Userfaultfd {
        let cell = match self.area(space).delivery {
            Delivery::Handler => &self.messages,
            Delivery::InThread => &self.signals,
        };
        cell.get().expect("opened when the space was attached")
    }

    pub(crate) fn address(&self, space: SpaceId, vpn: Vpn) -> *mut u8 {
        let area = self.area(space);
        assert!((vpn.0 as usize) < area.len / PAGE_SIZE, "{vpn:?} is inside its space");
        // SAFETY: inside the mapping, as just checked.
        unsafe { area.base.add(vpn.0 as usize * PAGE_SIZE) }
    }

    pub(crate) fn page_at(&self, space: SpaceId, address: u64) -> Option<Vpn> {
        let area = self.area(space);
        let offset = address.checked_sub(area.base as u64)?;
        (offset < area.len as u64).then_some(Vpn(offset / PAGE_SIZE as u64))
    }

    /// The space whose faults are messages, and its page, at an address.
    pub(crate) fn locate(&self, address: u64) -> Option<(SpaceId, Vpn)> {
        let made = self.areas.iter().enumerate().filter_map(|(id, area)| Some((id, area.get()?)));
        let mut served = made.filter(|(_, area)| area.delivery == Delivery::Handler);
        served.find_map(|(id, _)| {
            let space = SpaceId(id as u16);
            Some((space, self.page_at(space, address)?))
        })
    }

    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        [&self.messages, &self.signals]
            .into_iter()
            .filter_map(|c| c.get())
            .map(|u| u.raw())
            .collect()
    }
}

/// Readies a fresh mapping: small pages, not inherited, faults reported.
fn prepare(uffd: &Userfaultfd, base: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: the mapping was just made and is empty. Kernels without huge pages refuse the first
    // advice and need none.
    unsafe {
        let _ = sys::advise(base, len, libc::MADV_NOHUGEPAGE);
        sys::advise(base, len, libc::MADV_DONTFORK)?;
    }
    uffd.register(base as u64, len)
}

impl Drop for Areas {
    fn drop(&mut self) {
        for area in self.areas.iter().filter_map(OnceLock::get) {
            // SAFETY: the platform goes, and the program that used the space with it.
            unsafe { sys::unmap(area.base, area.len) };
        }
    }
}
