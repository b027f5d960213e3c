//! A mapping of the kernel: anonymous memory, or a file.

use super::{Unavailable, file};
use crate::workload::extent::Extent;
use highwater_units::{Bytes, PAGE_SIZE};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;

/// How the pages will be visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In any order: the kernel shall not read ahead.
    Random,
    /// In ascending order.
    Ascending,
}

/// Mapped pages of 4 KiB, unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    extent: Extent,
    base: NonNull<c_void>,
    len: usize,
}

// SAFETY: `base` is only used to unmap.
unsafe impl Send for Mapping {}
// SAFETY: as above; the extent is `Sync`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private anonymous memory, never in huge pages.
    ///
    /// # Errors
    /// The system has no such address range or memory.
    pub fn anonymous(len: Bytes) -> Result<Mapping, Unavailable> {
        let bytes = length(len)?;
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // By the C library, as programs do: under `highwater run` this is paged memory.
        // SAFETY: a new mapping where the kernel likes touches no memory in use.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            let reason = std::io::Error::last_os_error();
            return Err(Unavailable::because(format!("mapping {len}"), reason));
        }
        let mapping = Mapping::over(base, bytes);
        mapping.advise(Advice::LinuxNoHugepage)?;
        Ok(mapping)
    }

    /// A shared mapping of a new file without a name in `dir`, gone when unmapped.
    ///
    /// # Errors
    /// `dir` is no directory one may write to, is in memory, or has no room.
    pub fn file(dir: &Path, len: Bytes, order: Order) -> Result<Mapping, Unavailable> {
        let bytes = length(len)?;
        let failed = |reason| file::no_room(dir, len, reason);
        let file = file::unnamed(dir, OFlags::empty())?;
        // Room now, or an error now: a full disk would end the run by SIGBUS.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len.0).map_err(failed)?;
        let (access, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
        // SAFETY: as in `anonymous`; no other process can open the file and truncate it.
        let base = unsafe { rustix::mm::mmap(null, bytes, access, MapFlags::SHARED, &file, 0) };
        let mapping = Mapping::over(base.map_err(failed)?, bytes);
        if order == Order::Random {
            mapping.advise(Advice::Random)?;
        }
        Ok(mapping)
    }

    /// The pages.
    pub fn extent(&self) -> &Extent {
        &self.extent
    }

    /// Takes over a fresh mapping.
    fn over(base: *mut c_void, len: usize) -> Mapping {
        let base = NonNull::new(base).expect("mmap does not return null");
        // SAFETY: mapped by the caller, unmapped by `drop` alone, and reached by atomics only.
        let extent = unsafe { Extent::new(base.cast(), Bytes(len as u64).pages()) };
        let first = base.as_ptr().expose_provenance();
        let extent = extent.with_prefetch(move |index| {
            let page = std::ptr::with_exposed_provenance_mut(first + index as usize * PAGE_SIZE);
            // SAFETY: advice on a page of this mapping, which outlives its extent. It may fail: it
            // is a hint.
            let _ = unsafe { rustix::mm::madvise(page, PAGE_SIZE, Advice::WillNeed) };
        });
        Mapping { extent, base, len }
    }

    /// Advises the kernel on all pages. Anonymous pages that are dropped are zeros again.
    ///
    /// # Errors
    /// The kernel does not know the advice, or has no memory for it.
    pub(crate) fn advise(&self, advice: Advice) -> Result<(), Unavailable> {
        // SAFETY: advice on a mapping of our own, whose contents are atomic words of any value.
        unsafe { rustix::mm::madvise(self.base.as_ptr(), self.len, advice) }
            .map_err(|reason| Unavailable::because(format!("madvise {advice:?}"), reason))
    }

    /// Makes all pages read-only and writable again: each CPU that has used them flushes its TLB.
    /// Nothing may store to them meanwhile.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn protect_and_back(&self) -> Result<(), Unavailable> {
        for access in [ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE] {
            let flags = MprotectFlags::from_bits_retain(access.bits());
            // SAFETY: a mapping of our own; a store meanwhile ends the program, and does no harm.
            unsafe { rustix::mm::mprotect(self.base.as_ptr(), self.len, flags) }
                .map_err(|reason| Unavailable::because("mprotect", reason))?;
        }
        Ok(())
    }
}

/// As the length of a mapping: whole pages, at least one.
fn length(len: Bytes) -> Result<usize, Unavailable> {
    let whole = Bytes::of_pages(len.pages());
    match usize::try_from(whole.0) {
        Ok(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(Unavailable(format!("{len} cannot be mapped"))),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and nothing borrows the extent any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Access, Intent, Target};
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn anonymous_memory_and_files_keep_what_is_stored() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = Mapping::file(here, Bytes::of_pages(4), Order::Random).expect("a file");
        for mapping in [file, Mapping::anonymous(Bytes::of_pages(4)).expect("memory")] {
            let mut access = mapping.extent().enter();
            assert_eq!(mapping.extent().pages(), 4);
            let page = access.page(3, Intent::Write).expect("mapped");
            assert_eq!(page[7].swap(5, Relaxed), 0);
            assert_eq!(access.page(3, Intent::Read).expect("mapped")[7].load(Relaxed), 5);
        }
    }

    #[test]
    fn what_cannot_be_mapped_is_said_in_one_line() {
        let nowhere = Mapping::file(Path::new("/nonexistent"), Bytes(4096), Order::Ascending);
        let text = nowhere.expect_err("no directory").to_string();
        assert!(text.contains("/nonexistent") && !text.contains('\n'), "{text}");
        assert!(Mapping::anonymous(Bytes(0)).is_err());
        let shm = Mapping::file(Path::new("/dev/shm"), Bytes(4096), Order::Ascending);
        assert!(shm.is_err(), "tmpfs, or not there");
    }
}
