//! Code and constants: segments of executables and libraries that are not written to.
//!
//! ```text
//! Code::own      __ehdr_start ----\
//! Code::loaded   dl_iterate_phdr -+-> program headers -> Code: segments that are not written to
//! Code::unmap    /proc/self/pagemap: a page of the file: MADV_DONTNEED
//!                                    a page of the process's own: stays as it is
//! ```
//! Most of the code that a process runs while it starts it never runs again, but the pages stay
//! mapped and count for it. The next access to an unmapped page maps it from the page cache again,
//! with up to 15 pages around it or, from Linux 6.18, the large folio that it lies in.
//!
//! The linker's symbol finds the own object without the dynamic loader, whose lock a thread of the
//! program may hold.
//!
//! Locks: none. A page that is written to between the lookup and the call would lose the write. So
//! the caller excludes changes of these mappings meanwhile; while they do not change, nothing but a
//! debugger can write to them.

use highwater_units::{Bytes, PAGE_SIZE};
use libc::{c_int, c_void, dl_phdr_info, size_t};
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

/// Segments that are remembered: those of some 60 libraries.
const SEGMENTS_MAX: usize = 128;

/// Smaller segments are not worth two system calls: an access maps as many pages at once.
const PAGES_MIN: usize = 16;

/// Pages that are looked up at once.
const PAGES_MAX: usize = 512;

/// Bits of a word of the pagemap.
const OF_FILE: u64 = 1 << 61;
const PRESENT: u64 = 1 << 63;

/// Segments that are not written to: the numbers of their whole pages in the address space.
pub struct Code {
    segments: [Range<usize>; SEGMENTS_MAX],
    len: usize,
}

impl Code {
    const NONE: Code = Code { segments: [const { 0..0 }; SEGMENTS_MAX], len: 0 };

    /// The code of the executable or library that this is linked into.
    pub fn own() -> Code {
        let mut code = Code::NONE;
        let header = &raw const __ehdr_start;
        // SAFETY: the linker places both into a segment that is always mapped and never written to.
        let headers: &[libc::Elf64_Phdr] = unsafe {
            let table = header.byte_add((*header).e_phoff as usize);
            slice::from_raw_parts(table.cast(), (*header).e_phnum.into())
        };
        let first = headers.iter().find(|it| it.p_type == libc::PT_LOAD && it.p_offset == 0);
        if let Some(first) = first {
            code.add(headers, header.expose_provenance() - first.p_vaddr as usize);
        }
        code
    }

    /// The code of the program, and of the libraries that are loaded with it. These are never
    /// unloaded: call this before the program can load others. Allocates nothing.
    pub fn loaded() -> Code {
        let mut code = Code::NONE;
        // SAFETY: the callback gets this code, which lives for the call.
        unsafe { libc::dl_iterate_phdr(Some(add_object), (&raw mut code).cast()) };
        code
    }

    /// Whether it has any of `len` bytes at an address.
    pub fn contains(&self, address: usize, len: usize) -> bool {
        let (first, end) = (address / PAGE_SIZE, address.saturating_add(len).div_ceil(PAGE_SIZE));
        self.segments().any(|pages| first < pages.end && pages.start < end)
    }

    /// Unmaps its pages; returns how many bytes that were. A page that is no longer the file's,
    /// because a debugger has written to it, stays; all pages stay if the system does not show
    /// which ones these are. No thread may change these mappings meanwhile.
    pub fn unmap(&self) -> Bytes {
        let Ok(pagemap) = File::open("/proc/self/pagemap") else { return Bytes(0) };
        let chunks = self.segments().flat_map(|pages| {
            let end = pages.end;
            pages.clone().step_by(PAGES_MAX).map(move |first| first..end.min(first + PAGES_MAX))
        });
        Bytes::of_pages(chunks.map(|pages| unmap_pages(&pagemap, pages)).sum::<usize>() as u64)
    }

    fn segments(&self) -> impl Iterator<Item = &Range<usize>> {
        self.segments[..self.len].iter()
    }

