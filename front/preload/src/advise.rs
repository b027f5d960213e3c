//! madvise, process_madvise, posix_madvise, mincore and msync.

use crate::file_maps;
use crate::gate;
use crate::process::{self, Process};
use crate::regions::Use;
use crate::spans::{Holder, Named, Span, fail, kernel, returned};
use highwater_mm::{CollapseError, Range};
use highwater_os::helper::number_in_proc;
use highwater_os::sys::{Advice, MADV_DONTNEED_LOCKED};
use highwater_units::{PAGE_SIZE, Vpn};
use libc::{c_int, c_uchar, c_uint, c_void, size_t, ssize_t};
use std::path::Path;

/// madvise(2).
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    returned(follow(address as usize, len, advice))
}

/// Follows the program's advice about memory, or returns the error number.
pub(crate) fn follow(address: usize, len: usize, advice: c_int) -> Result<(), c_int> {
    if advice == libc::MADV_DONTFORK {
        // A child has something else there.
        file_maps::forget(address, len);
    }
    match Named::of(address, len) {
        None => to_kernel(address, len, advice),
        Some(_) if !is_known(advice) => Err(libc::EINVAL),
        Some(named) if advice == libc::MADV_COLLAPSE && named.has_gaps() => Err(libc::ENOMEM),
        Some(named) => named.each(|span| advise_span(named.process, span, advice)),
    }
}

/// Passes advice about kernel-served memory on to the kernel.
fn to_kernel(address: usize, len: usize, advice: c_int) -> Result<(), c_int> {
    let arguments = [address, len, advice as usize, 0, 0, 0];
    // SAFETY: the program's own mapping, at its request.
    match unsafe { gate::call(libc::SYS_madvise, arguments) } {
        0 => Ok(()),
        error => Err(-error as c_int),
    }
}

/// process_madvise(2). The kernel knows of no page that is swapped out, and lets a process drop
/// none but its own.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: *const libc::iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> ssize_t {
    if process::running().is_none() || flags != 0 || !is_of_this_process(pidfd) {
        let call = libc::SYS_process_madvise;
        // SAFETY: the kernel checks the ranges.
        return unsafe { libc::syscall(call, pidfd, ranges, count, advice, flags) as ssize_t };
    }
    let mut advised = 0;
    for at in 0..count {
        // SAFETY: the caller's array of so many ranges.
        let range = unsafe { ranges.add(at).read() };
        // SAFETY: the program's own memory, at its request.
        let failed = unsafe { madvise(range.iov_base, range.iov_len, advice) != 0 };
        if failed {
            return if advised == 0 { -1 } else { advised as ssize_t };
        }
        advised += range.iov_len;
    }
    advised as ssize_t
}

/// Whether a descriptor is that of this process. Both numbers are those of the PID namespace that
/// /proc shows, which may be another one than the process's.
fn is_of_this_process(pidfd: c_int) -> bool {
    let own = std::fs::read_link("/proc/self").unwrap_or_default();
    own == Path::new(&number_in_proc(pidfd).to_string())
}

/// posix_madvise(3). POSIX_MADV_DONTNEED does nothing: it must not drop contents.
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn posix_madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let posix = [
        libc::POSIX_MADV_NORMAL,
        libc::POSIX_MADV_RANDOM,
        libc::POSIX_MADV_SEQUENTIAL,
        libc::POSIX_MADV_WILLNEED,
    ];
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    if !posix.contains(&advice) {
        return libc::EINVAL;
    }
    let done = match Named::of(address as usize, len) {
        Some(named) => named.each(|span| advise_span(named.process, span, advice)),
        None => to_kernel(address as usize, len, advice),
    };
    // Returns the error number; does not set errno.
    done.err().unwrap_or(0)
}

fn advise_span(process: &Process, span: &Span, advice: c_int) -> Result<(), c_int> {
    match span.holder {
        Holder::Unused => Err(libc::ENOMEM),
        Holder::Served(range, used_as) => advise(process, range, used_as, advice),
        Holder::Kernel => to_kernel(span.start, span.len, advice),
    }
}

/// Whether an advice is followed or ignored.
fn is_known(advice: c_int) -> bool {
    is_done(advice) || is_passed_over(advice)
}

fn is_done(advice: c_int) -> bool {
    matches!(
        advice,
        libc::MADV_DONTNEED
            | MADV_DONTNEED_LOCKED
            | libc::MADV_FREE
            | libc::MADV_POPULATE_READ
            | libc::MADV_POPULATE_WRITE
            | libc::MADV_WILLNEED
            | libc::MADV_COLLAPSE
            | libc::MADV_DONTFORK
            | libc::MADV_DOFORK
            | libc::MADV_WIPEONFORK
            | libc::MADV_KEEPONFORK
            | libc::MADV_DONTDUMP
            | libc::MADV_DODUMP
    )
}

/// Advice about speed or size may be ignored.
fn is_passed_over(advice: c_int) -> bool {
    matches!(
        advice,
        libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_HUGEPAGE
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_MERGEABLE
            | libc::MADV_UNMERGEABLE
    )
}

