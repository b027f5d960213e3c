//! The code and the constants of the executable or library that this is linked into.
//!
//! ```text
//! __ehdr_start -> program headers -> segments that are not written to -> /proc/self/pagemap
//!     pages of the file: MADV_DONTNEED         pages of the process's own: left as they are
//! ```
//! Most of what a process runs while it starts it never runs again, but pages stay mapped and count
//! for it. The next access maps the page of the page cache again, and up to 15 around it or, from
//! Linux 6.18, the large folio that it lies in.
//!
//! The linker's symbol finds the own object without the dynamic loader, whose lock a thread of the
//! program may hold. Locks: none.

use highwater_units::{Bytes, PAGE_SIZE};
use rustix::mm::{Advice, madvise};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr::with_exposed_provenance_mut;
use std::slice;

unsafe extern "C" {
    /// The ELF header of this executable or library.
    static __ehdr_start: libc::Elf64_Ehdr;
}

/// Pages that are looked up at once.
const PAGES_MAX: usize = 512;

/// Bits of a word of the pagemap.
const OF_FILE: u64 = 1 << 61;
const PRESENT: u64 = 1 << 63;

/// Unmaps the pages of code and constants; returns how many bytes that were. A page that is no
/// page of the file any more, because a debugger has written to it, stays; so do all if the system
/// does not show which these are.
pub fn give_back_code() -> Bytes {
    let Ok(pagemap) = File::open("/proc/self/pagemap") else { return Bytes(0) };
    let chunks = segments().flat_map(|pages| {
        let end = pages.end;
        pages.step_by(PAGES_MAX).map(move |first| first..end.min(first + PAGES_MAX))
    });
    Bytes::of_pages(chunks.map(|pages| give_back(&pagemap, pages)).sum::<usize>() as u64)
}

/// The whole pages of each segment that is not written to, by their numbers in the address space.
fn segments() -> impl Iterator<Item = Range<usize>> {
    let header = &raw const __ehdr_start;
    // SAFETY: the linker places both into a segment that is always mapped and never written to.
    let segments: &[libc::Elf64_Phdr] = unsafe {
        let table = header.byte_add((*header).e_phoff as usize);
        slice::from_raw_parts(table.cast(), (*header).e_phnum.into())
    };
    let loaded = segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
    let base = loaded.clone().find(|segment| segment.p_offset == 0);
    let base = base.map(|first| header.expose_provenance() - first.p_vaddr as usize);
    loaded.filter(|segment| segment.p_flags & libc::PF_W == 0).filter_map(move |segment| {
        let first = base? + segment.p_vaddr as usize;
        Some(first.div_ceil(PAGE_SIZE)..(first + segment.p_memsz as usize) / PAGE_SIZE)
    })
}

/// Unmaps those of at most [`PAGES_MAX`] pages that are pages of the file; returns their number.
fn give_back(pagemap: &File, pages: Range<usize>) -> usize {
    let mut words = [0; 8 * PAGES_MAX];
    let Some(words) = words.get_mut(..8 * pages.len()) else { return 0 };
    if pagemap.read_exact_at(words, 8 * pages.start as u64).is_err() {
        return 0;
    }
    let is_of_file = |word: &[u8; 8]| {
        let wanted = OF_FILE | PRESENT;
        u64::from_ne_bytes(*word) & wanted == wanted
    };
    let (mut first, mut given) = (pages.start, 0);
    for run in words.as_chunks::<8>().0.chunk_by(|a, b| is_of_file(a) == is_of_file(b)) {
        let address = with_exposed_provenance_mut(first * PAGE_SIZE);
        // SAFETY: pages of a file that nobody has changed: the next access maps the same contents.
        let unmap = || unsafe { madvise(address, run.len() * PAGE_SIZE, Advice::LinuxDontNeed) };
        if is_of_file(&run[0]) && unmap().is_ok() {
            given += run.len();
        }
        first += run.len();
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    /// The largest folio of the page cache: an access to any of its bytes may map all of it.
    const FOLIO_MAX: usize = 2 << 20;

    /// So many whole pages that those in the middle share no folio with other constants.
    #[repr(align(4096))]
    struct Constants([u8; 2 * FOLIO_MAX + 2 * PAGE_SIZE]);

    static CONSTANTS: Constants = Constants([7; 2 * FOLIO_MAX + 2 * PAGE_SIZE]);
    const MIDDLE: [usize; 2] = [FOLIO_MAX, FOLIO_MAX + PAGE_SIZE];

    fn is_mapped(address: usize) -> bool {
        let mut word = [0; 8];
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut word, (address / PAGE_SIZE * 8) as u64).unwrap();
        u64::from_ne_bytes(word) & PRESENT != 0
    }

    #[test]
    fn pages_of_the_file_go_and_those_that_a_debugger_has_written_to_stay() {
        let [first, second] = MIDDLE.map(|at| (&raw const CONSTANTS.0[at]).addr());
        let read = || MIDDLE.map(|at| black_box(&CONSTANTS).0[at]);
        assert_eq!(read(), [7, 7]);
        // As a debugger writes: the page becomes one of the process's own.
        let memory = File::options().write(true).open("/proc/self/mem").unwrap();
        memory.write_all_at(&[9], second as u64).unwrap();
        assert!(give_back_code() >= Bytes::of_pages(1));
        assert_eq!([first, second].map(is_mapped), [false, true]);
        // SAFETY: a byte of a constant.
        let changed = unsafe { std::ptr::with_exposed_provenance::<u8>(second).read_volatile() };
        assert_eq!((read()[0], changed), (7, 9));
    }
}
