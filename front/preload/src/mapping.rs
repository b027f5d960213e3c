//! mmap and munmap, inside and outside the range.
//!
//! ```text
//! anonymous, private, not executable -> the range: at the hint, if that is free there
//!       hint elsewhere  < 64 KiB, or the program insists --> the kernel
//!       no room for it ------------------------------------> the kernel
//!       reserved (PROT_NONE, MAP_FIXED_NOREPLACE) at a low address --> refused (hints.rs)
//! file, for reading ---> files.rs
//! all others ----------> the kernel; at addresses of the range in place of what is there
//! ```
//! A hint outside the range is not followed, because memory there is not paged. JavaScript engines,
//! Java's heap and allocators give hints and accept any address. A program that unmaps such a
//! mapping at once insists on its hint (`hints.rs`): Java's ZGC does, because it needs certain
//! address bits. Go's runtime gives it back, too, but in the end accepts any address.

use crate::advise::populate;
use crate::code;
use crate::environment;
use crate::file_maps;
use crate::files;
use crate::go;
use crate::process::{Process, already_running};
use crate::protect::set_access;
use crate::ranges::Over;
use crate::regions::Use;
use crate::spans::{Named, kernel, refuse, returned};
use crate::start;
use crate::units::{Commit, pages_of};
use highwater_mm::Range;
use highwater_units::PAGE_SIZE;
use libc::{c_int, c_void, off_t, size_t};

/// mmap and mprotect refuse different unknown bits.
const PROT_ALL: c_int = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
/// Largest alignment taken from a hint. Chromium reserves pools of 32 GiB, aligned so, and gives
/// up other places.
const ALIGN_MAX: usize = 1 << 36;
const LARGE_FOLIO: usize = 2 << 20;
/// A process that is not served yet is served for a mapped file of this size.
const WORTH_A_START: usize = 16 << 20;

/// How a request to map memory is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// From the range.
    Paged(Commit),
    /// By the kernel.
    Kernel,
}

/// Only private anonymous memory can be paged transparently.
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
    if kind != needed || flags & barred != 0 || access & libc::PROT_EXEC != 0 || len == 0 {
        Request::Kernel
    } else if flags & libc::MAP_NORESERVE != 0 || access == libc::PROT_NONE {
        Request::Paged(Commit::Unchecked)
    } else {
        Request::Paged(Commit::Checked)
    }
}

/// Arguments of mmap(2).
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) address: usize,
    pub(crate) len: usize,
    pub(crate) access: c_int,
    pub(crate) flags: c_int,
    pub(crate) fd: c_int,
    pub(crate) offset: off_t,
}

