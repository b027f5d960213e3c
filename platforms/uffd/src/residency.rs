//! Which pages of this process are there, and writable.
//!
//! A page may have vanished: the program dropped it by a call that the manager did not see. A page
//! that the host has swapped out is there: /proc/self/pagemap tells, mincore does not. mincore is
//! for systems that deny that file.

use crate::descriptor::Descriptor;
use highwater_units::PAGE_SIZE;
use std::fs::File;
use std::os::fd::OwnedFd;

/// Most pages of a question: a block of 2 MiB.
pub(crate) const PAGES_MAX: usize = 512;

/// By userfaultfd.
const WRITE_PROTECTED: u64 = 1 << 57;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;

/// The pages of this process.
pub(crate) struct Residency(Option<Descriptor>);

/// The state of a page, as far as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Residence {
    /// It is there.
    pub(crate) is_there: bool,
    /// It is there, and a store to it does not fault; false where that cannot be seen.
    pub(crate) is_writable: bool,
}

/// Pages by number from the first that was asked for.
pub(crate) type Residences = [Residence; PAGES_MAX];

impl Residency {
    /// Opens /proc/self/pagemap, if the system permits it.
    pub(crate) fn new() -> Residency {
        let pagemap = File::open("/proc/self/pagemap").ok();
        Residency(pagemap.map(|file| Descriptor::new(OwnedFd::from(file))))
    }

    /// The descriptor of the pagemap.
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        self.0.as_ref()
    }

    /// Which of `pages` pages from an address on are there; also while the kernel migrates them.
    pub(crate) fn of(&self, address: u64, pages: usize) -> Residences {
        self.by_pagemap(address, pages).unwrap_or_else(|| by_mincore(address, pages))
    }

    /// Whether the page at an address is there.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.of(address, 1)[0].is_there
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
            *found = Residence { is_there, is_writable: is_there && word & WRITE_PROTECTED == 0 };
        }
        (got == words.len()).then_some(found)
    }
}

fn by_mincore(address: u64, pages: usize) -> Residences {
    let mut there = [0u8; PAGES_MAX];
    // SAFETY: mincore writes one byte for each page.
    let asked =
        unsafe { libc::syscall(libc::SYS_mincore, address, pages * PAGE_SIZE, there.as_mut_ptr()) };
    there.map(|there| Residence { is_there: asked == 0 && there & 1 == 1, is_writable: false })
}
