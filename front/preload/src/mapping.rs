//! mmap and its family, for the range and for what is to be in it.
//!
//! Served: anonymous private mappings without execute permission. Calls on addresses outside the
//! range, and kinds of mappings that cannot be paged, go to the kernel as they are.

use crate::files;
use crate::process::{self, Commit, Process, pages_of};
use crate::regions::{Region, Use};
use crate::signals::Blocked;
use highwater_mm::{CollapseError, Range};
use highwater_units::{PAGE_SIZE, Vpn};
use libc::{c_int, c_long, c_void, off_t, size_t};

const FAILED: *mut c_void = libc::MAP_FAILED;

fn fail(errno: c_int) -> c_int {
    // SAFETY: errno is the thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn refuse(errno: c_int) -> *mut c_void {
    fail(errno);
    FAILED
}

/// What is to be done with a request to map memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// Serve it from the range.
    Paged(Commit),
    /// The kernel's business.
    Kernel,
}

/// Decides by kind: what pages can be taken from and given to unnoticed.
fn decide(len: usize, access: c_int, flags: c_int) -> Request {
    let needed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let barred = libc::MAP_FIXED
        | libc::MAP_FIXED_NOREPLACE
        | libc::MAP_GROWSDOWN
        | libc::MAP_STACK
        | libc::MAP_HUGETLB
        | libc::MAP_LOCKED
        | files::MAP_32BIT;
    let kind = flags & libc::MAP_TYPE | flags & libc::MAP_ANONYMOUS;
    match kind == needed && flags & barred == 0 && access & libc::PROT_EXEC == 0 && len > 0 {
        false => Request::Kernel,
        true if flags & libc::MAP_NORESERVE != 0 || access == libc::PROT_NONE => {
            Request::Paged(Commit::Unchecked)
        }
        true => Request::Paged(Commit::Checked),
    }
}

/// mmap(2).
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the kernel's mmap, as asked for.
    let kernel = || unsafe {
        libc::syscall(libc::SYS_mmap, address, len, access, flags, fd, offset) as *mut c_void
    };
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    if fixed {
        let Some(process) = process::holding(address as usize) else {
            return kernel();
        };
        return map_over(process, address as usize, len, access, flags, kernel);
    }
    let Request::Paged(commit) = decide(len, access, flags) else {
        let request = files::Request { len, access, flags, fd, offset };
        let served = files::is_wanted(&request).then(process::get_for_files).flatten();
        return match served.and_then(|process| process.map_file(request)) {
            Some(address) => address.cast(),
            None => kernel(),
        };
    };
    let Some(process) = process::get() else { return kernel() };
    let Some(range) = process.take(pages_of(len), 1, Use::Mapping, commit) else {
        return refuse(libc::ENOMEM);
    };
    if access != libc::PROT_READ | libc::PROT_WRITE && !set_access(process, range, access) {
        process.release(range);
        return refuse(libc::ENOMEM);
    }
    if flags & libc::MAP_POPULATE != 0 {
        populate(process, range);
    }
    process.address(range.first).cast()
}

/// mmap64(2), the same.
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: as for mmap.
    unsafe { mmap(address, len, access, flags, fd, offset) }
}

/// MAP_FIXED inside the range: paged memory is emptied, anything else is mapped over it.
fn map_over(
    process: &Process,
    address: usize,
    len: usize,
    access: c_int,
    flags: c_int,
    kernel: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let Some(range) = range_of(process, address, len) else { return refuse(libc::EINVAL) };
    if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE {
        let blocked = Blocked::now();
        let touched =
            (range.first.0..range.end.0).any(|v| process.regions().find(Vpn(v)).is_some());
        drop(blocked);
        if touched {
            return refuse(libc::EEXIST);
        }
    }
    process.release(range);
    let plain = flags & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    let paged = decide(len, access, plain) != Request::Kernel;
    let used_as = if paged { Use::Mapping } else { Use::Foreign };
    if !process.take_at(range, used_as) || !process.make_ordinary(range) {
        return refuse(libc::ENOMEM);
    }
    match paged {
        true if !set_access(process, range, access) => refuse(libc::ENOMEM),
        true => address as *mut c_void,
        false => kernel(),
    }
}

