//! Whether the program is written in Go. Go's linker leaves a note in the program, by which it is
//! recognised.
//!
//! Go's runtime sets handlers for SIGBUS and SIGSYS by system calls of its own, in place of the
//! handlers that serve faults and trapped calls. So its faults must be served by handler threads,
//! and no filter sees the madvise calls by which it frees memory: pages that are swapped out keep
//! their old contents. After MADV_DONTNEED the runtime relies on zeros (from Go 1.26 on), after
//! MADV_FREE it does not. `GODEBUG=madvdontneed=0`, which `highwater run` sets, chooses MADV_FREE.

use crate::bpf::{AUDIT_ARCH, EQUALS, LOAD, RETURN, branch, op};
use crate::native::call_by_library;
use std::mem::offset_of;
use std::slice;

/// Headers of a note: lengths of name and contents, and the kind.
const HEADER: usize = 12;
/// Lengths in a note are rounded up to a multiple of this.
const ALIGNMENT: usize = 4;

/// Whether Go's linker has made the program that this process runs.
pub(crate) fn is_running() -> bool {
    notes().any(has_note)
}

/// Makes mlockall fail with ENOMEM, as the C library's function does (lock.rs), by a filter that
/// children inherit: the kernel would touch every page of the range before it returned. Go's
/// runtime calls it past the library. Without CAP_SYS_ADMIN there is no filter; most such users may
/// not lock that much.
pub(crate) fn refuse_mlockall() {
    let [number, machine] =
        [offset_of!(libc::seccomp_data, nr), offset_of!(libc::seccomp_data, arch)];
    let mut code = [
        op(LOAD, machine as u32),
        branch(EQUALS, AUDIT_ARCH, 0, 3),
        op(LOAD, number as u32),
        branch(EQUALS, libc::SYS_mlockall as u32, 0, 1),
        op(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32),
        op(RETURN, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    let (set, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW);
    let arguments = [set as usize, flags as usize, (&raw const program) as usize, 0, 0, 0];
    // SAFETY: a filter that lives for the call, and refuses one call of the program's.
    let _ = unsafe { call_by_library(libc::SYS_seccomp, arguments) };
}

/// The segments of notes of the program, which the kernel has mapped. Found without the dynamic
/// loader, whose lock a thread of the program may hold.
fn notes() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: looks numbers up.
    let [table, count] = [libc::AT_PHDR, libc::AT_PHNUM].map(|at| unsafe { libc::getauxval(at) });
    let table = std::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(table as usize);
    let segments: &[libc::Elf64_Phdr] = match table.is_null() {
        true => &[],
        // SAFETY: the kernel says where the program's headers are, which are never unmapped.
        false => unsafe { slice::from_raw_parts(table, count as usize) },
    };
    let of_table = segments.iter().find(|segment| segment.p_type == libc::PT_PHDR);
    let base = of_table.map(|segment| table.addr().wrapping_sub(segment.p_vaddr as usize));
    let notes = segments
        .iter()
        .filter(|segment| segment.p_type == libc::PT_NOTE && segment.p_align == ALIGNMENT as u64);
    notes.filter_map(move |segment| {
        let at = std::ptr::with_exposed_provenance(base?.wrapping_add(segment.p_vaddr as usize));
        // SAFETY: a segment of the program's, which is mapped and never written to.
        Some(unsafe { slice::from_raw_parts(at, segment.p_memsz as usize) })
    })
}

/// Whether Go's note is among these.
pub(crate) fn has_note(mut notes: &[u8]) -> bool {
    let word = |bytes: &[u8]| bytes.first_chunk().map(|word| u32::from_ne_bytes(*word) as usize);
    while let (Some(name_len), Some(len)) = (word(notes), notes.get(4..).and_then(word)) {
        let found = notes.get(HEADER..).and_then(|rest| rest.get(..name_len));
        if found == Some(b"Go\0\0") {
            return true;
        }
        let next = [name_len, len].map(|len| len.next_multiple_of(ALIGNMENT)).iter().sum::<usize>();
        notes = notes.get(HEADER + next..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], contents: &[u8]) -> Vec<u8> {
        let padded = |bytes: &[u8]| {
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            padded
        };
        let words = [name.len() as u32, contents.len() as u32, 4].map(u32::to_ne_bytes);
        [words.concat(), padded(name), padded(contents)].concat()
    }

    #[test]
    fn a_note_is_found_by_its_name() {
        let others = [note(b"GNU\0", b"12345"), note(b"G", b"")].concat();
        let go = note(b"Go\0\0", b"action id");
        assert!(!has_note(&others));
        assert!(has_note(&[others.clone(), go.clone()].concat()));
        assert!(has_note(&[go.clone(), others].concat()));
        for len in 0..go.len().min(HEADER + 4) {
            assert!(!has_note(&go[..len]), "cut off after {len} bytes");
        }
        assert!(!has_note(&[0xff; 64]));
    }

    #[test]
    fn this_program_is_in_rust() {
        assert!(notes().count() > 0 && !is_running());
    }
}
