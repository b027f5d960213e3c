//! Which CPU runs next: in the order of virtual time, or drawn from a seed.
//!
//! The oracles follow Shuttle's schedulers: random walk, round robin, and PCT (Burckhardt et al.,
//! ASPLOS 2010): random priorities, the highest runs, and at a few random steps the running thread
//! falls to the bottom. Departure: a thread that says it waits for another (`relax`) falls, too,
//! so that a high one that spins does not starve whom it waits for.

use highwater_units::Prng;

/// How the next CPU to run is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Always the one with the smallest clock: the machine's own timing.
    SmallestClock,
    /// Any, each with the same chance; a switch at one shared access in `period`.
    Random {
        /// 1: at every one.
        period: u32,
    },
    /// In turn, after `quantum` shared accesses each.
    RoundRobin {
        /// At least 1.
        quantum: u32,
    },
    /// By priorities that change at `changes` steps among the first `steps`.
    Pct {
        /// Times the running thread falls (the depth of bugs looked for, less one).
        changes: u32,
        /// Shared accesses over which the changes are spread.
        steps: u32,
    },
}

impl Policy {
    /// One of all, from a swarm's seed.
    pub fn draw(random: &mut Prng) -> Policy {
        match random.below(8) {
            0..2 => Policy::SmallestClock,
            2..5 => Policy::Random { period: 1 << random.below(8) },
            5 => Policy::RoundRobin { quantum: 1 + random.below(30) as u32 },
            _ => Policy::Pct { changes: 1 + random.below(20) as u32, steps: 200_000 },
        }
    }
}

/// What an oracle remembers.
pub(super) struct Oracle {
    /// Shared accesses so far.
    step: u64,
    /// PCT: steps at which the running thread falls, ascending.
    changes: Vec<u64>,
    /// PCT: the next priority below all.
    bottom: i64,
}

impl Oracle {
    pub(super) fn new(policy: Policy, random: &mut Prng) -> Oracle {
        let mut changes = match policy {
            Policy::Pct { changes, steps } => {
                (0..changes).map(|_| random.below(u64::from(steps))).collect()
            }
            _ => Vec::new(),
        };
        changes.sort_unstable();
        changes.reverse();
        Oracle { step: 0, changes, bottom: 0 }
    }

    /// Whether the running thread is to stop at this shared access.
    pub(super) fn strays(&mut self, policy: Policy, random: &mut Prng) -> Stray {
        self.step += 1;
        match policy {
            Policy::SmallestClock => Stray::No,
            Policy::Random { period } if random.below(u64::from(period)) == 0 => Stray::Switch,
            Policy::RoundRobin { quantum } if self.step.is_multiple_of(quantum.into()) => {
                Stray::Switch
            }
            Policy::Pct { .. } if self.changes.last().is_some_and(|at| *at <= self.step) => {
                self.changes.pop();
                Stray::Fall
            }
            _ => Stray::No,
        }
    }

    /// A priority below all others.
    pub(super) fn lowest(&mut self) -> i64 {
        self.bottom -= 1;
        self.bottom
    }
}

/// What a shared access brings.
pub(super) enum Stray {
    No,
    Switch,
    Fall,
}
