//! Recognises programs that start without this library: those built with a sanitizer, and those
//! linked with musl. And static programs in Go, which the library loads (static_go).
//!
//! A sanitizer has a malloc of its own, detects errors by the memory around its blocks, must be the
//! first library, and relies on fixed addresses. musl's dynamic linker loads this library, too, but
//! has not all functions of the GNU C library that it needs. `highwater run` refuses such programs;
//! a served program starts them without the library. The file's headers are checked before exec,
//! because the program would end before any function of this library runs.
//!
//! As in exec.rs, nothing is allocated. A file that cannot be read counts as any other program.

use crate::{descriptors, go};
use libc::{Elf64_Ehdr, Elf64_Phdr};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd};
use rustix::fs::{Access, Mode, OFlags, Stat, access, fgetxattr, fstat};
use std::ffi::CStr;

/// How a program has to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    AsItIs,
    Without(Reason),
    /// By the library, which loads it. Its code is Go's alone: C code in it, which has headers for
    /// exceptions (PT_GNU_EH_FRAME), would map memory by a C library of its own.
    StaticGo,
}

/// Why a program starts without this library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It is built with the sanitizer of this name.
    Sanitizer(&'static str),
    /// It is linked with musl.
    Musl,
}

/// How the names of musl's dynamic linkers begin.
const MUSL: &[u8] = b"ld-musl";
/// Bytes of the dynamic linker's path that are read.
const LINKER_BYTES: usize = 512;

/// Libraries of sanitizers, by prefix of their name, and the sanitizer.
const SANITIZERS: [(&[u8], &str); 8] = [
    (b"libasan.so", "AddressSanitizer"),
    (b"libtsan.so", "ThreadSanitizer"),
    (b"liblsan.so", "LeakSanitizer"),
    (b"libhwasan.so", "HWAddressSanitizer"),
    (b"libclang_rt.asan", "AddressSanitizer"),
    (b"libclang_rt.tsan", "ThreadSanitizer"),
    (b"libclang_rt.lsan", "LeakSanitizer"),
    (b"libclang_rt.hwasan", "HWAddressSanitizer"),
];
/// The machine of static programs that the library loads.
const MACHINE: u16 = libc::EM_X86_64;
/// Bytes of notes that are read: Go's linker writes two, of about 100 bytes.
const NOTE_BYTES: usize = 256;
/// Bytes of a name that are read: enough to tell these apart.
const NAME_BYTES: usize = 20;

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// Bytes of headers, and of the dynamic section, that are read: 35 segments, 128 entries. Twice as
/// many are on the stack, which may be a thread's of 16 KiB.
const HEAD_BYTES: usize = 2048;

/// How the program at a path has to be started.
pub(crate) fn of(path: &CStr) -> Target {
    if is_of_musl(path.to_bytes()) {
        // Its dynamic linker, as a program: it loads the program that its first argument names.
        return Target::Without(Reason::Musl);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return Target::AsItIs };
    let found = of_file(file.as_fd()).unwrap_or(Target::AsItIs);
    // Not by the C library's close, which another library may have replaced.
    descriptors::close_raw(file.into_raw_fd());
    if found == Target::StaticGo && !can_be_loaded(path) { Target::AsItIs } else { found }
}

/// Whether the kernel would execute a file, and its path names the file after exec, too.
fn can_be_loaded(path: &CStr) -> bool {
    let is_in = |dir: &[u8]| path.to_bytes().starts_with(dir);
    !is_in(b"/proc/") && !is_in(b"/dev/fd/") && access(path, Access::EXEC_OK).is_ok()
}

/// Whether a path is that of musl's dynamic linker.
fn is_of_musl(path: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(MUSL))
}

fn of_file(file: BorrowedFd<'_>) -> Option<Target> {
    let mut buffer = [0; HEAD_BYTES];
    let head = read(file, 0, &mut buffer)?;
    let header: Elf64_Ehdr = at(head, 0)?;
    if !header.e_ident.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let segments = (0..usize::from(header.e_phnum)).map_while(|index| {
        at::<Elf64_Phdr>(head, header.e_phoff as usize + index * size_of::<Elf64_Phdr>())
    });
    let linker = linker_is_of_musl(file, segments.clone());
    if linker == Some(true) {
        return Some(Target::Without(Reason::Musl));
    }
    if let Some(name) = sanitizer(file, segments.clone()) {
        return Some(Target::Without(Reason::Sanitizer(name)));
    }
    let is_static = linker.is_none() && header.e_type == libc::ET_EXEC;
    let is_loaded = is_static
        && header.e_machine == MACHINE
        && !segments.clone().any(|segment| segment.p_type == libc::PT_GNU_EH_FRAME)
        && is_of_go(file, segments)
        && !raises_privileges(file);
    is_loaded.then_some(Target::StaticGo)
}

