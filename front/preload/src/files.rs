//! Served mappings of files (`highwater run --map-files`).
//!
//! ```text
//! mmap of a file -- wanted? --> Kernel
//!                \-> region | behind the end: the kernel's own mapping
//!                      \-- File(space): read through a device, paged like everything else
//! all but reading, discarding, unmapping the whole mapping --> hand_over: the kernel's mapping,
//!                                                              at the same address
//! ```
//! Pages are never changed here, so the kernel's mapping always shows the same contents. If a page
//! cannot be read, its mapping is handed over too, and the kernel decides about the access (SIGBUS
//! if the file has lost the page).
//!
//! The helper opens the file anew, so neither offsets nor locks are shared with the program.
//!
//! Locking: `gate` of a space, then regions, then table. A fault holds the gate for reading; the
//! thread that takes the mapping away holds it for writing; both check the regions once they hold
//! it. The gate of the range's own space likewise separates faults on other pages from the moment
//! in which these become pages of a file.

use crate::descriptors;
use crate::end::end;
use crate::mapped::{Mapped, Wanted, map_file};
use crate::process::{Process, SPACE};
use crate::regions::{Region, Use};
use crate::remote::Remote;
use crate::signals::Blocked;
use crate::units::{Commit, pages_of};
use highwater_devices::{Device, FileAccess, open_file, part};
use highwater_mm::Range;
use highwater_session::MapFiles;
use highwater_uffd::FileAt;
use highwater_units::{PAGE_SIZE, SpaceId, Vpn};
use libc::{c_int, off_t};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Smaller mappings stay the kernel's.
const BYTES_MIN: u64 = 64 << 10;

/// Local file systems: only this machine writes to their files.
const FILE_SYSTEMS: [u32; 9] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // ZFS
    0x4d44,      // FAT
    0x7371_7368, // SquashFS
    0x9660,      // ISO 9660
];

/// Arguments of an mmap of a file.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) len: usize,
    pub(crate) access: c_int,
    pub(crate) flags: c_int,
    pub(crate) fd: RawFd,
    pub(crate) offset: off_t,
}

/// An address below 2 GiB; x86 only.
#[cfg(target_arch = "x86_64")]
pub(crate) const MAP_32BIT: c_int = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const MAP_32BIT: c_int = 0;

/// Whether a request is of a kind that can be served: for reading, and without special flags.
pub(crate) fn is_wanted(request: &Request) -> bool {
    let Request { len, access, flags, offset, .. } = *request;
    let barred = libc::MAP_ANONYMOUS
        | libc::MAP_FIXED
        | libc::MAP_FIXED_NOREPLACE
        | libc::MAP_GROWSDOWN
        | libc::MAP_STACK
        | libc::MAP_HUGETLB
        | libc::MAP_LOCKED
        | libc::MAP_SYNC
        | MAP_32BIT;
    let kind = matches!(flags & libc::MAP_TYPE, libc::MAP_PRIVATE | libc::MAP_SHARED);
    kind && flags & barred == 0
        && access == libc::PROT_READ
        && len as u64 >= BYTES_MIN
        && offset >= 0
        && (offset as usize).is_multiple_of(PAGE_SIZE)
}

/// Whether the program opened a descriptor for reading only.
fn is_for_reading(fd: RawFd) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: the kernel refuses a number that is not open.
    let status = rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(fd) });
    status.is_ok_and(|flags| (flags & (OFlags::ACCMODE | OFlags::PATH)).is_empty())
}

/// The file behind a descriptor of the program's, as a path and a descriptor of the helper's, if
/// its mappings can be served.
fn reopen(in_proc: i32, fd: RawFd) -> Option<(PathBuf, File)> {
    let path = PathBuf::from(format!("/proc/{in_proc}/fd/{fd}"));
    if !std::fs::metadata(&path).ok()?.is_file() {
        return None;
    }
    let file = File::open(&path).ok()?;
    is_on_local_disk(&file).then_some((path, file))
}

fn is_on_local_disk(file: &File) -> bool {
    file_system_of(file).is_some_and(|found| FILE_SYSTEMS.contains(&found))
}

/// The kind of file system that a file is on, as statfs numbers it; `None`: the system refuses.
pub(crate) fn file_system_of(file: impl AsFd) -> Option<u32> {
    // The field's width depends on the machine; the numbers have 32 bits.
    rustix::fs::fstatfs(file).ok().map(|found| found.f_type as u32)
}

impl Process {
    /// Serves a mapping of a file; `None`: the kernel maps it.
    pub(crate) fn map_file(&self, request: Request) -> Option<*mut u8> {
        if self.settings.map_files == MapFiles::Off || !is_for_reading(request.fd) {
            return None;
        }
        self.in_helper(|| self.map_file_here(request).map(|address| address as usize))
            .map(|address| address as *mut u8)
    }

