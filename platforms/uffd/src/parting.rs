//! Pages that a fork has left in several processes, until they part: one leaves, or is written to.
//!
//! ```text
//! guard        pages are write-protected: a store to one is a fault of the manager's
//! allow_write  counts those that another process maps; the kernel copies them at the store
//! take_out     counts them, too: they stay in memory for the others
//! ```
//! Without guard, the kernel copies a page in a minor fault that nobody here sees.
//!
//! A page in common that leaves frees nothing, until it has left all processes. So under guard
//! other pages leave first.

use crate::api::{Userfaultfd, Wake, Writes};
use crate::residency::Residence;
use crate::uffd::Uffd;
use highwater_platform::UNMAP_PAGES_MAX;
use highwater_units::{PAGE_SIZE, SpaceId, Vpn};
use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Pages in common that are kept until some leave, ...
const KEPT_MAX: usize = 1024;

/// ... and so many fewer for each other page: to look for a few among many costs more than they
/// free.
const KEPT_FOR_OTHER: usize = 32;

/// Which pages of a batch other processes map, too.
pub(crate) struct Commons {
    /// They are to stay.
    keeps: bool,
    common: [bool; UNMAP_PAGES_MAX],
    kept: usize,
    others: usize,
}

impl Commons {
    /// Pages that were not looked at may be common. `keeps`: those that are common are to stay.
    pub(crate) fn new(keeps: bool) -> Commons {
        Commons { keeps, common: [true; UNMAP_PAGES_MAX], kept: 0, others: 0 }
    }

    /// Notes a page; whether it is to stay.
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

    /// Pages kept after a batch, with `before` before it.
    fn kept_after(&self, before: usize) -> usize {
        (before + self.kept).saturating_sub(KEPT_FOR_OTHER * self.others)
    }
}

impl Uffd {
    /// From now on stores to pages of the space are counted as [`Uffd::pages_parted`], if another
    /// process maps the page. Those of `parts` (first, after the last) are write-protected.
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
        // The program may have unmapped one.
        parts.iter().map(protect).fold(Ok(()), io::Result::and)
    }

    /// Ends the guard: no page is in common any more. Stores to pages that are still protected
    /// fault once.
    pub fn end_guard(&self) {
        self.guards.store(false, SeqCst);
    }

    /// Whether stores are counted.
    pub fn is_guarded(&self) -> bool {
        self.guards.load(Relaxed)
    }

    /// Pages that another process may have mapped when they left the program, or were written to
    /// under guard.
    pub fn pages_parted(&self) -> u64 {
        self.stage.parted()
    }

    /// Pages are about to be written to.
    pub(crate) fn count_stores(&self, address: u64, pages: usize) {
        if self.is_guarded() {
            let found = self.residency.of(address, pages);
            let common = found[..pages].iter().filter(|page| !page.is_exclusive).count();
            self.stage.count_parted(common);
        }
    }

    /// Whether pages in common are to stay now, as far as the system shows which they are.
    pub(crate) fn keeps_common(&self) -> bool {
        let is_shown = self.residency.descriptor().is_some();
        self.is_guarded() && is_shown && self.kept.load(Relaxed) < KEPT_MAX
    }

    /// Notes the result of a batch.
    pub(crate) fn note_kept(&self, batch: &Commons) {
        if self.is_guarded() {
            self.kept.store(batch.kept_after(self.kept.load(Relaxed)), Relaxed);
        }
    }

    /// A page is about to leave.
    pub(crate) fn count_leaving(&self, address: u64) {
        match self.is_guarded() {
            true => self.count_stores(address, 1),
            // Not worth a look.
            false => self.stage.count_parted(1),
        }
    }
}
