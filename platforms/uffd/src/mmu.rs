//! Maps pages into programs and unmaps them. A mapped page exists only in the program (`stage.rs`).
//!
//! ```text
//! map           UFFDIO_COPY from the stage, read-only pages write-protected by the same call
//! unmap_batch   take_out.rs
//! unmap         the same for consecutive pages, up to the first that cannot be unmapped
//! poison        UFFDIO_POISON, unless threads serve themselves; it ends when the page is dropped
//! ```
//! Mapping flushes no TLB. Unmapping a batch flushes once to write-protect each block of 2 MiB with
//! pages that may change meanwhile, and once to drop all pages.

use crate::api::{Partial, Wake, Writes};
use crate::area::Delivery;
use crate::protect::{Access, Fixed};
use crate::residency::PAGES_MAX;
use crate::take_out::Failure;
use crate::uffd::Uffd;
use highwater_os::huge;
use highwater_os::sys::{self, Advice};
use highwater_platform::{
    AttachError, Mmu, Progress, Protection, Recency, Stop, UNMAP_PAGES_MAX, UnmapPage,
    WORDS_PER_FRAME,
};
use highwater_units::{PAGE_SIZE, Pfn, SpaceId, Vpn};
use std::ops::Range;

impl Mmu for Uffd {
    fn recency(&self) -> Recency {
        Recency::Unmapping
    }

    fn attach(&self, space: SpaceId, pages: u64) -> Result<(), AttachError> {
        let attached = self.areas.attach(space, pages);
        attached.map_err(|error| AttachError(error.raw_os_error().unwrap_or(libc::EIO)))
    }

    fn addresses(&self, space: SpaceId) -> Option<Range<u64>> {
        Some(self.areas.addresses(space))
    }

    fn peek(&self, space: SpaceId, vpn: Vpn, words: &mut [u64; WORDS_PER_FRAME]) -> bool {
        let page = self.areas.address(space, vpn) as u64;
        let fixed = self.areas.protections().fix();
        // Where reading a vanished page would wait for a handler, this may be the handler.
        let is_safe = self.own_memory.is_some() || self.residency.has(page);
        let may_read = is_safe && fixed.at(page) != Access::None;
        let to = words.as_mut_ptr().cast();
        // SAFETY: an array of a page's length.
        may_read && unsafe { self.load_page(space, page, to, &fixed) }.is_ok()
    }

    fn map(&self, space: SpaceId, first: Vpn, frames: &[Pfn], protection: Protection) -> Progress {
        let writes = match protection {
            Protection::ReadOnly => Writes::Reported,
            Protection::ReadWrite => Writes::Allowed,
        };
        let progress = self.copy_in(space, first, frames, writes);
        self.stage.count_mapped(progress.done);
        self.stage.release(self.topology.current(), &frames[..progress.done], &self.drops);
        progress
    }

    fn inherit(&self, frames: &[Pfn]) {
        self.stage.count_mapped(frames.len());
    }

    fn unmap(&self, space: SpaceId, first: Vpn, frames: &[Pfn]) -> Progress {
        // With MOVE, pages behind the first failure could not be put back, so pages are unmapped
        // one by one.
        let step = if self.pins_are_expected() { 1 } else { UNMAP_PAGES_MAX };
        let mut done = 0;
        for chunk in frames.chunks(step) {
            let progress = self.unmap_run(space, first.offset(done as u64), chunk);
            done += progress.done;
            if let Some(stop) = progress.stop {
                return Progress::until(done, stop);
            }
        }
        Progress::all(done)
    }

    fn unmap_batch(&self, pages: &mut [UnmapPage]) {
        self.take_out(pages, Failure::Skipped);
    }

    fn discard(&self, space: SpaceId, vpn: Vpn, _: Pfn) {
        let address = self.areas.address(space, vpn);
        self.count_leaving(address as u64);
        // SAFETY: a page of a space whose contents are not needed.
        let _ = unsafe { sys::advise(address, PAGE_SIZE, Advice::LinuxDontNeed) };
        self.stage.count_dropped(1);
    }

    fn poison(&self, space: SpaceId, vpn: Vpn) -> bool {
        if self.areas.delivery(space) == Delivery::InThread {
            // The thread that accesses the page asks the manager, and system calls fail anyway.
            return true;
        }
        let address = self.areas.address(space, vpn) as u64;
        let poisoned = self.areas.uffd(space).poison(address, PAGE_SIZE);
        poisoned.map_or_else(|error| error.raw_os_error() == Some(libc::EEXIST), |()| true)
    }

