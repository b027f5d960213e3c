//! Takes pages out of programs: a batch of scattered pages with a TLB flush per block of 2 MiB,
//! and one more.
//!
//! ```text
//! of each block of 2 MiB   which pages are there (residency.rs)
//!                          pages that may change: one write protection around them, or a few
//!                          copied to the stage
//! of the batch             dropped with one call (drops.rs)
//! ```
//! The protection also covers the pages between those of the batch: a store to such a page faults,
//! and the manager makes the page writable again ([`highwater_platform::Mmu::allow_write`]). Where
//! many pages in between are writable, the protection leaves a gap.
//!
//! If a page is pinned for I/O, a copy would lose later writes by the device. So if the program may
//! pin pages ([`Uffd::expect_pins`]), pages that may change are moved out instead of copied:
//! UFFDIO_MOVE returns EBUSY for pinned pages (`transit.rs`). Without MOVE (before Linux 6.8) pins
//! cannot be seen.
//!
//! Ranges that are executable and writable are never taken out. Pages of other ranges that the
//! program protected are read in spite of the protection; no protection changes meanwhile.

use crate::api::{Wake, Writes};
use crate::area::Delivery;
use crate::copy::copy_page;
use crate::parting::Commons;
use crate::protect::{Access, Fixed};
use crate::residency::{Presence, Residences, settled};
use crate::transit::{Place, changes};
use crate::uffd::Uffd;
use highwater_os::sys;
use highwater_platform::{Stop, UNMAP_PAGES_MAX, UnmapPage};
use highwater_units::{CpuId, LARGE_PAGES, PAGE_SIZE, SpaceId};
use std::slice;

/// Whether the pages after one that cannot be taken out are still tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// They are taken out.
    Skipped,
    /// They stay in the program.
    Ends,
}

/// How many writable pages between two pages of a batch are protected with them. Each one that is
/// stored to soon costs a fault and a flush; to leave all of them out costs one flush.
const BETWEEN_MAX: usize = 8;

impl Uffd {
    /// Takes pages out of the program, to the stage; sets the result of each.
    pub(crate) fn take_out(&self, pages: &mut [UnmapPage], failure: Failure) {
        let mut places = [(0, 0); UNMAP_PAGES_MAX];
        let places = &mut places[..pages.len()];
        let mut common = Commons::new(match failure {
            Failure::Skipped => self.keeps_common(),
            Failure::Ends => false,
        });
        for (index, (place, page)) in places.iter_mut().zip(pages.iter()).enumerate() {
            *place = (self.areas.address(page.space, page.vpn) as u64, index);
        }
        places.sort_unstable();
        let fixed = self.areas.protections().fix();
        let block = |place: &Place| place.0 / (LARGE_PAGES * PAGE_SIZE) as u64;
        for places in places.chunk_by(|a, b| block(a) == block(b)) {
            self.save(pages, places, &fixed, &mut common);
        }
        if failure == Failure::Ends {
            let good = pages.iter().take_while(|page| page.result.is_ok()).count();
            let rest = pages[good..].iter_mut().skip(1);
            rest.for_each(|page| page.result = Err(Stop::Failed(libc::ECANCELED)));
        }
        let saved = places.iter().filter(|(_, index)| pages[*index].result.is_ok());
        // SAFETY: pages whose contents are on the stage; their entries are held.
        unsafe {
            self.drops.drop_all(
                saved.map(|(address, _)| std::ptr::with_exposed_provenance_mut(*address as usize)),
            );
        }
        let left = |page: &&UnmapPage| matches!(page.result, Ok(()) | Err(Stop::Vanished));
        self.stage.count_dropped(pages.iter().filter(left).count());
        let parted = |(_, index): &&Place| common.has(*index) && left(&&pages[*index]);
        self.stage.count_parted(places.iter().filter(parted).count());
        self.note_kept(&common);
        let cpu = self.topology.current();
        for page in pages.iter().filter(|page| page.result.is_err()) {
            self.stage.release(cpu, &[page.pfn], &self.drops);
        }
    }

