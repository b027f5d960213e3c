//! The C library's own malloc, break and syscall(2), even if other libraries define functions of
//! the same names.
//!
//! ```text
//! libc.so.6 in memory: PT_DYNAMIC -> DT_GNU_HASH, DT_SYMTAB, DT_STRTAB -> __libc_malloc ...
//! ```
//! Other mallocs (mimalloc, tcmalloc, jemalloc) also export `__libc_malloc` and its relatives, and
//! the dynamic linker binds to the first definition. So these functions are looked up in the C
//! library's own symbol tables. The lookup neither allocates nor calls anything that does, because
//! malloc may be the caller.

use crate::errno::errno;
use crate::heap::gate::{self, Inside};
use libc::{Elf64_Sym, PT_DYNAMIC, c_char, c_int, c_long, c_void, dl_phdr_info, intptr_t, size_t};
use std::ffi::CStr;
use std::mem::transmute;
use std::ops::Deref;
use std::sync::OnceLock;

/// The C library's functions.
pub(crate) struct Native {
    pub(crate) malloc: unsafe extern "C" fn(size_t) -> *mut c_void,
    pub(crate) calloc: unsafe extern "C" fn(size_t, size_t) -> *mut c_void,
    pub(crate) realloc: unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void,
    pub(crate) free: unsafe extern "C" fn(*mut c_void),
    pub(crate) memalign: unsafe extern "C" fn(size_t, size_t) -> *mut c_void,
    pub(crate) brk: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(crate) sbrk: unsafe extern "C" fn(intptr_t) -> *mut c_void,
    pub(crate) syscall: unsafe extern "C" fn(c_long, ...) -> c_long,
}

static NATIVE: OnceLock<Native> = OnceLock::new();

/// The C library's functions.
#[inline]
pub(crate) fn native() -> &'static Native {
    NATIVE.get_or_init(find)
}

/// The C library's allocator, for one call: a fork waits until the call has returned.
pub(crate) struct CLibrary {
    native: &'static Native,
    #[expect(dead_code, reason = "held, not read")]
    inside: Inside,
}

impl Deref for CLibrary {
    type Target = Native;

    #[inline]
    fn deref(&self) -> &Native {
        self.native
    }
}

#[inline]
pub(crate) fn c_library() -> CLibrary {
    CLibrary { native: native(), inside: gate::enter() }
}

/// Makes a system call by the C library's function, not by this library's of the same name; returns
/// minus the error number if it fails.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn call_by_library(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: as the caller says.
    match unsafe { (native().syscall)(number, a, b, c, d, e, f) } {
        -1 => -(errno() as isize),
        done => done as isize,
    }
}

/// An address in the C library: a function that no other library defines.
pub(crate) fn inside_libc() -> usize {
    libc::gnu_get_libc_version as *const c_void as usize
}

#[cold]
#[allow(clippy::missing_transmute_annotations, reason = "the fields of Native have the types")]
fn find() -> Native {
    let mut search = Search { address: inside_libc(), found: None };
    // SAFETY: the callback gets this search, which lives for the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    let address = |name: &CStr| {
        let found = search.found.as_ref().and_then(|tables| tables.function(name));
        found.unwrap_or_else(|| {
            crate::end::end("functions of the C library are not found: it must be glibc")
        })
    };
    // SAFETY: in every glibc, functions of these names have these types.
    unsafe {
        Native {
            malloc: transmute::<usize, _>(address(c"__libc_malloc")),
            calloc: transmute::<usize, _>(address(c"__libc_calloc")),
            realloc: transmute::<usize, _>(address(c"__libc_realloc")),
            free: transmute::<usize, _>(address(c"__libc_free")),
            memalign: transmute::<usize, _>(address(c"__libc_memalign")),
            brk: transmute::<usize, _>(address(c"brk")),
            sbrk: transmute::<usize, _>(address(c"sbrk")),
            syscall: transmute::<usize, _>(address(c"syscall")),
        }
    }
}

struct Search {
    /// An address in the searched object.
    address: usize,
    found: Option<Tables>,
}

/// Where the dynamic symbols of a loaded object are.
#[derive(Clone, Copy)]
struct Tables {
    base: usize,
    hash: *const u32,
    symbols: *const Elf64_Sym,
    names: *const c_char,
}

/// An entry of PT_DYNAMIC.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

/// Checks whether a loaded object is the searched one.
///
/// # Safety
/// `object` describes a loaded object, and `search` points to a [`Search`].
unsafe extern "C" fn look(object: *mut dl_phdr_info, _: size_t, search: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object and `find`'s search, both for this call.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    // SAFETY: the object has so many headers there.
    let headers =
        unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let base = object.dlpi_addr as usize;
    let holds =
        |start: u64, len: u64| search.address.wrapping_sub(base + start as usize) < len as usize;
    let loaded = |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD;
    if !headers.iter().filter(loaded).any(|header| holds(header.p_vaddr, header.p_memsz)) {
        return 0;
    }
    let dynamic = headers.iter().find(|header| header.p_type == PT_DYNAMIC);
    // SAFETY: a section of a loaded object that stays loaded.
    search.found = dynamic.and_then(|header| unsafe { tables(base, header.p_vaddr as usize) });
    1
}

/// # Safety
/// A dynamic section, ended by DT_NULL, lies `offset` bytes behind the `base` of a loaded object.
unsafe fn tables(base: usize, offset: usize) -> Option<Tables> {
    let (mut hash, mut symbols, mut names) = (None, None, None);
    let mut entry = (base + offset) as *const Dynamic;
    loop {
        // SAFETY: the end has not been reached.
        let Dynamic { tag, value } = unsafe { entry.read() };
        // The loader has added the base where the section is writable.
        let address = if value < base { base + value } else { value };
        match tag {
            DT_NULL => break,
            DT_GNU_HASH => hash = Some(address),
            DT_SYMTAB => symbols = Some(address),
            DT_STRTAB => names = Some(address),
            _ => {}
        }
        entry = entry.wrapping_add(1);
    }
    let (hash, symbols, names) = (hash? as _, symbols? as _, names? as _);
    Some(Tables { base, hash, symbols, names })
}

impl Tables {
    /// The address of a function.
    fn function(&self, name: &CStr) -> Option<usize> {
        let wanted = name
            .to_bytes()
            .iter()
            .fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)));
        // SAFETY: gnu.org's format of the table: a header of four words, a filter of 64-bit words,
        // buckets, and a chain of hashes per bucket, whose last has its lowest bit set. Symbols and
        // names belong to the same object.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|at| *self.hash.add(at) as usize);
            let bucket_at = self.hash.add(4 + 2 * filter);
            let chains = bucket_at.add(buckets);
            let mut index = *bucket_at.add(wanted as usize % buckets) as usize;
            while index >= first {
                let hash = *chains.add(index - first);
                let symbol = &*self.symbols.add(index);
                let same = || CStr::from_ptr(self.names.add(symbol.st_name as usize)) == name;
                if hash | 1 == wanted | 1 && symbol.st_shndx != 0 && same() {
                    return Some(self.base + symbol.st_value as usize);
                }
                if hash & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_where_the_loader_finds_them() {
        let mut search = Search { address: inside_libc(), found: None };
        // SAFETY: as in `find`.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        let tables = search.found.expect("the C library has tables");
        for name in [c"__libc_malloc", c"__libc_free", c"fopen64", c"gnu_get_libc_version"] {
            // SAFETY: looks a name up.
            let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            assert_eq!(tables.function(name), Some(expected as usize), "{name:?}");
        }
        assert_eq!(tables.function(c"__libc_nothing_of_that_name"), None);
    }
}
