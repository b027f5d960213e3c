//! mmap and munmap, for the range and for what is to be in it.
//!
//! ```text
//! anonymous, private, not executable -> the range: at the hint, if that is free there
//!       hint elsewhere  < 64 KiB, or the program insists --> the kernel
//!       no room for it ------------------------------------> the kernel
//! file, for reading ---> files.rs
//! all others ----------> the kernel; at addresses of the range in place of what is there
//! ```
//! A hint elsewhere is not followed, because what lies there is not paged: engines of JavaScript,
//! Java's heap and allocators give hints and take what they get. A program that gives such a
//! mapping back as it got it insists ([`Hints`]): Java's ZGC does, which needs certain bits.

use crate::advise::populate;
use crate::files;
use crate::process::{self, Commit, PAGED_MIN, Process, pages_of};
use crate::protect::set_access;
use crate::ranges::Over;
use crate::regions::Use;
use crate::spans::{Named, refuse, result_of, returned};
use highwater_mm::Range;
use highwater_units::PAGE_SIZE;
use libc::{c_int, c_void, off_t, size_t};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// mmap refuses other bits where mprotect does, and some it ignores.
const PROT_ALL: c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
/// Below this hints are wishes for small pointers (Java's), which programs can do without.
const INSISTED_MIN: usize = 1 << 40;
/// Nothing is aligned to more, for the sake of a hint.
const ALIGN_MAX: usize = 1 << 30;

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

/// What became of hints.
#[derive(Default)]
pub(crate) struct Hints {
    /// Where the last mapping went whose hint was not followed, ...
    elsewhere: AtomicU64,
    /// ... and its bytes.
    len: AtomicU64,
    insists: AtomicBool,
}

impl Hints {
    fn turned_down(&self, address: usize, len: usize) {
        self.elsewhere.store(address as u64, Relaxed);
        self.len.store(len as u64, Relaxed);
    }

    /// A mapping is given back.
    fn note_unmapped(&self, address: usize, len: usize) {
        let found = [self.elsewhere.load(Relaxed), self.len.load(Relaxed)];
        if found == [address as u64, len as u64] {
            self.insists.store(true, Relaxed);
        }
    }

    /// Whether a mapping is worth less than its place.
    fn are_followed(&self, hint: usize, len: usize) -> bool {
        len < PAGED_MIN || hint >= INSISTED_MIN && self.insists.load(Relaxed)
    }
}

/// What mmap(2) is called with.
#[derive(Clone, Copy)]
struct Call {
    address: usize,
    len: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
}

impl Call {
    fn kernel(&self) -> Result<usize, c_int> {
        let Call { address, len, access, flags, fd, offset } = *self;
        let call = libc::SYS_mmap;
        // SAFETY: the kernel's mmap, as the program asks for it; fixed ones over pages of the range
        // that are changing, for that.
        let mapped = unsafe { libc::syscall(call, address, len, access, flags, fd, offset) };
        result_of(mapped).map(|address| address as usize)
    }

    fn is_fixed(&self) -> bool {
        self.flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0
    }

    fn over(&self) -> Over {
        match self.flags & libc::MAP_FIXED_NOREPLACE {
            0 => Over::Anything,
            _ => Over::Nothing,
        }
    }

    /// The request without its place, and without what takes long.
    fn anywhere(&self) -> Call {
        let barred = libc::MAP_FIXED
            | libc::MAP_FIXED_NOREPLACE
            | libc::MAP_POPULATE
            | libc::MAP_LOCKED
            | libc::MAP_GROWSDOWN;
        Call { address: 0, flags: self.flags & !barred, ..*self }
    }

    fn request(&self) -> Request {
        let plain = self.flags & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
        match (self.offset as usize).is_multiple_of(PAGE_SIZE) {
            true => decide(self.len, self.access, plain),
            false => Request::Kernel,
        }
    }
}

/// mmap(2).
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let call = Call { address: address as usize, len, access, flags, fd, offset };
    let mapped = if call.is_fixed() { map_at(call) } else { map(call) };
    mapped.map_or_else(refuse, |address| address as *mut c_void)
}

/// mmap64(2), the same.
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
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

fn map(call: Call) -> Result<usize, c_int> {
    let Request::Paged(commit) = call.request() else {
        let Call { len, access, flags, fd, offset, .. } = call;
        let request = files::Request { len, access, flags, fd, offset };
        let served = files::is_wanted(&request).then(process::get_for_files).flatten();
        return match served.and_then(|process| process.map_file(request)) {
            Some(address) => Ok(address as usize),
            None => call.kernel(),
        };
    };
    let Some(process) = process::get() else { return call.kernel() };
    if !process.can_hold(pages_of(call.len), commit) {
        return Err(libc::ENOMEM);
    }
    let Some(range) = place(process, call) else { return call.kernel() };
    let access = call.access & PROT_ALL;
    if access != libc::PROT_READ | libc::PROT_WRITE {
        set_access(process, range, access).inspect_err(|_| process.release(range))?;
    }
    if call.flags & libc::MAP_POPULATE != 0 && access & libc::PROT_READ != 0 {
        populate(process, range);
    }
    Ok(process.address(range.first) as usize)
}