impl Call {
    fn kernel(&self) -> Result<usize, c_int> {
        let Call { address, len, access, flags, fd, offset } = *self;
        let [access, flags, fd] = [access, flags, fd].map(|value| value as usize);
        // SAFETY: the program's request; a fixed one lies over pages of the range that are
        // changing.
        unsafe { kernel(libc::SYS_mmap, [address, len, access, flags, fd, offset as usize]) }
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

    /// The request without its address, and without flags that take long.
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
        if (self.offset as usize).is_multiple_of(PAGE_SIZE) {
            decide(self.len, self.access, plain)
        } else {
            Request::Kernel
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
    map_memory(Call { address: address as usize, len, access, flags, fd, offset })
}

/// mmap64(2), which is mmap(2).
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
    map_memory(Call { address: address as usize, len, access, flags, fd, offset })
}

/// Makes the call, as mmap returns. The program may have an mmap of its own.
pub(crate) fn map_memory(call: Call) -> *mut c_void {
    let mapped = if call.is_fixed() {
        code::note_change(call.address, call.len);
        file_maps::forget(call.address, call.len);
        map_at(call)
    } else {
        map(call)
    };
    mapped.map_or_else(refuse, |address| address as *mut c_void)
}

fn map(call: Call) -> Result<usize, c_int> {
    let Request::Paged(commit) = call.request() else {
        let Call { len, access, flags, fd, offset, .. } = call;
        let request = files::Request { len, access, flags, fd, offset };
        let served = files::is_wanted(&request).then(start::get_for_files).flatten();
        return match served.and_then(|process| process.map_file(request)) {
            Some(address) => Ok(address as usize),
            None => map_unpaged(call, Call::kernel),
        };
    };
    let Some(process) = start::get() else { return call.kernel() };
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

/// Maps what is not paged, by `make`. Of a large file few pages are mapped at once, so that the
/// limit holds: none before its first use, and no folio of 2 MiB as a whole.
fn map_unpaged(
    call: Call,
    make: impl FnOnce(&Call) -> Result<usize, c_int>,
) -> Result<usize, c_int> {
    let Some((kind, process)) = limited(&call) else {
        // A mapping of a file may have been there, and gone without a call that is seen here.
        return make(&call).inspect(|address| file_maps::forget(*address, call.len));
    };
    let flags = call.flags & !libc::MAP_POPULATE;
    let is_placed = call.address != 0 || call.is_fixed() || flags & files::MAP_32BIT != 0;
    let hint = if is_placed { None } else { askew(&call) };
    let address = make(&Call { address: hint.unwrap_or(call.address), flags, ..call })?;
    process.note_file(address, call.len, kind);
    if call.flags & libc::MAP_POPULATE != 0 {
        let advice = libc::MADV_WILLNEED as usize;
        // SAFETY: changes no contents. The kernel may refuse it.
        let _ = unsafe { kernel(libc::SYS_madvise, [address, call.len, advice, 0, 0, 0]) };
    }
    Ok(address)
}

/// How a request maps a large file whose pages are to be kept within the limit, and the process;
/// `None`: it does not.
fn limited(call: &Call) -> Option<(file_maps::Kind, &'static Process)> {
    let kind = file_maps::kind_of(call.len, call.access, call.flags)?;
    let process = if call.len < WORTH_A_START { already_running() } else { start::get() }?;
    (process.limits_files() && process.has_in_page_cache(call.fd)).then_some((kind, process))
}

/// A hint for the address of a file: no folio of 2 MiB is aligned in memory there. An access maps
/// such a folio as a whole if it is. If a file may have such folios, the kernel follows the hint
/// only where it also has room to align the file.
fn askew(call: &Call) -> Option<usize> {
    let len = call.len.checked_next_multiple_of(PAGE_SIZE)?.checked_add(PAGE_SIZE + LARGE_FOLIO)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let trial = Call { address: 0, len, access: libc::PROT_NONE, flags, fd: -1, offset: 0 };
    let base = trial.kernel().ok()?;
    // SAFETY: just mapped, and not passed on.
    unsafe { unmap(base, len) }.ok()?;
    let is_even = (base / PAGE_SIZE + call.offset as usize / PAGE_SIZE).is_multiple_of(2);
    Some(if is_even { base + PAGE_SIZE } else { base })
}

/// Takes pages for a mapping, at its hint if they are free there. `None`: outside the range.
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
            let range = aligned(process, pages, align / PAGE_SIZE).or_else(|| take(1))?;
            if !is_go_heap_paged() {
                process.hints.turned_down(process.address(range.first) as usize, call.len);
            }
            Some(range)
        }
    }
}

/// Whether this is a Go program whose heap may lie in paged memory: Go takes any address once all
/// of its hints have failed.
fn is_go_heap_paged() -> bool {
    environment::go_frees_lazily() && go::is_running()
}

/// Takes pages at an address that is a multiple of `align` pages. The range itself need not be
/// aligned so.
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

/// MAP_FIXED and MAP_FIXED_NOREPLACE.
fn map_at(call: Call) -> Result<usize, c_int> {
    let Some(named) = Named::of(call.address, call.len) else { return outside(call) };
    match (call.request(), named.whole()) {
        (Request::Paged(_), Some(range)) => map_paged(named.process, range, call),
        _ => map_unpaged(call, |call| map_foreign(&named, *call)),
    }
}

