//! Code and constants: segments of executables and libraries that are not written to.
//!
//! ```text
//! Code::own      __ehdr_start ------------------\
//! Code::loaded   dl_iterate_phdr -- each_object -+-> Object: its segments -> Code
//! Code::unmap -- Unmapper: /proc/self/pagemap
//!                          a page of the file: MADV_DONTNEED
//!                          a page of the process's own: stays as it is
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
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
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

/// Tags and a flag of a dynamic section.
const DT_NULL: u64 = 0;
const DT_TEXTREL: u64 = 22;
const DT_FLAGS: u64 = 30;
const DF_TEXTREL: u64 = 4;

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
            let base = header.expose_provenance() - first.p_vaddr as usize;
            code.add(&Object { headers, base });
        }
        code
    }

    /// The code of the program, and of the libraries that are loaded with it. These are never
    /// unloaded: call this before the program can load others. Allocates nothing.
    pub fn loaded() -> Code {
        let mut code = Code::NONE;
        each_object(&mut |object| {
            code.add(object);
            ControlFlow::Continue(())
        });
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
        let Ok(unmapper) = Unmapper::open() else { return Bytes(0) };
        Bytes(self.segments().map(|pages| unmapper.unmap(pages.clone()).0).sum())
    }

    fn segments(&self) -> impl Iterator<Item = &Range<usize>> {
        self.segments[..self.len].iter()
    }

    /// Adds the segments of an object.
    fn add(&mut self, object: &Object<'_>) {
        for pages in object.segments().filter(|pages| pages.len() >= PAGES_MIN) {
            if self.len < SEGMENTS_MAX {
                self.segments[self.len] = pages;
                self.len += 1;
            }
        }
    }
}

/// An executable or library in memory.
pub struct Object<'a> {
    headers: &'a [libc::Elf64_Phdr],
    base: usize,
}

impl Object<'_> {
    /// Its segments that are not written to: the numbers of their whole pages.
    pub fn segments(&self) -> impl Iterator<Item = Range<usize>> {
        let constant = |it: &&libc::Elf64_Phdr| it.p_type == libc::PT_LOAD && !is_written(it);
        self.headers.iter().filter(constant).map(|header| {
            let first = self.base + header.p_vaddr as usize;
            first.div_ceil(PAGE_SIZE)..(first + header.p_memsz as usize) / PAGE_SIZE
        })
    }

    /// Whether the loader writes to these segments while it opens the object (DT_TEXTREL). Only
    /// for objects whose dynamic section is mapped: those of [`each_object`].
    pub fn has_relocated_code(&self) -> bool {
        let dynamic = self.headers.iter().find(|it| it.p_type == libc::PT_DYNAMIC);
        let entries = dynamic.map_or(&[][..], |header| {
            let len = header.p_memsz as usize / size_of::<[u64; 2]>();
            let at = with_exposed_provenance::<[u64; 2]>(self.base + header.p_vaddr as usize);
            // SAFETY: the section that the header describes; only the loader writes to it, before
            // it lists the object.
            unsafe { slice::from_raw_parts(at, len) }
        });
        let used = entries.iter().take_while(|[tag, _]| *tag != DT_NULL);
        used.clone().any(|[tag, value]| match *tag {
            DT_TEXTREL => true,
            DT_FLAGS => value & DF_TEXTREL != 0,
            _ => false,
        })
    }
}

fn is_written(header: &libc::Elf64_Phdr) -> bool {
    header.p_flags & libc::PF_W != 0
}

/// What [`each_object`] calls.
type Visit<'a> = &'a mut dyn FnMut(&Object<'_>) -> ControlFlow<()>;

/// Calls `visit` for the program and its libraries until it breaks off. The dynamic loader's lock
/// is held meanwhile: it unmaps no object that it lists.
pub fn each_object(mut visit: Visit<'_>) {
    // SAFETY: the callback gets this visitor, which lives for the call.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut visit).cast()) };
}

/// Visits an object; returns whether to break off.
///
/// # Safety
/// `object` describes a loaded object, and `visit` points to a [`Visit`].
unsafe extern "C" fn visit_object(
    object: *mut dl_phdr_info,
    _: size_t,
    visit: *mut c_void,
) -> c_int {
    // SAFETY: the loader's description of an object with so many headers there, and the visitor of
    // `each_object`, all for this call.
    let (object, visit) = unsafe { (&*object, &mut *visit.cast::<Visit<'_>>()) };
    // SAFETY: as above.
    let headers = unsafe { slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    c_int::from(visit(&Object { headers, base: object.dlpi_addr as usize }).is_break())
}

/// Unmaps pages of files.
pub struct Unmapper {
    pagemap: File,
}

impl Unmapper {
    /// # Errors
    /// The system does not show which pages are a file's.
    pub fn open() -> io::Result<Unmapper> {
        Ok(Unmapper { pagemap: File::open("/proc/self/pagemap")? })
    }

    /// Unmaps those of the pages that are a file's; returns how many bytes that were. No thread may
    /// change these mappings meanwhile.
    pub fn unmap(&self, pages: Range<usize>) -> Bytes {
        let end = pages.end;
        let chunks = pages.step_by(PAGES_MAX).map(|first| first..end.min(first + PAGES_MAX));
        let unmapped = chunks.map(|pages| unmap_pages(&self.pagemap, pages)).sum::<usize>();
        Bytes::of_pages(unmapped as u64)
    }
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
        let changed = unsafe { with_exposed_provenance::<u8>(second).read_volatile() };
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