/// Whole pages of the range from an aligned address; `None` if they are not.
fn range_of(process: &Process, address: usize, len: usize) -> Option<Range> {
    let end = address.checked_add(len.max(1))?.next_multiple_of(PAGE_SIZE);
    let whole = address.is_multiple_of(PAGE_SIZE) && len > 0 && process.holds(end - 1);
    whole.then(|| Range { first: process.page(address), end: process.page(end - 1).offset(1) })
}

fn set_access(process: &Process, range: Range, access: c_int) -> bool {
    let platform = process.manager.platform();
    platform.protect(process::SPACE, range.first, range.end, access).is_ok()
}

/// Touches pages, so that they are present.
fn populate(process: &Process, range: Range) {
    for vpn in range.first.0..range.end.0 {
        // SAFETY: a page of a region of the program; a load waits until it is present.
        unsafe { process.address(Vpn(vpn)).read_volatile() };
    }
}

/// munmap(2).
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    let Some(process) = process::holding(address as usize) else {
        // SAFETY: the program's own mapping, at its request.
        return unsafe { libc::syscall(libc::SYS_munmap, address, len) as c_int };
    };
    match range_of(process, address as usize, len) {
        Some(range) => {
            process.release(range);
            0
        }
        None => fail(libc::EINVAL),
    }
}

/// mprotect(2).
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, len: size_t, access: c_int) -> c_int {
    let Some(process) = process::holding(address as usize) else {
        // SAFETY: the program's own mapping, at its request.
        return unsafe { libc::syscall(libc::SYS_mprotect, address, len, access) as c_int };
    };
    let Some(range) = range_of(process, address as usize, len) else {
        return if len == 0 { 0 } else { fail(libc::EINVAL) };
    };
    let access = file_access(process, range, access);
    let blocked = Blocked::now();
    let platform = process.manager.platform();
    let changed = platform.protect(process::SPACE, range.first, range.end, access);
    drop(blocked);
    changed.map_or_else(|error| fail(error.raw_os_error().unwrap_or(libc::ENOMEM)), |()| 0)
}

/// How pages are to be protected that the program wants to access so. A file's are not writable
/// anyway; what may be done to them beyond that is the kernel's business.
fn file_access(process: &Process, range: Range, access: c_int) -> c_int {
    let covers = |region: &Region| region.range.end >= range.end;
    match access {
        libc::PROT_NONE => access,
        libc::PROT_READ => {
            let region = process.region(range.first).filter(covers);
            let is_file = region.is_some_and(|region| matches!(region.used_as, Use::File(_)));
            if is_file { libc::PROT_READ | libc::PROT_WRITE } else { access }
        }
        _ => {
            process.hand_over(range);
            access
        }
    }
}

/// madvise(2).
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let Some(process) = process::holding(address as usize) else {
        // SAFETY: the program's own mapping, at its request.
        return unsafe { libc::syscall(libc::SYS_madvise, address, len, advice) as c_int };
    };
    let Some(range) = range_of(process, address as usize, len) else {
        return if len == 0 { 0 } else { fail(libc::EINVAL) };
    };
    match is_foreign(process, range) {
        // SAFETY: the program's own mapping, at its request.
        true => unsafe { libc::syscall(libc::SYS_madvise, address, len, advice) as c_int },
        false => advise(process, range, advice),
    }
}

/// Whether all of a range is mapped by the kernel for the program.
fn is_foreign(process: &Process, range: Range) -> bool {
    let region = process.region(range.first).filter(|region| region.range.end >= range.end);
    region.is_some_and(|region| region.used_as == Use::Foreign)
}