    fn unpoison(&self, space: SpaceId, vpn: Vpn) {
        // Fails where a raw system call has mapped something else over the page.
        if self.areas.delivery(space) == Delivery::Handler && self.poison(space, vpn) {
            let address = self.areas.address(space, vpn);
            // SAFETY: a page of a space, without contents: it is poisoned.
            let _ = unsafe { sys::advise(address, PAGE_SIZE, Advice::LinuxDontNeed) };
        }
    }

    fn copy(&self, space: SpaceId, vpn: Vpn, _: Pfn, to: Pfn) {
        let from = self.areas.address(space, vpn) as u64;
        let fixed = self.areas.protections().fix();
        let read = self.read_program(from, self.stage.address(to), &fixed);
        assert!(read, "a mapped page can be read");
    }

    fn coalesce(&self, space: SpaceId, first: Vpn, _: Pfn) {
        let block = self.areas.address(space, first);
        if block.addr().is_multiple_of(huge::SIZE) {
            // The kernel refuses if a page is missing; it sends no fault for it.
            // SAFETY: a block of the space; the kernel keeps its contents.
            let _ = unsafe { huge::collapse(block) };
        }
    }

    fn allow_write(&self, space: SpaceId, first: Vpn, pages: usize) {
        let address = self.areas.address(space, first) as u64;
        let uffd = self.areas.uffd(space);
        self.count_stores(address, pages);
        let allow = |address, len| uffd.protect(address, len, Writes::Allowed, Wake::Now);
        if allow(address, pages * PAGE_SIZE).is_ok() {
            return;
        }
        // Before Linux 6.4 the pages must lie in one mapping (VMA).
        for page in (0..pages).map(|page| address + (page * PAGE_SIZE) as u64) {
            if allow(page, PAGE_SIZE).is_err() {
                // The program has unmapped the page itself.
                uffd.wake(page, PAGE_SIZE);
            }
        }
    }

    fn holds(&self, space: SpaceId, vpn: Vpn) -> bool {
        self.residency.has(self.areas.address(space, vpn) as u64)
    }
}

impl Uffd {
    /// Copies frames to consecutive pages, adjacent ones with one call.
    fn copy_in(&self, space: SpaceId, first: Vpn, frames: &[Pfn], writes: Writes) -> Progress {
        for (offset, from, pages) in self.stage.stretches(frames) {
            let to = self.areas.address(space, first.offset(offset as u64)) as u64;
            let progress = match self.copy_stretch(space, to, from, pages, writes) {
                // A stretch that crosses a change of protection lies in two mappings (VMAs): the
                // kernel then returns ENOENT for the whole stretch.
                Progress { done, stop: Some(Stop::Vanished) } if pages > 1 => {
                    self.copy_each(space, to, (from, done..pages), writes)
                }
                progress => progress,
            };
            if let Some(stop) = progress.stop {
                return Progress::until(offset + progress.done, stop);
            }
        }
        Progress::all(frames.len())
    }

    fn copy_each(
        &self,
        space: SpaceId,
        to: u64,
        (from, pages): (u64, Range<usize>),
        writes: Writes,
    ) -> Progress {
        for page in pages.clone() {
            let at = (page * PAGE_SIZE) as u64;
            let progress = self.copy_stretch(space, to + at, from + at, 1, writes);
            if let Some(stop) = progress.stop {
                return Progress::until(page, stop);
            }
        }
        Progress::all(pages.end)
    }

    fn copy_stretch(
        &self,
        space: SpaceId,
        to: u64,
        from: u64,
        pages: usize,
        writes: Writes,
    ) -> Progress {
        let wake = match self.areas.delivery(space) {
            Delivery::Handler => Wake::Now,
            // No thread waits: each thread serves its own faults.
            Delivery::InThread => Wake::Later,
        };
        // A kernel without UFFDIO_MOVE may also be one whose UFFDIO_COPY does not protect
        // (`protect_closed`).
        let fixed = (writes == Writes::Reported && !self.can_move())
            .then(|| self.areas.protections().fix());
        // SAFETY: frames that the caller holds, into pages that the manager says are absent.
        let copied: Partial =
            unsafe { self.areas.uffd(space).copy(to, from, pages * PAGE_SIZE, writes, wake) };
        let progress = match copied {
            Ok(()) => Progress::all(pages),
            Err((bytes, error)) => Progress::until(bytes / PAGE_SIZE, stop_of(error)),
        };
        if let Some(fixed) = &fixed {
            self.protect_closed(space, to, progress.done, fixed);
        }
        progress
    }