fn advise(process: &Process, range: Range, used_as: Use, advice: c_int) -> Result<(), c_int> {
    match advice {
        libc::MADV_DONTNEED | MADV_DONTNEED_LOCKED | libc::MADV_FREE => process.discard(range),
        libc::MADV_POPULATE_WRITE if matches!(used_as, Use::File(_)) => return Err(libc::EINVAL),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            return populate_as(process, range, advice);
        }
        libc::MADV_WILLNEED => process.prefetch(range),
        libc::MADV_COLLAPSE if !process.covers(range) => return Err(libc::EINVAL),
        libc::MADV_COLLAPSE => {
            let failed = process.collapse(range).failed;
            return failed.map_or(Ok(()), |error| Err(errno_of(error)));
        }
        // The kernel wipes anonymous pages only.
        libc::MADV_WIPEONFORK if matches!(used_as, Use::File(_)) => return Err(libc::EINVAL),
        libc::MADV_DONTFORK | libc::MADV_DOFORK | libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
            process.advise_fork(range, advice);
        }
        libc::MADV_DONTDUMP => process.dump.follow(range, Advice::LinuxDontDump),
        libc::MADV_DODUMP => process.dump.follow(range, Advice::LinuxDoDump),
        _ => {}
    }
    Ok(())
}

/// MADV_POPULATE: if the protection forbids the access, no page is touched.
fn populate_as(process: &Process, range: Range, advice: c_int) -> Result<(), c_int> {
    let needed = match advice {
        libc::MADV_POPULATE_WRITE => libc::PROT_WRITE,
        _ => libc::PROT_READ,
    };
    let platform = process.manager.platform();
    let parts = platform.protected(process::SPACE, range.first, range.end);
    if parts.iter().any(|(_, _, bits)| bits & needed == 0) {
        return Err(libc::EINVAL);
    }
    populate(process, range);
    Ok(())
}

/// Touches pages to make them present.
pub(crate) fn populate(process: &Process, range: Range) {
    for vpn in range.first.0..range.end.0 {
        // SAFETY: a page of a region of the program; a load waits until it is present.
        unsafe { process.address(Vpn(vpn)).read_volatile() };
    }
}

/// The errno of madvise(2) for a block that cannot become a large page.
fn errno_of(error: CollapseError) -> c_int {
    match error {
        CollapseError::Unsupported | CollapseError::Nothing => libc::EINVAL,
        CollapseError::NoMemory => libc::ENOMEM,
        CollapseError::Busy => libc::EAGAIN,
    }
}

/// mincore(2): a swapped-out page is not resident, nor is one that is unmapped but still in memory.
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mincore(address: *mut c_void, len: size_t, vec: *mut c_uchar) -> c_int {
    let call = libc::SYS_mincore;
    let Some(named) = Named::of(address as usize, len) else {
        // SAFETY: the kernel checks the array.
        return unsafe { libc::syscall(call, address, len, vec) as c_int };
    };
    let start = address as usize;
    let ask = |span: Span| match span.holder {
        Holder::Unused => Err(libc::ENOMEM),
        Holder::Kernel | Holder::Served(..) => {
            let vec = vec.wrapping_add((span.start - start) / PAGE_SIZE);
            // SAFETY: the kernel checks the array.
            unsafe { kernel(call, [span.start, span.len, vec as usize, 0, 0, 0]) }.map(drop)
        }
    };
    returned(named.spans().into_iter().try_for_each(ask))
}

/// msync(2): paged memory has nothing to write.
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn msync(address: *mut c_void, len: size_t, flags: c_int) -> c_int {
    let call = libc::SYS_msync;
    let ways = libc::MS_ASYNC | libc::MS_SYNC;
    match Named::of(address as usize, len) {
        // SAFETY: the program's own mapping, at its request.
        None => unsafe { libc::syscall(call, address, len, flags) as c_int },
        Some(_) if flags & !(ways | libc::MS_INVALIDATE) != 0 || flags & ways == ways => {
            fail(libc::EINVAL)
        }
        Some(named) => returned(named.each(|span| match span.holder {
            Holder::Unused => Err(libc::ENOMEM),
            Holder::Served(..) => Ok(()),
            Holder::Kernel => {
                // SAFETY: the program's own mapping, at its request.
                unsafe { kernel(call, [span.start, span.len, flags as usize, 0, 0, 0]) }.map(drop)
            }
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_maps::Kind;

    #[test]
    fn an_advice_is_followed_or_ignored_or_unknown() {
        for (advice, done, ignored) in [
            (libc::MADV_DONTNEED, true, false),
            (libc::MADV_FREE, true, false),
            (libc::MADV_WIPEONFORK, true, false),
            (libc::MADV_HUGEPAGE, false, true),
            (libc::MADV_COLD, false, true),
            (libc::MADV_REMOVE, false, false),
            (libc::MADV_HWPOISON, false, false),
            (-1, false, false),
        ] {
            assert_eq!((is_done(advice), is_passed_over(advice)), (done, ignored), "{advice}");
        }
        assert!(!(0..256).any(|advice| is_done(advice) && is_passed_over(advice)));
    }

    /// Else the child would unmap pages of a library that is loaded there.
    #[test]
    fn a_mapping_that_a_child_does_not_get_is_forgotten() {
        const MIB: usize = 1 << 20;
        let address = 1 << 46;
        file_maps::add(address, MIB, Kind::Shared);
        assert!(file_maps::contains(address));
        assert_eq!(follow(address, MIB, libc::MADV_DONTFORK), Err(libc::ENOMEM));
        assert!(!file_maps::contains(address));
    }
}
