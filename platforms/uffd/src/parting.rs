//! Pages that a fork has left mapped in several processes ("common" pages), until they part: a page
//! parts when it stops being shared, because it is evicted from this process or written to.
//!
//! ```text
//! guard        write-protects pages: a store to one is a fault that the manager serves
//! allow_write  counts pages that another process maps; the kernel copies them at the store
//! take_out     counts such pages, too: they stay in memory for the other processes
//! ```
//! Without guard, the kernel copies a page in a minor fault that the manager does not see.
//!
//! Evicting a common page frees no memory until all processes have evicted it. So under guard other
//! pages are evicted first.

use crate::api::{Userfaultfd, Wake, Writes};
use crate::residency::Residence;
use crate::uffd::Uffd;
use highwater_platform::UNMAP_PAGES_MAX;
use highwater_units::{PAGE_SIZE, SpaceId, Vpn};
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// How many common pages are kept before some are evicted, ...
const KEPT_MAX: usize = 1024;

/// ... and how many each other page in a batch takes off that count: if other pages are fewer than
/// one in this many, finding them costs more than they free.
const KEPT_FOR_OTHER: usize = 32;

/// Which pages of a batch other processes map, too.
pub(crate) struct Commons {
    /// Whether common pages stay in the program.
    keeps: bool,
    common: [bool; UNMAP_PAGES_MAX],
    kept: usize,
    others: usize,
}

impl Commons {
    /// Pages not examined count as common. `keeps`: common pages stay in the program.
    pub(crate) fn new(keeps: bool) -> Commons {
        Commons { keeps, common: [true; UNMAP_PAGES_MAX], kept: 0, others: 0 }
    }

    /// Records a page; returns whether it stays in the program.
    pub(crate) fn note(&mut self, index: usize, found: &Residence) -> bool {
        self.common[index] = !found.is_exclusive;
        let stays = self.keeps && !found.is_exclusive;
        match stays {
            true => self.kept += 1,
            false => self.others += 1,
        }
        stays
    }

    /// Whether another process may map a page.
    pub(crate) fn has(&self, index: usize) -> bool {
        self.common[index]
    }

    /// The count of kept pages after a batch, if it was `before` before the batch.
    fn kept_after(&self, before: usize) -> usize {
        (before + self.kept).saturating_sub(KEPT_FOR_OTHER * self.others)
    }
}

impl Uffd {
    /// Starts the guard: from now on a store to a page of the space is counted in
    /// [`Uffd::pages_parted`], if another process maps the page. The pages of `parts` (first, after
    /// the last) are write-protected, so that the stores fault.
    ///
    /// # Errors
    /// The system's first refusal; all parts that it does not refuse are protected.
    pub fn guard(&self, space: SpaceId, parts: &[(Vpn, Vpn)]) -> io::Result<()> {
        self.guards.store(true, SeqCst);
        self.protect_all(self.areas.uffd(space), space, parts)
    }

    /// Write-protects pages that are registered with `uffd`.
    pub(crate) fn protect_all(
        &self,
        uffd: &Userfaultfd,
        space: SpaceId,
        parts: &[(Vpn, Vpn)],
    ) -> io::Result<()> {
        let protect = |(first, end): &(Vpn, Vpn)| {
            let address = self.areas.address(space, *first) as u64;
            let len = (end.0 - first.0) as usize * PAGE_SIZE;
            uffd.protect(address, len, Writes::Reported, Wake::Later)
        };
        // A part may fail because the program has unmapped it; the others are still protected.
        parts.iter().map(protect).fold(Ok(()), io::Result::and)
    }

    /// Ends the guard: no page is shared any more. Stores to pages that are still protected fault
    /// once.
    pub fn end_guard(&self) {
        self.guards.store(false, SeqCst);
    }

    /// Whether stores are counted.
    pub fn is_guarded(&self) -> bool {
        self.guards.load(Relaxed)
    }

    /// Pages that another process may have mapped when they were evicted from the program, or
    /// written to under guard.
    pub fn pages_parted(&self) -> u64 {
        self.stage.parted()
    }

    /// Counts the common pages among pages that are about to be written to.
    pub(crate) fn count_stores(&self, address: u64, pages: usize) {
        if self.is_guarded() {
            let found = self.residency.of(address, pages);
            let common = found[..pages].iter().filter(|page| !page.is_exclusive).count();
            self.stage.count_parted(common);
        }
    }

    /// Whether common pages stay in the program now; false if the system does not show which pages
    /// are common.
    pub(crate) fn keeps_common(&self) -> bool {
        let is_shown = self.residency.descriptor().is_some();
        self.is_guarded() && is_shown && self.kept.load(Relaxed) < KEPT_MAX
    }

    /// Records the result of a batch.
    pub(crate) fn note_kept(&self, batch: &Commons) {
        if self.is_guarded() {
            self.kept.store(batch.kept_after(self.kept.load(Relaxed)), Relaxed);
        }
    }

    /// Counts a page that is about to be dropped, if it may be common.
    pub(crate) fn count_leaving(&self, address: u64) {
        match self.is_guarded() {
            true => self.count_stores(address, 1),
            // Without guard a scan is not worth it: the page may be common.
            false => self.stage.count_parted(1),
        }
    }
}
