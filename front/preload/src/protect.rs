//! mprotect and pkey_mprotect.

use crate::code;
use crate::file_maps;
use crate::process::{Process, SPACE};
use crate::regions::Use;
use crate::signals::Blocked;
use crate::spans::{Holder, Named, Span, fail, kernel, returned};
use highwater_mm::Range;
use libc::{c_int, c_void, size_t};

/// PROT_SEM, which Linux accepts and ignores.
const PROT_SEM: c_int = 8;
const PROT_ALL: c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | PROT_SEM;

/// Of pkey_mprotect: leaves the key as it is.
const NO_KEY: c_int = -1;
/// The key of all memory that has got no other.
const DEFAULT_KEY: c_int = 0;

/// mprotect(2).
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mprotect(address: *mut c_void, len: size_t, access: c_int) -> c_int {
    protect_memory(address as usize, len, access)
}

/// Makes the call, as mprotect returns. The program may have an mprotect of its own.
pub(crate) fn protect_memory(address: usize, len: usize, access: c_int) -> c_int {
    code::note_change(address, len);
    file_maps::note_access(address, len, access);
    match Named::of(address, len) {
        // SAFETY: the program's own mapping, at its request.
        None => returned(unsafe { to_kernel(address, len, access) }),
        Some(_) if access & !PROT_ALL != 0 => fail(libc::EINVAL),
        Some(named) => {
            // As in the kernel: up to the first page that is not mapped.
            let mut spans = named.spans().into_iter();
            returned(spans.try_for_each(|span| protect_span(named.process, &span, access)))
        }
    }
}

/// Protects memory of the kernel's.
///
/// # Safety
/// As for mprotect(2).
unsafe fn to_kernel(address: usize, len: usize, access: c_int) -> Result<(), c_int> {
    // SAFETY: as the caller says.
    unsafe { kernel(libc::SYS_mprotect, [address, len, access as usize, 0, 0, 0]) }.map(drop)
}

/// pkey_mprotect(2). Without a key it is mprotect. Paged memory has no keys: the manager's threads
/// could not read it.
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    len: size_t,
    access: c_int,
    key: c_int,
) -> c_int {
    protect_with_key(address as usize, len, access, key)
}

/// Makes the call, as pkey_mprotect returns.
pub(crate) fn protect_with_key(address: usize, len: usize, access: c_int, key: c_int) -> c_int {
    code::note_change(address, len);
    file_maps::note_access(address, len, access);
    match (Named::of(address, len), key) {
        // SAFETY: the program's own mapping, at its request.
        (None, _) => returned(
            unsafe {
                kernel(libc::SYS_pkey_mprotect, [address, len, access as usize, key as usize, 0, 0])
            }
            .map(drop),
        ),
        (Some(_), NO_KEY | DEFAULT_KEY) => protect_memory(address, len, access),
        (Some(_), _) => fail(libc::EINVAL),
    }
}

fn protect_span(process: &Process, span: &Span, access: c_int) -> Result<(), c_int> {
    match span.holder {
        Holder::Unused => Err(libc::ENOMEM),
        // SAFETY: the program's own mapping, at its request.
        Holder::Kernel => unsafe { to_kernel(span.start, span.len, access) },
        Holder::Served(range, used_as) => {
            let access = file_access(process, range, used_as, access);
            set_access(process, range, access)
        }
    }
}

/// Protects pages of the range.
pub(crate) fn set_access(process: &Process, range: Range, access: c_int) -> Result<(), c_int> {
    let _blocked = Blocked::now();
    let access = access & !PROT_SEM;
    let changed = process.manager.platform().protect(SPACE, range.first, range.end, access);
    changed.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))
}

/// The protection for pages of a region when the program requests `access`. Pages of a file are
/// never writable; any other access makes the mapping the kernel's.
fn file_access(process: &Process, range: Range, used_as: Use, access: c_int) -> c_int {
    match access {
        libc::PROT_NONE => access,
        libc::PROT_READ => match used_as {
            Use::File(_) => libc::PROT_READ | libc::PROT_WRITE,
            _ => access,
        },
        _ => {
            process.hand_over(range);
            access
        }
    }
}