/// Maps at addresses outside the range.
fn outside(call: Call) -> Result<usize, c_int> {
    let reserves = call.over() == Over::Nothing && call.access & PROT_ALL == libc::PROT_NONE;
    let is_refused = |process: &Process| process.hints.are_refused(call.address, call.len);
    match call.request() {
        Request::Paged(_) if reserves && start::get().is_some_and(is_refused) => Err(libc::EEXIST),
        _ => map_unpaged(call, Call::kernel),
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

/// Maps unpaged memory over pages of the range. If the kernel refuses, nothing changes.
fn map_foreign(named: &Named, call: Call) -> Result<usize, c_int> {
    let trial = call.anywhere().kernel()?;
    // SAFETY: just mapped, and not passed on. The mapping stays if it is of huge pages, and the
    // length is not a multiple of theirs.
    let _ = unsafe { unmap(trial, call.len) };
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

/// Maps the parts outside the range, if they are free.
fn claim_outside(named: &Named) -> Result<(), c_int> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let access = libc::PROT_NONE;
    let parts = named.outside();
    for (index, (address, len)) in parts.iter().copied().enumerate() {
        let claim = Call { address, len, access, flags, fd: -1, offset: 0 };
        if let Err(error) = claim.kernel() {
            for (at, len) in &parts[..index] {
                // SAFETY: mapped in earlier iterations.
                let _ = unsafe { unmap(*at, *len) };
            }
            return Err(error);
        }
    }
    Ok(())
}

fn unmap_outside(named: &Named) -> Result<(), c_int> {
    // SAFETY: the program's own mapping, at its request.
    named.outside().into_iter().try_for_each(|(address, len)| unsafe { unmap(address, len) })
}

/// Unmaps memory of the kernel's.
///
/// # Safety
/// As for munmap(2).
unsafe fn unmap(address: usize, len: usize) -> Result<(), c_int> {
    // SAFETY: as the caller says.
    unsafe { kernel(libc::SYS_munmap, [address, len, 0, 0, 0, 0]) }.map(drop)
}

/// munmap(2).
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn munmap(address: *mut c_void, len: size_t) -> c_int {
    unmap_memory(address as usize, len)
}

/// Makes the call, as munmap returns. The program may have a munmap of its own.
pub(crate) fn unmap_memory(address: usize, len: usize) -> c_int {
    code::note_change(address, len);
    file_maps::forget(address, len);
    let Some(named) = Named::of(address, len) else {
        // SAFETY: the program's own mapping, at its request.
        return returned(unsafe { unmap(address, len) });
    };
    let is_used = || named.process.is_used(named.pages());
    named.process.hints.note_unmapped(address, len, is_used);
    // First, because the kernel may refuse it.
    returned(unmap_outside(&named).inspect(|()| named.process.release(named.pages())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_private_memory_is_paged() {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        for (len, access, flags, expected) in [
            (1, both, plain, Request::Paged(Commit::Checked)),
            (1, libc::PROT_READ, plain, Request::Paged(Commit::Checked)),
            (1, libc::PROT_NONE, plain, Request::Paged(Commit::Unchecked)),
            (1, both, plain | libc::MAP_NORESERVE, Request::Paged(Commit::Unchecked)),
            (1, both, plain | libc::MAP_POPULATE, Request::Paged(Commit::Checked)),
            (0, both, plain, Request::Kernel),
            (1, both | libc::PROT_EXEC, plain, Request::Kernel),
            (1, both, libc::MAP_PRIVATE, Request::Kernel),
            (1, both, libc::MAP_SHARED | libc::MAP_ANONYMOUS, Request::Kernel),
            (1, both, plain | libc::MAP_STACK, Request::Kernel),
            (1, both, plain | libc::MAP_GROWSDOWN, Request::Kernel),
            (1, both, plain | libc::MAP_HUGETLB, Request::Kernel),
            (1, both, plain | libc::MAP_LOCKED, Request::Kernel),
            (1, both, plain | libc::MAP_FIXED, Request::Kernel),
        ] {
            assert_eq!(decide(len, access, flags), expected, "{len} {access:#x} {flags:#x}");
        }
    }

    #[test]
    fn an_offset_within_a_page_is_the_kernels_to_refuse() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let (address, len, access) = (0, PAGE_SIZE, libc::PROT_READ);
        let at = |offset| Call { address, len, access, flags, fd: -1, offset };
        assert_eq!(at(0).request(), Request::Paged(Commit::Checked));
        assert_eq!(at(PAGE_SIZE as off_t).request(), Request::Paged(Commit::Checked));
        assert_eq!(at(1).request(), Request::Kernel);
        assert!(!at(0).anywhere().is_fixed());
    }
}
