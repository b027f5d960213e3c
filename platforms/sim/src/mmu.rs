//! Virtual page tables, and the cost of changing them while CPUs use them.
//!
//! ```text
//! spaces[id] = { page -> frame, protection;  CPUs that have used it since their last flush }
//! ```
//! Unmapping marks a TLB flush as pending. One flush covers up to 32 pages and is paid before the
//! frames are reused: when the thread starts a transfer, waits, or leaves reclaim (the kernel's
//! try_to_unmap_flush). With [`Recency::Unmapping`] (userfaultfd) every call flushes, once for each
//! space. Only the cost is deferred: no CPU sees a page after it was unmapped.

use crate::Sim;
use crate::page_tables::{Flush, PageTable};
use highwater_platform::{AttachError, Mmu, Progress, Protection, Recency, Stop, UnmapPage};
use highwater_units::{BATCH_PAGES_MAX, LARGE_PAGES, Pfn, SpaceId, Vpn};
use std::sync::atomic::Ordering::Relaxed;

/// The result of a program's access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The page is mapped to this frame.
    Page(Pfn),
    /// The access faults.
    Fault,
}

impl Sim {
    /// A hardware access by the program: charges for it, and returns its result.
    pub fn access(&self, space: SpaceId, vpn: Vpn, protection: Protection) -> Seen {
        let engine = self.engine();
        engine.sync();
        let cpu = engine.running_cpu();
        let found = self.spaces().with(|spaces| {
            spaces.used_by(space, cpu);
            *spaces.page(space, vpn)
        });
        match found {
            Some((pfn, allowed)) if protection == Protection::ReadOnly || allowed == protection => {
                Seen::Page(pfn)
            }
            _ => Seen::Fault,
        }
    }

    /// CPU time of a random access to a page of a space.
    pub fn charge_access(&self, space: SpaceId, pfn: Pfn) {
        let engine = self.engine();
        let cpu = engine.running_cpu();
        self.spaces().with(|spaces| spaces.used_by(space, cpu));
        engine.charge(self.remote(pfn, engine.machine.costs.memory));
    }

    /// CPU time of copying a page to the program's own memory.
    pub fn charge_copy(&self, pfn: Pfn) {
        let engine = self.engine();
        engine.charge(self.remote(pfn, engine.machine.costs.copy_page));
    }

    /// Loads a word for the program; `None` if the access faults.
    pub fn program_load(&self, space: SpaceId, vpn: Vpn, word: usize) -> Option<u64> {
        match self.access(space, vpn, Protection::ReadOnly) {
            Seen::Page(pfn) => Some(self.contents().with(|c| c.get(pfn)[word].load(Relaxed))),
            Seen::Fault => None,
        }
    }

    /// Stores a word for the program; `None` if the access faults.
    pub fn program_store(&self, space: SpaceId, vpn: Vpn, word: usize, value: u64) -> Option<()> {
        match self.access(space, vpn, Protection::ReadWrite) {
            Seen::Page(pfn) => {
                self.contents().with(|c| c.get_mut(pfn)[word].store(value, Relaxed));
                Some(())
            }
            Seen::Fault => None,
        }
    }

    /// Drops a page as the program may, without notifying the manager.
    pub fn program_drop(&self, space: SpaceId, vpn: Vpn) {
        self.engine().sync();
        let dropped = self.spaces().with(|spaces| spaces.page(space, vpn).take());
        if let Some((pfn, _)) = dropped {
            self.watch().with(|watch| watch.unmap(pfn, space, vpn));
            self.contents().with(|contents| contents.spoil(pfn));
        }
    }

    /// Pays for a pending flush.
    pub(crate) fn flush(&self) {
        let engine = self.engine();
        let due = self.flushes().with(|flushes| flushes.remove(&engine.running_task()));
        let Some(Flush { mut targets, .. }) = due else { return };
        targets.sort_unstable();
        targets.dedup();
        let costs = &engine.machine.costs;
        if let Some(others) = targets.len().checked_sub(1) {
            engine.interrupt(targets.into_iter(), costs.shootdown_interrupt);
            engine.charge(costs.shootdown + costs.shootdown_target * others as u64);
        }
    }

    /// Marks a flush of some pages of a space as pending.
    fn owe_flush(&self, space: SpaceId, pages: usize) {
        let engine = self.engine();
        let cpu = engine.running_cpu();
        let targets = self.spaces().with(|spaces| spaces.take_cpus(space, cpu));
        let owed = self.flushes().with(|flushes| {
            let flush = flushes.entry(engine.running_task()).or_default();
            flush.pages += pages;
            flush.targets.extend(targets);
            flush.pages
        });
        if owed >= BATCH_PAGES_MAX || self.recency() == Recency::Unmapping {
            self.flush();
        }
    }

    /// Makes the mapped pages around a batch read-only, as platform uffd's write protection does:
    /// it spans, in each block, all pages from the first to the last that may change.
    fn protect_between(&self, pages: &[UnmapPage]) {
        let place = |page: &UnmapPage| (page.space, page.vpn.0 / LARGE_PAGES as u64);
        let mut changing: Vec<&UnmapPage> =
            pages.iter().filter(|page| page.mapped == Protection::ReadWrite).collect();
        changing.sort_unstable_by_key(|page| (page.space, page.vpn));
        for block in changing.chunk_by(|a, b| place(a) == place(b)) {
            let (first, last) = (block[0].vpn.0, block[block.len() - 1].vpn.0);
            self.spaces().with(|spaces| {
                for vpn in (first..=last).map(Vpn) {
                    if let Some((_, protection)) = spaces.page(block[0].space, vpn) {
                        *protection = Protection::ReadOnly;
                    }
                }
            });
        }
    }