/// Takes pages for a mapping: at its hint, if they are free there. `None`: it is to be elsewhere.
fn place(process: &Process, call: Call) -> Option<Range> {
    let hint = call.address.checked_next_multiple_of(PAGE_SIZE).unwrap_or(0);
    let pages = pages_of(call.len);
    let take = |align| process.take(pages, align, Use::Mapping, Commit::Unchecked);
    if hint == 0 {
        return take(1);
    }
    match Named::of(hint, call.len).map(|named| named.whole()) {
        Some(Some(range)) if process.take_at(range, Use::Mapping) => Some(range),
        Some(_) => take(1),
        None if process.hints.are_followed(hint, call.len) => None,
        None => {
            let most = call.len.checked_next_power_of_two().unwrap_or(PAGE_SIZE).min(ALIGN_MAX);
            let align = (1 << hint.trailing_zeros()).min(most.max(PAGE_SIZE));
            let range = aligned(process, pages, align / PAGE_SIZE)?;
            process.hints.turned_down(process.address(range.first) as usize, call.len);
            Some(range)
        }
    }
}

/// Takes pages at an address that is a multiple of `align` pages. That of the range need not be.
fn aligned(process: &Process, pages: u64, align: usize) -> Option<Range> {
    let base = process.extent().0 as usize / PAGE_SIZE;
    let whole = process.take(pages + align as u64 - 1, 1, Use::Mapping, Commit::Unchecked)?;
    let first = base + whole.first.0 as usize;
    let skipped = (first.next_multiple_of(align) - first) as u64;
    let kept = whole.first.offset(skipped);
    let range = Range { first: kept, end: kept.offset(pages) };
    let around = [(whole.first, range.first), (range.end, whole.end)];
    for (first, end) in around.into_iter().filter(|(first, end)| first < end) {
        process.release(Range { first, end });
    }
    Some(range)
}

/// MAP_FIXED and its kin.
fn map_at(call: Call) -> Result<usize, c_int> {
    let Some(named) = Named::of(call.address, call.len) else { return call.kernel() };
    match (call.request(), named.whole()) {
        (Request::Paged(_), Some(range)) => map_paged(named.process, range, call),
        _ => map_foreign(&named, call),
    }
}

fn map_paged(process: &Process, range: Range, call: Call) -> Result<usize, c_int> {
    let access = call.access & PROT_ALL;
    let mut result = Err(libc::EEXIST);
    process.replace(range, call.over(), Use::Mapping, || {
        result = set_access(process, range, access);
        result.ok()
    });
    result?;
    if call.flags & libc::MAP_POPULATE != 0 && access & libc::PROT_READ != 0 {
        populate(process, range);
    }
    Ok(call.address)
}

/// Maps what cannot be paged over pages of the range. What the kernel refuses changes nothing.
fn map_foreign(named: &Named, call: Call) -> Result<usize, c_int> {
    let trial = call.anywhere().kernel()?;
    // SAFETY: just made, and given to nobody.
    unsafe { libc::syscall(libc::SYS_munmap, trial, call.len) };
    if call.over() == Over::Nothing {
        claim_outside(named)?;
    }
    let fixed = call.flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
    let mut result = Err(libc::EEXIST);
    named.process.replace(named.pages(), call.over(), Use::Foreign, || {
        result = Call { flags: fixed, ..call }.kernel();
        result.ok()
    });
    if result.is_err() && call.over() == Over::Nothing {
        unmap_outside(named)?;
    }
    result
}

/// Maps what lies before and after the range, if nothing is there.
fn claim_outside(named: &Named) -> Result<(), c_int> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let access = libc::PROT_NONE;
    let parts = named.outside();
    for (index, (address, len)) in parts.iter().copied().enumerate() {
        let claim = Call { address, len, access, flags, fd: -1, offset: 0 };
        if let Err(error) = claim.kernel() {
            let claimed = parts[..index].iter();
            // SAFETY: made by the turns before.
            claimed.for_each(|(at, len)| unsafe {
                libc::syscall(libc::SYS_munmap, *at, *len);
            });
            return Err(error);
        }
    }
    Ok(())
}

fn unmap_outside(named: &Named) -> Result<(), c_int> {
    named.outside().into_iter().try_for_each(|(address, len)| {
        // SAFETY: the program's own mapping, at its request.
        result_of(unsafe { libc::syscall(libc::SYS_munmap, address, len) }).map(drop)
    })
}

/// munmap(2).
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    let Some(named) = Named::of(address as usize, len) else {
        // SAFETY: the program's own mapping, at its request.
        return unsafe { libc::syscall(libc::SYS_munmap, address, len) as c_int };
    };
    named.process.hints.note_unmapped(address as usize, len);
    // First, for the kernel may refuse it.
    returned(unmap_outside(&named).inspect(|()| named.process.release(named.pages())))
}
