//! Maps the segments of a static program, as the kernel does for exec.

use highwater_units::PAGE_SIZE;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::ffi::c_void;
use std::fs::File;
use std::mem::{MaybeUninit, size_of};
use std::os::unix::fs::FileExt;
use std::ptr;

/// Largest number of program headers; Go's linker writes fewer than 16.
const HEADERS_MAX: usize = 64;

/// A program in memory.
pub(super) struct Image {
    /// Address of its first instruction.
    pub(super) entry: usize,
    /// Address of its program headers.
    pub(super) headers: usize,
    pub(super) segments: Vec<libc::Elf64_Phdr>,
}

impl Image {
    /// The segments that are loaded.
    pub(super) fn loaded(&self) -> impl Iterator<Item = &libc::Elf64_Phdr> {
        self.segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD)
    }
}

/// Maps a program that is linked for fixed addresses.
///
/// # Errors
/// The file is no such program, or its addresses are taken.
pub(super) fn map(file: &File) -> Result<Image, String> {
    let header: libc::Elf64_Ehdr = read(file, 0)?;
    if header.e_type != libc::ET_EXEC {
        return Err("it is not linked for fixed addresses".into());
    }
    let count = usize::from(header.e_phnum);
    if count > HEADERS_MAX || usize::from(header.e_phentsize) != size_of::<libc::Elf64_Phdr>() {
        return Err("its program headers are damaged".into());
    }
    let at = |index: usize| header.e_phoff + (index * size_of::<libc::Elf64_Phdr>()) as u64;
    let segments =
        (0..count).map(|index| read(file, at(index))).collect::<Result<Vec<_>, String>>()?;
    let mut image = Image { entry: header.e_entry as usize, headers: 0, segments };
    for segment in image.loaded() {
        load(file, segment).map_err(|error| {
            format!("no memory at {:#x}, where it is to be: {error}", segment.p_vaddr)
        })?;
    }
    let holder = image.loaded().find(|segment| {
        (segment.p_offset..segment.p_offset + segment.p_filesz).contains(&header.e_phoff)
    });
    let headers = holder.map(|segment| segment.p_vaddr + (header.e_phoff - segment.p_offset));
    image.headers = headers.ok_or("its program headers are not loaded")? as usize;
    Ok(image)
}

/// Reads a structure of numbers.
fn read<T: Copy>(file: &File, offset: u64) -> Result<T, String> {
    let mut found = MaybeUninit::<T>::zeroed();
    // SAFETY: as many bytes as the structure has, all zero so far.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(found.as_mut_ptr().cast(), size_of::<T>()) };
    file.read_exact_at(bytes, offset).map_err(|error| format!("it is damaged: {error}"))?;
    // SAFETY: ELF headers are numbers, for which all bytes are valid.
    Ok(unsafe { found.assume_init() })
}

fn load(file: &File, segment: &libc::Elf64_Phdr) -> rustix::io::Result<()> {
    let access = access_of(segment);
    let first = segment.p_vaddr as usize / PAGE_SIZE * PAGE_SIZE;
    let before = segment.p_vaddr as usize - first;
    let of_file = (segment.p_vaddr + segment.p_filesz) as usize;
    let end = (segment.p_vaddr + segment.p_memsz) as usize;
    let mapped_end = match segment.p_filesz {
        0 => first,
        _ => of_file.next_multiple_of(PAGE_SIZE),
    };
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    let at = ptr::with_exposed_provenance_mut::<c_void>;
    if first < mapped_end {
        let offset = segment.p_offset - before as u64;
        // SAFETY: replaces nothing.
        unsafe { mmap(at(first), mapped_end - first, access, flags, file, offset)? };
        if access.contains(ProtFlags::WRITE) && of_file < end {
            // SAFETY: the rest of the last page, which is mapped and writable.
            unsafe { at(of_file).cast::<u8>().write_bytes(0, mapped_end - of_file) };
        }
    }
    if mapped_end < end {
        let len = end.next_multiple_of(PAGE_SIZE) - mapped_end;
        // SAFETY: replaces nothing.
        unsafe { mmap_anonymous(at(mapped_end), len, access, flags)? };
    }
    Ok(())
}

/// The access rights of a segment.
pub(super) fn access_of(segment: &libc::Elf64_Phdr) -> ProtFlags {
    let rights = [
        (libc::PF_R, ProtFlags::READ),
        (libc::PF_W, ProtFlags::WRITE),
        (libc::PF_X, ProtFlags::EXEC),
    ];
    let granted = rights.into_iter().filter(|(flag, _)| segment.p_flags & flag != 0);
    granted.fold(ProtFlags::empty(), |all, (_, right)| all | right)
}
