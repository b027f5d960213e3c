//! mremap: moves pages with their contents, protections and advice.
//!
//! ```text
//! from \ to    the range                       elsewhere
//! the range    pages change hands              copied: not paged there
//! elsewhere    the kernel's, over free pages   the kernel's
//! ```

use crate::code;
use crate::file_maps::{self, Kind};
use crate::process::{Process, SPACE, already_running};
use crate::protect::set_access;
use crate::ranges::Over;
use crate::regions::{Region, Use};
use crate::signals::Blocked;
use crate::spans::{Holder, Named, kernel, refuse};
use crate::units::{Commit, pages_of};
use highwater_mm::Range;
use highwater_os::sys;
use highwater_units::{PAGE_SIZE, Vpn};
use libc::{c_int, c_void, size_t};

/// Arguments of mremap(2).
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) address: usize,
    pub(crate) old_len: usize,
    pub(crate) len: usize,
    pub(crate) flags: c_int,
    pub(crate) target: usize,
}

impl Call {
    fn kernel(&self) -> Result<usize, c_int> {
        let Call { address, old_len, len, flags, target } = *self;
        let arguments = [address, old_len, len, flags as usize, target, 0];
        // SAFETY: the program's own mapping, at its request.
        unsafe { kernel(libc::SYS_mremap, arguments) }
    }

    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// The error of a call that the kernel refuses, whatever is mapped.
    fn error(&self) -> Option<c_int> {
        let all = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let moves = self.has(libc::MREMAP_FIXED) || self.has(libc::MREMAP_DONTUNMAP);
        let keeps = self.has(libc::MREMAP_DONTUNMAP);
        let odd = self.flags & !all != 0
            || moves && !self.has(libc::MREMAP_MAYMOVE)
            || keeps && pages_of(self.len) != pages_of(self.old_len)
            || self.len == 0
            || !self.address.is_multiple_of(PAGE_SIZE)
            || self.has(libc::MREMAP_FIXED) && !self.target.is_multiple_of(PAGE_SIZE)
            || self.has(libc::MREMAP_FIXED) && self.overlaps();
        odd.then_some(libc::EINVAL)
    }

    fn overlaps(&self) -> bool {
        let end = |address: usize, len: usize| address.saturating_add(len);
        self.address < end(self.target, self.len) && self.target < end(self.address, self.old_len)
    }
}

/// mremap(2).
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_len: size_t,
    len: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    remap_memory(Call { address: address as usize, old_len, len, flags, target: target as usize })
}

/// Makes the call, as mremap returns. The program may have an mremap of its own.
pub(crate) fn remap_memory(call: Call) -> *mut c_void {
    code::note_change(call.address, call.old_len);
    if call.has(libc::MREMAP_FIXED) {
        code::note_change(call.target, call.len);
        file_maps::forget(call.target, call.len);
    }
    let was_shared = file_maps::take_shared(call.address, call.old_len);
    let done = match Named::of(call.address, call.old_len.max(1)) {
        Some(named) => call.error().map_or_else(|| remap(&named, call), Err),
        None if call.has(libc::MREMAP_FIXED) => move_in(call),
        None => call.kernel(),
    };
    // A call that fails may have unmapped a part of it.
    if let (true, Ok(address)) = (was_shared, done) {
        file_maps::add(address, call.len, Kind::Shared);
        // There was no mapping for a moment, and the thread may have ended.
        already_running().into_iter().for_each(Process::trim_files);
    }
    done.map_or_else(refuse, |address| address as *mut c_void)
}

fn remap(named: &Named, call: Call) -> Result<usize, c_int> {
    let process = named.process;
    let old = named.whole().ok_or(libc::EFAULT)?;
    process.hand_over(old);
    let is = |wanted: fn(&Holder) -> bool| named.spans().iter().all(|span| wanted(&span.holder));
    if is(|holder| *holder == Holder::Kernel) {
        return move_foreign(process, old, call);
    }
    // Only shared mappings can be duplicated.
    if call.old_len == 0 {
        return Err(libc::EINVAL);
    }
    if !is(|holder| matches!(holder, Holder::Served(..))) {
        return Err(libc::EFAULT);
    }
    if call.has(libc::MREMAP_FIXED) {
        return move_to(process, old, call);
    }
    if call.has(libc::MREMAP_DONTUNMAP) {
        return move_anywhere(process, old, pages_of(call.len), call);
    }
    resize(process, old, pages_of(call.len), call)
}

