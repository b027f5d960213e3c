//! The instructions by which Go's runtime calls mmap and munmap.
//!
//! ```text
//! before   b8 09 00 00 00         mov $9, %eax     number of the call, in 5 or 7 bytes
//!          0f 05                  syscall
//!          48 3d 01 f0 ff ff      cmp $-4095, %rax
//! after    e8 .. .. .. ..         call stub
//!          66 90                  nop, in 2 or 4 bytes
//! stub     b8 09 00 00 00         mov $9, %eax
//!          49 bb .. (8 bytes)     mov $entry, %r11
//!          41 ff e3               jmp *%r11
//! ```
//! The stubs lie in a page near the program, because calls reach 2 GiB. The assembly source of Go's
//! runtime has had these call sites since Go 1.10.

use super::image::{Image, access_of};
use highwater_os::sys;
use highwater_units::PAGE_SIZE;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr;

/// `syscall`, and the comparison of its result with the largest error.
const CALL: [u8; 8] = [0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
/// Length of `syscall`.
const SYSCALL_LEN: usize = 2;
/// `call`, with a distance of 32 bits.
const CALL_LEN: usize = 5;
/// The system calls to replace.
const NUMBERS: [u32; 2] = [libc::SYS_mmap as u32, libc::SYS_munmap as u32];

/// Instructions that make a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Site {
    number: u32,
    /// From the start of the code.
    offset: usize,
    len: usize,
}

/// The two ways in which Go's assembler loads a number.
fn loads(number: u32) -> [Vec<u8>; 2] {
    let number = number.to_le_bytes();
    [[&[0xb8], &number[..]].concat(), [&[0x48, 0xc7, 0xc0], &number[..]].concat()]
}

/// The sites in `code`.
fn find(code: &[u8]) -> Vec<Site> {
    let is_call = |at: &usize| code[*at..].starts_with(&CALL);
    // Looks for the rarest byte first.
    let calls = (0..code.len()).filter(|at| code[*at] == CALL[0]).filter(is_call);
    let site = |at: usize| {
        NUMBERS.into_iter().find_map(|number| {
            let load = loads(number).into_iter().find(|load| code[..at].ends_with(load))?;
            Some(Site { number, offset: at - load.len(), len: load.len() + SYSCALL_LEN })
        })
    };
    calls.filter_map(site).collect()
}

/// Replaces the program's calls of mmap and munmap by calls of `entry`, which gets the number of
/// the system call in EAX.
///
/// # Errors
/// The program calls in another way, or no memory is near it.
pub(super) fn replace(file: &File, image: &Image, entry: usize) -> Result<(), String> {
    let mut sites = Vec::new();
    for segment in image.loaded().filter(|segment| access_of(segment).contains(ProtFlags::EXEC)) {
        let start = segment.p_vaddr as usize;
        let of_segment = find_in_file(file, segment.p_offset, segment.p_filesz as usize)?;
        sites.extend(of_segment.into_iter().map(|site| (start + site.offset, site)));
    }
    let is_found = |number: &u32| sites.iter().any(|(_, site)| site.number == *number);
    if !NUMBERS.iter().all(is_found) {
        return Err("its Go runtime maps memory in an unknown way".into());
    }
    let lowest = image.loaded().map(|segment| segment.p_vaddr as usize).min().unwrap_or(0);
    let stubs = Stubs::map(lowest, entry)?;
    let failed = |error| format!("its code cannot be changed: {error}");
    sites.into_iter().try_for_each(|(at, site)| stubs.link(at, site)).map_err(failed)
}

/// Reads the code from the file: read in memory, all of it would become resident.
fn find_in_file(file: &File, offset: u64, len: usize) -> Result<Vec<Site>, String> {
    const PART: usize = 1 << 20;
    /// Longer than any site with its comparison.
    const OVERLAP: usize = 16;
    let mut sites = Vec::new();
    let mut part = vec![0; PART + OVERLAP];
    for start in (0..len).step_by(PART) {
        let part = &mut part[..(len - start).min(PART + OVERLAP)];
        file.read_exact_at(part, offset + start as u64).map_err(|error| error.to_string())?;
        let found = find(part).into_iter().filter(|site| site.offset < PART);
        sites.extend(found.map(|site| Site { offset: start + site.offset, ..site }));
    }
    Ok(sites)
}

/// A page of stubs, one for each of [`NUMBERS`].
struct Stubs {
    page: usize,
}

impl Stubs {
    const LEN: usize = 32;

