//! Which pages of a mapping are present, and whether they are pages of a file.
//!
//! ```text
//! Pagemap::look -- PAGEMAP_SCAN (Linux 6.7): passes over what is not mapped in one step
//!              \-- before: 8 bytes for each page
//! ```
//! Locking: none.

use highwater_units::PAGE_SIZE;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610_u32 as libc::Ioctl;

/// Categories of PAGEMAP_SCAN.
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;

/// Bits of a word of the pagemap.
const OF_FILE: u64 = 1 << 61;
const SWAPPED: u64 = 1 << 62;
const PRESENT: u64 = 1 << 63;

/// Runs of pages that are found at once.
const RUNS_MAX: usize = 256;

/// Without PAGEMAP_SCAN: pages that are read at once, and in one look.
const WORDS_MAX: usize = 512;
const READS_MAX: usize = 32;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

/// The pages that are present at some addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// From the first page that is present to the end of the last one.
    pub(crate) pages: Range<usize>,
    /// How many pages of a file are present.
    pub(crate) mapped: u64,
    /// Whether a page is the process's own.
    pub(crate) is_own: bool,
    /// The address up to which pages were looked up.
    pub(crate) end: usize,
}

impl Seen {
    fn nothing(at: usize) -> Seen {
        Seen { pages: at..at, mapped: 0, is_own: false, end: at }
    }

    fn add(&mut self, start: usize, end: usize, is_file: bool) {
        let first = if self.pages.is_empty() { start } else { self.pages.start };
        self.pages = first..end;
        self.mapped += ((end - start) / PAGE_SIZE) as u64;
        self.is_own |= !is_file;
    }
}

/// The page tables of this process.
pub(crate) struct Pagemap {
    file: File,
    can_scan: AtomicBool,
    has_scanned: AtomicBool,
}

/// Whether a call that failed shows that the system has no PAGEMAP_SCAN: later calls may fail for
/// want of memory.
fn is_missing(error: &io::Error, has_scanned: bool) -> bool {
    match error.raw_os_error() {
        Some(libc::ENOTTY) => true,
        Some(libc::EINVAL) => !has_scanned,
        _ => false,
    }
}

impl Pagemap {
    /// # Errors
    /// /proc does not show it.
    pub(crate) fn open() -> io::Result<Pagemap> {
        let file = File::open("/proc/self/pagemap")?;
        Ok(Pagemap { file, can_scan: AtomicBool::new(true), has_scanned: AtomicBool::new(false) })
    }

    /// Looks pages up until `wanted` of them were present, or as far as one call goes. All have
    /// been looked up if the system does not show them.
    pub(crate) fn look(&self, range: Range<usize>, wanted: u64) -> Seen {
        let end = range.end;
        if self.can_scan.load(Relaxed) {
            match self.scan(range.clone(), wanted) {
                Ok(seen) => {
                    self.has_scanned.store(true, Relaxed);
                    return seen;
                }
                Err(error) if is_missing(&error, self.has_scanned.load(Relaxed)) => {
                    self.can_scan.store(false, Relaxed);
                }
                Err(_) => {}
            }
        }
        self.read(range, wanted).unwrap_or(Seen { end, ..Seen::nothing(end) })
    }