/// posix_madvise(3): its only advice that could drop contents does not.
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_madvise(address: *mut c_void, len: size_t, advice: c_int) -> c_int {
    match process::holding(address as usize) {
        Some(process) => {
            let range = range_of(process, address as usize, len);
            if let Some(range) = range.filter(|_| advice == libc::POSIX_MADV_WILLNEED) {
                process.prefetch(range);
            }
            0
        }
        None if advice == libc::POSIX_MADV_DONTNEED => 0,
        // SAFETY: the program's own mapping, at its request.
        None => match unsafe { libc::syscall(libc::SYS_madvise, address, len, advice) } {
            0 => 0,
            // SAFETY: errno is the thread's own; this call returns the number instead.
            _ => unsafe { *libc::__errno_location() },
        },
    }
}

fn advise(process: &Process, range: Range, advice: c_int) -> c_int {
    match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE => {
            process.discard(range);
            0
        }
        libc::MADV_POPULATE_WRITE if process.has_files(range) => fail(libc::EFAULT),
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
            populate(process, range);
            0
        }
        libc::MADV_WILLNEED => {
            process.prefetch(range);
            0
        }
        libc::MADV_COLLAPSE if !process.covers(range) => fail(libc::ENOMEM),
        libc::MADV_COLLAPSE => process.collapse(range).failed.map_or(0, |e| fail(errno_of(e))),
        // What only speaks of speed, size or dumps may be heeded or not.
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP
        | libc::MADV_DOFORK
        | libc::MADV_KEEPONFORK => 0,
        // What a child is to see is not for us to change: the program must hear of it.
        _ => fail(libc::EINVAL),
    }
}

/// What madvise(2) says of a block that cannot be a large page.
fn errno_of(error: CollapseError) -> c_int {
    match error {
        CollapseError::Unsupported | CollapseError::Nothing => libc::EINVAL,
        CollapseError::NoMemory => libc::ENOMEM,
        CollapseError::Busy => libc::EAGAIN,
    }
}

/// mremap(2).
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_len: size_t,
    len: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let Some(process) = process::holding(address as usize) else {
        let call = libc::SYS_mremap;
        // SAFETY: the program's own mapping, at its request.
        return unsafe { libc::syscall(call, address, old_len, len, flags, target) as *mut c_void };
    };
    let Some(old) = range_of(process, address as usize, old_len) else {
        return refuse(libc::EINVAL);
    };
    process.hand_over(old);
    if is_foreign(process, old) {
        return move_foreign(process, old, len, flags, target);
    }
    match flags {
        _ if len == 0 => refuse(libc::EINVAL),
        0 | libc::MREMAP_MAYMOVE => resize(process, old, pages_of(len), flags),
        _ if flags & libc::MREMAP_FIXED != 0 => move_to(process, old, target as usize, len, flags),
        _ if flags & libc::MREMAP_DONTUNMAP != 0 => {
            move_anywhere(process, old, pages_of(len), flags)
        }
        _ => refuse(libc::EINVAL),
    }
}

/// mremap of what the kernel has mapped in the range: out of it, where it cannot stay.
fn move_foreign(
    process: &Process,
    old: Range,
    len: usize,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    if flags & libc::MREMAP_FIXED != 0 && process.holds(target as usize) {
        return refuse(libc::ENOMEM);
    }
    let (address, pages) = (process.address(old.first), old.end.0 - old.first.0);
    let old_len = pages as usize * PAGE_SIZE;
    let call = libc::SYS_mremap;
    // SAFETY: the program's own mapping, at its request.
    let moved = unsafe { libc::syscall(call, address, old_len, len, flags, target) };
    let gone = match moved {
        -1 => return FAILED,
        moved if moved == address as c_long => old.first.offset(pages_of(len).min(pages)),
        _ if flags & libc::MREMAP_DONTUNMAP != 0 => old.end,
        _ => old.first,
    };
    if gone < old.end {
        // Its place is to be the range's again.
        process.release(Range { first: gone, end: old.end });
    }
    moved as *mut c_void
}

