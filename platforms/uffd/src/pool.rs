//! Pages for the stage: memory that is taken and given back without a system call.
//!
//! ```text
//! Pool -- Cache x CPUs   pages with memory, last in first out: they are in the CPU's cache
//!     |- warm            pages with memory, in excess of the caches
//!     |- cold            pages whose memory was dropped
//!     \- next            pages from here on were never used
//! ```
//! At most `warm_max` pages have memory and no contents, besides the caches: beyond that their
//! memory is dropped, many pages with one system call. The pool is sized for the highest budget,
//! but these limits follow the frames that the process has now ([`Pool::fit`]): of a process with
//! 4 MiB in a budget of 60 MiB, the pool once kept another 1.2 MiB.
//!
//! Conservation: every page is taken, or in exactly one of the four.
//! Locking: a cache, then the rest. Nothing under a lock waits or touches paged memory, except that
//! new pages get their memory under the second.

use crate::drops::Drops;
use highwater_os::sys::{self, Advice};
use highwater_platform::OutOfHostMemory;
use highwater_units::{CpuId, PAGE_SIZE};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most pages in a CPU's cache.
const CACHE_MAX: usize = 64;

/// One part in this many of the pages may have memory and no contents: in all caches together, ...
const CACHED: usize = 64;
/// ... and as warm pages.
const WARM: usize = 128;

/// Pages that get memory at a time: 128 KiB.
const CHUNK: u32 = 32;

/// A CPU's pages, alone on its cache lines.
#[repr(align(128))]
struct Cache(Mutex<Vec<u32>>);

/// Pages outside the caches.
struct Rest {
    warm: Vec<u32>,
    cold: Vec<u32>,
    next: u32,
}

impl Rest {
    /// Takes up to `most` adjacent pages without memory, cold ones first.
    fn take_run(&mut self, most: u32, end: u32) -> Range<u32> {
        let Some(last) = self.cold.pop() else {
            assert!(self.next < end, "no more pages are taken than there are frames");
            let first = self.next;
            self.next = end.min(first + most);
            return first..self.next;
        };
        let mut first = last;
        while last - first + 1 < most && self.cold.last() == Some(&(first - 1)) {
            self.cold.pop();
            first -= 1;
        }
        first..last + 1
    }
}

/// Page numbers from 1 to a maximum. Page 0 is never given out.
pub(crate) struct Pool {
    base: *mut u8,
    end: u32,
    caches: Vec<Cache>,
    /// The most pages in a cache.
    cache_max: AtomicUsize,
    rest: Mutex<Rest>,
    warm_max: AtomicUsize,
    /// Pages with memory: taken, in caches, or warm.
    backed: AtomicU32,
}

// SAFETY: the address is only given to system calls; the pages belong to their takers.
unsafe impl Send for Pool {}
// SAFETY: as above; the rest is Sync.
unsafe impl Sync for Pool {}

impl Pool {
    /// The size of a pool of which at most `pages` pages are taken: it has more, because some lie
    /// in caches of CPUs that do not take any.
    pub(crate) fn size(pages: u32, cpus: usize) -> u32 {
        pages + (cpus * cache_max(pages, cpus)) as u32
    }

    /// The pages from 1 to [`Pool::size`], counted from `base` on.
    pub(crate) fn new(base: *mut u8, pages: u32, cpus: usize) -> Pool {
        let cache_max = cache_max(pages, cpus);
        let cache = |_| Cache(Mutex::new(Vec::with_capacity(cache_max + 1)));
        Pool {
            base,
            end: Pool::size(pages, cpus) + 1,
            caches: (0..cpus).map(cache).collect(),
            cache_max: AtomicUsize::new(cache_max),
            rest: Mutex::new(Rest { warm: Vec::new(), cold: Vec::new(), next: 1 }),
            warm_max: AtomicUsize::new(warm_max(pages)),
            backed: AtomicU32::new(0),
        }
    }

