//! The passes.

use super::bench::Bench;
use super::config::{Pass, WARM_UP};
use crate::workload::Arena;
use crate::workload::outcome::Failure;
use crate::workload::tally::Tally;
use crate::workload::ticks::Stopwatch;
use crate::workload::world::World;
use highwater_mm::Mobility;
use highwater_units::Order;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Intervals between two passes: 5 s on the whole machine.
const PAUSE: u32 = 40;

impl<S: Arena + Sync> Bench<'_, S> {
    /// All three.
    pub(super) fn test(&self, watch: &Stopwatch<'_, S::World>) -> Result<Vec<Pass>, Failure> {
        self.wait(self.config.interval * WARM_UP + self.config.warm_up);
        let mut passes = vec![self.pass(watch)];
        self.wait(self.config.interval * PAUSE);
        passes.push(self.pass(watch));
        self.end_builds();
        passes.push(self.pass(watch));
        Ok(passes)
    }

    /// Allocates blocks one after the other, and holds them to the end.
    fn pass(&self, watch: &Stopwatch<'_, S::World>) -> Pass {
        let before = self.service.counters();
        let (mut latency, mut blocks) = (Tally::new().latency, Vec::new());
        let mut attempts = 0;
        while attempts < self.config.attempts() && !self.workers.failed() {
            let began = watch.ticks();
            blocks.extend(self.service.alloc_run(Order::LARGE, Mobility::Movable));
            latency.saturating_record(watch.ticks().saturating_sub(began));
            attempts += 1;
            self.workers.world.sleep(self.config.interval);
        }
        let successes = blocks.len() as u64;
        let counters = [before, self.service.counters()];
        blocks.into_iter().for_each(|first| self.service.free_run(first));
        Pass { attempts, successes, latency, counters }
    }

    /// Ends the builds, and deletes their files.
    fn end_builds(&self) {
        self.ending.store(true, Relaxed);
        while self.running.load(Relaxed) > 0 && !self.workers.failed() {
            self.workers.world.sleep(self.config.interval);
        }
        self.service.drop_pages(0..self.config.layout.files());
        self.wait(self.config.interval * PAUSE);
    }

    /// Sleeps, unless a thread fails.
    fn wait(&self, time: Duration) {
        let watch = Stopwatch::start(self.workers.world);
        while watch.elapsed() < time && !self.workers.failed() {
            self.workers.world.sleep(self.config.interval);
        }
    }
}