/// Moves a mapping of the kernel's from outside the range to a fixed address, perhaps inside.
fn move_in(call: Call) -> Result<usize, c_int> {
    let Some(named) = Named::of(call.target, call.len) else { return call.kernel() };
    if let Some(error) = call.error() {
        return Err(error);
    }
    let mut result = Err(libc::ENOMEM);
    named.process.replace(named.pages(), Over::Anything, Use::Foreign, || {
        result = call.kernel();
        result.ok()
    });
    result
}

/// Moves a mapping of the kernel's that lies in the range out of it, if it cannot stay.
fn move_foreign(process: &Process, old: Range, call: Call) -> Result<usize, c_int> {
    let pages = old.end.0 - old.first.0;
    let moved = if call.has(libc::MREMAP_FIXED) { move_in(call)? } else { call.kernel()? };
    let gone = if moved == call.address {
        old.first.offset(pages_of(call.len).min(pages))
    } else if call.has(libc::MREMAP_DONTUNMAP) {
        old.end
    } else {
        old.first
    };
    if gone < old.end {
        // Its pages become the range's again.
        process.release(Range { first: gone, end: old.end });
    }
    Ok(moved)
}

fn resize(process: &Process, old: Range, pages: u64, call: Call) -> Result<usize, c_int> {
    let now = old.end.0 - old.first.0;
    if pages < now {
        process.release(Range { first: old.first.offset(pages), end: old.end });
    }
    if pages <= now || grow(process, old, pages - now) {
        return Ok(call.address);
    }
    if call.has(libc::MREMAP_MAYMOVE) {
        move_anywhere(process, old, pages, call)
    } else {
        Err(libc::ENOMEM)
    }
}

/// Extends the region that ends where `old` does.
fn grow(process: &Process, old: Range, pages: u64) -> bool {
    let blocked = Blocked::now();
    let last = process.regions(&blocked).find(Vpn(old.end.0 - 1));
    drop(blocked);
    let fits = |region: &Region| region.range.end == old.end && region.used_as == Use::Mapping;
    let tail = Range { first: old.end, end: old.end.offset(pages) };
    process.can_hold(pages, Commit::Checked)
        && last.filter(fits).is_some_and(|region| process.grow(region, pages))
        && process.extend_access(old, tail)
}

fn move_anywhere(process: &Process, old: Range, pages: u64, call: Call) -> Result<usize, c_int> {
    let grown = pages.saturating_sub(old.end.0 - old.first.0);
    if !process.can_hold(grown, Commit::Checked) {
        return Err(libc::ENOMEM);
    }
    let Some(new) = process.take(pages, 1, Use::Mapping, Commit::Unchecked) else {
        return copy_out(process, old, call);
    };
    let kept = kept_of(old, new);
    if !process.carry_access(kept, new) {
        process.release(new);
        return Err(libc::ENOMEM);
    }
    process.relocate(kept, new.first);
    leave(process, old, call);
    Ok(process.address(new.first) as usize)
}

/// MREMAP_FIXED.
fn move_to(process: &Process, old: Range, call: Call) -> Result<usize, c_int> {
    let Some(named) = Named::of(call.target, call.len) else {
        return copy_out(process, old, call);
    };
    // Pages beyond the range would not be paged.
    let new = named.whole().ok_or(libc::ENOMEM)?;
    let kept = kept_of(old, new);
    let moved = process.replace(new, Over::Anything, Use::Mapping, || {
        let is_ready = process.make_ordinary(new) && process.carry_access(kept, new);
        is_ready.then(|| process.shift(kept, new.first))
    });
    moved.ok_or(libc::ENOMEM)?;
    leave(process, old, call);
    Ok(call.target)
}

/// The part of `old` that fits into `new`.
fn kept_of(old: Range, new: Range) -> Range {
    let pages = (old.end.0 - old.first.0).min(new.end.0 - new.first.0);
    Range { end: old.first.offset(pages), ..old }
}

fn leave(process: &Process, old: Range, call: Call) {
    if call.has(libc::MREMAP_DONTUNMAP) {
        process.discard(old);
    } else {
        process.release(old);
    }
}

