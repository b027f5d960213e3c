//! Drops pages of this process: many scattered ones with one system call and one TLB flush.
//!
//! Since Linux 6.13 process_madvise may drop pages of the calling process. On older kernels each
//! stretch of adjacent pages takes a call.

use crate::api::Mapping;
use crate::descriptor::Descriptor;
use highwater_os::sys::{self, Advice};
use highwater_units::PAGE_SIZE;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Stretches in a call.
const STRETCHES: usize = 128;

/// How pages are dropped.
pub(crate) struct Drops {
    /// This process, if the kernel drops many stretches with one call.
    own: Option<Descriptor>,
    calls: AtomicU64,
}

impl Drops {
    /// Finds out what the kernel can do. With [`Mapping::Copy`] it is used like an old kernel.
    pub(crate) fn new(mapping: Mapping) -> io::Result<Drops> {
        let mut drops = Drops { own: None, calls: AtomicU64::new(0) };
        if mapping == Mapping::Move {
            drops.own = pidfd_open(getpid(), PidfdFlags::empty()).ok().map(Descriptor::new);
            let scratch = sys::map_anonymous(PAGE_SIZE)?;
            let page = libc::iovec { iov_base: scratch.cast(), iov_len: PAGE_SIZE };
            if drops.drop_stretches(&[page]) != Some(PAGE_SIZE) {
                drops.own = None;
            }
            // SAFETY: mapped above.
            unsafe { sys::unmap(scratch, PAGE_SIZE) };
        }
        Ok(drops)
    }

    /// The descriptor of this process.
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        self.own.as_ref()
    }

    /// Whether scattered pages are dropped with one call.
    pub(crate) fn are_batched(&self) -> bool {
        self.own.is_some()
    }

    /// System calls made.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Drops pages, in as few calls as their order allows: ascending is best.
    ///
    /// # Safety
    /// The contents of the pages are saved or not needed.
    pub(crate) unsafe fn drop_all(&self, pages: impl Iterator<Item = *mut u8>) {
        let mut stretches = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; STRETCHES];
        let mut len = 0;
        for page in pages {
            if let Some(last) = stretches[..len].last_mut()
                && last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == page
            {
                last.iov_len += PAGE_SIZE;
                continue;
            }
            if len == STRETCHES {
                self.drop_some(&mut stretches);
                len = 0;
            }
            stretches[len] = libc::iovec { iov_base: page.cast(), iov_len: PAGE_SIZE };
            len += 1;
        }
        self.drop_some(&mut stretches[..len]);
    }

    fn drop_some(&self, stretches: &mut [libc::iovec]) {
        let mut rest = stretches;
        while let Some(first) = rest.first().copied() {
            let done = self.drop_stretches(rest).filter(|bytes| *bytes > 0);
            let done = done.unwrap_or_else(|| self.drop_one(first));
            rest = without(rest, done);
        }
    }

    fn drop_one(&self, stretch: libc::iovec) -> usize {
        self.calls.fetch_add(1, Relaxed);
        let (address, len) = (stretch.iov_base.cast(), stretch.iov_len);
        // SAFETY: by contract of `drop_all`. It fails if nothing is mapped: then there is nothing
        // to drop.
        let _ = unsafe { sys::advise(address, len, Advice::LinuxDontNeed) };
        len
    }

    /// Bytes dropped, from the first stretch on; `None`: the kernel refuses.
    fn drop_stretches(&self, stretches: &[libc::iovec]) -> Option<usize> {
        let own = self.own.as_ref()?.here().ok()?;
        self.calls.fetch_add(1, Relaxed);
        // SAFETY: by contract of `drop_all`; the vectors live during the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                own.as_raw_fd(),
                stretches.as_ptr(),
                stretches.len(),
                libc::MADV_DONTNEED,
                0,
            )
        };
        usize::try_from(done).ok()
    }
}

/// The stretches without their first `bytes` bytes.
fn without(stretches: &mut [libc::iovec], mut bytes: usize) -> &mut [libc::iovec] {
    let mut done = 0;
    while stretches.get(done).is_some_and(|stretch| stretch.iov_len <= bytes) {
        bytes -= stretches[done].iov_len;
        done += 1;
    }
    let rest = &mut stretches[done..];
    if let Some(first) = rest.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(bytes);
        first.iov_len -= bytes;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_units::Prng;

    /// Every second page is dropped, in random order, and reads as zeros; the others keep their
    /// contents.
    #[test]
    fn scattered_pages_are_dropped_and_no_others() {
        const PAGES: usize = 600;
        for mapping in [Mapping::Move, Mapping::Copy] {
            let drops = Drops::new(mapping).expect("a page");
            let base = sys::map_anonymous(PAGES * PAGE_SIZE).expect("memory");
            let page = |index: usize| base.wrapping_add(index * PAGE_SIZE);
            // SAFETY: pages of the mapping.
            (0..PAGES).for_each(|index| unsafe { page(index).write(7) });
            let mut random = Prng::new(3);
            let mut chosen: Vec<usize> = (0..PAGES).filter(|_| random.percent(60)).collect();
            let swap = random.below(chosen.len() as u64) as usize;
            chosen.swap(0, swap);
            // SAFETY: pages of the mapping.
            unsafe { drops.drop_all(chosen.iter().map(|index| page(*index))) };
            for index in 0..PAGES {
                let expected = if chosen.contains(&index) { 0 } else { 7 };
                // SAFETY: pages of the mapping.
                assert_eq!(unsafe { page(index).read() }, expected, "{mapping:?} {index}");
            }
            if mapping == Mapping::Move && drops.own.is_some() {
                assert!(drops.calls() < 5, "{} calls", drops.calls());
            }
            // SAFETY: mapped above.
            unsafe { sys::unmap(base, PAGES * PAGE_SIZE) };
        }
    }
}