    /// Write-protects pages in ranges that the program may not write to. Before Linux 5.19
    /// UFFDIO_COPY does not protect such pages: stores would go unnoticed once the program makes
    /// the range writable.
    fn protect_closed(&self, space: SpaceId, address: u64, pages: usize, fixed: &Fixed<'_>) {
        for page in (0..pages).map(|page| address + (page * PAGE_SIZE) as u64) {
            if matches!(fixed.at(page), Access::None | Access::Read) {
                let uffd = self.areas.uffd(space);
                // Fails only if the program has unmapped the page itself.
                let _ = uffd.protect(page, PAGE_SIZE, Writes::Reported, Wake::Later);
            }
        }
    }

    /// Unmaps up to 128 consecutive pages. Pages behind the first one that cannot be unmapped stay.
    fn unmap_run(&self, space: SpaceId, first: Vpn, frames: &[Pfn]) -> Progress {
        let page = |index: usize| UnmapPage {
            space,
            vpn: first.offset(index as u64),
            pfn: frames[index.min(frames.len() - 1)],
            mapped: Protection::ReadWrite,
            result: Ok(()),
        };
        let mut pages: [UnmapPage; UNMAP_PAGES_MAX] = std::array::from_fn(page);
        let pages = &mut pages[..frames.len()];
        self.take_out(pages, Failure::Ends);
        let done = pages.iter().take_while(|page| page.result.is_ok()).count();
        Progress { done, stop: pages.get(done).and_then(|page| page.result.err()) }
    }
}

fn stop_of(error: i32) -> Stop {
    match error {
        libc::EBUSY => Stop::Busy,
        libc::ENOENT => Stop::Vanished,
        libc::EEXIST => Stop::Occupied,
        error => Stop::Failed(error),
    }
}