    /// From now on at most `pages` pages are taken: the pool keeps as little memory as one of this
    /// size. More may be taken for a moment.
    pub(crate) fn fit(&self, pages: u32, drops: &Drops) {
        let cache_max = cache_max(pages, self.caches.len());
        let is_smaller = cache_max < self.cache_max.swap(cache_max, Relaxed);
        self.warm_max.store(warm_max(pages), Relaxed);
        for cache in self.caches.iter().filter(|_| is_smaller) {
            let mut cache = lock(&cache.0);
            let excess = cache.len().saturating_sub(cache_max);
            lock(&self.rest).warm.extend(cache.drain(..excess));
        }
        let mut rest = lock(&self.rest);
        while rest.warm.len() > warm_max(pages) {
            self.cool(&mut rest, drops);
        }
    }

    fn cache_max(&self) -> usize {
        self.cache_max.load(Relaxed)
    }

    /// Pages with memory.
    pub(crate) fn backed(&self) -> u32 {
        self.backed.load(Relaxed)
    }

    /// Takes a page. Its contents are undefined.
    pub(crate) fn take(&self, cpu: CpuId) -> Result<u32, OutOfHostMemory> {
        let mut cache = self.cache(cpu);
        if let Some(page) = cache.pop() {
            return Ok(page);
        }
        let mut rest = lock(&self.rest);
        let kept = rest.warm.len().saturating_sub(self.cache_max().div_ceil(2));
        cache.extend(rest.warm.drain(kept..));
        match cache.pop() {
            Some(page) => Ok(page),
            None => self.back(&mut rest, &mut cache),
        }
    }

    /// Gives a page back.
    pub(crate) fn give(&self, cpu: CpuId, page: u32, drops: &Drops) {
        let mut cache = self.cache(cpu);
        let cache_max = self.cache_max();
        if cache.len() >= cache_max {
            let mut rest = lock(&self.rest);
            // The oldest pages, which are the least likely to be in the CPU's cache.
            rest.warm.extend(cache.drain(..cache_max.div_ceil(2)));
            if rest.warm.len() > self.warm_max.load(Relaxed) {
                self.cool(&mut rest, drops);
            }
        }
        cache.push(page);
    }

    /// Drops the memory of half the warm pages.
    fn cool(&self, rest: &mut Rest, drops: &Drops) {
        let half = rest.warm.len() / 2;
        rest.warm.sort_unstable();
        let Rest { warm, cold, .. } = rest;
        let pages = warm.drain(half..).inspect(|page| cold.push(*page));
        let mut count = 0;
        let addresses = pages.map(|page| self.address(page)).inspect(|_| count += 1);
        // SAFETY: pages without contents, which no thread uses while the lock is held.
        unsafe { drops.drop_all(addresses) };
        self.backed.fetch_sub(count, Relaxed);
    }

    /// Gives memory to pages that have none; returns one and puts the others into `cache`.
    fn back(&self, rest: &mut Rest, cache: &mut Vec<u32>) -> Result<u32, OutOfHostMemory> {
        let pages = rest.take_run(CHUNK.min(self.cache_max() as u32), self.end);
        if let Err(error) = self.populate(pages.start, pages.len() as u32) {
            rest.cold.extend(pages);
            return Err(error);
        }
        cache.extend(pages.start + 1..pages.end);
        Ok(pages.start)
    }

    fn populate(&self, first: u32, count: u32) -> Result<(), OutOfHostMemory> {
        let len = count as usize * PAGE_SIZE;
        // SAFETY: pages of the pool without contents.
        let populated =
            unsafe { sys::advise(self.address(first), len, Advice::LinuxPopulateWrite) };
        match populated.map_err(|error| error.raw_os_error()) {
            // Before Linux 5.14 the first touch populates.
            Ok(()) | Err(Some(libc::EINVAL)) => {
                self.backed.fetch_add(count, Relaxed);
                Ok(())
            }
            Err(_) => Err(OutOfHostMemory),
        }
    }