fn resize(process: &Process, old: Range, pages: u64, flags: c_int) -> *mut c_void {
    let now = old.end.0 - old.first.0;
    if pages < now {
        process.release(Range { first: old.first.offset(pages), end: old.end });
    }
    if pages <= now || grow(process, old, pages - now) {
        return process.address(old.first).cast();
    }
    match flags & libc::MREMAP_MAYMOVE {
        0 => refuse(libc::ENOMEM),
        _ => move_anywhere(process, old, pages, flags),
    }
}

/// Lengthens the region that ends where `old` does.
fn grow(process: &Process, old: Range, pages: u64) -> bool {
    let blocked = Blocked::now();
    let last = process.regions().find(Vpn(old.end.0 - 1));
    drop(blocked);
    let fits = |region: &Region| region.range.end == old.end && region.used_as == Use::Mapping;
    let tail = Range { first: old.end, end: old.end.offset(pages) };
    pages <= process.manager.capacity_left()
        && last.filter(fits).is_some_and(|region| process.grow(region, pages))
        && process.extend_access(old, tail)
}

fn move_anywhere(process: &Process, old: Range, pages: u64, flags: c_int) -> *mut c_void {
    let grown = pages.saturating_sub(old.end.0 - old.first.0);
    if grown > process.manager.capacity_left() {
        return refuse(libc::ENOMEM);
    }
    match process.take(pages, 1, Use::Mapping, Commit::Unchecked) {
        Some(new) => carry(process, old, new, flags),
        None => refuse(libc::ENOMEM),
    }
}

/// MREMAP_FIXED: only to another place of the range.
fn move_to(process: &Process, old: Range, target: usize, len: usize, flags: c_int) -> *mut c_void {
    let inside = Some(target).filter(|target| process.holds(*target));
    let Some(new) = inside.and_then(|target| range_of(process, target, len)) else {
        // Pages cannot leave the range: nobody would serve them there.
        return refuse(libc::ENOMEM);
    };
    if new.first < old.end && old.first < new.end {
        return refuse(libc::EINVAL);
    }
    process.release(new);
    match process.take_at(new, Use::Mapping) && process.make_ordinary(new) {
        true => carry(process, old, new, flags),
        false => refuse(libc::ENOMEM),
    }
}

/// Moves contents and protections of `old` to `new`, as far as they fit.
fn carry(process: &Process, old: Range, new: Range, flags: c_int) -> *mut c_void {
    let pages = (old.end.0 - old.first.0).min(new.end.0 - new.first.0);
    let kept = Range { first: old.first, end: old.first.offset(pages) };
    process.relocate(kept, new.first);
    if !process.carry_access(kept, new) {
        return refuse(libc::ENOMEM);
    }
    match flags & libc::MREMAP_DONTUNMAP {
        0 => process.release(old),
        _ => process.discard(old),
    }
    process.address(new.first).cast()
}

/// mlock(2): what is paged cannot be kept in memory.
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlock(address: *const c_void, len: size_t) -> c_int {
    lock(libc::SYS_mlock, address, len, 0)
}

/// mlock2(2).
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlock2(address: *const c_void, len: size_t, flags: libc::c_uint) -> c_int {
    lock(libc::SYS_mlock2, address, len, flags)
}

fn lock(call: c_long, address: *const c_void, len: size_t, flags: libc::c_uint) -> c_int {
    match process::holding(address as usize) {
        Some(_) => fail(libc::ENOMEM),
        // SAFETY: the program's own mapping, at its request.
        None => unsafe { libc::syscall(call, address, len, flags) as c_int },
    }
}

/// mlockall(2): it would touch every page of the range.
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    match process::get() {
        Some(_) => fail(libc::ENOMEM),
        // SAFETY: at the program's request.
        None => unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int },
    }
}