    /// Copies pages of one block to the stage. The pages cannot change afterwards.
    fn save(
        &self,
        pages: &mut [UnmapPage],
        places: &[Place],
        fixed: &Fixed<'_>,
        common: &mut Commons,
    ) {
        let (first, last) = (places[0].0, places[places.len() - 1].0);
        let end = last + PAGE_SIZE as u64;
        let found = self.residency.of(first, (end - first) as usize / PAGE_SIZE);
        for (address, index) in places {
            let found = found[(address - first) as usize / PAGE_SIZE];
            let page = &mut pages[*index];
            page.result = self.may_leave(page, *address, found.presence, fixed.at(*address));
            if common.note(*index, &found) && page.result.is_ok() {
                page.result = Err(Stop::Busy);
            }
        }
        if let Some(transit) = self.transit_of_pins() {
            let cpu = self.topology.current();
            let moved = transit.take(pages, places, fixed, cpu, &self.stage, &self.residency);
            self.copy_all(pages, places, fixed, |index| !moved.contains(index));
            return;
        }
        self.hold_still(pages, places, &found);
        self.copy_all(pages, places, fixed, |_| true);
    }

    /// Whether a page is present, and may be taken out of its range.
    fn may_leave(
        &self,
        page: &UnmapPage,
        address: u64,
        found: Presence,
        access: Access,
    ) -> Result<(), Stop> {
        let presence = match found {
            Presence::Doubtful => settled(self.areas.uffd(page.space), address, self.stage.zeros()),
            Presence::There | Presence::Gone => found,
        };
        match (presence, access) {
            (Presence::Gone, _) => Err(Stop::Vanished),
            (Presence::Doubtful, _) | (_, Access::WriteExecute) => Err(Stop::Busy),
            (Presence::There, Access::None | Access::Read | Access::Write) => Ok(()),
        }
    }

    /// Write-protects the pages of a block that may change. A thread that stores to such a page
    /// from here on waits for the page's entry, and then finds the page missing. `found` has the
    /// pages from the first place on.
    fn hold_still(&self, pages: &mut [UnmapPage], places: &[Place], found: &Residences) {
        let page_at = |place: &Place| (place.0 - places[0].0) as usize / PAGE_SIZE;
        let mut changing = [(0, 0); UNMAP_PAGES_MAX];
        let mut count = 0;
        for place in places.iter().filter(|place| changes(&pages[place.1])) {
            changing[count] = *place;
            count += 1;
        }
        let holds = self.holds_are_expected();
        let near = |a: &Place, b: &Place| {
            let between = &found[page_at(a) + 1..page_at(b)];
            // A page between them may be held for a system call from now on.
            let may_protect = between.is_empty() || !holds;
            may_protect && between.iter().filter(|page| page.is_writable).count() <= BETWEEN_MAX
        };
        for stretch in changing[..count].chunk_by(near) {
            self.protect_stretch(pages, stretch);
        }
    }

    /// Write-protects the pages of a stretch, and the pages between them.
    fn protect_stretch(&self, pages: &mut [UnmapPage], stretch: &[Place]) {
        let ((first, index), (last, _)) = (stretch[0], stretch[stretch.len() - 1]);
        let uffd = self.areas.uffd(pages[index].space);
        let protect = |address, len| uffd.protect(address, len, Writes::Reported, Wake::Later);
        if protect(first, (last - first) as usize + PAGE_SIZE).is_ok() {
            return;
        }
        // The program has mapped something else between the pages.
        for (address, index) in stretch {
            if let Err(error) = protect(*address, PAGE_SIZE) {
                pages[*index].result = Err(stop_of(&error));
            }
        }
    }

    /// Copies pages that cannot change to the stage.
    fn copy_all(
        &self,
        pages: &mut [UnmapPage],
        places: &[Place],
        fixed: &Fixed<'_>,
        wanted: impl Fn(usize) -> bool,
    ) {
        let cpu = self.topology.current();
        for (address, index) in places.iter().filter(|(_, index)| wanted(*index)) {
            let page = &mut pages[*index];
            if page.result.is_ok() {
                page.result = self.save_page(page, *address, fixed, cpu);
            }
        }
    }