    /// Adds the segments of an object that is loaded at `base`.
    fn add(&mut self, headers: &[libc::Elf64_Phdr], base: usize) {
        let is_constant =
            |it: &&libc::Elf64_Phdr| it.p_type == libc::PT_LOAD && it.p_flags & libc::PF_W == 0;
        for header in headers.iter().filter(is_constant) {
            let first = base + header.p_vaddr as usize;
            let pages = first.div_ceil(PAGE_SIZE)..(first + header.p_memsz as usize) / PAGE_SIZE;
            if pages.len() >= PAGES_MIN && self.len < SEGMENTS_MAX {
                self.segments[self.len] = pages;
                self.len += 1;
            }
        }
    }
}

/// Adds an object's segments.
///
/// # Safety
/// `object` describes a loaded object, and `code` points to a [`Code`].
unsafe extern "C" fn add_object(object: *mut dl_phdr_info, _: size_t, code: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object with so many headers there, and the code of
    // `loaded`, all for this call.
    unsafe {
        let (object, code) = (&*object, &mut *code.cast::<Code>());
        let headers = slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        code.add(headers, object.dlpi_addr as usize);
    }
    0
}

/// Unmaps those of at most [`PAGES_MAX`] pages that are pages of the file; returns their number.
fn unmap_pages(pagemap: &File, pages: Range<usize>) -> usize {
    let mut words = [0; 8 * PAGES_MAX];
    let Some(words) = words.get_mut(..8 * pages.len()) else { return 0 };
    if pagemap.read_exact_at(words, 8 * pages.start as u64).is_err() {
        return 0;
    }
    let is_of_file = |word: &[u8; 8]| {
        let wanted = OF_FILE | PRESENT;
        u64::from_ne_bytes(*word) & wanted == wanted
    };
    let (mut first, mut unmapped) = (pages.start, 0);
    for run in words.as_chunks::<8>().0.chunk_by(|a, b| is_of_file(a) == is_of_file(b)) {
        let address = with_exposed_provenance_mut(first * PAGE_SIZE);
        // SAFETY: pages of a file that nobody has changed: the next access maps the same contents.
        let unmap = || unsafe { madvise(address, run.len() * PAGE_SIZE, Advice::LinuxDontNeed) };
        if is_of_file(&run[0]) && unmap().is_ok() {
            unmapped += run.len();
        }
        first += run.len();
    }
    unmapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;
    use std::sync::atomic::AtomicU8;

    /// The largest folio of the page cache: an access to any of its bytes may map all of it.
    const FOLIO_MAX: usize = 2 << 20;

    /// Enough whole pages that those in the middle share no folio with other constants.
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
        // Writes as a debugger does: the page becomes the process's own copy.
        let memory = File::options().write(true).open("/proc/self/mem").unwrap();
        memory.write_all_at(&[9], second as u64).unwrap();
        assert!(Code::own().unmap() >= Bytes::of_pages(1));
        assert_eq!([first, second].map(is_mapped), [false, true]);
        // SAFETY: a byte of a constant.
        let changed = unsafe { std::ptr::with_exposed_provenance::<u8>(second).read_volatile() };
        assert_eq!((read()[0], changed), (7, 9));
    }

    #[test]
    fn what_is_loaded_has_code_and_constants_but_no_variables() {
        static VARIABLE: AtomicU8 = AtomicU8::new(0);
        let code = Code::loaded();
        let of_libc = libc::strtol as *const () as usize;
        let own = Code::loaded as *const () as usize;
        for constant in [of_libc, own, (&raw const CONSTANTS).addr() + PAGE_SIZE] {
            assert!(code.contains(constant, 1), "{constant:x}");
        }
        let on_stack = 0_u8;
        for variable in [(&raw const VARIABLE).addr(), (&raw const on_stack).addr()] {
            assert!(!code.contains(variable, 1), "{variable:x}");
        }
        let before = own - (64 << 20);
        assert!(code.contains(before, 128 << 20), "it begins before, and ends after");
    }
}
