//! Which pages of this process are there.
//!
//! A page may have vanished: the program dropped it by a call that the manager did not see. A page
//! that the host has swapped out is there: /proc/self/pagemap tells, mincore does not. mincore is
//! for systems that deny that file.

use highwater_units::PAGE_SIZE;
use rustix::io::pread;
use std::fs::File;
use std::os::fd::OwnedFd;

/// Most pages of a question: a block of 2 MiB.
pub(crate) const PAGES_MAX: usize = 512;

const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;

/// The pages of this process.
pub(crate) struct Residency(Option<OwnedFd>);

/// Pages that are there, by number from the first that was asked for.
pub(crate) type Present = [bool; PAGES_MAX];

impl Residency {
    /// Opens /proc/self/pagemap, if the system permits it.
    pub(crate) fn new() -> Residency {
        Residency(File::open("/proc/self/pagemap").ok().map(OwnedFd::from))
    }

    /// Which of `pages` pages from an address on are there; also while the kernel migrates them.
    pub(crate) fn of(&self, address: u64, pages: usize) -> Present {
        self.by_pagemap(address, pages).unwrap_or_else(|| by_mincore(address, pages))
    }

    /// Whether the page at an address is there.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.of(address, 1)[0]
    }

    fn by_pagemap(&self, address: u64, pages: usize) -> Option<Present> {
        let mut words = [0u8; 8 * PAGES_MAX];
        let words = &mut words[..8 * pages];
        let offset = address / PAGE_SIZE as u64 * 8;
        let got = pread(self.0.as_ref()?, &mut *words, offset).ok()?;
        let mut present = [false; PAGES_MAX];
        for (present, word) in present.iter_mut().zip(words[..got].chunks_exact(8)) {
            let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
            *present = word & (PRESENT | SWAPPED) != 0;
        }
        (got == words.len()).then_some(present)
    }
}

fn by_mincore(address: u64, pages: usize) -> Present {
    let mut there = [0u8; PAGES_MAX];
    // SAFETY: mincore writes one byte for each page.
    let asked =
        unsafe { libc::syscall(libc::SYS_mincore, address, pages * PAGE_SIZE, there.as_mut_ptr()) };
    there.map(|there| asked == 0 && there & 1 == 1)
}