/// Whether Go's linker has left its note.
#[inline(never)]
fn is_of_go(file: BorrowedFd<'_>, segments: impl Iterator<Item = Elf64_Phdr>) -> bool {
    let mut buffer = [0; NOTE_BYTES];
    let mut notes = segments.filter(|segment| segment.p_type == libc::PT_NOTE);
    notes.any(|segment| {
        let len = (segment.p_filesz as usize).min(NOTE_BYTES);
        read(file, segment.p_offset, &mut buffer[..len]).is_some_and(go::has_note)
    })
}

/// Whether the kernel would give the program another user, another group, or capabilities, which
/// it does not if the library loads it.
#[inline(never)]
fn raises_privileges(file: BorrowedFd<'_>) -> bool {
    let changes = Mode::SUID | Mode::SGID;
    let by_mode = |stat: Stat| Mode::from_raw_mode(stat.st_mode).intersects(changes);
    fstat(file).map_or(true, by_mode)
        || fgetxattr(file, c"security.capability", &mut [0u8; 64][..]).is_ok()
}

/// Whether the dynamic linker that a program names is musl's. `None`: the program is static.
fn linker_is_of_musl(
    file: BorrowedFd<'_>,
    mut segments: impl Iterator<Item = Elf64_Phdr>,
) -> Option<bool> {
    let mut buffer = [0; LINKER_BYTES];
    let linker = segments.find(|segment| segment.p_type == libc::PT_INTERP)?;
    let path = read(file, linker.p_offset, &mut buffer)?;
    Some(is_of_musl(CStr::from_bytes_until_nul(path).ok()?.to_bytes()))
}

/// The sanitizer whose library a program needs.
#[inline(never)]
fn sanitizer(
    file: BorrowedFd<'_>,
    segments: impl Iterator<Item = Elf64_Phdr> + Clone,
) -> Option<&'static str> {
    let mut buffer = [0; HEAD_BYTES];
    let dynamic = segments.clone().find(|segment| segment.p_type == libc::PT_DYNAMIC)?;
    let dynamic = read(file, dynamic.p_offset, &mut buffer)?;
    let entries = (0..).map_while(|index| at::<[u64; 2]>(dynamic, 16 * index));
    let entries = entries.take_while(|[tag, _]| *tag != DT_NULL);
    let [_, names] = entries.clone().find(|[tag, _]| *tag == DT_STRTAB)?;
    let holds = |segment: &Elf64_Phdr| {
        segment.p_type == libc::PT_LOAD && names.wrapping_sub(segment.p_vaddr) < segment.p_filesz
    };
    let segment = segments.into_iter().find(holds)?;
    let names = names - segment.p_vaddr + segment.p_offset;
    let needed = entries.filter(|[tag, _]| *tag == DT_NEEDED);
    needed.into_iter().find_map(|[_, name]| {
        let mut buffer = [0; NAME_BYTES];
        let name = read(file, names + name, &mut buffer)?;
        of_library(name)
    })
}

/// The sanitizer that a library belongs to, by the name of its file.
fn of_library(name: &[u8]) -> Option<&'static str> {
    let found = SANITIZERS.iter().find(|(library, _)| name.starts_with(library));
    found.map(|(_, sanitizer)| *sanitizer)
}

/// Whether a library, by the name of its file, is a sanitizer's.
pub(crate) fn is_of_sanitizer(name: &[u8]) -> bool {
    of_library(name).is_some()
}

/// Reads up to the buffer's length from an offset.
fn read<'a>(file: BorrowedFd<'_>, from: u64, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let len = rustix::io::pread(file, &mut *buffer, from).ok()?;
    buffer.get(..len)
}

/// The value at an offset.
fn at<T: Plain>(bytes: &[u8], from: usize) -> Option<T> {
    let part = bytes.get(from..from.checked_add(size_of::<T>())?)?;
    // SAFETY: the part has the size of T, and any bytes are a valid T.
    Some(unsafe { part.as_ptr().cast::<T>().read_unaligned() })
}

/// Types for which any bytes are valid.
trait Plain: Copy {}

impl Plain for Elf64_Ehdr {}
impl Plain for Elf64_Phdr {}
impl Plain for [u64; 2] {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn other_programs_have_no_reason() {
        for path in [c"/proc/self/exe", c"/bin/sh", c"/etc/passwd", c"/", c"/nonexistent"] {
            assert_eq!(of(path), Target::AsItIs, "{path:?}");
        }
    }

