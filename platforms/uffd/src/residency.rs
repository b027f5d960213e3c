//! Which pages of this process are present, writable, and mapped by no other process.
//!
//! ```text
//! /proc/self/pagemap  There or Gone
//! mincore             There or Doubtful: for processes that may not open that file
//! UFFDIO_COPY         of a Doubtful page, whose entry is held: There or Gone (`settled`)
//! ```
//! A page may have vanished: the program dropped it by a call that the manager did not see. A page
//! that the host has swapped out counts as present, but mincore does not find it.

use crate::api::{Userfaultfd, Wake, Writes};
use crate::descriptor::Descriptor;
use highwater_os::sys::{self, Advice};
use highwater_units::PAGE_SIZE;
use std::fs::File;
use std::os::fd::OwnedFd;

/// The most pages of one query: a block of 2 MiB.
pub(crate) const PAGES_MAX: usize = 512;

/// No other process maps the page.
const EXCLUSIVE: u64 = 1 << 56;
/// The page is write-protected by userfaultfd.
const WRITE_PROTECTED: u64 = 1 << 57;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;

/// Tells which pages of this process are present.
pub(crate) struct Residency(Option<Descriptor>);

/// Whether a page is present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The page is in memory, or the host has swapped it out.
    There,
    /// The page has vanished.
    #[default]
    Gone,
    /// The page is not in memory: it is gone, or swapped out by the host.
    Doubtful,
}

/// The state of a page, as far as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Residence {
    pub(crate) presence: Presence,
    /// The page is present, and a store to it does not fault; false if that cannot be seen.
    pub(crate) is_writable: bool,
    /// The page is in memory, and no other process maps it; false if that cannot be seen.
    pub(crate) is_exclusive: bool,
}

/// Pages by number from the first that was asked for.
pub(crate) type Residences = [Residence; PAGES_MAX];

impl Residency {
    /// Opens /proc/self/pagemap, if the system permits it.
    pub(crate) fn new() -> Residency {
        let pagemap = File::open("/proc/self/pagemap").ok();
        Residency(pagemap.map(|file| Descriptor::new(OwnedFd::from(file))))
    }

    /// As on a system that denies /proc/self/pagemap.
    #[cfg(test)]
    pub(crate) fn without_pagemap() -> Residency {
        Residency(None)
    }

    /// The descriptor of the pagemap.
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        self.0.as_ref()
    }

    /// The states of `pages` pages from an address on; pages under migration by the kernel count as
    /// present.
    pub(crate) fn of(&self, address: u64, pages: usize) -> Residences {
        self.by_pagemap(address, pages).unwrap_or_else(|| by_mincore(address, pages))
    }

    /// Whether the page at an address is certainly present.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.of(address, 1)[0].presence == Presence::There
    }

    fn by_pagemap(&self, address: u64, pages: usize) -> Option<Residences> {
        let mut words = [0u8; 8 * PAGES_MAX];
        let words = &mut words[..8 * pages];
        let offset = address / PAGE_SIZE as u64 * 8;
        let got = self.0.as_ref()?.read_at(words, offset);
        let mut found = [Residence::default(); PAGES_MAX];
        for (found, word) in found.iter_mut().zip(words[..got].chunks_exact(8)) {
            let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
            let is_there = word & (PRESENT | SWAPPED) != 0;
            let presence = if is_there { Presence::There } else { Presence::Gone };
            let is_writable = is_there && word & WRITE_PROTECTED == 0;
            *found = Residence { presence, is_writable, is_exclusive: word & EXCLUSIVE != 0 };
        }
        (got == words.len()).then_some(found)
    }
}

fn by_mincore(address: u64, pages: usize) -> Residences {
    let mut there = [0u8; PAGES_MAX];
    // SAFETY: mincore writes one byte for each page.
    let asked =
        unsafe { libc::syscall(libc::SYS_mincore, address, pages * PAGE_SIZE, there.as_mut_ptr()) };
    let presence = |found: u8| match (asked, found & 1) {
        (0, 1) => Presence::There,
        _ => Presence::Doubtful,
    };
    there.map(|there| Residence { presence: presence(there), ..Residence::default() })
}

/// Decides whether a page of a space is present that mincore did not find, while its entry is held.
/// UFFDIO_COPY of a page of zeros fails if a page is present. If it succeeds, the page has
/// vanished, and the zeros are dropped again. [`Presence::Doubtful`]: this thread cannot ask.
pub(crate) fn settled(uffd: &Userfaultfd, address: u64, zeros: *mut u8) -> Presence {
    // SAFETY: a page of zeros, into a page of the space that cannot come or go meanwhile.
    let copied =
        unsafe { uffd.copy(address, zeros as u64, PAGE_SIZE, Writes::Reported, Wake::Later) };
    match copied {
        Ok(()) => {
            let page = std::ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: the zeros just copied.
            let _ = unsafe { sys::advise(page, PAGE_SIZE, Advice::LinuxDontNeed) };
            Presence::Gone
        }
        Err((_, libc::EEXIST)) => Presence::There,
        // The program has unmapped the page, or has mapped something else there.
        Err((_, libc::ENOENT)) => Presence::Gone,
        Err(_) => Presence::Doubtful,
    }
}