const _: () = assert!(UNMAP_PAGES_MAX <= PAGES_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Mapping;
    use crate::residency::{Presence, Residency, settled};
    use crate::{Offer, Placement, Site};
    use highwater_devices::{Spec, open};
    use highwater_platform::Memory;
    use highwater_units::Bytes;

    const SPACE: SpaceId = SpaceId(0);
    const PAGES: u64 = 512;

    /// All pages are mapped and writable; page n holds the word 100 + n. `None` if this process may
    /// not use userfaultfd.
    fn platform(mapping: Mapping) -> Option<Uffd> {
        if let Err(reason) = Uffd::probe() {
            highwater_testkit::skip_or_fail(reason);
            return None;
        }
        let device = open(&Spec::Ram { size: Bytes(1 << 20) }).expect("memory");
        let platform = Uffd::new(Bytes::of_pages(PAGES), vec![device], mapping);
        let platform = platform.expect("userfaultfd");
        platform.place(SPACE, Placement { site: Site::Anywhere, delivery: Delivery::Handler });
        platform.attach(SPACE, PAGES).expect("address space");
        for pfn in (0..PAGES as u32).map(Pfn) {
            platform.store(pfn, 0, 100 + u64::from(pfn.0));
            let mapped = platform.map(SPACE, Vpn(pfn.0.into()), &[pfn], Protection::ReadWrite);
            assert_eq!(mapped, Progress::all(1));
        }
        Some(platform)
    }

    fn page_of(page: u64) -> UnmapPage {
        let (vpn, pfn) = (Vpn(page), Pfn(page as u32));
        UnmapPage { space: SPACE, vpn, pfn, mapped: Protection::ReadWrite, result: Ok(()) }
    }

    fn word(platform: &Uffd, page: u64) -> u64 {
        // SAFETY: a mapped page of the space.
        unsafe { platform.address(SPACE, Vpn(page)).cast::<u64>().read_volatile() }
    }

    fn drop_unseen(platform: &Uffd, page: u64) {
        // SAFETY: a page of the space.
        let dropped = unsafe {
            sys::advise(platform.address(SPACE, Vpn(page)), PAGE_SIZE, Advice::LinuxDontNeed)
        };
        assert!(dropped.is_ok());
    }

    #[test]
    fn a_scattered_batch_takes_two_calls_and_leaves_the_pages_between() {
        let Some(platform) = platform(Mapping::Move) else { return };
        let before = platform.calls();
        let mut pages: Vec<UnmapPage> = (0..128).map(|n| page_of((n * 36 + 5) % 512)).collect();
        drop_unseen(&platform, pages[7].vpn.0);
        platform.unmap_batch(&mut pages);
        for (index, page) in pages.iter().enumerate() {
            let expected = if index == 7 { Err(Stop::Vanished) } else { Ok(()) };
            assert_eq!(page.result, expected, "{page:?}");
            assert!(!platform.holds(SPACE, page.vpn));
            if index != 7 {
                assert_eq!(platform.load(page.pfn, 0), 100 + page.vpn.0);
            }
        }
        let left: Vec<u64> = (0..PAGES).filter(|n| pages.iter().all(|p| p.vpn.0 != *n)).collect();
        left.iter().for_each(|page| assert_eq!(word(&platform, *page), 100 + page));
        let calls = platform.calls();
        assert_eq!(calls.protects - before.protects, 1);
        if platform.drops.are_batched() {
            assert_eq!(calls.drops - before.drops, 1);
        }
    }

    /// Regression: the kernel writes to a page that is held for a system call, and failed if the
    /// page had become writable after the batch had looked for writable pages.
    #[test]
    fn no_page_between_is_protected_while_pages_may_be_held() {
        let Some(platform) = platform(Mapping::Move) else { return };
        let uffd = platform.areas.uffd(SPACE);
        platform.protect_all(uffd, SPACE, &[(Vpn(4), Vpn(5))]).expect("protection");
        platform.expect_holds();
        let before = platform.calls().protects;
        platform.unmap_batch(&mut [3, 5, 6].map(page_of));
        assert_eq!(platform.calls().protects - before, 2, "page 4 lies between");
    }

    /// Writable pages between two groups stay writable: a store to them must not fault.
    #[test]
    fn groups_far_apart_are_protected_apart() {
        let Some(platform) = platform(Mapping::Move) else { return };
        let before = platform.calls();
        let mut pages: Vec<UnmapPage> = (0..20).chain(400..420).map(page_of).collect();
        platform.unmap_batch(&mut pages);
        pages.iter().for_each(|page| assert_eq!(page.result, Ok(())));
        assert_eq!(platform.calls().protects - before.protects, 2);
        let between = platform.residency.of(platform.address(SPACE, Vpn(20)) as u64, 380);
        assert!(between[..380].iter().all(|page| page.is_writable));
    }

    /// UFFDIO_COPY of older kernels does not protect pages of a read-only range, and the program
    /// may write to them later.
    #[test]
    fn pages_of_read_only_ranges_are_protected_apart() {
        let Some(platform) = platform(Mapping::Copy) else { return };
        platform.protect(SPACE, Vpn(2), Vpn(4), libc::PROT_READ).expect("protection");
        platform.unmap_batch(&mut [0, 1, 2, 3, 4].map(page_of));
        let before = platform.calls().protects;
        let map =
            |page: u64| platform.map(SPACE, Vpn(page), &[Pfn(page as u32)], Protection::ReadOnly);
        (0..5).for_each(|page| assert_eq!(map(page), Progress::all(1)));
        assert_eq!(platform.calls().protects - before, 2);
        let found = platform.residency.of(platform.address(SPACE, Vpn(0)) as u64, 5);
        assert!(
            found[..5].iter().all(|page| page.presence == Presence::There && !page.is_writable)
        );
    }

    /// A kernel before 6.4 refuses a range that lies in several mappings (VMAs). A thread that
    /// waits for one of the pages must be woken all the same.
    #[test]
    fn pages_around_a_foreign_mapping_become_writable() {
        let Some(platform) = platform(Mapping::Copy) else { return };
        let uffd = platform.areas.uffd(SPACE);
        platform.protect_all(uffd, SPACE, &[(Vpn(0), Vpn(5))]).expect("protection");
        let page = platform.address(SPACE, Vpn(2));
        // SAFETY: a page of the space, whose contents are not needed.
        unsafe { sys::map_closed(page, PAGE_SIZE) }.expect("a mapping");
        platform.allow_write(SPACE, Vpn(0), 5);
        let found = platform.residency.of(platform.address(SPACE, Vpn(0)) as u64, 5);
        let writable: Vec<bool> = found[..5].iter().map(|page| page.is_writable).collect();
        assert_eq!(writable, [true, true, false, true, true]);
    }

    /// A process with the memory of this one, until it is dropped.
    struct Forked(libc::pid_t);

    impl Forked {
        fn new() -> Forked {
            // SAFETY: the child only waits for its end.
            match unsafe { libc::fork() } {
                0 => loop {
                    // SAFETY: a plain system call.
                    unsafe { libc::pause() };
                },
                child => {
                    assert!(child > 0, "a child");
                    Forked(child)
                }
            }
        }
    }

    impl Drop for Forked {
        fn drop(&mut self) {
            let mut status = 0;
            // SAFETY: the own child.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, &raw mut status, 0);
            }
        }
    }

    #[test]
    fn pages_of_two_processes_stay_under_guard_and_count_once_as_they_part() {
        let Some(platform) = platform(Mapping::Move) else { return };
        platform.offer(SPACE, Vpn(0), Vpn(PAGES), Offer::Made).expect("advice");
        let other = Forked::new();
        platform.guard(SPACE, &[(Vpn(0), Vpn(PAGES))]).expect("protection");
        let residency = platform.residency.of(platform.address(SPACE, Vpn(0)) as u64, 512);
        assert!(residency.iter().all(|page| !page.is_writable && !page.is_exclusive));
        for _ in 0..2 {
            platform.allow_write(SPACE, Vpn(3), 1);
            // SAFETY: a page of the space, which is writable now.
            unsafe { platform.address(SPACE, Vpn(3)).cast::<u64>().write_volatile(7) };
        }
        assert_eq!(platform.pages_parted(), 1);
        // Page 3 is evicted, the shared pages stay.
        let mut pages = [3, 4, 5].map(page_of);
        platform.unmap_batch(&mut pages);
        let left = pages.map(|page| page.result);
        assert_eq!(left, [Ok(()), Err(Stop::Busy), Err(Stop::Busy)]);
        assert_eq!((platform.pages_parted(), platform.load(Pfn(3), 0)), (1, 7));
        // If there are no other pages, shared pages are evicted, too.
        let mut pages: Vec<UnmapPage> = (100..228).map(page_of).collect();
        let batches = (1..).take_while(|_| {
            platform.unmap_batch(&mut pages);
            pages.iter().all(|page| page.result.is_err())
        });
        assert_eq!(batches.count(), 8);
        assert_eq!(platform.pages_parted(), 1 + 128);
        drop(other);
        platform.unmap_batch(&mut [4, 5].map(page_of));
        assert_eq!(platform.pages_parted(), 1 + 128);
    }

    #[test]
    fn pages_that_cannot_change_are_not_protected() {
        let Some(platform) = platform(Mapping::Move) else { return };
        let mut pages = [3, 9].map(page_of);
        platform.unmap_batch(&mut pages);
        for page in pages {
            let mapped = platform.map(SPACE, page.vpn, &[page.pfn], Protection::ReadOnly);
            assert_eq!(mapped, Progress::all(1));
        }
        let before = platform.calls().protects;
        let mut pages = pages.map(|page| UnmapPage { mapped: Protection::ReadOnly, ..page });
        platform.unmap_batch(&mut pages);
        assert_eq!(platform.calls().protects, before);
        pages.iter().for_each(|page| assert_eq!(platform.load(page.pfn, 0), 100 + page.vpn.0));
    }

    #[test]
    fn system_calls_fail_at_a_poisoned_page_until_it_is_unpoisoned() {
        let Some(platform) = platform(Mapping::Move) else { return };
        platform.unmap_batch(&mut [page_of(3)]);
        for _ in 0..2 {
            assert!(platform.can_poison() && platform.poison(SPACE, Vpn(3)));
            let path = platform.address(SPACE, Vpn(3)).cast_const().cast();
            // SAFETY: the kernel checks the path.
            let result = unsafe { libc::access(path, 0) };
            let error = std::io::Error::last_os_error().raw_os_error();
            assert_eq!((result, error), (-1, Some(libc::EFAULT)));
        }
        platform.unpoison(SPACE, Vpn(3));
        let mapped = platform.map(SPACE, Vpn(3), &[Pfn(3)], Protection::ReadWrite);
        assert_eq!((mapped, word(&platform, 3), word(&platform, 4)), (Progress::all(1), 103, 104));
    }

    /// With COPY, with MOVE, and with MOVE for pages that may be pinned.
    #[test]
    fn unmapping_ends_at_a_page_that_vanished() {
        for (mapping, pins) in [(Mapping::Copy, 0), (Mapping::Move, 0), (Mapping::Move, 1)] {
            let Some(platform) = platform(mapping) else { return };
            (0..pins).for_each(|_| platform.expect_pins());
            drop_unseen(&platform, 150);
            let frames: Vec<Pfn> = (0..200).map(Pfn).collect();
            let progress = platform.unmap(SPACE, Vpn(0), &frames);
            assert_eq!(progress, Progress::until(150, Stop::Vanished), "{mapping:?} {pins}");
            (0..150)
                .for_each(|page| assert_eq!(platform.load(Pfn(page), 0), 100 + u64::from(page)));
            (151..200).for_each(|page| assert_eq!(word(&platform, page), 100 + page));
            assert_eq!(platform.calls().moves > 0, pins == 1);
        }
    }

    /// mincore does not find a page that the host has swapped out, and cannot tell it from one that
    /// has vanished.
    #[test]
    fn without_the_pagemap_only_vanished_pages_are_gone() {
        let Some(mut platform) = platform(Mapping::Move) else { return };
        platform.residency = Residency::without_pagemap();
        drop_unseen(&platform, 5);
        let mut pages: Vec<UnmapPage> = (0..10).map(page_of).collect();
        platform.unmap_batch(&mut pages);
        for page in &pages {
            let expected = if page.vpn == Vpn(5) { Err(Stop::Vanished) } else { Ok(()) };
            assert_eq!(page.result, expected, "{page:?}");
        }
        let found = Residency::new().of(platform.address(SPACE, Vpn(0)) as u64, 10);
        assert!(found[..10].iter().all(|page| page.presence == Presence::Gone), "no zeros stay");
        let there = platform.address(SPACE, Vpn(20)) as u64;
        let asked = settled(platform.areas.uffd(SPACE), there, platform.stage.zeros());
        assert_eq!((asked, word(&platform, 20)), (Presence::There, 120));
    }

    #[test]
    fn a_program_that_may_pin_pages_has_them_moved() {
        let Some(platform) = platform(Mapping::Move) else { return };
        platform.expect_pins();
        let mut pages: Vec<UnmapPage> = (0..100).map(|n| page_of(n + n / 10)).collect();
        platform.unmap_batch(&mut pages);
        for page in &pages {
            assert_eq!(page.result, Ok(()));
            assert_eq!(platform.load(page.pfn, 0), 100 + page.vpn.0);
        }
        let calls = platform.calls();
        assert_eq!((calls.moves, calls.protects), (10, 0), "a move for each run");
    }

    /// The stage keeps no memory for pages that are in the program.
    #[test]
    fn memory_in_use_stays_within_the_budget() {
        let Some(platform) = platform(Mapping::Move) else { return };
        for round in 0..20 {
            let mut pages: Vec<UnmapPage> = (0..128).map(|n| page_of(n * 4 + round % 4)).collect();
            platform.unmap_batch(&mut pages);
            pages.iter().for_each(|page| assert_eq!(page.result, Ok(())));
            for page in &pages {
                platform.map(SPACE, page.vpn, &[page.pfn], Protection::ReadWrite);
            }
        }
        assert!(platform.stage.backed() <= 128 + 64, "{} pages", platform.stage.backed());
        assert!(platform.frames_peak() <= Bytes::of_pages(PAGES));
        (0..PAGES).for_each(|page| assert_eq!(word(&platform, page), 100 + page));
    }

    /// Imitates the kernel's miscounted moves: some pages are in the area already.
    #[test]
    fn pages_that_the_kernel_moved_but_did_not_count_are_moved() {
        for uncounted in 1u64..16 {
            let Some(platform) = platform(Mapping::Move) else { return };
            let place = |page: u64| (platform.address(SPACE, Vpn(page)) as u64, page as usize);
            let run: Vec<(u64, usize)> = (0..4).map(place).collect();
            let transit = platform.transit_of_all().expect("MOVE");
            for page in (0..4).filter(|page| uncounted >> page & 1 == 1) {
                let to = transit.base() as u64 + (page as usize * PAGE_SIZE) as u64;
                // SAFETY: a mapped page and a hole of the area; no thread is at either.
                let moved = unsafe {
                    transit.uffd().move_pages(to, run[page as usize].0, PAGE_SIZE, Wake::Later)
                };
                assert_eq!(moved, Ok(()));
            }
            assert_eq!(transit.move_out(0, &run, &platform.residency), (4, None), "{uncounted:b}");
            for page in 0..4 {
                let word = transit.base().wrapping_add(page * PAGE_SIZE).cast::<u64>();
                // SAFETY: a page of the area.
                assert_eq!(unsafe { word.read_volatile() }, 100 + page as u64);
            }
        }
    }
}