    /// Copies one page to the stage.
    fn save_page(
        &self,
        page: &UnmapPage,
        address: u64,
        fixed: &Fixed<'_>,
        cpu: CpuId,
    ) -> Result<(), Stop> {
        self.stage.populate(cpu, page.pfn).map_err(|_| Stop::Busy)?;
        let to = self.stage.address(page.pfn);
        // SAFETY: a page of the program that cannot change, to a page of the stage.
        unsafe { self.load_page(page.space, address, to, fixed) }
    }

    /// Copies a page of a space, whose entry the caller holds, to `to`. Fails with
    /// `Stop::Vanished`, or with `Stop::Busy` if the page cannot be read now.
    ///
    /// A load from a vanished page raises SIGBUS, which ends the copy; or it waits for a handler,
    /// which waits for the page's entry. So with handlers the kernel reads the page through
    /// /proc/self/mem, and returns an error. Without that file it waits, too.
    ///
    /// # Safety
    /// `to` has room for a page.
    pub(crate) unsafe fn load_page(
        &self,
        space: SpaceId,
        address: u64,
        to: *mut u8,
        fixed: &Fixed<'_>,
    ) -> Result<(), Stop> {
        if fixed.at(address) == Access::None || self.areas.delivery(space) == Delivery::Handler {
            if self.read_program(address, to, fixed) {
                return Ok(());
            }
            let is_gone = self.residency.of(address, 1)[0].presence == Presence::Gone;
            return Err(if is_gone { Stop::Vanished } else { Stop::Busy });
        }
        let from = std::ptr::with_exposed_provenance(address as usize);
        // SAFETY: room by contract; a readable page of the space.
        if unsafe { copy_page(to, from) } { Ok(()) } else { Err(Stop::Vanished) }
    }

    /// Reads a page of the program into `to`: through /proc/self/mem, which ignores the protection
    /// of the range, and returns an error where a load would raise a signal. If the system denies
    /// that file, process_vm_readv is used, which respects the protection.
    pub(crate) fn read_program(&self, from: u64, to: *mut u8, fixed: &Fixed<'_>) -> bool {
        let got = match &self.own_memory {
            Some(memory) => {
                // SAFETY: a frame the caller holds, a page long; any bytes are a value.
                let to = unsafe { slice::from_raw_parts_mut(to, PAGE_SIZE) };
                memory.read_at(to, from)
            }
            None => read_own(from, to),
        };
        got == PAGE_SIZE || self.read_closed(from, to, fixed)
    }

    /// Reads a page of an inaccessible range by making it readable for a moment.
    fn read_closed(&self, from: u64, to: *mut u8, fixed: &Fixed<'_>) -> bool {
        if self.own_memory.is_some() || fixed.at(from) != Access::None {
            return false;
        }
        let page: *mut u8 = std::ptr::with_exposed_provenance_mut(from as usize);
        let protect = |bits| {
            // SAFETY: a page of the program; `fixed` keeps other threads from changing its
            // protection.
            unsafe { sys::protect(page, PAGE_SIZE, bits) }.is_ok()
        };
        let read = protect(libc::PROT_READ) && read_own(from, to) == PAGE_SIZE;
        protect(libc::PROT_NONE) && read
    }
}

/// The result for a page that could not be protected. Only ENOENT says that the page is missing:
/// with any other error, such as that of a thread without descriptors, the page stays.
fn stop_of(error: &std::io::Error) -> Stop {
    match error.raw_os_error() {
        Some(libc::ENOENT) => Stop::Vanished,
        _ => Stop::Busy,
    }
}

/// Reads a page of this process by process_vm_readv, which each process may call on itself.
fn read_own(from: u64, to: *mut u8) -> usize {
    let piece = |address: *mut u8| libc::iovec { iov_base: address.cast(), iov_len: PAGE_SIZE };
    let from = piece(std::ptr::with_exposed_provenance_mut(from as usize));
    let to = piece(to);
    let own = rustix::process::getpid().as_raw_pid();
    // SAFETY: `to` is a frame that the caller holds; the other address is only looked up.
    let got = unsafe { libc::process_vm_readv(own, &raw const to, 1, &raw const from, 1, 0) };
    usize::try_from(got).unwrap_or(0)
}
