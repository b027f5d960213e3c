//! mlock and its relatives.
//!
//! ```text
//! pages of a mapping -- contents move --> pages aside -- are copied --> a locked mapping
//!     ^------------------------- moved over them, in one step --------------/
//! ```
//! Programs lock the few pages that hold their keys. Such pages become the kernel's, at the same
//! addresses: they are neither evicted nor written to swap, count as memory that is not paged, and
//! stay the kernel's after munlock. A thread that stores to them meanwhile waits.
//!
//! Refused with ENOMEM: more than a part of the budget, blocks of malloc, mappings of files.

use crate::end::end;
use crate::pins;
use crate::process::{Process, SPACE};
use crate::regions::Use;
use crate::remap::copy_present;
use crate::signals::Blocked;
use crate::spans::{Holder, Named, Span, fail, kernel, returned};
use crate::start;
use crate::units::Commit;
use highwater_mm::Range;
use highwater_os::sys;
use highwater_units::{PAGE_SIZE, Vpn};
use libc::{c_int, c_long, c_uint, c_void, size_t};

/// The part of the budget that a process may lock: what is left must serve its other pages.
const LOCKED_PART: u64 = 8;

/// A call of the family.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// SYS_mlock or SYS_mlock2.
    pub(crate) number: c_long,
    /// Of SYS_mlock2.
    pub(crate) flags: usize,
}

impl Call {
    /// Makes the call for memory of the kernel's.
    fn kernel(self, address: usize, len: usize) -> Result<(), c_int> {
        // SAFETY: locking changes no contents.
        unsafe { kernel(self.number, [address, len, self.flags, 0, 0, 0]) }.map(drop)
    }
}

/// mlock(2).
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mlock(address: *const c_void, len: size_t) -> c_int {
    lock_memory(Call { number: libc::SYS_mlock, flags: 0 }, address as usize, len)
}

/// mlock2(2).
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mlock2(address: *const c_void, len: size_t, flags: c_uint) -> c_int {
    let call = Call { number: libc::SYS_mlock2, flags: flags as usize };
    lock_memory(call, address as usize, len)
}

/// mlockall(2), refused because it would touch every page of the range.
///
/// # Safety
/// As for the system call.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    match start::get() {
        Some(_) => fail(libc::ENOMEM),
        // SAFETY: at the program's request.
        None => unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int },
    }
}

/// Makes the call, as mlock returns.
pub(crate) fn lock_memory(call: Call, address: usize, len: usize) -> c_int {
    // The kernel locks all pages that have a part of the memory.
    let before = address % PAGE_SIZE;
    let Some(named) = Named::of(address - before, len.saturating_add(before)) else {
        return returned(call.kernel(address, len));
    };
    loop {
        // As in the kernel: up to the first page that is not mapped.
        let spans = named.spans();
        match spans.iter().try_for_each(|span| lock_span(named.process, span, call)) {
            Ok(()) => return 0,
            Err(Failure::Refused(error)) => return fail(error),
            Err(Failure::Changed) => {}
        }
    }
}

/// Why pages are not locked.
enum Failure {
    /// For this errno.
    Refused(c_int),
    /// Another thread has changed the mapping, which is to be checked again.
    Changed,
}

fn lock_span(process: &Process, span: &Span, call: Call) -> Result<(), Failure> {
    match span.holder {
        Holder::Kernel => call.kernel(span.start, span.len).map_err(Failure::Refused),
        Holder::Served(range, Use::Mapping) if process.may_lock(range) => process.lock(range, call),
        Holder::Served(..) | Holder::Unused => Err(Failure::Refused(libc::ENOMEM)),
    }
}

/// Stack around a function that its callers, and what it calls, may use.
const STACK_LEN: usize = 64 << 10;

impl Process {
    /// Whether the pages may be locked: not too many, with those that are locked already; none to
    /// which devices may write, because the devices would go on writing to the old pages; none of
    /// the stack of a coroutine that this code runs on, since it could not run without that stack;
    /// and, as in the kernel, only accessible ones.
    fn may_lock(&self, range: Range) -> bool {
        let locked = self.regions(&Blocked::now()).locked_pages();
        let pages = locked + range.end.0 - range.first.0;
        let most = self.settings.memory.0 / PAGE_SIZE as u64 / LOCKED_PART;
        let here = (&raw const locked) as usize;
        let address = |vpn: Vpn| self.address(vpn) as usize;
        let has_stack =
            address(range.first) < here + STACK_LEN && here < address(range.end) + STACK_LEN;
        let protected = self.manager.platform().protected(SPACE, range.first, range.end);
        let is_closed = protected.iter().any(|(_, _, bits)| *bits == libc::PROT_NONE);
        pages <= most && !pins::are_expected() && !has_stack && !is_closed
    }

    /// Locks pages of a mapping. On failure nothing has changed.
    fn lock(&self, range: Range, call: Call) -> Result<(), Failure> {
        let pages = range.end.0 - range.first.0;
        let len = pages as usize * PAGE_SIZE;
        let full = Failure::Refused(libc::ENOMEM);
        let Ok(copy) = sys::map_anonymous(len) else { return Err(full) };
        // First, for the kernel may refuse it.
        let locked = call.kernel(copy as usize, len).map_err(Failure::Refused).and_then(|()| {
            let aside = self.take(pages, 1, Use::Mapping, Commit::Unchecked).ok_or(full)?;
            let moved = self.supplant(range, aside, Use::Locked, || {
                copy_present(self, aside, copy);
                self.put_over(range, aside, copy)
            });
            self.release(aside);
            moved.map_or(Err(Failure::Changed), |moved| moved.map_err(Failure::Refused))
        });
        if locked.is_err() {
            // SAFETY: made above, and not passed on.
            unsafe { sys::unmap(copy, len) };
        }
        locked
    }

    /// Moves a copy over pages, whose advice was carried `aside`, with protections and advice. The
    /// error is the kernel's: it has not moved the copy.
    fn put_over(&self, range: Range, aside: Range, copy: *mut u8) -> Result<(), c_int> {
        let to = self.address(range.first) as usize;
        let bytes = |first: Vpn, end: Vpn| (end.0 - first.0) as usize * PAGE_SIZE;
        let at = |first: Vpn, from: Vpn| to + bytes(from, first);
        let len = bytes(range.first, range.end);
        let fixed = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
        // SAFETY: over pages whose contents the copy has, and which no thread reaches now.
        unsafe { kernel(libc::SYS_mremap, [copy as usize, len, len, fixed, to, 0]) }?;
        let protected = self.manager.platform().protected(SPACE, range.first, range.end);
        let protected = protected.into_iter().map(|(first, end, bits)| {
            (libc::SYS_mprotect, at(first, range.first), bytes(first, end), bits)
        });
        let advised = self.regions(&Blocked::now()).inherited.within(aside);
        let advised = advised.into_iter().flat_map(|(part, what)| {
            let Range { first, end } = part;
            let advice = what.advice().iter();
            advice
                .map(move |&it| (libc::SYS_madvise, at(first, aside.first), bytes(first, end), it))
        });
        // Which pages of the range are left out is not known, but keys may be among them.
        let dumped =
            self.dump.leaves_out().then_some((libc::SYS_madvise, to, len, libc::MADV_DONTDUMP));
        for (number, address, len, what) in protected.chain(advised).chain(dumped) {
            // SAFETY: as the program has asked for these pages.
            let done = unsafe { kernel(number, [address, len, what as usize, 0, 0, 0]) };
            if let Err(error) = done {
                end(&format!("locked pages cannot be as they were: error {error}"));
            }
        }
        Ok(())
    }
}