/// Copies contents and protections into a mapping of the kernel's, then moves it to the target in
/// one step. On failure nothing has changed.
fn copy_out(process: &Process, old: Range, call: Call) -> Result<usize, c_int> {
    let len = pages_of(call.len) as usize * PAGE_SIZE;
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::ENOMEM);
    let copy = sys::map_anonymous(len).map_err(errno)?;
    let filled = fill(process, old, copy, len).and_then(|()| {
        let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let address = copy as usize;
        let there = Call { address, old_len: len, len, flags: fixed, ..call };
        if call.has(libc::MREMAP_FIXED) { there.kernel() } else { Ok(address) }
    });
    match filled {
        Ok(_) => leave(process, old, call),
        // SAFETY: made above, and not passed on.
        Err(_) => unsafe { sys::unmap(copy, len) },
    }
    filled
}

/// Copies the part of `old` that fits, with its protections.
fn fill(process: &Process, old: Range, copy: *mut u8, len: usize) -> Result<(), c_int> {
    let pages = (old.end.0 - old.first.0).min((len / PAGE_SIZE) as u64);
    let kept = Range { end: old.first.offset(pages), ..old };
    let protected = process.manager.platform().protected(SPACE, kept.first, kept.end);
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let protect = |first, end, bits| set_access(process, Range { first, end }, bits);
    protected.iter().try_for_each(|(first, end, _)| protect(*first, *end, both))?;
    copy_present(process, kept, copy);
    protected.into_iter().try_for_each(|(first, end, bits)| {
        let at = copy.wrapping_add((first.0 - kept.first.0) as usize * PAGE_SIZE);
        let bytes = (end.0 - first.0) as usize * PAGE_SIZE;
        protect(first, end, bits)?;
        // SAFETY: a part of the new mapping.
        let done = unsafe { sys::protect(at, bytes, bits) };
        done.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))
    })
}

/// Copies pages that have contents. Signals may be blocked.
pub(crate) fn copy_present(process: &Process, kept: Range, copy: *mut u8) {
    for vpn in process.manager.used_pages(SPACE, kept) {
        let to = copy.wrapping_add((vpn.0 - kept.first.0) as usize * PAGE_SIZE);
        // SAFETY: a page of the program that can be read now, and one of the new mapping.
        unsafe { to.copy_from_nonoverlapping(process.address(vpn), PAGE_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_make_no_sense_are_refused() {
        const P: usize = PAGE_SIZE;
        let (may, fixed, keep) = (libc::MREMAP_MAYMOVE, libc::MREMAP_FIXED, libc::MREMAP_DONTUNMAP);
        for (address, old_len, len, flags, target, is_refused) in [
            (8 * P, 2 * P, 4 * P, 0, 0, false),
            (8 * P, 2 * P, 4 * P, may, 0, false),
            (8 * P, 2 * P, 4 * P, may | fixed, 16 * P, false),
            (8 * P, 2 * P, 2 * P, may | keep, 0, false),
            (8 * P, 2 * P, 0, may, 0, true),
            (8 * P + 1, 2 * P, 4 * P, may, 0, true),
            (8 * P, 2 * P, 4 * P, fixed, 16 * P, true),
            (8 * P, 2 * P, 4 * P, may | fixed, 16 * P + 8, true),
            (8 * P, 2 * P, 4 * P, may | keep, 0, true),
            (8 * P, 2 * P, 2 * P, keep, 0, true),
            (8 * P, 2 * P, 4 * P, 1 << 8, 0, true),
            // The target overlaps what is moved: from above, from below, not at all.
            (8 * P, 2 * P, 4 * P, may | fixed, 9 * P, true),
            (8 * P, 2 * P, 4 * P, may | fixed, 5 * P, true),
            (8 * P, 2 * P, 4 * P, may | fixed, 4 * P, false),
            (8 * P, 2 * P, 4 * P, may | fixed, 10 * P, false),
        ] {
            let call = Call { address, old_len, len, flags, target };
            let expected = is_refused.then_some(libc::EINVAL);
            assert_eq!(call.error(), expected, "{address:#x} {old_len} {len} {flags} {target:#x}");
        }
    }

    #[test]
    fn what_fits_is_kept() {
        let range = |first, end| Range { first: Vpn(first), end: Vpn(end) };
        assert_eq!(kept_of(range(3, 8), range(20, 22)), range(3, 5));
        assert_eq!(kept_of(range(3, 8), range(20, 40)), range(3, 8));
    }
}