    fn cache(&self, cpu: CpuId) -> MutexGuard<'_, Vec<u32>> {
        lock(&self.caches[usize::from(cpu.0) % self.caches.len()].0)
    }

    fn address(&self, page: u32) -> *mut u8 {
        self.base.wrapping_add(page as usize * PAGE_SIZE)
    }
}

/// Pages that a CPU's cache has at most.
fn cache_max(pages: u32, cpus: usize) -> usize {
    (pages as usize / CACHED / cpus).clamp(4, CACHE_MAX)
}

/// Pages outside the caches that have memory and no contents, at most.
fn warm_max(pages: u32) -> usize {
    (pages as usize / WARM).clamp(16, 1024)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Mapping;

    #[test]
    fn pages_get_memory_in_adjacent_runs() {
        let mut rest = Rest { warm: Vec::new(), cold: vec![9, 3, 4, 5, 6], next: 28 };
        let runs: Vec<_> = (0..4).map(|_| rest.take_run(3, 30)).collect();
        assert_eq!(runs, [4..7, 3..4, 9..10, 28..30]);
    }

    /// One CPU gives back pages that another CPU took: no page is lost, and few free pages keep
    /// memory.
    #[test]
    fn pages_given_back_elsewhere_are_found_again() {
        const PAGES: u32 = 2048;
        let len = (Pool::size(PAGES, 2) as usize + 1) * PAGE_SIZE;
        let base = sys::map_anonymous(len).expect("memory");
        let (pool, drops) = (Pool::new(base, PAGES, 2), Drops::new(Mapping::Move).unwrap());
        for round in 0..4 {
            let (here, there) = (CpuId(round % 2), CpuId((round + 1) % 2));
            let taken: Vec<u32> = (0..PAGES).map(|_| pool.take(here).expect("memory")).collect();
            let mut sorted = taken.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), PAGES as usize, "every page is taken once");
            assert!(sorted[0] > 0);
            taken.iter().for_each(|page| pool.give(there, *page, &drops));
            assert!(
                pool.backed() <= PAGES / CACHED as u32 + PAGES / WARM as u32 + 64,
                "{}",
                pool.backed()
            );
        }
        // SAFETY: mapped above, and not used any more.
        unsafe { sys::unmap(base, len) };
    }

    /// A pool of a large budget, in a process that has little of it.
    #[test]
    fn a_pool_keeps_what_fits_the_pages_that_are_used() {
        const PAGES: u32 = 32_768;
        let len = (Pool::size(PAGES, 2) as usize + 1) * PAGE_SIZE;
        let base = sys::map_anonymous(len).expect("memory");
        let (pool, drops) = (Pool::new(base, PAGES, 2), Drops::new(Mapping::Move).unwrap());
        let turn_over = |pages: u32| {
            let cpus = [CpuId(0), CpuId(1)];
            let take = |at: u32| pool.take(cpus[at as usize % 2]).expect("memory");
            let taken: Vec<u32> = (0..pages).map(take).collect();
            let backed = pool.backed();
            (0..).zip(&taken).for_each(|(at, page)| pool.give(cpus[at % 2], *page, &drops));
            (backed - pages, pool.backed())
        };
        let (_, kept) = turn_over(1024);
        assert!(kept > 128, "{kept} pages: caches and warm pages of a large budget");
        pool.fit(1024, &drops);
        let kept = pool.backed();
        assert!((16..=32).contains(&kept), "{kept} pages: two caches of 8, and at most 16 warm");
        for pages in [1024, 100] {
            let (more, kept) = turn_over(pages);
            assert!(more <= 32 && kept <= 32, "{more} beside {pages} pages, {kept} after them");
        }
        pool.fit(PAGES, &drops);
        assert!(turn_over(1024).1 > 128, "the limits rise again");
        // SAFETY: mapped above, and not used any more.
        unsafe { sys::unmap(base, len) };
    }
}
