//! The threads of a workload on one memory: the first failure ends them all.
//!
//! ```text
//! stretch 0 | stretch 1 | ...     each thread's pages, where it has some of its own
//! ```
//! No lock is held across an access; [`Workers::failure`] is set once and never waited for.

use super::content::{Content, Mismatch};
use super::outcome::{Failure, Measured};
use super::ticks::Stopwatch;
use super::world::{TASK, World};
use super::{Access, Intent, Service, Target};
use std::ops::{Range, RangeInclusive};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Threads that run one workload on one target.
pub(super) struct Workers<'a, T, W> {
    pub(super) target: &'a T,
    pub(super) world: &'a W,
    pub(super) threads: usize,
    pub(super) content: Content,
    /// The first one ends all threads.
    failure: OnceLock<Failure>,
}

/// The pages of one of `threads` threads: all of them together are the set, once.
pub(super) fn stretch(pages: u64, thread: usize, threads: usize) -> Range<u64> {
    let edge = |thread: usize| (u128::from(pages) * thread as u128 / threads as u128) as u64;
    edge(thread)..edge(thread + 1)
}

impl<'a, T: Target, W: World> Workers<'a, T, W> {
    /// `threads` threads on the memory of `service`, with the contents of `seed`.
    pub(super) fn new<S>(service: &'a S, threads: usize, seed: u64) -> Workers<'a, T, W>
    where
        S: Service<Target = T, World = W>,
    {
        let (target, world) = (service.target(), service.world());
        let (content, failure) = (Content::new(seed), OnceLock::new());
        Workers { target, world, threads, content, failure }
    }

    /// Runs `body` on every thread and collects what they return.
    pub(super) fn on_all_threads<R: Send>(
        &self,
        role: &str,
        body: impl Fn(usize) -> Result<R, Failure> + Sync,
    ) -> Result<Vec<R>, Failure> {
        let guarded = |thread| body(thread).map_err(|failure| drop(self.failure.set(failure))).ok();
        let results = self.world.on_threads(self.threads, role, &guarded);
        match self.failure.get() {
            Some(failure) => Err(failure.clone()),
            None => Ok(results.into_iter().flatten().collect()),
        }
    }

    /// Whether a thread has failed.
    pub(super) fn failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// The pages of one thread, where each has its own.
    pub(super) fn stretch(&self, thread: usize) -> Range<u64> {
        stretch(self.target.pages(), thread, self.threads)
    }

    /// Calls `each` for the pages of every thread that `part` names; returns the time it took.
    pub(super) fn each_page(
        &self,
        role: &str,
        part: impl Fn(usize) -> Range<u64> + Sync,
        each: impl Fn(&mut T::Access<'_>, u64) -> Result<(), Failure> + Sync,
    ) -> Result<Duration, Failure> {
        let watch = Stopwatch::start(self.world);
        self.on_all_threads(role, |thread| {
            let mut access = self.target.enter();
            part(thread).take_while(|_| !self.failed()).try_for_each(|page| each(&mut access, page))
        })?;
        Ok(watch.elapsed())
    }

    /// Writes version 0 of every word of every page.
    pub(super) fn fill(&self) -> Result<Duration, Failure> {
        self.write_all("fill", |thread| self.stretch(thread))
    }

    /// Writes version 0 of every word of the pages of every thread that `part` names.
    pub(super) fn write_all(
        &self,
        role: &str,
        part: impl Fn(usize) -> Range<u64> + Sync,
    ) -> Result<Duration, Failure> {
        self.each_page(role, part, |access, page| {
            let words = access.page(page, Intent::Write).map_err(Failure::Denied)?;
            for (word, cell) in words.iter().enumerate() {
                cell.store(self.content.value(page, word, 0), Relaxed);
            }
            Ok(())
        })
    }

    /// Runs `task` on every thread, and measures meanwhile.
    pub(super) fn measure<S, R: Send>(
        &self,
        service: &S,
        task: impl Fn(usize, &Stopwatch<'_, W>) -> Result<R, Failure> + Sync,
    ) -> Result<(Vec<R>, Measured), Failure>
    where
        S: Service<Target = T, World = W>,
    {
        let (before, locks_before) = (service.counters(), service.locks());
        let (calls_before, kernel_before) = (service.calls(), self.world.kernel_counts());
        let (watch, cpu_before) = (Stopwatch::start(self.world), self.world.cpu_use());
        let results = self.on_all_threads(TASK, |thread| task(thread, &watch))?;
        let (run, nanos_per_tick) = (watch.elapsed(), watch.scale());
        let cpu = self.world.cpu_use().since(&cpu_before);
        let kernel = self.world.kernel_counts().since(&kernel_before);
        let calls = service.calls().zip(calls_before).map(|(after, before)| after - before);
        let (after, locks_after) = (service.counters(), service.locks());
        let locks = locks_after.zip(locks_before).map(|(after, before)| after.since(&before));
        Ok((results, Measured { run, cpu, kernel, calls, nanos_per_tick, before, after, locks }))
    }

    /// Checks that `found` is a value of this word and of one of `versions`.
    pub(super) fn check(
        &self,
        page: u64,
        word: usize,
        versions: RangeInclusive<u32>,
        found: u64,
    ) -> Result<(), Failure> {
        let found_version = self.content.version(page, word, found);
        if found_version.is_some_and(|version| versions.contains(&version)) {
            return Ok(());
        }
        let version = *versions.start();
        let expected = self.content.value(page, word, version);
        let seed = self.content.seed();
        let version = Some(version);
        let mismatch = Mismatch { page, word, version, expected, found, found_version, seed };
        Err(Failure::Mismatch(mismatch))
    }

    /// Checks that `found` is what a word holds that was never written.
    pub(super) fn check_untouched(
        &self,
        page: u64,
        word: usize,
        found: u64,
    ) -> Result<(), Failure> {
        if found == 0 {
            return Ok(());
        }
        let found_version = self.content.version(page, word, found);
        let (version, expected, seed) = (None, 0, self.content.seed());
        let mismatch = Mismatch { page, word, version, expected, found, found_version, seed };
        Err(Failure::Mismatch(mismatch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_the_set_once() {
        for (pages, threads) in [(64, 1), (64, 7), (5, 8), (1 << 31, 512)] {
            let ends = (0..threads).map(|thread| stretch(pages, thread, threads));
            let end = ends.fold(0, |end, stretch| {
                assert_eq!(stretch.start, end, "{pages} {threads}");
                stretch.end
            });
            assert_eq!(end, pages);
        }
    }
}