    fn scan(&self, range: Range<usize>, wanted: u64) -> io::Result<Seen> {
        let mut runs = [Run::default(); RUNS_MAX];
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: range.start as u64,
            end: range.end.next_multiple_of(PAGE_SIZE) as u64,
            vec: runs.as_mut_ptr() as u64,
            vec_len: RUNS_MAX as u64,
            max_pages: wanted,
            category_anyof_mask: IS_PRESENT | IS_SWAPPED,
            return_mask: IS_PRESENT | IS_SWAPPED | IS_FILE,
            ..Scan::default()
        };
        // SAFETY: an argument of this kind, and room for so many runs.
        let found = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
        let mut seen = Seen { end: scan.walk_end as usize, ..Seen::nothing(range.start) };
        for run in &runs[..found] {
            seen.add(run.start as usize, run.end as usize, run.categories & IS_FILE != 0);
        }
        Ok(seen)
    }

    fn read(&self, range: Range<usize>, wanted: u64) -> Option<Seen> {
        let mut seen = Seen::nothing(range.start);
        for _ in 0..READS_MAX {
            let first = seen.end / PAGE_SIZE;
            let count = (range.end.div_ceil(PAGE_SIZE) - first).min(WORDS_MAX);
            let mut words = [0; 8 * WORDS_MAX];
            let words = &mut words[..8 * count];
            self.file.read_exact_at(words, 8 * first as u64).ok()?;
            for (at, word) in words.as_chunks::<8>().0.iter().enumerate() {
                let (word, page) = (u64::from_ne_bytes(*word), (first + at) * PAGE_SIZE);
                if word & (PRESENT | SWAPPED) != 0 {
                    seen.add(page, page + PAGE_SIZE, word & OF_FILE != 0);
                }
            }
            seen.end = (first + count) * PAGE_SIZE;
            if seen.end >= range.end || seen.mapped >= wanted {
                break;
            }
        }
        Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
    use std::io::Write;
    use std::ptr;

    const PAGES: usize = 700;

    fn map(source: Option<&File>) -> usize {
        let (len, access) = (PAGES * PAGE_SIZE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: at addresses that are free.
        unsafe {
            match source {
                Some(file) => mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0),
                None => mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE),
            }
        }
        .unwrap()
        .expose_provenance()
    }

    fn touch(address: usize, page: usize) {
        let at = ptr::with_exposed_provenance_mut::<u8>(address + page * PAGE_SIZE);
        // SAFETY: a page of the mapping.
        unsafe { at.write_volatile(1) };
    }

    fn unmap(address: usize) {
        let at = ptr::with_exposed_provenance_mut(address);
        // SAFETY: the whole mapping.
        unsafe { munmap(at, PAGES * PAGE_SIZE).unwrap() };
    }

    /// Regression: after one call that failed each page was looked up, for good.
    #[test]
    fn a_call_that_fails_once_is_made_again() {
        for (error, has_scanned, expected) in [
            (libc::ENOTTY, false, true),
            (libc::EINVAL, false, true),
            (libc::EINVAL, true, false),
            (libc::ENOMEM, false, false),
            (libc::EINTR, true, false),
        ] {
            let found = is_missing(&io::Error::from_raw_os_error(error), has_scanned);
            assert_eq!(found, expected, "{error} {has_scanned}");
        }
    }

    /// Both ways see the same pages of a file, and the same pages of the process's own.
    #[test]
    fn pages_that_are_present_are_found() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; PAGES * PAGE_SIZE]).unwrap();
        let pagemap = Pagemap::open().unwrap();
        type Way = fn(&Pagemap, Range<usize>, u64) -> Option<Seen>;
        let ways: [Way; 2] =
            [|pagemap, range, wanted| pagemap.scan(range, wanted).ok(), Pagemap::read];
        for source in [Some(&file), None] {
            let address = map(source);
            let all = address..address + PAGES * PAGE_SIZE;
            for way in ways {
                let Some(seen) = way(&pagemap, all.clone(), 9999) else { continue };
                assert_eq!((seen.mapped, seen.is_own, seen.end), (0, false, all.end));
            }
            touch(address, 100);
            touch(address, 600);
            for way in ways {
                let Some(seen) = way(&pagemap, all.clone(), 9999) else { continue };
                assert_eq!((seen.is_own, seen.end), (source.is_none(), all.end));
                assert!((2..=PAGES as u64).contains(&seen.mapped), "{seen:?}");
                let expected = address + 100 * PAGE_SIZE..address + 601 * PAGE_SIZE;
                assert!(seen.pages.start <= expected.start && expected.end <= seen.pages.end);
            }
            unmap(address);
        }
    }
}
