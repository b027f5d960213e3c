//! Moves pages out of programs that may have pinned them for I/O.
//!
//! A device may write to a pinned page at any time, so a copy of the page may be outdated at once.
//! UFFDIO_MOVE moves the page itself, and returns EBUSY for a pinned page. Pages are moved to a
//! transit area, copied from there to the stage, and dropped. Each call flushes the TLB, so this is
//! used only for programs that may pin pages, and only for pages that may change.
//!
//! Linux 6.18 miscounts a page that its own compaction is migrating: UFFDIO_MOVE waits, moves the
//! page, then tries again and reports that the destination exists. Nothing else fills or empties
//! these addresses meanwhile, so a page that is missing at the source and present at the
//! destination was moved.

use crate::api::{Source, Userfaultfd, Wake, feature};
use crate::protect::{Access, Fixed};
use crate::residency::Residency;
use crate::stage::Stage;
use highwater_os::sys::{self, Advice};
use highwater_platform::{Protection, Stop, UNMAP_PAGES_MAX, UnmapPage};
use highwater_units::{CpuId, PAGE_SIZE};
use std::io;
use std::sync::{Mutex, PoisonError};

/// A page of a batch: its address, and its index in the batch.
pub(crate) type Place = (u64, usize);

/// Whether a page may change while it is copied.
pub(crate) fn changes(page: &UnmapPage) -> bool {
    page.result.is_ok() && page.mapped == Protection::ReadWrite
}

/// The area to which pages are moved: holes, used by one batch at a time.
pub(crate) struct Transit {
    base: *mut u8,
    uffd: Userfaultfd,
    alone: Mutex<()>,
}

// SAFETY: the area is used under its lock only, and lives as long as `self`.
unsafe impl Send for Transit {}
// SAFETY: as above.
unsafe impl Sync for Transit {}

/// Bytes of the area.
const LEN: usize = UNMAP_PAGES_MAX * PAGE_SIZE;

/// Pages of a batch that were moved, by index.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved(u128);

impl Moved {
    pub(crate) fn contains(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }
}

const _: () = assert!(UNMAP_PAGES_MAX <= 128, "a bit for each page of a batch");

impl Transit {
    pub(crate) fn new(source: &Source) -> io::Result<Transit> {
        let uffd = source.open(feature::MOVE | feature::PAGEFAULT_FLAG_WP)?;
        let base = sys::map_anonymous(LEN)?;
        let transit = Transit { base, uffd, alone: Mutex::new(()) };
        // SAFETY: the area was just made.
        unsafe {
            sys::advise(base, LEN, Advice::LinuxDontFork)?;
            let _ = sys::advise(base, LEN, Advice::LinuxNoHugepage);
        }
        transit.uffd.register(base as u64, LEN)?;
        Ok(transit)
    }

    /// The first byte of the area.
    #[cfg(test)]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// The descriptor of the area.
    pub(crate) fn uffd(&self) -> &Userfaultfd {
        &self.uffd
    }

    /// Moves the pages of a block that may change out of the program, and copies them to the stage.
    /// Returns the pages that were moved. A pinned page gets the result Busy.
    pub(crate) fn take(
        &self,
        pages: &mut [UnmapPage],
        places: &[Place],
        fixed: &Fixed<'_>,
        cpu: CpuId,
        stage: &Stage,
        residency: &Residency,
    ) -> Moved {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        for page in pages.iter_mut().filter(|page| changes(page)) {
            page.result = stage.populate(cpu, page.pfn).map_err(|_| Stop::Busy);
        }
        let (mut moved, mut used, mut at) = (Moved::default(), 0, 0);
        while at < places.len() {
            let run = run_from(pages, &places[at..]);
            if run.is_empty() {
                at += 1;
                continue;
            }
            let (done, stop) = self.move_out(used, run, residency);
            for (place, (_, index)) in run[..done].iter().enumerate() {
                let from = self.base.wrapping_add((used + place) * PAGE_SIZE);
                let to = stage.address(pages[*index].pfn);
                // SAFETY: a page that was moved to the area, to a page of the stage.
                unsafe { to.copy_from_nonoverlapping(from, PAGE_SIZE) };
                moved.0 |= 1 << index;
            }
            (at, used) = (at + done, used + done);
            if let (Some(error), Some((address, index))) = (stop, places.get(at)) {
                pages[*index].result = refused(error, fixed.at(*address));
                at += 1;
            }
        }
        // SAFETY: the pages of the area were copied.
        let _ = unsafe { sys::advise(self.base, LEN, Advice::LinuxDontNeed) };
        moved
    }

    /// Moves adjacent pages to the area, from its page `used` on. Returns how many were moved, and
    /// the error of the next page.
    pub(crate) fn move_out(
        &self,
        used: usize,
        run: &[Place],
        residency: &Residency,
    ) -> (usize, Option<i32>) {
        let mut done = 0;
        while done < run.len() {
            let to = self.base as u64 + ((used + done) * PAGE_SIZE) as u64;
            let (from, len) = (run[done].0, (run.len() - done) * PAGE_SIZE);
            // SAFETY: pages of the program whose entries the caller holds, into holes of the area.
            let Err((bytes, error)) = (unsafe { self.uffd.move_pages(to, from, len, Wake::Later) })
            else {
                return (run.len(), None);
            };
            done += bytes / PAGE_SIZE;
            let (to, from) = (to + bytes as u64, from + bytes as u64);
            let uncounted = matches!(error, libc::EEXIST | libc::ENOENT);
            if !uncounted || residency.has(from) || !residency.has(to) {
                return (done, Some(error));
            }
            done += 1;
        }
        (done, None)
    }
}

/// The adjacent pages at the front of `places` that may change; none if the first may not.
fn run_from<'a>(pages: &[UnmapPage], places: &'a [Place]) -> &'a [Place] {
    let first = places[0].0;
    let follows = |(offset, (address, index)): &(usize, &Place)| {
        *address == first + (offset * PAGE_SIZE) as u64 && changes(&pages[*index])
    };
    &places[..places.iter().enumerate().take_while(follows).count()]
}

/// The result for a page that was not moved. A page of a range that the program cannot write to is
/// copied: the protection does not change meanwhile.
fn refused(error: i32, access: Access) -> Result<(), Stop> {
    match (error, access) {
        (libc::EINVAL, Access::None | Access::Read) => Ok(()),
        (libc::ENOENT, _) => Err(Stop::Vanished),
        _ => Err(Stop::Busy),
    }
}

impl Drop for Transit {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` and used by `self` only.
        unsafe { sys::unmap(self.base, LEN) };
    }
}
