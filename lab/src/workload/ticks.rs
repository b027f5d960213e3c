//! A clock cheap enough to time single accesses: a world's ticks, scaled over the run.

use super::world::World;
use highwater_units::Nanos;
use std::time::Duration;

/// Counts ticks from now on; their length follows from the time the run took.
pub(crate) struct Stopwatch<'a, W> {
    world: &'a W,
    began: Nanos,
    first: u64,
}

impl<'a, W: World> Stopwatch<'a, W> {
    /// Starts counting.
    pub(crate) fn start(world: &'a W) -> Stopwatch<'a, W> {
        Stopwatch { world, began: world.now(), first: world.ticks() }
    }

    /// The counter.
    pub(crate) fn ticks(&self) -> u64 {
        self.world.ticks()
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.world.now().since(self.began).0)
    }

    /// Nanoseconds per tick, over the time since the start.
    pub(crate) fn scale(&self) -> f64 {
        let ticks = self.ticks().saturating_sub(self.first).max(1);
        self.elapsed().as_nanos() as f64 / ticks as f64
    }
}