    fn map_file_here(&self, request: Request) -> Option<*mut u8> {
        let (path, file) = reopen(self.files.in_proc, request.fd)?;
        let found = file.metadata().ok()?;
        let (pages, first) = (pages_of(request.len), request.offset as u64 / PAGE_SIZE as u64);
        let held = found.len().div_ceil(PAGE_SIZE as u64).saturating_sub(first).min(pages);
        if held * (PAGE_SIZE as u64) < BYTES_MIN {
            return None;
        }
        let all = self.take(pages, 1, Use::Mapping, Commit::Unchecked)?;
        let range = Range { first: all.first, end: all.first.offset(held) };
        let (kind, offset) = (request.flags & libc::MAP_TYPE, request.offset);
        let wanted = Wanted { range, kind, offset };
        match self.serve_file(&path, file, wanted) {
            Some(mapped) => self.begin(mapped, all, request),
            None => {
                self.release(all);
                None
            }
        }
    }

    /// Opens a space for a file at a range's addresses.
    fn serve_file(&self, path: &Path, file: File, wanted: Wanted) -> Option<Mapped> {
        let whole = Remote::of(open_file(path, FileAccess::Read).ok()?);
        let whole: Arc<dyn Device> = whole.into();
        let first = u32::try_from(wanted.offset as u64 / PAGE_SIZE as u64).ok()?;
        let pages = u32::try_from(wanted.range.end.0 - wanted.range.first.0).ok()?;
        // The file may have been truncated.
        if first.checked_add(pages)? > whole.info().pages {
            return None;
        }
        let device = part(whole, first, pages);
        let address = Some(self.address(wanted.range.first) as u64);
        let space = self.manager.open_file(FileAt { device, address }).ok()?;
        Some(Mapped { space, file: file.into(), wanted })
    }

    /// In a forked child: serves its parent's mapping at the same address; if that fails, the
    /// kernel maps it.
    pub(crate) fn take_over(&self, theirs: &Mapped) -> std::io::Result<()> {
        let blocked = Blocked::now();
        let path = PathBuf::from(format!("/proc/self/fd/{}", theirs.file.as_raw_fd()));
        let file = File::open(&path);
        let range = theirs.wanted.range;
        match file.ok().and_then(|file| self.serve_file(&path, file, theirs.wanted)) {
            Some(mapped) => {
                let space = mapped.space;
                self.files.add(mapped);
                self.regions_mut(&blocked).change(range, Use::File(space));
            }
            None => {
                self.regions_mut(&blocked).change(range, Use::Foreign);
                theirs.map_over(self.extent().0)?;
            }
        }
        descriptors::close_raw(theirs.file.as_raw_fd());
        Ok(())
    }

    /// Publishes a mapping. The pages behind the end of the file become the kernel's.
    fn begin(&self, mapped: Mapped, all: Range, request: Request) -> Option<*mut u8> {
        let blocked = Blocked::now();
        let (space, Wanted { range, kind, .. }) = (mapped.space, mapped.wanted);
        let tail = Range { first: range.end, end: all.end };
        let bytes = |pages: u64| pages as usize * PAGE_SIZE;
        let covered = tail.first == tail.end || {
            let at = request.offset + bytes(range.end.0 - range.first.0) as off_t;
            let (to, len) = (self.address(tail.first) as u64, bytes(tail.end.0 - tail.first.0));
            map_file(to, len, kind, mapped.file.as_raw_fd(), at).is_ok()
        };
        self.files.add(mapped);
        // A fault at the earlier owner's addresses may be under way. It has ended once the gate is
        // closed, and the pages that it brought in are dropped.
        let gate = self.files.close_gate(SPACE);
        let mut regions = self.regions_mut(&blocked);
        regions.change(range, Use::File(space));
        if tail.first < tail.end {
            regions.change(tail, if covered { Use::Foreign } else { Use::Mapping });
        }
        drop(regions);
        drop(gate);
        self.manager.discard(SPACE, range);
        if !covered {
            self.release(all);
            return None;
        }
        if request.flags & libc::MAP_POPULATE != 0 {
            self.prefetch(range);
        }
        Some(self.address(range.first))
    }

    /// The mappings of files that have pages in a range.
    fn files_in(&self, range: Range) -> Vec<(SpaceId, Region)> {
        if self.settings.map_files == MapFiles::Off {
            return Vec::new();
        }
        let is_file = |region: &Region| match region.used_as {
            Use::File(space) => Some((space, *region)),
            Use::Mapping | Use::Block | Use::Objects => None,
            Use::Foreign | Use::Locked | Use::Changing => None,
        };
        let blocked = Blocked::now();
        self.regions(&blocked).within(range).iter().filter_map(is_file).collect()
    }