    /// Unmaps one page.
    fn unmap_one(&self, space: SpaceId, vpn: Vpn, pfn: Pfn) -> Result<(), Stop> {
        let faults = self.injected_faults();
        let busy = faults.inject(self.engine(), |faults| &faults.busy);
        self.spaces().with(|spaces| {
            let page = spaces.page(space, vpn);
            match *page {
                None => Err(Stop::Vanished),
                Some(_) if busy => Err(Stop::Busy),
                Some((found, _)) => {
                    assert_eq!(found, pfn, "{vpn:?} of {space:?} is unmapped from another frame");
                    *page = None;
                    Ok(())
                }
            }
        })?;
        self.watch().with(|watch| watch.unmap(pfn, space, vpn));
        Ok(())
    }
}

impl Sim {
    /// Frees the page table of a space.
    pub(crate) fn detach(&self, space: SpaceId) {
        let table =
            self.spaces().with(|spaces| std::mem::take(&mut spaces.0[usize::from(space.0)]));
        assert!(table.pages.iter().all(Option::is_none), "{space:?} has mapped pages");
    }
}

impl Mmu for Sim {
    fn recency(&self) -> Recency {
        self.recency_kind()
    }

    fn attach(&self, space: SpaceId, pages: u64) -> Result<(), AttachError> {
        let words = self.engine().machine.cpus().div_ceil(64);
        let table = PageTable { pages: vec![None; pages as usize], cpus: vec![0; words] };
        self.spaces().with(|spaces| {
            let index = usize::from(space.0);
            if spaces.0.len() <= index {
                spaces.0.resize_with(index + 1, PageTable::default);
            }
            spaces.0[index] = table;
        });
        Ok(())
    }

    fn map(&self, space: SpaceId, first: Vpn, frames: &[Pfn], protection: Protection) -> Progress {
        let engine = self.engine();
        engine.sync();
        for (index, pfn) in frames.iter().enumerate() {
            let vpn = first.offset(index as u64);
            let free = self.spaces().with(|spaces| spaces.page(space, vpn).is_none());
            if !free {
                return Progress::until(index, Stop::Occupied);
            }
            self.watch().with(|watch| watch.map(*pfn, space, vpn));
            self.spaces().with(|spaces| *spaces.page(space, vpn) = Some((*pfn, protection)));
            engine.charge(engine.machine.costs.map_page);
        }
        Progress::all(frames.len())
    }

    fn unmap(&self, space: SpaceId, first: Vpn, frames: &[Pfn]) -> Progress {
        let engine = self.engine();
        engine.sync();
        let mut progress = Progress::all(frames.len());
        for (index, pfn) in frames.iter().enumerate() {
            if let Err(stop) = self.unmap_one(space, first.offset(index as u64), *pfn) {
                progress = Progress::until(index, stop);
                break;
            }
            engine.charge(engine.machine.costs.unmap_page);
        }
        if progress.done > 0 {
            self.owe_flush(space, progress.done);
        }
        progress
    }

    fn unmap_batch(&self, pages: &mut [UnmapPage]) {
        let engine = self.engine();
        engine.sync();
        self.protect_between(pages);
        for page in pages.iter_mut() {
            page.result = self.unmap_one(page.space, page.vpn, page.pfn);
            if page.result.is_ok() {
                engine.charge(engine.machine.costs.unmap_page);
            }
        }
        for pages in pages.chunk_by(|a, b| a.space == b.space) {
            let done = pages.iter().filter(|page| page.result.is_ok()).count();
            if done > 0 {
                self.owe_flush(pages[0].space, done);
            }
        }
    }

    fn discard(&self, space: SpaceId, vpn: Vpn, pfn: Pfn) {
        self.engine().sync();
        let page = self.spaces().with(|spaces| spaces.page(space, vpn).take());
        assert_eq!(page.map(|(pfn, _)| pfn), Some(pfn), "a busy page is still mapped");
        self.watch().with(|watch| watch.unmap(pfn, space, vpn));
        self.contents().with(|contents| contents.spoil(pfn));
        self.owe_flush(space, 1);
    }

    fn copy(&self, space: SpaceId, vpn: Vpn, from: Pfn, to: Pfn) {
        let engine = self.engine();
        engine.sync();
        let page = self.spaces().with(|spaces| *spaces.page(space, vpn));
        assert_eq!(page.map(|(pfn, _)| pfn), Some(from), "a busy page is still mapped");
        self.watch().with(|watch| watch.touch(to, "copied to"));
        self.copy_contents(from, to);
    }

    fn coalesce(&self, _: SpaceId, _: Vpn, _: Pfn) {
        // The simulator charges nothing for translations.
    }

    fn allow_write(&self, space: SpaceId, first: Vpn, pages: usize) {
        let engine = self.engine();
        engine.sync();
        self.spaces().with(|spaces| {
            for vpn in (first.0..first.0 + pages as u64).map(Vpn) {
                if let Some((_, protection)) = spaces.page(space, vpn) {
                    *protection = Protection::ReadWrite;
                }
            }
        });
        engine.charge(engine.machine.costs.map_page * pages as u64);
    }

    fn holds(&self, space: SpaceId, vpn: Vpn) -> bool {
        self.engine().sync();
        self.spaces().with(|spaces| spaces.page(space, vpn).is_some())
    }
}
