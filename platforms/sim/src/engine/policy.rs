//! The choice of the next CPU: by virtual time, or at random from a seed.
//!
//! The random policies follow Shuttle's schedulers: random walk, round robin, and PCT (Burckhardt
//! et al., ASPLOS 2010). PCT runs the thread with the highest random priority, and at a few random
//! steps the running thread drops to the lowest one. Departing from PCT, a thread that waits for
//! another (`relax`) drops too, so that a spinning thread does not starve the one it waits for.

use highwater_units::Prng;

/// How the next CPU to run is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The CPU with the smallest clock: the machine's timing.
    SmallestClock,
    /// A CPU chosen uniformly, at one in `period` shared accesses.
    Random {
        /// 1: at every access.
        period: u32,
    },
    /// Round robin, with `quantum` shared accesses each.
    RoundRobin {
        /// At least 1.
        quantum: u32,
    },
    /// The highest random priority; the running thread drops at `changes` of the first `steps`
    /// shared accesses.
    Pct {
        /// How often the running thread drops: the bug depth minus one.
        changes: u32,
        /// Shared accesses among which the changes are spread.
        steps: u32,
    },
}

impl Policy {
    /// Draws a policy.
    pub fn draw(random: &mut Prng) -> Policy {
        match random.below(8) {
            0..2 => Policy::SmallestClock,
            2..5 => Policy::Random { period: 1 << random.below(8) },
            5 => Policy::RoundRobin { quantum: 1 + random.below(30) as u32 },
            _ => Policy::Pct { changes: 1 + random.below(20) as u32, steps: 200_000 },
        }
    }
}

/// The state of a random policy.
pub(super) struct Oracle {
    /// Shared accesses so far.
    step: u64,
    /// PCT: the remaining steps at which the running thread drops, the next one last.
    changes: Vec<u64>,
    /// PCT: the next priority below all others.
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

    /// Whether to switch at this shared access.
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

    /// Takes a priority below all others.
    pub(super) fn lowest(&mut self) -> i64 {
        self.bottom -= 1;
        self.bottom
    }
}

/// The decision at a shared access.
pub(super) enum Stray {
    No,
    Switch,
    Fall,
}
