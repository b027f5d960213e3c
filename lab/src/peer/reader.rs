//! A file read by system calls in blocks of 4 MiB, as dd does: through the kernel's page cache or
//! past it.
//!
//! ```text
//! Prepared: a file with the streams' contents, on the disk and nowhere in memory
//! Reads ── enter ──> Reading: a block of its own, filled by one pread at a time
//! ```
//! No lock; pages are seen in the reader's block.

use super::{Unavailable, file};
use crate::workload::content::Content;
use crate::workload::host::Host;
use crate::workload::streams::{BLOCK_PAGES, KINDS, kind_of, word_of};
use crate::workload::{Access, Denied, Intent, Service, Target, WORDS, Words};
use highwater_mm::stats::{Counter, Snapshot};
use highwater_platform::LockStatistics;
use highwater_units::{Bytes, PAGE_SIZE};
use procfs::process::Process;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Advice, Mode, OFlags};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Through the page cache.
    Through,
    /// Past it (O_DIRECT).
    Past,
}

/// A file with contents, gone when this is dropped.
pub struct Prepared {
    file: OwnedFd,
    pages: u64,
}

impl Prepared {
    /// Writes a file of `len` bytes in `dir` with the contents of `seed`.
    ///
    /// # Errors
    /// `dir` is no directory one may write to, is in memory, or has no room.
    pub fn new(dir: &Path, len: Bytes, seed: u64) -> Result<Prepared, Unavailable> {
        let (file, pages) = (file::unnamed(dir, OFlags::empty())?, len.pages());
        let failed = |reason| file::no_room(dir, len, reason);
        let content = Content::new(seed);
        let page_of = |kind: u64| -> Vec<u8> {
            (0..WORDS).flat_map(|word| word_of(content, kind, word).to_ne_bytes()).collect()
        };
        let kinds: Vec<Vec<u8>> = (0..KINDS).map(page_of).collect();
        for first in (0..pages).step_by(BLOCK_PAGES as usize) {
            let block = first..pages.min(first + BLOCK_PAGES);
            let bytes: Vec<u8> =
                block.flat_map(|page| &kinds[kind_of(page) as usize]).copied().collect();
            let mut done = 0;
            while done < bytes.len() {
                let at = Bytes::of_pages(first).0 + done as u64;
                done += rustix::io::pwrite(&file, &bytes[done..], at).map_err(failed)?;
            }
        }
        rustix::fs::fsync(&file).map_err(failed)?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(failed)?;
        Ok(Prepared { file, pages })
    }

    /// A name by which it can be opened while this lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

/// Readers of one file.
pub struct Reads {
    file: OwnedFd,
    pages: u64,
    _prepared: Prepared,
}

impl Reads {
    /// Reads a prepared file.
    ///
    /// # Errors
    /// The file system cannot bypass the page cache, or /proc cannot be read.
    pub fn new(prepared: Prepared, cache: Cache) -> Result<Reads, Unavailable> {
        let more = match cache {
            Cache::Through => OFlags::empty(),
            Cache::Past => OFlags::DIRECT,
        };
        let opened = rustix::fs::open(
            prepared.path(),
            OFlags::RDONLY | OFlags::CLOEXEC | more,
            Mode::empty(),
        );
        let file = opened.map_err(|reason| Unavailable::because("O_DIRECT", reason))?;
        let reads = Reads { file, pages: prepared.pages, _prepared: prepared };
        reads.read_bytes().map_err(|reason| Unavailable::because("/proc", reason))?;
        Ok(reads)
    }

    fn read_bytes(&self) -> procfs::ProcResult<u64> {
        Ok(Process::myself()?.io()?.read_bytes)
    }
}

impl Service for Reads {
    type Target = Reads;
    type World = Host;

    fn target(&self) -> &Reads {
        self
    }

    fn world(&self) -> &Host {
        &Host
    }

    fn counters(&self) -> Snapshot {
        let mut snapshot = Snapshot::empty();
        let bytes = self.read_bytes().expect("/proc could be read when this began");
        snapshot.counters[Counter::PgFileIn as usize] = Bytes(bytes).pages();
        snapshot
    }

    fn locks(&self) -> Option<LockStatistics> {
        None
    }
}

impl Target for Reads {
    type Access<'a> = Reading<'a>;

    fn pages(&self) -> u64 {
        self.pages
    }

    fn enter(&self) -> Reading<'_> {
        Reading { reads: self, block: Block::new(), first: 0, len: 0 }
    }
}

/// Memory of a reader: a block of pages, aligned as O_DIRECT wants it.
pub(crate) struct Block(Vec<Aligned>);

#[repr(align(4096))]
struct Aligned(Words);

impl Block {
    pub(crate) fn new() -> Block {
        let page = |_| Aligned([const { AtomicU64::new(0) }; WORDS]);
        Block((0..BLOCK_PAGES).map(page).collect())
    }

    /// The place in it for a page of a file.
    pub(crate) fn page(&self, index: u64) -> &Words {
        &self.0[(index % BLOCK_PAGES) as usize].0
    }

    fn bytes(&mut self) -> &mut [u8] {
        let len = self.0.len() * PAGE_SIZE;
        // SAFETY: the words are this block's alone while it is borrowed so, and any bytes are
        // words; an aligned page has no padding.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// One reader.
pub struct Reading<'a> {
    reads: &'a Reads,
    block: Block,
    /// The page of the file that the block begins with.
    first: u64,
    /// Pages in it.
    len: u64,
}

impl Reading<'_> {
    /// Reads a block from a page on.
    fn fill(&mut self, first: u64) -> Result<(), Denied> {
        let pages = (self.reads.pages - first).min(BLOCK_PAGES);
        let bytes = &mut self.block.bytes()[..pages as usize * PAGE_SIZE];
        let mut done = 0;
        while done < bytes.len() {
            let at = Bytes::of_pages(first).0 + done as u64;
            match rustix::io::pread(&self.reads.file, &mut bytes[done..], at) {
                Ok(0) => return Err(Denied(format!("the file ends at byte {at}"))),
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(reason) => return Err(Denied(format!("reading at byte {at}: {reason}"))),
            }
        }
        (self.first, self.len) = (first, pages);
        Ok(())
    }
}

impl Access for Reading<'_> {
    type Page<'a>
        = &'a Words
    where
        Self: 'a;

    fn page(&mut self, index: u64, intent: Intent) -> Result<&Words, Denied> {
        if intent == Intent::Write {
            return Err(Denied("the file is only read".into()));
        }
        if !(self.first..self.first + self.len).contains(&index) {
            self.fill(index)?;
        }
        Ok(&self.block.0[(index - self.first) as usize].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_testkit::skip_or_fail;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn both_ways_show_what_was_written() {
        let (dir, seed) = (Path::new(env!("CARGO_MANIFEST_DIR")), 7);
        for cache in [Cache::Through, Cache::Past] {
            let prepared = Prepared::new(dir, Bytes::of_pages(1030), seed).expect("a file");
            let reads = match Reads::new(prepared, cache) {
                Err(reason) => return skip_or_fail(reason),
                Ok(reads) => reads,
            };
            let mut access = reads.enter();
            for page in [0, 1, 1023, 1024, 1029, 5] {
                let words = access.page(page, Intent::Read).expect("a page");
                let expected = word_of(Content::new(seed), kind_of(page), 9);
                assert_eq!(words[9].load(Relaxed), expected, "page {page}");
            }
        }
    }
}
