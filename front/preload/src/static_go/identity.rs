//! Makes the process the program's in /proc: Go's os.Executable reads /proc/self/exe, and programs
//! start themselves by it.

use highwater_os::sys;
use highwater_units::PAGE_SIZE;
use rustix::process::{PrctlMmMap, configure_virtual_memory_map};
use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::slice;

/// Makes `file` this process's executable, and names the thread after it.
///
/// # Errors
/// The process has neither CAP_CHECKPOINT_RESTORE nor CAP_SYS_ADMIN, or there is no memory.
///
/// # Safety
/// The code of the executable that the kernel has started does not run again.
pub(super) unsafe fn take(file: &File, path: &CStr) -> Result<(), String> {
    // The kernel refuses while parts of the present executable are mapped.
    // SAFETY: as the caller says.
    unsafe { libc::dl_iterate_phdr(Some(detach), ptr::null_mut()) };
    let map = memory_map(file).ok_or("/proc/self/stat is not readable")?;
    // SAFETY: what /proc says of this process changes, and nothing else.
    unsafe { configure_virtual_memory_map(&map) }
        .map_err(|error| format!("/proc/self/exe cannot be made to name it: {error}"))?;
    let name = path.to_bytes_with_nul();
    let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    // SAFETY: a string, of which the kernel takes the first 15 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    Ok(())
}

/// The process's parts as /proc/self/stat has them, with another executable.
fn memory_map(file: &File) -> Option<PrctlMmMap> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses, field 2, may contain blanks.
    let rest = stat.rsplit_once(')')?.1;
    let fields: Vec<u64> =
        rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    let field = |number: usize| fields.get(number - 3).copied();
    // SAFETY: only asks.
    let brk = unsafe { libc::syscall(libc::SYS_brk, 0) };
    Some(PrctlMmMap {
        start_code: field(26)?,
        end_code: field(27)?,
        start_data: field(45)?,
        end_data: field(46)?,
        start_brk: field(47)?,
        brk: brk as u64,
        start_stack: field(28)?,
        arg_start: field(48)?,
        arg_end: field(49)?,
        env_start: field(50)?,
        env_end: field(51)?,
        auxv: ptr::null_mut(),
        auxv_size: 0,
        exe_fd: file.as_raw_fd(),
    })
}

/// Replaces the segments of the executable, which comes first in the linker's list, by copies:
/// the linker reads its tables there. Its code becomes inaccessible. Ends the iteration.
///
/// # Safety
/// `found` is as from dl_iterate_phdr; that code does not run again.
unsafe extern "C" fn detach(
    found: *mut libc::dl_phdr_info,
    _: libc::size_t,
    _: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says.
    let found = unsafe { &*found };
    // SAFETY: as above.
    let segments = unsafe { slice::from_raw_parts(found.dlpi_phdr, usize::from(found.dlpi_phnum)) };
    let loaded = segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
    let ranges: Vec<_> = loaded
        .map(|segment| {
            let start = (found.dlpi_addr + segment.p_vaddr) as usize;
            let end = (start + segment.p_memsz as usize).next_multiple_of(PAGE_SIZE);
            (start / PAGE_SIZE * PAGE_SIZE, end, segment.p_flags)
        })
        .collect();
    for (start, end, flags) in ranges {
        // SAFETY: as the caller says.
        if unsafe { replace(start, end - start, flags) }.is_none() {
            break;
        }
    }
    1
}

/// Replaces pages of a file by private memory with the same contents, or without access if they
/// are code. `None`: no memory.
///
/// # Safety
/// The pages are mapped, and readable unless they are code, which is not used any more.
unsafe fn replace(start: usize, len: usize, flags: u32) -> Option<()> {
    let at = ptr::with_exposed_provenance_mut::<u8>(start);
    if flags & libc::PF_X != 0 {
        // SAFETY: as the caller says.
        return unsafe { sys::map_closed(at, len) }.ok().map(drop);
    }
    let copy = sys::map_anonymous(len).ok()?;
    // SAFETY: `copy` has as many bytes, and the pages are readable.
    unsafe { ptr::copy_nonoverlapping(at, copy, len) };
    let access = if flags & libc::PF_W != 0 { libc::PROT_WRITE } else { 0 } | libc::PROT_READ;
    // SAFETY: the mapping just made.
    unsafe { sys::protect(copy, len, access) }.ok()?;
    let move_flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: puts pages with the same contents in place of these.
    let moved = unsafe { libc::syscall(libc::SYS_mremap, copy, len, len, move_flags, at) };
    (moved > 0).then_some(())
}