    /// Maps the page at the highest free address below the program.
    fn map(program: usize, entry: usize) -> Result<Stubs, String> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let pages = (1..program / PAGE_SIZE)
            .map(|below| program / PAGE_SIZE * PAGE_SIZE - below * PAGE_SIZE);
        let mut places = pages.map(ptr::with_exposed_provenance_mut);
        // SAFETY: replaces nothing.
        let page =
            places.find_map(|at| unsafe { mmap_anonymous(at, PAGE_SIZE, access, flags).ok() });
        let page = page.ok_or("no memory is free near it")?.cast::<u8>();
        let code: Vec<_> = NUMBERS.into_iter().map(|number| stub(number, entry)).collect();
        for (index, stub) in code.iter().enumerate() {
            // SAFETY: within the page just mapped.
            unsafe { ptr::copy(stub.as_ptr(), page.add(index * Stubs::LEN), stub.len()) };
        }
        // SAFETY: the page just mapped.
        unsafe { sys::protect(page, PAGE_SIZE, libc::PROT_READ | libc::PROT_EXEC) }
            .map_err(|error| error.to_string())?;
        Ok(Stubs { page: page.expose_provenance() })
    }

    /// Makes a site call its stub.
    fn link(&self, at: usize, site: Site) -> Result<(), String> {
        let index = NUMBERS.iter().position(|number| *number == site.number).unwrap_or(0);
        let target = self.page + index * Stubs::LEN;
        let code = call(at, target, site.len).ok_or("it is too long")?;
        let (first, end) =
            (at / PAGE_SIZE * PAGE_SIZE, (at + site.len).next_multiple_of(PAGE_SIZE));
        let pages = ptr::with_exposed_provenance_mut::<u8>(first);
        let protect = |access| {
            // SAFETY: pages of the program's code, which does not run yet.
            unsafe { sys::protect(pages, end - first, access) }.map_err(|error| error.to_string())
        };
        protect(libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: as above; the pages are writable.
        unsafe { ptr::copy(code.as_ptr(), pages.add(at - first), code.len()) };
        protect(libc::PROT_READ | libc::PROT_EXEC)
    }
}

/// Code that jumps to `entry` with the number of a system call in EAX. Changes R11, as a system
/// call does.
fn stub(number: u32, entry: usize) -> Vec<u8> {
    let number = number.to_le_bytes();
    [&[0xb8], &number[..], &[0x49, 0xbb], &entry.to_le_bytes(), &[0x41, 0xff, 0xe3]].concat()
}

/// Code of `len` bytes at `at` that calls `target`. `None`: too far.
fn call(at: usize, target: usize, len: usize) -> Option<Vec<u8>> {
    let distance = target as i64 - (at + CALL_LEN) as i64;
    let distance = i32::try_from(distance).ok()?.to_le_bytes();
    let rest: &[u8] = match len - CALL_LEN {
        2 => &[0x66, 0x90],
        4 => &[0x0f, 0x1f, 0x40, 0x00],
        _ => return None,
    };
    Some([&[0xe8], &distance[..], rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_found_by_number_and_comparison() {
        let short = [&[0xb8, 9, 0, 0, 0][..], &CALL].concat();
        let long = [&[0x48, 0xc7, 0xc0, 11, 0, 0, 0][..], &CALL].concat();
        let other = [&[0xb8, 10, 0, 0, 0][..], &CALL].concat();
        let unchecked = [0xb8, 9, 0, 0, 0, 0x0f, 0x05, 0xc3];
        let code = [&[0x90][..], &short, &other, &unchecked, &long, &CALL].concat();
        let long_at = 1 + short.len() + other.len() + unchecked.len();
        assert_eq!(
            find(&code),
            [Site { number: 9, offset: 1, len: 7 }, Site { number: 11, offset: long_at, len: 9 }]
        );
        for len in 0..short.len() {
            assert!(find(&short[..len]).is_empty(), "cut off after {len} bytes");
        }
    }

    #[test]
    fn sites_are_found_across_parts_of_a_file() {
        let site = [&[0xb8, 9, 0, 0, 0][..], &CALL].concat();
        for at in [(1 << 20) - 3, (1 << 20) - site.len(), 1 << 20, (1 << 20) + 1] {
            let mut code = vec![0x0f; 3 << 20];
            code[at..at + site.len()].copy_from_slice(&site);
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, &[b"head", &code[..]].concat()).unwrap();
            let found = find_in_file(&file, 4, code.len()).unwrap();
            assert_eq!(found, [Site { number: 9, offset: at, len: 7 }], "at {at:#x}");
        }
    }

    #[test]
    fn calls_reach_two_gibibytes_and_are_as_long_as_the_site() {
        assert_eq!(call(0x1000, 0x800, 7).unwrap(), [0xe8, 0xfb, 0xf7, 0xff, 0xff, 0x66, 0x90]);
        assert_eq!(call(0x1000, 0x1005, 9).unwrap()[..6], [0xe8, 0, 0, 0, 0, 0x0f]);
        assert_eq!(call(0x1000, 0x1_0000_0000, 7), None);
        assert_eq!(stub(9, 0x1122_3344_5566_7788).len(), 18);
    }
}
