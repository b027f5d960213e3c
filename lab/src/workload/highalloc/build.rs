//! A kernel that is built, one compiler after the other.
//!
//! No locks: a build shares neither its pages nor its kernel memory.

use super::bench::{Bench, kind_of, lock, source_word};
use super::kernel::{Kernel, process};
use crate::workload::content::Mismatch;
use crate::workload::outcome::Failure;
use crate::workload::streams::word_of;
use crate::workload::tally::Tally;
use crate::workload::{Access, Arena, Intent, Target, WORDS, Words};
use highwater_units::{Nanos, Prng};
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that a compiler touches before it computes.
const BURST: u64 = 8;
/// Pages of sources that only this unit reads.
const SOURCES: u64 = 2;
/// Pages of its object.
const OBJECTS: u64 = 4;
/// Files that it opens for the first time, by what the kernel allocates for them.
const OPENED: usize = 2;
/// Units between two that are linked.
const LINKED: u64 = 16;
/// Pages of sources between two allocations that the kernel keeps for files, during the fill.
const FILL_PAGES: u64 = 4;

/// One build at work.
pub(super) struct Build<'a, S: Arena + 'a> {
    bench: &'a Bench<'a, S>,
    access: <S::Target as Target>::Access<'a>,
    kernel: MutexGuard<'a, Kernel>,
    random: Prng,
    sources: Range<u64>,
    objects: Range<u64>,
    compiler: Range<u64>,
    /// Units so far: versions of a compiler's pages.
    units: u64,
    /// The next page of sources, counted from the first and on.
    read: u64,
    /// The next page of objects, counted on: each pass over them increments their versions.
    written: u64,
    tally: Tally,
}

impl<'a, S: Arena + Sync> Build<'a, S> {
    /// The build of `thread`.
    pub(super) fn new(bench: &'a Bench<'a, S>, thread: usize) -> Build<'a, S> {
        let layout = &bench.config.layout;
        Build {
            bench,
            access: bench.service.target().enter(),
            kernel: lock(&bench.kernels[thread]),
            random: Prng::new(bench.config.seed ^ (thread as u64 + 1) << 48),
            sources: layout.sources(thread),
            objects: layout.objects(thread),
            compiler: layout.compiler(thread),
            units: 0,
            read: 0,
            written: 0,
            tally: Tally::new(),
        }
    }

    /// Reads all sources once; the kernel remembers the files.
    pub(super) fn fill(&mut self) -> Result<(), Failure> {
        let pages = self.sources.end - self.sources.start;
        let opened = pages / FILL_PAGES;
        for page in 0..pages {
            self.source()?;
            let due = self.kernel.share() * (page / FILL_PAGES) / opened.max(1);
            if page % FILL_PAGES == 0 && self.kernel.pages() <= due {
                self.kernel.grow(self.bench.service);
            }
        }
        Ok(())
    }

    /// Compiles until the builds are ended, or one fails.
    pub(super) fn work(mut self) -> Result<Tally, Failure> {
        while !self.bench.ending.load(Relaxed) && !self.bench.workers.failed() {
            self.unit()?;
        }
        self.kernel.forget(self.bench.service);
        self.bench.running.fetch_sub(1, Relaxed);
        Ok(self.tally)
    }

    fn unit(&mut self) -> Result<(), Failure> {
        (0..SOURCES).try_for_each(|_| self.source())?;
        (0..OPENED).for_each(|_| self.kernel.grow(self.bench.service));
        let most = self.compiler.end - self.compiler.start;
        let pages = (most / 4 + self.random.below(most * 3 / 4 + 1)).max(1);
        let tables = process(self.bench.service, pages);
        let compiled = self.compile(pages);
        if compiled.is_ok() {
            (0..OBJECTS).try_for_each(|_| self.object())?;
        }
        let memory = self.compiler.start..self.compiler.start + pages;
        self.bench.service.drop_pages(memory);
        tables.into_iter().for_each(|first| self.bench.service.free_run(first));
        self.units += 1;
        if self.units.is_multiple_of(LINKED) {
            self.link()?;
        }
        compiled
    }

    /// Uses the memory of the compiler: touches every page, reuses some, and checks all of them at
    /// the end.
    fn compile(&mut self, pages: u64) -> Result<(), Failure> {
        let version = self.units as u32;
        for page in 0..pages {
            let at = self.compiler.start + page;
            self.store(at, version)?;
            if page % BURST == 0 {
                let again = self.compiler.start + self.random.below(page + 1);
                self.load(again, version)?;
                self.bench.service.work(Nanos(self.bench.config.work.0 * BURST));
                if self.bench.workers.failed() {
                    return Ok(());
                }
            }
        }
        (0..pages).try_for_each(|page| self.load(self.compiler.start + page, version))
    }

    fn object(&mut self) -> Result<(), Failure> {
        let (page, lap) = at(&self.objects, self.written);
        self.written += 1;
        self.store(page, lap)
    }

    /// Reads the objects of the last units.
    fn link(&mut self) -> Result<(), Failure> {
        let last = self.written.min(LINKED * OBJECTS).min(self.objects.end - self.objects.start);
        (self.written - last..self.written).try_for_each(|object| {
            let (page, lap) = at(&self.objects, object);
            self.load(page, lap)
        })
    }

    /// Writes the word of a page that is checked.
    fn store(&mut self, page: u64, version: u32) -> Result<(), Failure> {
        let words = self.access.page(page, Intent::Write).map_err(Failure::Denied)?;
        let word = word_of_version(version);
        words[word].store(self.bench.workers.content.value(page, word, version), Relaxed);
        self.tally.stores += 1;
        Ok(())
    }

    /// Checks that word.
    fn load(&mut self, page: u64, version: u32) -> Result<(), Failure> {
        let words = self.access.page(page, Intent::Read).map_err(Failure::Denied)?;
        let word = word_of_version(version);
        let found = words[word].load(Relaxed);
        drop(words);
        self.tally.loads += 1;
        self.bench.workers.check(page, word, version..=version, found)
    }

    /// Reads the next page of sources, as read(2) does.
    fn source(&mut self) -> Result<(), Failure> {
        let (page, _) = at(&self.sources, self.read);
        self.read += 1;
        let mut seen = (0, 0);
        let mut see = |words: &Words| seen = source_word(page, words);
        self.access.copy(page, &mut see).map_err(Failure::Denied)?;
        self.tally.loads += 1;
        let (content, (word, found)) = (self.bench.workers.content, seen);
        let kind = kind_of(page);
        let expected = word_of(content, kind, word);
        if found == expected {
            return Ok(());
        }
        let found_version = content.version(kind, word, found);
        let (version, seed) = (Some(0), content.seed());
        let wrong = Mismatch { page, word, version, expected, found, found_version, seed };
        Err(Failure::Mismatch(wrong))
    }
}

/// The page at position `count` of repeated passes over `pages`, and the number of passes before.
fn at(pages: &Range<u64>, count: u64) -> (u64, u32) {
    let length = pages.end - pages.start;
    (pages.start + count % length, (count / length) as u32)
}

/// The word of a page that is written and checked. It is equal for all pages of a unit, so that a
/// frame mapped as two pages is detected.
fn word_of_version(version: u32) -> usize {
    version as usize * 131 % WORDS
}