    /// Headers of a program that needs a library: PT_LOAD from 0, PT_DYNAMIC at 0x200, names at
    /// 0x300.
    fn needing(library: &str) -> Vec<u8> {
        let mut bytes = vec![0; 0x400];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, b"\x7fELF\x02\x01\x01");
        put(32, &64u64.to_le_bytes());
        put(56, &2u16.to_le_bytes());
        for (at, kind, offset, len) in
            [(64, libc::PT_LOAD, 0, 0x400u64), (120, libc::PT_DYNAMIC, 0x200u64, 48)]
        {
            put(at, &kind.to_le_bytes());
            put(at + 8, &offset.to_le_bytes());
            // Loaded 0x1000 bytes above its offset in the file.
            put(at + 16, &(offset + 0x1000).to_le_bytes());
            put(at + 32, &len.to_le_bytes());
        }
        let entries = [DT_NEEDED, 1, DT_STRTAB, 0x1300, DT_NULL, 0];
        for (index, word) in entries.iter().enumerate() {
            put(0x200 + 8 * index, &word.to_le_bytes());
        }
        put(0x301, library.as_bytes());
        bytes
    }

    #[test]
    fn sanitizers_are_known_by_the_libraries_a_program_needs() {
        let dir = tempfile::tempdir().unwrap();
        for (library, expected) in [
            ("libasan.so.8", Some("AddressSanitizer")),
            ("libtsan.so.2", Some("ThreadSanitizer")),
            ("libclang_rt.hwasan-x86_64.so", Some("HWAddressSanitizer")),
            ("libc.so.6", None),
            ("", None),
        ] {
            let path = dir.path().join("program");
            std::fs::write(&path, needing(library)).unwrap();
            let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            let expected = expected.map(|name| Target::Without(Reason::Sanitizer(name)));
            assert_eq!(of(&path), expected.unwrap_or(Target::AsItIs), "{library}");
        }
    }

    #[test]
    fn musl_is_known_by_the_name_of_the_dynamic_linker() {
        let dir = tempfile::tempdir().unwrap();
        for (linker, expected) in [
            ("/lib/ld-musl-x86_64.so.1", Some(Reason::Musl)),
            ("ld-musl-aarch64.so.1", Some(Reason::Musl)),
            ("/opt/ld-musl/ld-linux-x86-64.so.2", None),
            ("", None),
        ] {
            // The segment holds the dynamic linker's path instead of the dynamic section.
            let mut bytes = needing("");
            bytes[120..124].copy_from_slice(&libc::PT_INTERP.to_le_bytes());
            bytes[0x200..0x300].fill(0);
            bytes[0x200..0x200 + linker.len()].copy_from_slice(linker.as_bytes());
            let path = dir.path().join("program");
            std::fs::write(&path, bytes).unwrap();
            let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            let expected = expected.map_or(Target::AsItIs, Target::Without);
            assert_eq!(of(&path), expected, "{linker}");
        }
        let itself = of(c"/nonexistent/ld-musl-x86_64.so.1");
        assert_eq!(itself, Target::Without(Reason::Musl));
    }

    /// Headers of a program with Go's note at 0x100.
    fn of_go(kind: u16) -> Vec<u8> {
        let mut bytes = vec![0; 0x200];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &kind.to_le_bytes());
        put(18, &MACHINE.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(64, &libc::PT_NOTE.to_le_bytes());
        put(72, &0x100u64.to_le_bytes());
        put(96, &20u64.to_le_bytes());
        put(0x100, &[4u32, 4, 4].map(u32::to_le_bytes).concat());
        put(0x10c, b"Go\0\0");
        bytes
    }

    #[test]
    fn static_programs_in_go_are_loaded_unless_they_raise_privileges() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        for (kind, mode, expected) in [
            (libc::ET_EXEC, 0o755, Target::StaticGo),
            (libc::ET_EXEC, 0o4755, Target::AsItIs),
            (libc::ET_EXEC, 0o2755, Target::AsItIs),
            (libc::ET_EXEC, 0o644, Target::AsItIs),
            (libc::ET_DYN, 0o755, Target::AsItIs),
        ] {
            std::fs::write(&path, of_go(kind)).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(of(&name), expected, "{kind} {mode:o}");
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        for (at, other) in [(0x10c, b'g'), (18, libc::EM_AARCH64 as u8)] {
            let mut bytes = of_go(libc::ET_EXEC);
            bytes[at] = other;
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(of(&name), Target::AsItIs, "{at:#x}");
        }
    }

    #[test]
    fn cut_off_headers_are_no_error() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let dir = tempfile::tempdir().unwrap();
        for len in [0, 4, 5, 63, 64, 100, 500, 1000] {
            let path = dir.path().join("cut");
            std::fs::write(&path, &bytes[..len]).unwrap();
            let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            assert_eq!(of(&path), Target::AsItIs, "{len} bytes");
        }
    }
}