    /// Hands the mapping of a space over to the kernel.
    pub(crate) fn hand_over_file(&self, space: SpaceId) {
        if let Some(mapped) = self.files.get(space) {
            self.hand_over(mapped.wanted.range);
        }
    }

    /// Hands all mappings with pages in a range over to the kernel, at the same addresses.
    pub(crate) fn hand_over(&self, range: Range) {
        if !self.files_in(range).is_empty() {
            self.in_helper(|| self.hand_over_here(range));
        }
    }

    fn hand_over_here(&self, range: Range) {
        for (space, region) in self.files_in(range) {
            let blocked = Blocked::now();
            let gate = self.files.close_gate(space);
            // Another thread may have done it.
            let Some(mapped) = self.mapping(space, region, &blocked) else { continue };
            // First, so that a faulting thread looks again instead of entering the space.
            self.regions_mut(&blocked).change(region.range, Use::Foreign);
            self.end(space);
            if let Err(error) = mapped.map_over(self.extent().0).and_then(|()| {
                let platform = self.manager.platform();
                let protected = platform.protected(SPACE, region.range.first, region.range.end);
                let mut protected = protected.into_iter();
                protected.try_for_each(|(from, to, bits)| platform.protect(SPACE, from, to, bits))
            }) {
                end(&format!("a file cannot be mapped: {error}"));
            }
            drop(gate);
        }
    }

    /// Ends the mappings that lie wholly in a range that is to be free; hands over the others.
    pub(crate) fn end_files(&self, range: Range) {
        if !self.files_in(range).is_empty() {
            self.in_helper(|| self.end_files_here(range));
        }
    }

    fn end_files_here(&self, range: Range) {
        for (space, region) in self.files_in(range) {
            if region.range.first < range.first || range.end < region.range.end {
                self.hand_over(region.range);
                continue;
            }
            let blocked = Blocked::now();
            let gate = self.files.close_gate(space);
            if self.mapping(space, region, &blocked).is_some() {
                self.regions_mut(&blocked).change(region.range, Use::Mapping);
                self.end(space);
            }
            drop(gate);
        }
    }

    /// The mapping of a region, if it still belongs to the space.
    fn mapping(&self, space: SpaceId, region: Region, blocked: &Blocked) -> Option<Arc<Mapped>> {
        let now = self.regions(blocked).find(region.range.first);
        now.filter(|now| *now == region).and(self.files.get(space))
    }

    /// Closes the space of a mapping; no thread is using it.
    fn end(&self, space: SpaceId) {
        if self.files.remove(space).is_some() {
            let closed = self.manager.close_file(space);
            debug_assert!(closed.is_ok(), "nothing was changed: {closed:?}");
        }
    }

    /// Drops the pages of files in a range: they are read again when used.
    pub(crate) fn discard_files(&self, range: Range) {
        self.each_file(range, |space, within| self.manager.discard(space, within));
    }

    /// Reads the pages of files in a range ahead.
    pub(crate) fn prefetch_files(&self, range: Range) {
        self.each_file(range, |space, within| self.manager.prefetch(space, within));
    }

    fn each_file(&self, range: Range, act: impl Fn(SpaceId, Range)) {
        for (space, region) in self.files_in(range) {
            let blocked = Blocked::now();
            let _open = self.files.enter(space);
            if self.mapping(space, region, &blocked).is_some() {
                let first = range.first.max(region.range.first);
                let end = range.end.min(region.range.end);
                let page = |vpn: Vpn| Vpn(vpn.0 - region.range.first.0);
                act(space, Range { first: page(first), end: page(end) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_mappings_for_reading_are_wanted() {
        let plain = Request {
            len: 64 << 10,
            access: libc::PROT_READ,
            flags: libc::MAP_PRIVATE,
            fd: 3,
            offset: 4096,
        };
        assert!(is_wanted(&plain) && is_wanted(&Request { flags: libc::MAP_SHARED, ..plain }));
        for other in [
            Request { len: (64 << 10) - 1, ..plain },
            Request { access: libc::PROT_NONE, ..plain },
            Request { access: libc::PROT_READ | libc::PROT_WRITE, ..plain },
            Request { access: libc::PROT_READ | libc::PROT_EXEC, ..plain },
            Request { flags: libc::MAP_SHARED | libc::MAP_LOCKED, ..plain },
            Request { flags: libc::MAP_PRIVATE | libc::MAP_FIXED, ..plain },
            Request { flags: 0, ..plain },
            Request { offset: 100, ..plain },
        ] {
            assert!(!is_wanted(&other), "{:x} {:x}", other.access, other.flags);
        }
    }
}
